"""Processes killed while they write: the store opens, and holds the receipt whole or not at all."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tallystick.store.state.schema import STATE_NAME
from tallystick.store.state.store import open_state
from tests.support.crashes import (
    Countdown,
    before_each_statement_and_call,
    before_some_instructions,
    killed_in,
    watch,
)
from tests.support.state import accept, make_entry, recorded, recovered

FIRST = make_entry()
SECOND = make_entry(1, job="other")


@pytest.mark.parametrize("old", [True, False], ids=["an old store", "a new store"])
@pytest.mark.parametrize("instrument", [before_each_statement_and_call, before_some_instructions])
def test_a_kill_at_every_point_leaves_the_truth(
    tmp_path: Path, instrument: Callable[[Countdown], None], old: bool
) -> None:
    outcomes = []
    killed, points = True, 0
    while killed:
        path = tmp_path / str(points) / STATE_NAME
        path.parent.mkdir(mode=0o700)
        if old:
            accept(path, FIRST)

        def body(path: Path = path, points: int = points) -> None:
            instrument(Countdown(points))
            accept(path, SECOND)

        killed = killed_in(body)
        outcomes.append(recovered(path, SECOND))
        assert recorded(path, FIRST) == old
        points += 1
    assert points > 10
    assert outcomes[0] is False
    assert outcomes[-1] is True
    assert outcomes == sorted(outcomes), "once it is there, a later kill cannot lose it"


@dataclass(frozen=True)
class Crash:
    """The files around a commit: before it, the journal it wrote, and after the checkpoint."""

    before: bytes
    journal: bytes
    after: bytes


@pytest.fixture(scope="module")
def crash(tmp_path_factory: pytest.TempPathFactory) -> Crash:
    path = tmp_path_factory.mktemp("crash") / STATE_NAME
    accept(path, FIRST)
    before = path.read_bytes()

    def stop_at_the_checkpoint(statement: str) -> None:
        if "wal_checkpoint" in statement:
            os.kill(os.getpid(), signal.SIGKILL)

    def body() -> None:
        watch(lambda connection: connection.set_trace_callback(stop_at_the_checkpoint))
        accept(path, SECOND)

    assert killed_in(body)
    assert path.read_bytes() == before
    journal = path.with_name(f"{STATE_NAME}-wal").read_bytes()
    assert recovered(path, SECOND)
    return Crash(before, journal, path.read_bytes())


def restored(directory: Path, main: bytes, journal: bytes) -> Path:
    """Write the files of a crash into a fresh ``directory``."""
    directory.mkdir(mode=0o700)
    path = directory / STATE_NAME
    for target, data in ((path, main), (path.with_name(f"{STATE_NAME}-wal"), journal)):
        target.write_bytes(data)
        target.chmod(0o600)
    return path


def test_a_journal_cut_anywhere_leaves_the_truth(crash: Crash, tmp_path: Path) -> None:
    outcomes = []
    for length in [*range(0, len(crash.journal), 512), len(crash.journal)]:
        path = restored(tmp_path / "cut", crash.before, crash.journal[:length])
        outcomes.append(recovered(path, SECOND))
        assert recorded(path, FIRST)
        shutil.rmtree(path.parent)
    assert outcomes == [False] * (len(outcomes) - 1) + [True]


def test_a_journal_with_a_hole_anywhere_leaves_the_truth(crash: Crash, tmp_path: Path) -> None:
    """Sectors may reach the disk in any order."""
    for start in range(0, len(crash.journal), 512):
        hole = crash.journal[:start] + bytes(512) + crash.journal[start + 512 :]
        holed = hole[: len(crash.journal)]
        path = restored(tmp_path / "hole", crash.before, holed)
        assert recovered(path, SECOND) == (holed == crash.journal)
        assert recorded(path, FIRST)
        shutil.rmtree(path.parent)


def test_a_checkpoint_cut_anywhere_is_completed(crash: Crash, tmp_path: Path) -> None:
    assert len(crash.before) == len(crash.after)
    for start in range(0, len(crash.after) + 1, 512):
        for main in (
            crash.after[:start] + crash.before[start:],
            crash.before[:start] + crash.after[start:],
        ):
            path = restored(tmp_path / "checkpoint", main, crash.journal)
            assert recovered(path, SECOND)
            assert recorded(path, FIRST)
            shutil.rmtree(path.parent)


def test_kills_at_random_lose_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    path = tmp_path / STATE_NAME
    moments = random.Random(4)
    done = 0
    for _ in range(12):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            accept_for_ever(path, done, writer)
        os.close(writer)
        with open(reader, "rb") as pipe:
            time.sleep(moments.uniform(0.005, 0.06))
            os.kill(child, signal.SIGKILL)
            acknowledged = len(pipe.read())
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status)
        with open_state(path):
            pass
        for number in range(done + acknowledged):
            assert recorded(path, make_entry(number, job=number))
        done += acknowledged
        # The last one may have been recorded before its acknowledgement was written.
        done += recorded(path, make_entry(done, job=done))
        assert not recorded(path, make_entry(done, job=done))


def accept_for_ever(path: Path, number: int, writer: int) -> None:
    """Accept one receipt after another, and acknowledge each with a byte; never return."""
    try:
        while True:
            accept(path, make_entry(number, job=number))
            os.write(writer, b".")
            number += 1
    except BaseException:
        os._exit(1)
