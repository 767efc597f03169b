"""What is private about a run is gone from memory before its set is recorded or written."""

from __future__ import annotations

import gc
from typing import Final

from tallystick.contracts.bundle import BundlePrivate
from tallystick.contracts.generation import Generation
from tallystick.contracts.opening import Opening
from tallystick.contracts.request import InferenceRun
from tallystick.evidence.portable_parts import GatheredEvidence
from tallystick.receipts.build import SealedSet, SetInputs, finish_set, seal_set
from tallystick.receipts.papers import JobPapers
from tallystick.store.state.entry import StateEntry
from tests.support import sets
from tests.support.sets import AUDIT_KEY, SIGNER

#: Every one holds text of the run, or what is derived from it.
_PRIVATE: Final = (
    BundlePrivate,
    GatheredEvidence,
    Generation,
    InferenceRun,
    JobPapers,
    Opening,
    SetInputs,
)


def _private_objects() -> dict[int, str]:
    gc.collect()
    return {id(item): type(item).__name__ for item in gc.get_objects() if type(item) in _PRIVATE}


def _seal() -> SealedSet:
    inputs, sealing = sets.make_inputs()
    return seal_set(inputs, sealing, SIGNER)


def test_the_private_objects_are_seen_while_they_live() -> None:
    inputs, _ = sets.make_inputs()
    assert {"Generation", "JobPapers", "SetInputs"} <= {*_private_objects().values()}
    assert inputs.telemetry


def test_nothing_private_is_held_when_the_set_is_recorded() -> None:
    before = _private_objects()
    found: list[str] = []

    def record(entry: StateEntry) -> bytes:
        found.extend(name for item, name in _private_objects().items() if item not in before)
        return sets.record_anywhere(entry)

    built = finish_set(_seal(), SIGNER, AUDIT_KEY, record)
    built.report.require_complete()
    assert found == []


def test_nothing_private_is_held_when_the_set_is_written() -> None:
    before = _private_objects()
    built = finish_set(_seal(), SIGNER, AUDIT_KEY, sets.record_anywhere)
    assert [name for item, name in _private_objects().items() if item not in before] == []
    assert built.members
