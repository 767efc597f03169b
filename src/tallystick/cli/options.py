"""Options that several verbs share, so that they are spelled and explained once."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from click.core import ParameterSource

from tallystick.errors import UsageError

if TYPE_CHECKING:
    from tallystick.canonical.json import JSONValue

F = TypeVar("F", bound=Callable[..., Any])

#: A path given by the user; whether it exists is the library's to say, with its own exit code.
PATH: Final = click.Path(path_type=Path)


def json_option(function: F) -> F:
    """Add ``--json``; the verb receives ``as_json: bool``."""
    return click.option(
        "--json", "as_json", is_flag=True, help="Print the result (and any error) as JSON."
    )(function)


def model_option(function: F) -> F:
    """Add the required ``--model``; the verb receives ``model: str``."""
    return click.option(
        "--model",
        required=True,
        metavar="MODEL",
        help="Name of a model that was pulled or added, or the path of a GGUF file.",
    )(function)


def sandbox_option(function: F) -> F:
    """Add ``--sandbox``; the verb receives ``sandbox: str``, for ``profiles.strictly``."""
    return click.option(
        "--sandbox",
        default="none",
        show_default=True,
        metavar="PROFILE",
        help="What has to hold each process that opens the model: none, process, namespaces, full, "
        "or a .yaml file. Its own level or exit 5.",
    )(function)


def key_option(function: F) -> F:
    """Add the repeatable ``--key``; the verb receives ``key: tuple[Path, ...]``."""
    return click.option(
        "--key",
        type=PATH,
        multiple=True,
        metavar="FILE",
        help="Public key (PEM) whose signatures are accepted; may be repeated.",
    )(function)


def trust_policy_option(function: F) -> F:
    """Add ``--trust-policy``; the verb receives ``trust_policy: Path | None``."""
    return click.option(
        "--trust-policy",
        type=PATH,
        metavar="FILE",
        help="Document that says which key may sign what, and when.",
    )(function)


def bundle_key_options(function: F) -> F:
    """Add the keys of a bundle; the verb gets ``audit_key_file`` and ``bundle_key_file``."""
    function = click.option(
        "--bundle-key-file",
        type=PATH,
        metavar="FILE",
        help="32 raw bytes that open this one bundle, as handed to an auditor.",
    )(function)
    return click.option(
        "--audit-key-file",
        type=PATH,
        metavar="FILE",
        help="32 raw bytes that open the owner's bundles.",
    )(function)


def network_option(function: F) -> F:
    """Add ``--network``; the verb receives ``network: str | None``, for :func:`network_of`."""
    return click.option(
        "--network",
        metavar="HEX",
        help="Network id (64 hex digits) whose receipts count. Default: the local network.",
    )(function)


def network_of(text: str | None) -> bytes:
    """Return the network id that ``--network`` gives, the local one without it.

    Raises UsageError for a text that is no id.
    """
    if text is None:
        from tallystick.contracts.commitments import local_network_id

        return local_network_id()
    if re.fullmatch(r"[0-9a-f]{64}", text) is None or not int(text, 16):
        raise UsageError(
            "--network is no network id",
            expected="64 lower-case hex digits, not all of them 0",
            found=f"{len(text)} characters",
        )
    return bytes.fromhex(text)


#: Options that decide a verdict, by parameter, and what each gives.
_DECISIVE: Final = {
    "key": "trust",
    "trust_policy": "trust",
    "audit_key_file": "the bundle's key",
    "bundle_key_file": "the bundle's key",
    "bundle_key_a": "the key of A's bundle",
    "bundle_key_b": "the key of B's bundle",
    "network": "the network",
    "now": "the time",
}


def from_environment(context: click.Context) -> dict[str, JSONValue]:
    """Return the variables that gave a verb what decides its verdict, each with what it gave.

    Nobody named these on the command line, so a report has to.
    """
    return {
        f"{context.auto_envvar_prefix}_{name.upper()}": what
        for name, what in _DECISIVE.items()
        if context.get_parameter_source(name) is ParameterSource.ENVIRONMENT
    }


def origin_lines(found: dict[str, JSONValue]) -> list[str]:
    """Return :func:`from_environment` in words."""
    return [f"{what} from {variable}" for variable, what in found.items()]


def origin_document(found: dict[str, JSONValue]) -> dict[str, JSONValue]:
    """Return the member of a JSON report that says the same, none where nothing came from there."""
    return {"from_environment": found} if found else {}


def ring_depth_option(function: F) -> F:
    """Add ``--ring-depth``; the verb receives ``ring_depth: int``."""
    return click.option(
        "--ring-depth",
        type=click.IntRange(0, 4096),
        default=0,
        show_default=True,
        metavar="K",
        help="Layers of the model in memory at a time, for a model larger than memory; changes the "
        "speed, never a bit. 0: all of them.",
    )(function)


def threads_option(function: F) -> F:
    """Add ``--threads``; the verb receives ``threads: int | None``."""
    return click.option(
        "--threads",
        type=click.IntRange(1, 512),
        metavar="N",
        help="Threads of the engine; changes the speed, never a bit. Default: all cores.",
    )(function)
