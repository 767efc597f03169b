"""What makes the engine's loader refuse a well-formed model file (docs/spec/models.md).

Three kinds of file come out of converters that are newer or wider than the loader: M-RoPE section
lists without their trailing zero, ``ssm_dt`` tensors without the ``.bias`` suffix, and the tensors
of sibling models (a vision tower ``v.*``, a multi-token predictor ``mtp.*``) in the same file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from tallystick.engine.gguf_writer import ValueType
from tallystick.models.gguf import Entry, Header, TensorInfo

SECTIONS_SUFFIX: Final = ".rope.dimension_sections"
SECTIONS: Final = 4
SIBLING_PREFIXES: Final = ("v.", "mtp.")
_BARE_SSM_DT = re.compile(r"blk\.[0-9]{1,6}\.ssm_dt")
_SECTION_TYPES: Final = (ValueType.UINT32, ValueType.INT32)


@dataclass(frozen=True, slots=True)
class Irregularities:
    """The entries and tensors to change, in file order; all empty for a regular file."""

    short_sections: tuple[Entry, ...]
    bare_ssm_dt: tuple[TensorInfo, ...]
    siblings: tuple[TensorInfo, ...]

    def reasons(self) -> tuple[str, ...]:
        """Return one sentence per kind that is present, in a fixed order."""
        found = [f"{entry.key} has 3 elements instead of 4" for entry in self.short_sections]
        if self.bare_ssm_dt:
            count = len(self.bare_ssm_dt)
            found.append(f"{count} ssm_dt tensors have no .bias suffix")
        for prefix in SIBLING_PREFIXES:
            count = sum(tensor.name.startswith(prefix) for tensor in self.siblings)
            if count:
                found.append(f"{count} tensors of a sibling model ({prefix}*)")
        return tuple(found)


def find_irregularities(header: Header, architecture: str) -> Irregularities:
    """Return what has to be normalised in a file of ``architecture``.

    A file that has nothing but sibling tensors is not a text model with additions: its tensors
    are not counted as siblings.
    """
    siblings = tuple(
        tensor for tensor in header.tensors if tensor.name.startswith(SIBLING_PREFIXES)
    )
    if len(siblings) == len(header.tensors):
        siblings = ()
    sections = header.find(architecture + SECTIONS_SUFFIX)
    short = sections is not None and _is_short(sections)
    names = {tensor.name for tensor in header.tensors}
    return Irregularities(
        short_sections=(sections,) if sections is not None and short else (),
        bare_ssm_dt=tuple(
            tensor
            for tensor in header.tensors
            if _BARE_SSM_DT.fullmatch(tensor.name) and f"{tensor.name}.bias" not in names
        ),
        siblings=siblings,
    )


def _is_short(entry: Entry) -> bool:
    return (
        entry.type is ValueType.ARRAY
        and entry.item_type in _SECTION_TYPES
        and entry.count == SECTIONS - 1
    )
