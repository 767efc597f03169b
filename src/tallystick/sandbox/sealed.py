"""Documents for a child, in memory that nobody can change any more."""

from __future__ import annotations

import fcntl
import os
import tempfile

from tallystick.canonical.json import JSONValue, jcs


def sealed(document: JSONValue) -> int:
    """Return a descriptor, at offset 0, of a read-only copy of ``document``'s canonical bytes."""
    data = jcs(document)
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("request", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        _write_all(descriptor, data)
        seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
        _write_all(descriptor, data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
