"""``tallystick.normalise/v1``: from a file that the engine's loader refuses to one that it takes.

A child program and the call that starts it. The transform is deterministic and versioned: equal
source bytes give equal derived bytes (docs/spec/models.md). Metadata keeps its bytes and order but
for the section list, tensors keep their bytes and order; dropped ones leave no gap.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Final

from tallystick.canonical.json import JSONValue
from tallystick.contracts.sandbox_profile import SandboxProfile
from tallystick.engine.gguf_writer import ValueType
from tallystick.errors import InputError, RunFailedError, UnavailableError
from tallystick.models.children import (
    PARSER_PATIENCE,
    bounded_memory,
    reader_confinement,
    requested_descriptor,
)
from tallystick.models.files import Progress
from tallystick.models.gguf import (
    MAGIC,
    Entry,
    Header,
    TensorInfo,
    align,
    encoded_value,
    read_header,
    read_string,
)
from tallystick.models.gguf_cursor import SIZES, read_at
from tallystick.models.irregular import SECTIONS, Irregularities, find_irregularities
from tallystick.sandbox.channel import Channel, serve
from tallystick.sandbox.process import Child

TRANSFORM: Final = "tallystick.normalise/v1"
PROGRAM: Final = "tallystick.models.normalise"
_CHUNK: Final = 4 * 1024 * 1024
_REPORT_EVERY: Final = 64 * 1024 * 1024
_MAX_ARCHITECTURE: Final = 64


def write_normalised(
    source: int, target: int, progress: Progress, sandbox: SandboxProfile | None = None
) -> int:
    """Write the derived file of ``source`` into ``target`` (both descriptors) through a child.

    It is held by ``sandbox``, if there is one; SandboxError where that is not possible.

    Returns its length in bytes. Raises InputError for a file that is not sound or needs nothing,
    UnavailableError when the disk is full, RunFailedError when the child fails.
    """
    written: int | None = None
    request: JSONValue = {"source": source, "target": target}
    held = reader_confinement(sandbox, writes=True)
    os.lseek(target, 0, os.SEEK_SET)
    with Child(PROGRAM, request, pass_fds=(source, target), confinement=held) as child:
        for message in child.messages(idle_timeout=PARSER_PATIENCE):
            body = message.body
            if message.kind == "progress":
                progress("writing", _count(body, "done"), _count(body, "total"))
            elif message.kind == "result":
                written = _count(body, "written")
    if written is None or os.fstat(target).st_size != written:
        raise RunFailedError("the transform ended without its result")
    return written


def _count(body: dict[str, Any], name: str) -> int:
    value = body.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise RunFailedError("the child sent a message of unknown form")
    return value


def transform(source: int, target: int, progress: Progress) -> int:
    """Write the derived file; runs in the child. Returns its length in bytes."""
    header = read_header(source)
    entry = header.find("general.architecture")
    name = read_string(source, entry, limit=_MAX_ARCHITECTURE) if entry is not None else None
    changes = find_irregularities(header, (name or b"").decode("utf-8", "replace"))
    if not changes.reasons():
        raise InputError("the file needs no normalising", hint="add it without --normalise")
    dropped = {tensor.name for tensor in changes.siblings}
    kept = [tensor for tensor in header.tensors if tensor.name not in dropped]
    writer = _Writer(target)
    writer.write(MAGIC + header.version.to_bytes(4, "little"))
    writer.write(len(kept).to_bytes(8, "little") + len(header.entries).to_bytes(8, "little"))
    for item in header.entries:
        for piece in _entry_bytes(source, item, changes):
            writer.write(piece)
    _write_infos(writer, kept, changes, header.alignment)
    writer.pad(header.alignment)
    _write_data(writer, source, header, kept, progress)
    return writer.position


class _Writer:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.position = 0

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                written = os.write(self._descriptor, view)  # pwrite is not for the sandboxed
                self.position += written
                view = view[written:]
        except OSError as error:
            raise UnavailableError(
                "the derived model file could not be written",
                found=error.strerror,
                hint="make room, or set TALLYSTICK_HOME to another place",
            ) from error

    def pad(self, alignment: int) -> None:
        self.write(bytes(align(self.position, alignment) - self.position))


def _entry_bytes(source: int, entry: Entry, changes: Irregularities) -> Iterator[bytes]:
    yield read_at(source, entry.start, entry.value_start - entry.start)
    if entry not in changes.short_sections:
        yield from encoded_value(source, entry)
        return
    width = SIZES[entry.item_type]
    yield int(ValueType.ARRAY).to_bytes(4, "little") + int(entry.item_type).to_bytes(4, "little")
    yield SECTIONS.to_bytes(8, "little")
    yield read_at(source, entry.end - entry.count * width, entry.count * width)
    yield bytes((SECTIONS - entry.count) * width)


def _write_infos(
    writer: _Writer, kept: list[TensorInfo], changes: Irregularities, alignment: int
) -> None:
    bare = {tensor.name for tensor in changes.bare_ssm_dt}
    offset = 0
    for tensor in kept:
        name = (tensor.name + ".bias" if tensor.name in bare else tensor.name).encode("utf-8")
        info = [len(name).to_bytes(8, "little"), name, len(tensor.shape).to_bytes(4, "little")]
        info += [length.to_bytes(8, "little") for length in tensor.shape]
        info += [tensor.type_id.to_bytes(4, "little"), offset.to_bytes(8, "little")]
        writer.write(b"".join(info))
        offset = align(offset + tensor.size, alignment)


def _write_data(
    writer: _Writer, source: int, header: Header, kept: list[TensorInfo], progress: Progress
) -> None:
    total = sum(tensor.size for tensor in kept)
    done = reported = 0
    for tensor in kept:
        start = header.data_offset + tensor.offset
        for position in range(start, start + tensor.size, _CHUNK):
            piece = read_at(source, position, min(_CHUNK, start + tensor.size - position))
            writer.write(piece)
            done += len(piece)
            if done - reported >= _REPORT_EVERY:
                progress("writing", done, total)
                reported = done
        writer.pad(header.alignment)


def handle(request: Any, channel: Channel) -> None:
    """Serve one request: ``source`` and ``target`` are descriptors, the target is empty."""
    source = requested_descriptor(request, "source")
    target = requested_descriptor(request, "target")
    with bounded_memory():
        written = transform(source, target, channel.progress)
    channel.send("result", {"written": written})


if __name__ == "__main__":
    serve(handle)
