"""Tallystick: LLM inference with a signed receipt that anyone can re-execute bit for bit.

This namespace is the public interface: one call for each verb of the command line, the values
that they take and give, and (in :mod:`tallystick.errors`) what they raise. Names are imported when
they are first used, so that verifying needs neither the engine nor its libraries. Library code
prints nothing, never exits, and works on paths and bytes that it is given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tallystick.attest.keyfiles import read_key, read_public_key, write_key
    from tallystick.attest.keys import PublicKey, SigningKey
    from tallystick.attest.trust import TrustPolicy
    from tallystick.audit.compare import Difference as ReplayDifference
    from tallystick.audit.diff import Difference as ReceiptDifference
    from tallystick.audit.diff import ReceiptDiff, diff_receipts
    from tallystick.audit.match import MatchReport, MatchRule, match_sets
    from tallystick.audit.replay import ReplayReport, TranscriptRequest, replay
    from tallystick.audit.transcript import TranscriptReport, check_transcript
    from tallystick.bundles.check import CheckedBundle
    from tallystick.bundles.create import CreatedBundle
    from tallystick.bundles.runs import TileRun, declare_runs, write_runs
    from tallystick.bundles.snapshot import SealedFiles
    from tallystick.bundles.snapshot import snapshot as snapshot_bundle
    from tallystick.compute.pricing import PricedModel, price_profile
    from tallystick.contracts.dataset import DatasetManifest
    from tallystick.contracts.exec_envelope import ExecEnvelope
    from tallystick.contracts.model import Calibration, ModelFacts, ModelPin
    from tallystick.contracts.model_ref import ModelRef
    from tallystick.contracts.receipt import Receipt
    from tallystick.contracts.recognise import ValidDocument, validate_document
    from tallystick.contracts.request import InferenceRun
    from tallystick.errors import TallystickError
    from tallystick.evidence.observer.reader import Transcript, read_transcript
    from tallystick.execution.calibrate_model import (
        MeasuredModel,
        calibrate_model,
        measure_fingerprint,
    )
    from tallystick.execution.fingerprint import Fingerprint
    from tallystick.execution.observe import ObservedRun, ObserveOptions, observe
    from tallystick.models.add import add as add_model
    from tallystick.models.add import add_normalised as add_normalised_model
    from tallystick.models.check import ModelDescription
    from tallystick.models.check import check as check_model
    from tallystick.models.check import describe as describe_model
    from tallystick.models.listing import ListedModel, list_models
    from tallystick.models.pull import PullOptions
    from tallystick.models.pull import pull as pull_model
    from tallystick.models.units import price_model
    from tallystick.queues.memory import memory_queue
    from tallystick.queues.port import (
        Job,
        JobResult,
        JobState,
        Lease,
        LeaseEnd,
        PastLease,
        Queue,
        Submission,
    )
    from tallystick.queues.runfile import read_run
    from tallystick.queues.spool import AcceptedFile, CollectedFiles, RefusedFile
    from tallystick.queues.spool import collect as collect_spool
    from tallystick.queues.sqlite.adapter import SqliteQueue, open_queue
    from tallystick.receipts.files import (
        Checks,
        NamedFiles,
        PathOutcome,
        VerificationRun,
        hand_out_bundle_key,
        load_bundle_key,
        load_trust,
        verify_all,
        verify_named,
        verify_paths,
    )
    from tallystick.receipts.inspect import ReceiptSummary, inspect_receipt
    from tallystick.receipts.report import Link, Status, Step, VerificationReport
    from tallystick.receipts.steps_match import Parties
    from tallystick.receipts.verify import VerifyContext, verify_set, verify_with
    from tallystick.store.sets import LoadedSet, read_receipt, read_set
    from tallystick.worker.attesting import AttestedSource, attest_source, verify_source
    from tallystick.worker.datasets import check_bundle, create_bundle
    from tallystick.worker.keys import ShownKey, SignerChoice, show_key
    from tallystick.worker.order import PlacedOrder, place_order
    from tallystick.worker.papers import read_ticket
    from tallystick.worker.request import RunOptions
    from tallystick.worker.run import Place, RunResult, run, run_ticket
    from tallystick.worker.tiles import run_bundle

__all__ = [
    "AcceptedFile",
    "AttestedSource",
    "Calibration",
    "CheckedBundle",
    "Checks",
    "CollectedFiles",
    "CreatedBundle",
    "DatasetManifest",
    "ExecEnvelope",
    "Fingerprint",
    "InferenceRun",
    "Job",
    "JobResult",
    "JobState",
    "Lease",
    "LeaseEnd",
    "Link",
    "ListedModel",
    "LoadedSet",
    "MatchReport",
    "MatchRule",
    "MeasuredModel",
    "ModelDescription",
    "ModelFacts",
    "ModelPin",
    "ModelRef",
    "NamedFiles",
    "ObserveOptions",
    "ObservedRun",
    "Parties",
    "PastLease",
    "PathOutcome",
    "Place",
    "PlacedOrder",
    "PricedModel",
    "PublicKey",
    "PullOptions",
    "Queue",
    "Receipt",
    "ReceiptDiff",
    "ReceiptDifference",
    "ReceiptSummary",
    "RefusedFile",
    "ReplayDifference",
    "ReplayReport",
    "RunOptions",
    "RunResult",
    "SealedFiles",
    "ShownKey",
    "SignerChoice",
    "SigningKey",
    "SqliteQueue",
    "Status",
    "Step",
    "Submission",
    "TallystickError",
    "TileRun",
    "Transcript",
    "TranscriptReport",
    "TranscriptRequest",
    "TrustPolicy",
    "ValidDocument",
    "VerificationReport",
    "VerificationRun",
    "VerifyContext",
    "add_model",
    "add_normalised_model",
    "attest_source",
    "calibrate_model",
    "check_bundle",
    "check_model",
    "check_transcript",
    "collect_spool",
    "create_bundle",
    "declare_runs",
    "describe_model",
    "diff_receipts",
    "hand_out_bundle_key",
    "inspect_receipt",
    "list_models",
    "load_bundle_key",
    "load_trust",
    "match_sets",
    "measure_fingerprint",
    "memory_queue",
    "observe",
    "open_queue",
    "place_order",
    "price_model",
    "price_profile",
    "pull_model",
    "read_key",
    "read_public_key",
    "read_receipt",
    "read_run",
    "read_set",
    "read_ticket",
    "read_transcript",
    "replay",
    "run",
    "run_bundle",
    "run_ticket",
    "show_key",
    "snapshot_bundle",
    "validate_document",
    "verify_all",
    "verify_named",
    "verify_paths",
    "verify_set",
    "verify_source",
    "verify_with",
    "write_key",
    "write_runs",
]

# Where each name lives: its module, and its name there where that differs.
_HOMES: Final = {
    "AcceptedFile": "tallystick.queues.spool",
    "AttestedSource": "tallystick.worker.attesting",
    "Calibration": "tallystick.contracts.model",
    "CheckedBundle": "tallystick.bundles.check",
    "Checks": "tallystick.receipts.files",
    "CollectedFiles": "tallystick.queues.spool",
    "CreatedBundle": "tallystick.bundles.create",
    "DatasetManifest": "tallystick.contracts.dataset",
    "ExecEnvelope": "tallystick.contracts.exec_envelope",
    "Fingerprint": "tallystick.execution.fingerprint",
    "InferenceRun": "tallystick.contracts.request",
    "Job": "tallystick.queues.port",
    "JobResult": "tallystick.queues.port",
    "JobState": "tallystick.queues.port",
    "Lease": "tallystick.queues.port",
    "LeaseEnd": "tallystick.queues.port",
    "Link": "tallystick.receipts.report",
    "ListedModel": "tallystick.models.listing",
    "LoadedSet": "tallystick.store.sets",
    "MatchReport": "tallystick.audit.match",
    "MatchRule": "tallystick.audit.match",
    "MeasuredModel": "tallystick.execution.calibrate_model",
    "ModelDescription": "tallystick.models.check",
    "ModelFacts": "tallystick.contracts.model",
    "ModelPin": "tallystick.contracts.model",
    "ModelRef": "tallystick.contracts.model_ref",
    "NamedFiles": "tallystick.receipts.files",
    "ObserveOptions": "tallystick.execution.observe",
    "ObservedRun": "tallystick.execution.observe",
    "Parties": "tallystick.receipts.steps_match",
    "PastLease": "tallystick.queues.port",
    "PathOutcome": "tallystick.receipts.files",
    "Place": "tallystick.worker.run",
    "PlacedOrder": "tallystick.worker.order",
    "PricedModel": "tallystick.compute.pricing",
    "PublicKey": "tallystick.attest.keys",
    "PullOptions": "tallystick.models.pull",
    "Queue": "tallystick.queues.port",
    "Receipt": "tallystick.contracts.receipt",
    "ReceiptDiff": "tallystick.audit.diff",
    "ReceiptDifference": "tallystick.audit.diff:Difference",
    "ReceiptSummary": "tallystick.receipts.inspect",
    "RefusedFile": "tallystick.queues.spool",
    "ReplayDifference": "tallystick.audit.compare:Difference",
    "ReplayReport": "tallystick.audit.replay",
    "RunOptions": "tallystick.worker.request",
    "RunResult": "tallystick.worker.run",
    "SealedFiles": "tallystick.bundles.snapshot",
    "ShownKey": "tallystick.worker.keys",
    "SignerChoice": "tallystick.worker.keys",
    "SigningKey": "tallystick.attest.keys",
    "SqliteQueue": "tallystick.queues.sqlite.adapter",
    "Status": "tallystick.receipts.report",
    "Step": "tallystick.receipts.report",
    "Submission": "tallystick.queues.port",
    "TallystickError": "tallystick.errors",
    "TileRun": "tallystick.bundles.runs",
    "Transcript": "tallystick.evidence.observer.reader",
    "TranscriptReport": "tallystick.audit.transcript",
    "TranscriptRequest": "tallystick.audit.replay",
    "TrustPolicy": "tallystick.attest.trust",
    "ValidDocument": "tallystick.contracts.recognise",
    "VerificationReport": "tallystick.receipts.report",
    "VerificationRun": "tallystick.receipts.files",
    "VerifyContext": "tallystick.receipts.verify",
    "add_model": "tallystick.models.add:add",
    "add_normalised_model": "tallystick.models.add:add_normalised",
    "attest_source": "tallystick.worker.attesting",
    "calibrate_model": "tallystick.execution.calibrate_model",
    "check_bundle": "tallystick.worker.datasets",
    "check_model": "tallystick.models.check:check",
    "check_transcript": "tallystick.audit.transcript",
    "collect_spool": "tallystick.queues.spool:collect",
    "create_bundle": "tallystick.worker.datasets",
    "declare_runs": "tallystick.bundles.runs",
    "describe_model": "tallystick.models.check:describe",
    "diff_receipts": "tallystick.audit.diff",
    "hand_out_bundle_key": "tallystick.receipts.files",
    "inspect_receipt": "tallystick.receipts.inspect",
    "list_models": "tallystick.models.listing",
    "load_bundle_key": "tallystick.receipts.files",
    "load_trust": "tallystick.receipts.files",
    "match_sets": "tallystick.audit.match",
    "measure_fingerprint": "tallystick.execution.calibrate_model",
    "memory_queue": "tallystick.queues.memory",
    "observe": "tallystick.execution.observe",
    "open_queue": "tallystick.queues.sqlite.adapter",
    "place_order": "tallystick.worker.order",
    "price_model": "tallystick.models.units",
    "price_profile": "tallystick.compute.pricing",
    "pull_model": "tallystick.models.pull:pull",
    "read_key": "tallystick.attest.keyfiles",
    "read_public_key": "tallystick.attest.keyfiles",
    "read_receipt": "tallystick.store.sets",
    "read_run": "tallystick.queues.runfile",
    "read_set": "tallystick.store.sets",
    "read_ticket": "tallystick.worker.papers",
    "read_transcript": "tallystick.evidence.observer.reader",
    "replay": "tallystick.audit.replay",
    "run": "tallystick.worker.run",
    "run_bundle": "tallystick.worker.tiles",
    "run_ticket": "tallystick.worker.run",
    "show_key": "tallystick.worker.keys",
    "snapshot_bundle": "tallystick.bundles.snapshot:snapshot",
    "validate_document": "tallystick.contracts.recognise",
    "verify_all": "tallystick.receipts.files",
    "verify_named": "tallystick.receipts.files",
    "verify_paths": "tallystick.receipts.files",
    "verify_set": "tallystick.receipts.verify",
    "verify_source": "tallystick.worker.attesting",
    "verify_with": "tallystick.receipts.verify",
    "write_key": "tallystick.attest.keyfiles",
    "write_runs": "tallystick.bundles.runs",
}


if not TYPE_CHECKING:  # a type checker shall see the names above, and no others

    def __getattr__(name: str) -> object:
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        module, _, attribute = home.partition(":")
        value = getattr(import_module(module), attribute or name)
        globals()[name] = value  # the next use finds it without this function
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
