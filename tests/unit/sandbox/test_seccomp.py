"""The filter, run by a small interpreter of classic BPF: what it decides about every call."""

from __future__ import annotations

import errno
import hashlib
import struct

import pytest

from tallystick.sandbox import seccomp
from tallystick.sandbox.seccomp import ALLOW, ALLOWED, KILL, NUMBERS, RULES, program

X86_64 = 0xC000003E
I386 = 0x40000003
X32 = 0x40000000
THREAD = 0x3D0F00  # what the C library's threads are made with
FAIL = 0x00050000
CODE = tuple(struct.iter_unpack("<HBBI", program()))


def decide(number: int, *arguments: int, architecture: int = X86_64) -> int:
    """Run the program as the kernel does and return its verdict."""
    padded = (*arguments, 0, 0, 0, 0, 0, 0)[:6]
    data = struct.pack("<IIQ6Q", number, architecture, 0, *padded)
    accumulator, at = 0, 0
    while True:
        operation, yes, no, k = CODE[at]
        at += 1
        if operation == seccomp.LOAD:
            accumulator = int(struct.unpack_from("<I", data, k)[0])
        elif operation == seccomp.AND:
            accumulator &= k
        elif operation == seccomp.JUMP:
            at += k
        elif operation == seccomp.JUMP_EQUAL:
            at += yes if accumulator == k else no
        elif operation == seccomp.JUMP_AT_LEAST:
            at += yes if accumulator >= k else no
        else:
            assert operation == seccomp.RETURN
            return int(k)


def named(name: str, *arguments: int) -> int:
    return decide(NUMBERS[name], *arguments)


def test_only_what_is_listed_is_allowed_without_arguments() -> None:
    allowed = {number for number in range(600) if decide(number) == ALLOW}
    free = {NUMBERS[name] for name in ALLOWED}
    # With all arguments zero: limits of its own.
    assert allowed == free | {NUMBERS["prlimit64"]}
    special = {NUMBERS[rule.call] for rule in RULES}
    others = set(range(600)) - allowed - special
    assert {decide(number) for number in others} == {FAIL | errno.EPERM}


@pytest.mark.parametrize(
    ("number", "what"),
    [
        (59, "execve"), (322, "execveat"), (57, "fork"), (58, "vfork"), (101, "ptrace"),
        (42, "connect"), (44, "sendto"), (46, "sendmsg"), (49, "bind"), (62, "kill"),
        (165, "mount"), (272, "unshare"), (308, "setns"), (319, "memfd_create"),
        (321, "bpf"), (298, "perf_event_open"), (426, "io_uring_enter"), (427, "io_uring_register"),
        (310, "process_vm_readv"), (434, "pidfd_open"), (438, "pidfd_getfd"), (304, "open_by"),
        (157, "prctl"), (87, "unlink"), (82, "rename"), (83, "mkdir"), (90, "chmod"), (2, "open"),
        (85, "creat"), (161, "chroot"), (105, "setuid"), (250, "keyctl"), (323, "userfaultfd"),
    ],
)  # fmt: skip
def test_dangerous_calls_are_refused(number: int, what: str) -> None:
    assert decide(number) == FAIL | errno.EPERM, what


@pytest.mark.parametrize("number", [0, 41, 59, 359])
def test_other_entries_kill(number: int) -> None:
    assert decide(number, architecture=I386) == KILL
    assert decide(number, architecture=0xC00000B7) == KILL
    assert decide(X32 | number) == KILL
    assert decide(0xFFFFFFFF) == KILL


@pytest.mark.parametrize("family", [0, 1, 2, 10, 16, 17, 38, 40, 44, 0xFFFFFFFF])
def test_no_family_of_sockets_is_allowed(family: int) -> None:
    assert named("socket", family) == FAIL | errno.EAFNOSUPPORT
    assert named("socketpair", family) == FAIL | errno.EAFNOSUPPORT


def test_threads_are_allowed_and_processes_are_not() -> None:
    assert named("clone", THREAD) == ALLOW
    for flags in (0, 17, 0x4000 | 17, 0x100, 0x10000, THREAD & ~0x100, THREAD & ~0x10000):
        assert named("clone", flags) == FAIL | errno.EPERM, hex(flags)
    for namespace in (0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000, 0x20000):
        assert named("clone", THREAD | namespace) == FAIL | errno.EPERM, hex(namespace)
    assert named("clone3") == FAIL | errno.ENOSYS
    assert named("io_uring_setup", 4) == FAIL | errno.ENOSYS


def test_few_arguments_are_allowed() -> None:
    assert named("ioctl", 1, 0x5401) == named("ioctl", 1, 0x5451) == ALLOW
    for request in (0, 0x5412, 0x5413, 0x541B, 0x8912):  # TIOCSTI among them
        assert named("ioctl", 1, request) == FAIL | errno.ENOTTY
    assert named("prctl", 15, 0x1000) == named("prctl", 0x53564D41, 0) == ALLOW
    assert named("prctl", 4, 0) == ALLOW
    for option, value in ((4, 1), (1, 0), (22, 2), (24, 1), (38, 1), (35, 8), (0, 0)):
        assert named("prctl", option, value) == FAIL | errno.EPERM
    assert named("prlimit64", 0, 9) == ALLOW
    assert named("prlimit64", 1, 9) == named("prlimit64", 4242, 9) == FAIL | errno.EPERM


def test_the_digest_is_that_of_the_bytes() -> None:
    data = program()
    assert len(data) % 8 == 0
    assert len(data) // 8 <= 4096
    assert seccomp.filter_digest(data) == "sha256:" + hashlib.sha256(data).hexdigest()
    assert set(ALLOWED).isdisjoint(rule.call for rule in RULES)
    assert len(set(ALLOWED)) == len(ALLOWED)
    assert set(NUMBERS) == set(ALLOWED) | {rule.call for rule in RULES}
