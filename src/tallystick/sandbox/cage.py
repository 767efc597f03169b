"""The child's half of a sandbox: lock this process, try every way out, report, and go on.

The order is fixed: import and load what will be needed; make the namespaces and the root; close
descriptors; give up rights; install the filter; try the channels; report and wait for the
supervisor, who looks for itself. No file of a model has been opened until then. The process that
stays outside and only waits tries the same channels (the positive control) at the same time.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import importlib
import os
import resource
import select
import sys
from collections.abc import Iterator
from typing import Final

from tallystick.canonical.json import JSONValue, jcs, parse_strict
from tallystick.contracts.codec import decode, encode
from tallystick.contracts.sandbox_profile import at_least
from tallystick.errors import RunFailedError, SandboxError
from tallystick.sandbox import kernel, mounts, namespaces, privileges, probes, seccomp
from tallystick.sandbox.cage_spec import MAX_SPEC, CageSpec, LockedReport, Observations, Refusal

# So much is written at once or not at all: two processes report on one pipe.
_ATOMIC: Final = select.PIPE_BUF
_STANDARD: Final = (0, 1, 2)
# The C library loads it by name when a thread is cancelled: there is no path to it inside.
_LATE_LIBRARIES: Final = ("libgcc_s.so.1",)


def enter(descriptor: int, *, result: int) -> None:
    """Lock this process as the document behind ``descriptor`` says; ``result`` stays open.

    Returns in the locked process, which from level ``namespaces`` on is another one than the
    caller's. Where the level cannot be reached the supervisor is told, and the process ends.
    """
    spec = _read_spec(descriptor)
    os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    cage = _Cage(spec, (*_STANDARD, *spec.keep, result))
    cage.prepare()
    if at_least(spec.level, "namespaces"):
        cage.leave()
    else:
        cage.control()
    if at_least(spec.level, "process"):
        cage.drop()
    cage.report()


class _Cage:
    """One lock in the making; after ``leave`` it goes on in another process."""

    def __init__(self, spec: CageSpec, keep: tuple[int, ...]) -> None:
        self._spec = spec
        self._keep = keep
        self._pid = os.getpid()
        self._shared = at_least(spec.level, "namespaces")
        self._filter = seccomp.program() if spec.level == "full" else None
        self._last_capability = privileges.last_capability()
        self._landlock = kernel.landlock_abi()

    @contextlib.contextmanager
    def _at(self, step: str) -> Iterator[None]:
        """Name the step in the body: an OSError there ends this process as a refusal."""
        try:
            yield
        except OSError as error:
            name = errno.errorcode.get(error.errno or 0, "unknown")
            text = str(error)[:1000].encode("utf-8", "replace").decode()
            self._send("refused", encode(Refusal(step, name, text)))
            sys.stderr.flush()
            os._exit(SandboxError.exit_code)

    def _send(self, kind: str, body: JSONValue) -> None:
        data = memoryview(jcs({"kind": kind, "body": body}) + b"\n")
        if self._shared and len(data) > _ATOMIC:
            raise RunFailedError("a report would mix with that of the other process")
        while data:
            data = data[os.write(self._spec.report, data) :]

    def prepare(self) -> None:
        """Import and load what will not be found, or only slowly, in the finished sandbox."""
        for name in self._spec.modules:
            importlib.import_module(name)
        for library in _LATE_LIBRARIES:
            with contextlib.suppress(OSError):
                ctypes.CDLL(library)
        with self._at("system"):
            if sys.platform != "linux" and self._spec.level != "none":
                raise OSError(errno.ENOSYS, "levels above none are for Linux")
        with self._at("library"):
            for path in self._spec.libraries:
                ctypes.CDLL(path)
            if self._spec.level == "full" and not seccomp.is_supported():
                raise OSError(errno.ENOSYS, "the filter is for x86-64 Linux")

    def control(self) -> None:
        """Try the channels in a process that is not locked, and report what was seen."""
        seen = probes.try_channels(self._spec.targets)
        self._send("control", encode(Observations.of(seen)))

    def leave(self) -> None:
        """Go on as the first process of namespaces of its own, in a root of its own."""
        paths = mounts.minimal([*sys.path, *mounts.mapped_files(), *self._spec.files])
        root = privileges.may_administer(namespaces.NOBODY)
        with self._at("fork"):
            # This process may have threads, the forked one has not.
            namespaces.fork_and_wait(self.control)
        with self._at("namespaces"):
            namespaces.enter_as_root() if root else namespaces.enter_as_user()
            namespaces.fork_and_wait()
        with self._at("root"):
            self._pid = int(os.readlink("/proc/self"))  # still that of the supervisor's /proc
            namespaces.name_host()
            mounts.enter_root(paths)
            os.umask(0o077)
        if root:
            with self._at("user namespace"):
                namespaces.leave_root()
                privileges.die_with_parent()  # the change of user has cleared it
        with self._at("runtime"):
            for path in sys.path:
                if path in paths and os.path.isdir(path):
                    os.listdir(path)

    def drop(self) -> None:
        """Close what was inherited; give up rights; set the limits."""
        spec = self._spec
        with self._at("descriptors"):
            privileges.close_descriptors((*self._keep, spec.report, spec.go))
        with self._at("limits"):
            if spec.limits is not None:
                privileges.apply_limits(
                    spec.limits,
                    own_count=at_least(spec.level, "namespaces"),
                    model_size=spec.model_size,
                    writes=spec.writes,
                )
        with self._at("privileges"):
            privileges.no_new_privileges()
            privileges.drop_capabilities(self._last_capability)

    def report(self) -> None:
        """Install the filter, try the channels from inside, report, wait to be looked at."""
        spec = self._spec
        entries: dict[str, str | None] = {}
        if self._filter is not None:
            entries = probes.try_entries(self._install)
            with self._at("filter"):
                self._install()
        seen = probes.try_channels(spec.targets) | entries
        digest = None if self._filter is None else seccomp.filter_digest(self._filter)
        report = LockedReport(self._pid, self._landlock, digest, Observations.of(seen))
        self._send("locked", encode(report))
        answer = os.read(spec.go, 1)
        os.close(spec.go)
        os.close(spec.report)
        if not answer:
            os._exit(SandboxError.exit_code)

    def _install(self) -> None:
        assert self._filter is not None
        seccomp.install(self._filter)


def _read_spec(descriptor: int) -> CageSpec:
    data = os.pread(descriptor, MAX_SPEC, 0)
    return decode(CageSpec, parse_strict(data, max_bytes=MAX_SPEC), where="cage")
