"""The filter of level ``full``: which system calls a finished child may make, as data.

A classic BPF program, made of the tables below and installed once, before the model is opened.
What is not listed fails with EPERM; the 32-bit and x32 entries kill the process. x86-64 only.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import platform
import struct
import sys
from dataclasses import dataclass
from typing import Final

from tallystick.sandbox import kernel

# struct sock_filter's code: operation, and where its operand comes from.
LOAD: Final = 0x20  # accumulator = 32 bits of struct seccomp_data at k
AND: Final = 0x54
JUMP: Final = 0x05
JUMP_EQUAL: Final = 0x15
JUMP_AT_LEAST: Final = 0x35
RETURN: Final = 0x06

ALLOW: Final = 0x7FFF0000
KILL: Final = 0x80000000
_FAIL: Final = 0x00050000

_AT_NUMBER: Final = 0
_AT_ARCHITECTURE: Final = 4
_AT_ARGUMENTS: Final = 16
_AUDIT_ARCH_X86_64: Final = 0xC000003E
_X32_BIT: Final = 0x40000000

Instruction = tuple[int, int, int, int]

#: x86-64 numbers of everything the filter names.
NUMBERS: Final = {
    "read": 0, "write": 1, "close": 3, "stat": 4, "fstat": 5, "lstat": 6, "poll": 7, "lseek": 8,
    "mmap": 9, "mprotect": 10, "munmap": 11, "brk": 12, "rt_sigaction": 13, "rt_sigprocmask": 14,
    "rt_sigreturn": 15, "ioctl": 16, "pread64": 17, "readv": 19, "writev": 20, "access": 21,
    "sched_yield": 24, "mremap": 25, "mincore": 27, "madvise": 28, "dup": 32, "nanosleep": 35,
    "setitimer": 38, "getpid": 39, "socket": 41, "socketpair": 53, "clone": 56, "exit": 60,
    "uname": 63, "fcntl": 72, "getcwd": 79, "readlink": 89, "gettimeofday": 96, "getrusage": 98,
    "sysinfo": 99, "times": 100, "getuid": 102, "getgid": 104, "geteuid": 107, "getegid": 108,
    "getppid": 110, "sigaltstack": 131, "prctl": 157, "gettid": 186, "futex": 202,
    "sched_getaffinity": 204, "getdents64": 217, "restart_syscall": 219, "fadvise64": 221,
    "clock_gettime": 228, "clock_getres": 229, "clock_nanosleep": 230, "exit_group": 231,
    "tgkill": 234, "openat": 257, "newfstatat": 262, "readlinkat": 267, "faccessat": 269,
    "set_robust_list": 273, "prlimit64": 302, "getrandom": 318, "membarrier": 324, "statx": 332,
    "rseq": 334, "io_uring_setup": 425, "clone3": 435, "faccessat2": 439,
}  # fmt: skip

#: Allowed whatever the arguments are. Files: the root decides what can be opened.
ALLOWED: Final = (
    "read", "write", "close", "stat", "fstat", "lstat", "poll", "lseek", "mmap", "mprotect",
    "munmap", "brk", "rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "pread64", "readv", "writev",
    "access", "sched_yield", "mremap", "mincore", "madvise", "dup", "nanosleep", "setitimer",
    "getpid", "exit", "uname", "fcntl", "getcwd", "readlink", "gettimeofday", "getrusage",
    "sysinfo", "times", "getuid", "getgid", "geteuid", "getegid", "getppid", "sigaltstack",
    "gettid", "futex", "sched_getaffinity", "getdents64", "restart_syscall", "fadvise64",
    "clock_gettime", "clock_getres", "clock_nanosleep", "exit_group", "tgkill", "openat",
    "newfstatat", "readlinkat", "faccessat", "set_robust_list", "getrandom", "membarrier", "statx",
    "rseq", "faccessat2",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Word:
    """The low 32 bits of an argument: equal to one of ``values``, after ``mask``.

    The kernel takes no more of these arguments than that.
    """

    argument: int
    values: tuple[int, ...]
    mask: int = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Rule:
    """A call that is allowed if all words of one alternative fit, and else fails with ``error``."""

    call: str
    error: int
    alternatives: tuple[tuple[Word, ...], ...] = ()


_NEW_NAMESPACES: Final = 0x7E020000
_THREAD_FLAGS: Final = 0x00010100  # CLONE_VM, CLONE_THREAD
_TCGETS, _FIOCLEX = 0x5401, 0x5451
_PR_SET_NAME, _PR_SET_VMA, _PR_SET_DUMPABLE = 15, 0x53564D41, 4

#: Calls that are refused in a way of their own, or allowed only with some arguments.
RULES: Final = (
    # No family of sockets is allowed: the list is empty.
    Rule("socket", errno.EAFNOSUPPORT),
    Rule("socketpair", errno.EAFNOSUPPORT),
    Rule("io_uring_setup", errno.ENOSYS),
    # Its flags are behind a pointer. The C library falls back to clone, whose flags are not.
    Rule("clone3", errno.ENOSYS),
    Rule(
        "clone",
        errno.EPERM,
        ((Word(0, (_THREAD_FLAGS,), _NEW_NAMESPACES | _THREAD_FLAGS),),),
    ),
    Rule("ioctl", errno.ENOTTY, ((Word(1, (_TCGETS, _FIOCLEX)),),)),
    Rule(
        "prctl",
        errno.EPERM,
        ((Word(0, (_PR_SET_NAME, _PR_SET_VMA)),), (Word(0, (_PR_SET_DUMPABLE,)), Word(1, (0,)))),
    ),
    # Its own limits only, whose hard values cannot be raised.
    Rule("prlimit64", errno.EPERM, ((Word(0, (0,)),),)),
)


def program() -> bytes:
    """Return the filter: struct sock_filter's, eight bytes each."""
    code = [
        *_otherwise(_AT_ARCHITECTURE, (JUMP_EQUAL, 1, 0, _AUDIT_ARCH_X86_64)),
        *_otherwise(_AT_NUMBER, (JUMP_AT_LEAST, 0, 1, _X32_BIT)),
    ]
    for rule in RULES:
        body = _rule(rule)
        code += [(JUMP_EQUAL, 0, len(body), NUMBERS[rule.call]), *body]
    for name in ALLOWED:
        code += [(JUMP_EQUAL, 0, 1, NUMBERS[name]), (RETURN, 0, 0, ALLOW)]
    code.append((RETURN, 0, 0, _FAIL | errno.EPERM))
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in code)


def _otherwise(offset: int, jump: Instruction) -> list[Instruction]:
    """Kill the process unless ``jump`` jumps over it."""
    return [(LOAD, 0, 0, offset), jump, (RETURN, 0, 0, KILL)]


def _rule(rule: Rule) -> list[Instruction]:
    body = [line for words in rule.alternatives for line in _alternative(words)]
    return [*body, (RETURN, 0, 0, _FAIL | rule.error)]


def _alternative(words: tuple[Word, ...]) -> list[Instruction]:
    """Allow the call if all ``words`` fit, else go on behind these instructions."""
    body: list[Instruction] = []
    misses: list[int] = []
    for word in words:
        body.append((LOAD, 0, 0, _AT_ARGUMENTS + 8 * word.argument))
        if word.mask != 0xFFFFFFFF:
            body.append((AND, 0, 0, word.mask))
        for index, value in enumerate(word.values):
            body.append((JUMP_EQUAL, len(word.values) - index, 0, value))
        misses.append(len(body))
        body.append((JUMP, 0, 0, 0))
    body.append((RETURN, 0, 0, ALLOW))
    for at in misses:
        body[at] = (JUMP, 0, 0, len(body) - at - 1)
    return body


def filter_digest(filter_program: bytes) -> str:
    """Return the digest that a report gives of the filter."""
    return "sha256:" + hashlib.sha256(filter_program).hexdigest()


def is_supported() -> bool:
    """Say whether there is a filter for this kind of machine."""
    return sys.platform == "linux" and platform.machine() == "x86_64" and sys.maxsize > 2**32


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_void_p)]


_SET_MODE_FILTER: Final = 1
_ALL_THREADS: Final = 1


def install(filter_program: bytes) -> None:
    """Put this process, all its threads, under the filter for good. Raises OSError."""
    buffer = ctypes.create_string_buffer(filter_program, len(filter_program))
    arguments = _Program(len(filter_program) // 8, ctypes.addressof(buffer))
    if kernel.call("seccomp", _SET_MODE_FILTER, _ALL_THREADS, ctypes.byref(arguments)):
        raise OSError(errno.ESRCH, "seccomp: a thread could not be put under the filter")
