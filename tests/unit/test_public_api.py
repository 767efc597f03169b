"""The public namespace: pinned, complete, and light until it is used."""

from __future__ import annotations

import ast
import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

import tallystick
from tallystick.errors import TallystickError

# Changing this list is changing the interface: it belongs in the changelog.
PUBLIC = [
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
VERIFIER = ["TrustPolicy", "inspect_receipt", "load_trust", "verify_paths", "verify_set"]


def test_the_public_names_are_pinned() -> None:
    assert tallystick.__all__ == PUBLIC
    assert set(PUBLIC) <= set(dir(tallystick))


@pytest.mark.parametrize("name", PUBLIC)
def test_every_name_is_there_and_documented(name: str) -> None:
    value = getattr(tallystick, name)
    assert inspect.getdoc(value)
    assert getattr(tallystick, name) is value


def test_types_are_declared_for_exactly_the_public_names() -> None:
    tree = ast.parse(Path(tallystick.__file__).read_bytes())
    declared = [
        alias.asname or alias.name
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]
    assert sorted(declared) == sorted(PUBLIC)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'verfy'"):
        tallystick.verfy  # type: ignore[attr-defined]  # noqa: B018


def test_every_error_is_under_the_one_root() -> None:
    from tallystick import errors

    kinds = [value for value in vars(errors).values() if inspect.isclass(value)]
    ours = [kind for kind in kinds if kind.__module__ == "tallystick.errors"]
    assert len(ours) >= 10
    assert all(issubclass(kind, TallystickError) and kind.exit_code for kind in ours)


def test_the_namespace_is_empty_until_used_and_the_verifier_needs_no_engine() -> None:
    script = (
        "import json, sys\n"
        "import tallystick\n"
        "before = sorted(n for n in sys.modules if n.startswith('tallystick'))\n"
        f"for name in {VERIFIER!r}: getattr(tallystick, name)\n"
        "print(json.dumps([before, sorted(sys.modules)]))"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    before, after = json.loads(result.stdout)
    assert before == ["tallystick"]
    assert "tallystick.receipts.verify" in after
    assert {"cffi", "click", "jinja2", "numpy", "xllamacpp"} & set(after) == set()
    assert not [name for name in after if name.startswith("tallystick.engine")]
