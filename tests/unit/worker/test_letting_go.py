"""A worker holds nothing private of a run, but the answer, once its set is sealed."""

from __future__ import annotations

import gc
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Final

import pytest

from tallystick.attest.keyfiles import write_key
from tallystick.contracts.bundle import BundlePrivate
from tallystick.contracts.generation import Generation
from tallystick.contracts.opening import Opening
from tallystick.evidence.portable_parts import GatheredEvidence
from tallystick.receipts.build import RecordState, SetInputs
from tallystick.receipts.papers import JobPapers
from tallystick.store.state.entry import StateEntry
from tallystick.telemetry.log import encode_log
from tallystick.worker import run as worker_run
from tallystick.worker.execute import Executed, Settled
from tallystick.worker.keys import SignerChoice
from tallystick.worker.papers import RunPapers, record_in
from tallystick.worker.run import Place, run_declared
from tests.support import sets

#: Every one holds text of the run, secrets of its papers, or what is derived from them.
_PRIVATE: Final = (
    BundlePrivate,
    Executed,
    GatheredEvidence,
    Generation,
    JobPapers,
    Opening,
    RunPapers,
    SetInputs,
    Settled,
)


def private_objects() -> dict[int, str]:
    gc.collect()
    return {id(item): type(item).__name__ for item in gc.get_objects() if type(item) in _PRIVATE}


def executed(*_: object) -> Executed:
    """Return what an execution leaves that ended just now."""
    generation = sets.make_generation()
    telemetry = encode_log(sets.make_events(len(generation.sampled_ids)))
    facts = sets.make_facts(start_ns=time.time_ns())
    return Executed(generation, facts, telemetry, None)


def test_nothing_private_is_held_when_a_set_is_recorded_and_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    runtime, declared = sets.make_class(), sets.make_run()
    manifest = sets.make_manifest(runtime, sets.make_generation())
    seen: dict[str, list[str]] = {}
    for name, found in {
        "find_engine": lambda *_: SimpleNamespace(build=sets.make_engine()),
        "resolve": lambda *_: SimpleNamespace(digest=declared.model_digest),
        "open_model": lambda _: nullcontext(None),
        "pinned_facts": lambda _: SimpleNamespace(profile=None),
        "model_profile": lambda _: manifest.model_profile,
        "build_manifest": lambda *_: manifest,
        "prepare_class": lambda *_: SimpleNamespace(runtime_class=runtime),
        "execute": executed,
    }.items():
        monkeypatch.setattr(worker_run, name, found)
    before = private_objects()

    def look(when: str) -> None:
        seen[when] = [name for item, name in private_objects().items() if item not in before]

    def recorder(directory: Path) -> RecordState:
        def record(entry: StateEntry) -> bytes:
            look("recorded")
            return record_in(directory)(entry)

        return record

    monkeypatch.setattr(worker_run, "record_in", recorder)
    write_key(tmp_path / "worker.key", sets.SIGNER, None)
    place = Place(
        output_dir=tmp_path / "out",
        signer=SignerChoice(tmp_path / "worker.key"),
        home=tmp_path / "home",
    )
    result = run_declared("m", declared, place=place, guard=lambda _: look("about to be written"))
    assert seen == {"recorded": [], "about to be written": []}
    assert result.output == sets.OUTPUT
    assert result.default_audit_key_created
    assert (result.directory / f"{result.receipt_id}.complete").is_file()
