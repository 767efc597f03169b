"""Each level on this machine's kernel: which channels are closed, and with what (as measured)."""

from __future__ import annotations

import json
import os
import sys

import pytest

from tallystick.contracts.codec import decode, encode
from tallystick.contracts.egress import (
    CHANNEL_NAMES,
    CHANNELS,
    NAMESPACES,
    EgressReport,
    broken_promises,
    is_promised,
)
from tallystick.sandbox import seccomp
from tests.support.sandboxes import as_nobody, audit_of, need_level

NETWORK = {"tcp4", "tcp6", "tcp4_mapped", "udp4", "udp6", "udp4_mapped"}
FILES = {"write_outside", "read_outside", "read_passwd", "list_outside"}
INHERITED = {"inherited_tcp", "inherited_unix", "inherited_file"}
PARENT = {"ptrace_parent", "signal_parent", "read_parent_memory", "pidfd_parent"}
ENTRIES = {"i386_socket", "x32_socket"}
ONLY_FILTERED = {"vsock", "netlink", "packet", "io_uring", "fork", "execve", "memfd"} | {
    "userfaultfd", "keyctl", "unshare", *ENTRIES}  # fmt: skip
NAMED = {"dns", "unix_path", "unix_abstract"}
CLOSED = {
    "none": set(),
    "process": INHERITED,
    "namespaces": INHERITED | NETWORK | NAMED | FILES | PARENT,
    "full": set(CHANNEL_NAMES),
}
# What a level leaves open if the machine has it; packet and unshare may be refused all the same.
OPEN = {
    "none": INHERITED | NETWORK | NAMED | FILES | {"fork", "execve", "memfd"},
    "process": NETWORK | NAMED | FILES | {"signal_parent", "pidfd_parent", "fork", "execve"},
    "namespaces": {"vsock", "netlink", "io_uring", "fork", "execve", "memfd", "keyctl"},
    "full": set(),
}


def check(report: EgressReport, level: str) -> None:
    found = {probe.name: probe for probe in report.probes}
    assert tuple(found) == CHANNEL_NAMES
    assert report.level == level
    assert report.lowered is None
    assert {name for name in CHANNEL_NAMES if is_promised(name, level)} == CLOSED[level]
    for name in CLOSED[level]:
        probe = found[name]
        assert probe.result == "closed" or probe.control_result == "unsupported", probe
    for name in OPEN[level]:
        assert found[name].result == found[name].control_result, found[name]
    assert report.result == "passed"
    assert broken_promises(report.probes, level) == ()


@pytest.mark.parametrize("level", ["none", "process", "namespaces", "full"])
def test_a_level_closes_what_it_promises(level: str) -> None:
    need_level(level)
    report = audit_of(level)
    check(report, level)
    assert decode(EgressReport, encode(report)) == report


def test_the_first_errno_of_each_promise_is_the_one_seen_here() -> None:
    need_level("full")
    for level in ("namespaces", "full"):
        for probe in audit_of(level).probes:
            if probe.name != "dns" and is_promised(probe.name, level):
                assert probe.seen_errno == probe.expected_errno, probe


def test_the_kernel_s_word_is_in_the_report() -> None:
    need_level("full")
    full, lower, process = (audit_of(level) for level in ("full", "namespaces", "process"))
    assert [namespace.kind for namespace in full.namespaces] == list(NAMESPACES)
    assert len({namespace.inode for namespace in full.namespaces}) == len(NAMESPACES)
    assert (full.status.seccomp, full.status.no_new_privs) == (2, 1)
    assert (full.status.effective, full.status.permitted, full.status.bounding) == (0, 0, 0)
    assert full.filter_digest == seccomp.filter_digest(seccomp.program())
    assert (lower.status.seccomp, lower.filter_digest, len(lower.namespaces)) == (0, None, 7)
    assert (process.namespaces, process.status.no_new_privs) == ((), 1)
    assert full.kernel == os.uname().release
    assert full.landlock_abi == lower.landlock_abi >= 0


@pytest.mark.parametrize("level", ["process", "namespaces", "full"])
def test_a_user_without_rights_gets_the_same(level: str) -> None:
    need_level(level)
    code = (
        "import json, os, sys; from tallystick.contracts.codec import encode;"
        "from tests.support.sandboxes import audit_of; assert os.getuid() != 0;"
        "json.dump(encode(audit_of(sys.argv[1])), sys.stdout)"
    )
    done = as_nobody(["-c", code, level])
    assert done.returncode == 0, done.stderr
    check(decode(EgressReport, json.loads(done.stdout)), level)


def test_nothing_is_left_behind() -> None:
    need_level("full")
    before = set(os.listdir("/proc/self/fd"))
    folders = {name for name in os.listdir("/tmp") if name.startswith("tallystick-probe-")}
    audit_of("full")
    assert set(os.listdir("/proc/self/fd")) == before
    after = {name for name in os.listdir("/tmp") if name.startswith("tallystick-probe-")}
    assert after <= folders
    assert len(CHANNELS) == len(set(CHANNEL_NAMES))
    assert sys.platform == "linux"
