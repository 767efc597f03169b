"""Whether what a run will leave behind fits its bounds, before anything is generated."""

from __future__ import annotations

from collections.abc import Callable

from tallystick.errors import UsageError

Fits = Callable[[int], bool]  # number of tokens to generate


def require_room(
    asked: int, fits: Fits, *, what: str, bound: str, found: str, instead: str
) -> None:
    """Raise UsageError when ``asked`` tokens to generate do not fit; name the largest number.

    ``what`` would be too large, ``bound`` is what it may be and ``found`` what it would be;
    ``instead`` says what to do where no number fits.
    """
    if fits(asked):
        return
    largest = next((n for n in range(asked, 0, -1) if fits(n)), 0)
    raise UsageError(
        f"{what} of this run would be larger than its readers accept",
        expected=f"at most {bound}",
        found=found,
        hint=f"--n-predict {largest} is the largest that fits this prompt"
        if largest
        else f"{instead}: nothing can be generated after this one",
    )
