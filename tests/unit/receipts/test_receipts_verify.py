"""The stateless steps: what is honest passes, and every change fails in its own step."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tallystick.attest import dsse
from tallystick.attest.trust import TrustPolicy
from tallystick.canonical.json import jcs, parse_strict
from tallystick.contracts.codec import decode
from tallystick.contracts.layout import (
    BUNDLE,
    ENVELOPES,
    EXEC,
    MARKER,
    MEMBERS,
    RECEIPT,
    STATE,
    TELEMETRY,
    MemberKind,
)
from tallystick.contracts.opening import Opening
from tallystick.errors import EvidenceError, NothingToVerifyError, NoTrustError
from tallystick.receipts.compute_case import BUNDLE_WITHHELD, PRIVATE_LOCKED
from tallystick.receipts.report import STEP_NAMES, Status, VerificationReport, as_document
from tallystick.receipts.sealing import bundle_key_of
from tallystick.receipts.verify import verify_set
from tallystick.telemetry.log import encode_log
from tests.support.forgery import Forger, reseal
from tests.support.sets import (
    AUDIT_KEY,
    NOW,
    OPENING,
    SIGNER,
    STRANGER,
    TRUST,
    fake_digest,
    make_events,
    make_facts,
    make_ordinary,
    make_public,
    make_set,
    make_traced,
)

Path = tuple[str | int, ...]
PRIVATE = make_set().files()
PUBLIC = make_set(*make_public()).files()
SETS = {"private": PRIVATE, "public": PUBLIC}
ALL = make_traced("states", "graph", "gemm", experts=True).files()
LIVE = make_traced("gemm", experts=True, sequential=True).files()
HONEST = {
    **SETS,
    "all": ALL,
    "live": LIVE,
    "graph": make_traced("graph").files(),
    "none": make_traced().files(),
    "routes": make_traced("states", experts=True).files(),
}
ORDINARY = Forger(make_ordinary().files())
FORGERS = {name: Forger(files) for name, files in SETS.items()}
FILES = (*MEMBERS, MARKER)
EVERYTHING = set(range(1, 14))


def name_of(kind: MemberKind) -> str:
    return kind.shared or kind.suffix


def without(files: dict[str, bytes], *kinds: MemberKind) -> dict[str, bytes]:
    dropped = {kind.name(Forger(files).set_id) for kind in kinds}
    return {name: data for name, data in files.items() if name not in dropped}


def not_checked(report: VerificationReport) -> dict[int, str]:
    return {step.number: step.detail for step in report.steps if step.status is Status.NOT_CHECKED}


def check(files: dict[str, bytes], trust: TrustPolicy | None = TRUST) -> VerificationReport:
    return verify_set(files, trust, now=NOW, key=AUDIT_KEY)


def failing_step(files: dict[str, bytes], trust: TrustPolicy = TRUST) -> int:
    report = check(files, trust)
    assert not report.verified
    assert report.exit_code == 1
    failure = report.failure
    assert failure is not None
    with pytest.raises(EvidenceError, match=f"step {failure.number} "):
        report.require()
    return failure.number


def leaves(value: Any, path: Path = ()) -> Iterator[Path]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, (*path, key))
    elif isinstance(value, list) and value:
        for index, item in enumerate(value):
            yield from leaves(item, (*path, index))
    else:
        yield path


def changed(value: Any, path: Path) -> Any:
    """Return a copy in which one leaf has another value of the same kind, valid where it can be."""
    result = copy.deepcopy(value)
    holder = result
    for step in path[:-1]:
        holder = holder[step]
    holder[path[-1]] = other_value(holder[path[-1]], path)
    return result


def other_value(value: Any, path: Path) -> Any:
    choices: dict[str, dict[Any, str]] = {
        "level": {"none": "state_committed", "state_committed": "none"},
        "stop_reason": {"length": "end_of_generation", "end_of_generation": "length"},
        "disclosure": {"private": "public", "public": "private"},
        "policy": {"row-class": "sequential"},
        "enforcement_level": {"none": "full"},
        "enforcement": {"none": "full"},
        "result": {"not_run": "passed"},
        "residency": {"all_resident": "unobservable"},
        "self_check": {"not_run": "passed"},
        "observer": {"python": "compiled"},
        "visibility": {"public": "private", "private": "public"},
        "temperature": {"0": "1", "0.7": "0.8"},
        "expires_at": {None: "2030-01-01T00:00:00.000Z"},
        "start_time": {value: str(value).replace("2026", "2025")},
        "end_time": {value: str(value).replace("2026", "2025")},
    }
    name = next(step for step in reversed(path) if isinstance(step, str))
    if value in choices.get(name, {}):
        return choices[name][value]
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if value is None:
        return "1" if name == "canonical_compute_units" else fake_digest("instead of null")
    if isinstance(value, list):
        return ["x"]
    if value.startswith("sha256:"):
        return fake_digest("instead")
    if value.isdecimal():
        return str(int(value) - 1 if int(value) else 1)
    if len(value) >= 32 and not value.startswith(("http", "tag:")):
        return value[:-1] + ("0" if value[-1] != "0" else "1")
    return value + "x"


def fields_of(suffix: str) -> list[Any]:
    return [
        pytest.param(name, path, id=f"{name}:{'.'.join(map(str, path))}")
        for name, forger in FORGERS.items()
        for path in leaves(forger.document(suffix))
    ]


@pytest.mark.parametrize("files", HONEST.values(), ids=HONEST)
@pytest.mark.parametrize("trust", [TRUST, None], ids=["given", "embedded"])
def test_every_step_of_an_honest_set_passes(
    files: dict[str, bytes], trust: TrustPolicy | None
) -> None:
    report = check(files, trust)
    assert report.verified
    assert report.exit_code == 0
    report.require()
    report.require_complete()
    assert [step.number for step in report.steps] == list(range(1, 14))
    assert {step.status for step in report.steps} == {Status.PASSED}
    assert len(STEP_NAMES) == 13
    scope = "embedded_local_snapshot" if trust is None else "given_keys"
    assert report.trust_scope == scope


@pytest.mark.parametrize("files", HONEST.values(), ids=HONEST)
def test_a_key_for_one_bundle_checks_as_much_as_the_audit_key(files: dict[str, bytes]) -> None:
    key = bundle_key_of(Forger(files).envelope, AUDIT_KEY)
    report = verify_set(files, None, now=NOW, key=key)
    report.require_complete()
    others = [other for other in HONEST.values() if other is not files]
    for other in others:
        failure = verify_set(other, None, now=NOW, key=key).failure
        assert failure is not None
        assert failure.number == 1
        assert "another key" in failure.detail


@pytest.mark.parametrize("name", HONEST)
def test_with_public_files_alone_what_is_in_the_bundle_is_not_checked(name: str) -> None:
    report = verify_set(without(HONEST[name], BUNDLE, STATE), TRUST, now=NOW)
    assert report.verified
    open_steps = not_checked(report)
    assert set(open_steps) == EVERYTHING - {1, 4, 12}
    for number, detail in open_steps.items():
        assert BUNDLE_WITHHELD in detail, number
    assert "owner and credential not opened" in report.steps[3].detail
    with pytest.raises(EvidenceError, match="was not checked"):
        report.require_complete()


@pytest.mark.parametrize("name", HONEST)
def test_with_a_locked_bundle_what_is_private_is_not_checked(name: str) -> None:
    report = verify_set(HONEST[name], TRUST, now=NOW)
    assert report.verified
    open_steps = not_checked(report)
    private_roots = name in ("all", "live", "routes")
    # 4 holds by the trusted key, though no credential is opened; none has anything to recompute.
    assert set(open_steps) == {3, 11, 13} | ({10} if private_roots else set())
    for number, detail in open_steps.items():
        assert PRIVATE_LOCKED in detail, number
    with pytest.raises(EvidenceError, match="was not checked"):
        report.require_complete()


def test_what_is_missing_is_shown_as_missing() -> None:
    report = check(PRIVATE)
    assert [(link.name, link.status) for link in report.links] == [
        ("source", "missing"),
        ("execution", "verified"),
        ("acceptance", "missing"),
    ]
    assert report.links[1].signers == (SIGNER.public.key_id,)
    assert report.egress == "0 egress probes"
    detail = report.steps[11].detail
    assert "1 of 3 links" in detail
    assert "0 egress probes" in detail
    assert report.proves
    assert report.does_not_prove


def test_units_that_nothing_derived_again_are_no_proof() -> None:
    whole, public = check(PRIVATE), check(without(PRIVATE, BUNDLE))
    assert public.verified
    assert any("compute units" in line for line in whole.proves)
    assert not any("compute units" in line for line in whole.does_not_prove)
    assert not any("compute units" in line for line in public.proves)
    assert any("compute units that it claims" in line for line in public.does_not_prove)
    for report in (whole, public):
        assert any("mints nothing" in line for line in report.does_not_prove)


def test_without_trust_a_bundle_has_to_name_the_key() -> None:
    failure = verify_set(without(PRIVATE, BUNDLE), None, now=NOW, key=AUDIT_KEY).failure
    assert failure is not None
    assert failure.number == 12
    assert "withheld" in failure.detail
    with pytest.raises(NoTrustError) as caught:
        verify_set(PRIVATE, None, now=NOW)
    assert caught.value.exit_code == 4


def test_a_set_of_a_stranger_holds_only_where_its_own_word_is_taken() -> None:
    files = make_set(key=STRANGER).files()
    report = check(files, None)
    assert report.verified
    assert report.trust_scope == "embedded_local_snapshot"
    failure = check(files).failure
    assert failure is not None
    assert failure.number == 4
    assert "not one of the trusted keys" in failure.detail


def test_steps_after_a_failure_are_not_checked() -> None:
    report = check(PRIVATE, TrustPolicy.for_keys([STRANGER.public]))
    assert report.steps[3].status is Status.FAILED
    assert set(not_checked(report)) == set(range(5, 14))
    assert set(not_checked(report).values()) == {"an earlier step failed"}
    assert report.links == ()
    assert report.proves == ()


@pytest.mark.parametrize("suffix", [RECEIPT.suffix, OPENING, MARKER.suffix])
def test_every_document_has_fields_to_change(suffix: str) -> None:
    assert len(fields_of(suffix)) > 20


def receipt_step(path: Path, *, owned: bool = False) -> tuple[int, ...]:
    """Return the steps that may refuse a field of the receipt whose digests agree again.

    1 where other fields or the form say what it has to be, 4 for the worker's name, 10 for roots,
    11 for what the opening opens, 12 when the worker did not sign it. A core that its worker
    signed (``owned``) is not the one that the compute receipt commits to: 13.
    """
    if path[:2] == ("core", "evidence"):
        return (1, 10)
    if path == ("core", "runtime_class", "policy"):
        return (1,)
    if path == ("observed", "worker_id"):
        return (4,)
    if path in (("core", "request_digest"), ("core", "prompt_commitment")):
        return (11,)
    if path[0] == "core" and owned:
        return (1, 11, 13)
    return (1, 11, 12, 13)


@pytest.mark.parametrize(("name", "path"), fields_of(RECEIPT.suffix))
def test_a_changed_receipt_field_fails(name: str, path: Path) -> None:
    forger = FORGERS[name]
    value = changed(forger.document(RECEIPT.suffix), path)
    # edited in place: the marker notices
    assert failing_step(forger.in_place(RECEIPT, jcs(value))) == 1
    # every digest made to agree again: the fields contradict each other, the opening does not
    # open it, or nobody signed it
    assert failing_step(forger.with_receipt(value)) in receipt_step(path)


@pytest.mark.parametrize(("name", "path"), fields_of(RECEIPT.suffix))
def test_a_changed_receipt_signed_by_a_stranger_fails(name: str, path: Path) -> None:
    forger = FORGERS[name]
    value = changed(forger.document(RECEIPT.suffix), path)
    try:
        files = forger.with_receipt(value, key=STRANGER)
    except EvidenceError:
        return  # not even a receipt any more: the statement about it cannot be written
    assert failing_step(files) in receipt_step(path)
    report = verify_set(without(files, BUNDLE), TRUST, now=NOW)
    assert report.failure is not None
    assert report.failure.number in {*receipt_step(path), 12}


@pytest.mark.parametrize(
    ("name", "path"), [p for p in fields_of(RECEIPT.suffix) if p.values[1][0] == "core"]
)
def test_a_changed_core_signed_by_its_own_worker_fails(name: str, path: Path) -> None:
    """Its compute receipt commits to another core."""
    forger = FORGERS[name]
    value = changed(forger.document(RECEIPT.suffix), path)
    try:
        files = forger.with_receipt(value, key=SIGNER)
    except EvidenceError:
        return
    assert failing_step(files) in receipt_step(path, owned=True)


def opening_step(value: Any, path: Path) -> tuple[int, ...]:
    """Return the step that refuses a field of the opening in a bundle that was sealed again."""
    if not opens_as_document(value):
        return (1,)
    request = ("run_id", "replica_slot", "expires_at", "network_id", "model_path", "blind")
    if path[0] == "request" and path[1] not in request:
        return (3,)  # the request commitment covers it
    return (3,) if path == ("request", "network_id") else (11,)


@pytest.mark.parametrize(("name", "path"), fields_of(OPENING))
def test_a_changed_opening_field_fails(name: str, path: Path) -> None:
    forger = FORGERS[name]
    value = changed(forger.document(OPENING), path)
    files = forger.with_opening(value)
    if path == ("leaf_checks",):
        # bound by its length only: the root is the evidence (docs/spec/artifact-set.md)
        assert check(files).verified
        return
    assert failing_step(files) in opening_step(value, path)


def opens_as_document(value: Any) -> bool:
    try:
        decode(Opening, value)
    except EvidenceError:
        return False
    return True


def test_leaf_checks_are_bound_by_their_length() -> None:
    forger = FORGERS["private"]
    opening = forger.document(OPENING)
    whole = opening["leaf_checks"]
    for checks in ("", whole[:-8], whole + "AAAA", whole + whole):
        opening["leaf_checks"] = checks
        assert failing_step(forger.with_opening(opening)) == 11


@pytest.mark.parametrize(("name", "path"), fields_of(MARKER.suffix))
def test_a_changed_marker_field_fails(name: str, path: Path) -> None:
    forger = FORGERS[name]
    value = changed(forger.document(MARKER.suffix), path)
    assert failing_step(forger.in_place(MARKER, jcs(value))) == 1


def statement_of(forger: Forger) -> Any:
    envelope = forger.data(ENVELOPES)[:-1]
    return parse_strict(dsse.unsafe_payload(envelope), max_bytes=1 << 20)


@pytest.mark.parametrize(
    ("name", "path"),
    [
        pytest.param(name, path, id=f"{name}:{'.'.join(map(str, path))}")
        for name, forger in FORGERS.items()
        for path in leaves(statement_of(forger))
    ],
)
def test_a_changed_statement_field_fails_even_when_signed(name: str, path: Path) -> None:
    forger = FORGERS[name]
    payload = jcs(changed(statement_of(forger), path))
    for key in (SIGNER, STRANGER):
        envelope = dsse.sign(payload, dsse.PAYLOAD_TYPE, [key]) + b"\n"
        assert failing_step(forger.with_member(ENVELOPES, envelope)) == 12


@pytest.mark.parametrize("kind", FILES, ids=name_of)
def test_a_flipped_bit_fails(kind: MemberKind) -> None:
    forger = FORGERS["private"]
    data = forger.data(kind)
    for offset in {*range(0, len(data), 64), len(data) - 1}:
        edited = data[:offset] + bytes([data[offset] ^ 1]) + data[offset + 1 :]
        assert failing_step(forger.in_place(kind, edited)) == 1


@pytest.mark.parametrize("kind", FILES, ids=name_of)
def test_a_truncated_file_fails(kind: MemberKind) -> None:
    data = ORDINARY.data(kind)
    for size in {*range(0, len(data), 4096), len(data) - 1}:
        assert failing_step(ORDINARY.in_place(kind, data[:size])) == 1
        if kind not in (MARKER, STATE):  # an attacker who adapts the marker gains nothing
            step = 12 if kind is ENVELOPES else 1
            assert failing_step(ORDINARY.with_member(kind, data[:size])) == step


@pytest.mark.parametrize("kind", FILES, ids=name_of)
def test_a_lengthened_file_fails(kind: MemberKind) -> None:
    forger = FORGERS["private"]
    for tail in (b"\n", b" ", b"\x00", b"{}\n"):
        assert failing_step(forger.in_place(kind, forger.data(kind) + tail)) == 1
        if kind not in (MARKER, STATE):
            step = 12 if kind is ENVELOPES else 1
            assert failing_step(forger.with_member(kind, forger.data(kind) + tail)) == step


# The step that refuses a member of another set, and whether the marker is adapted to it.
SWAPPED = {
    ".palw": 1,  # the bundle is sealed for another one
    ".json": 13,
    ".geoai.json": 1,
    ".exec.json": 1,
    ".telemetry.jsonl": 1,
    ".intoto.jsonl": 12,
    ".palw.bundle": 1,
}


@pytest.mark.parametrize("kind", FILES, ids=name_of)
def test_files_swapped_between_two_sets_fail(kind: MemberKind) -> None:
    later = [replace(event, rss=event.rss + 1) for event in make_events(4)]
    other = Forger(make_set(facts=make_facts(rss_after=1), telemetry=encode_log(later)).files())
    again = Forger(make_set(label="the same run, other secrets").files())
    forger = FORGERS["private"]
    for foreign in (other, again):
        if foreign.data(kind) != forger.data(kind):
            assert failing_step(forger.in_place(kind, foreign.data(kind))) == 1
            if kind not in (MARKER, STATE):
                step = failing_step(forger.with_member(kind, foreign.data(kind)))
                same_compute_receipt = kind is BUNDLE and foreign is other
                assert step == (11 if same_compute_receipt else SWAPPED[kind.suffix])
    assert again.data(kind) != forger.data(kind) or kind in (EXEC, TELEMETRY)


def test_a_whole_compute_receipt_of_another_run_fails_against_the_receipt() -> None:
    """Receipt, public document, bundle and store of one run beside the rest of another."""
    other = Forger(make_set(label="the same run, other secrets").files())
    taken = [kind for kind in MEMBERS if kind not in (RECEIPT, TELEMETRY, ENVELOPES)]
    files = FORGERS["private"].with_members({kind: other.data(kind) for kind in taken})
    assert failing_step(files) == 11  # its opening is of another receipt
    assert failing_step(without(files, BUNDLE)) == 13


def test_a_set_under_another_id_fails() -> None:
    forger = FORGERS["private"]
    other = "0" * 32
    renamed = {name.replace(forger.set_id, other): data for name, data in PRIVATE.items()}
    assert failing_step(renamed) == 1
    contents = {kind: forger.data(kind) for kind in MEMBERS}
    digest = forger.document(MARKER.suffix)["receipt_digest"]
    assert failing_step(reseal(digest, contents, set_id=other)) == 1


def test_the_telemetry_of_the_marker_is_not_enough() -> None:
    forger = FORGERS["private"]
    telemetry = forger.data(TELEMETRY).replace(b"30000000", b"30000001", 1)
    report = check(forger.with_member(TELEMETRY, telemetry))
    assert report.failure is not None
    assert report.failure.number == 1
    assert "telemetry_digest" in report.failure.detail


@pytest.mark.parametrize("lines", [b"", b"\n", b"{}\n"])
def test_other_envelope_files_fail(lines: bytes) -> None:
    forger = FORGERS["private"]
    assert failing_step(forger.with_member(ENVELOPES, lines)) == 12
    envelopes = forger.data(ENVELOPES)
    assert failing_step(forger.with_member(ENVELOPES, envelopes + lines + b"x\n")) == 12


def test_a_key_id_decides_nothing() -> None:
    forger = FORGERS["private"]
    envelope = parse_strict(forger.data(ENVELOPES)[:-1], max_bytes=1 << 20)
    assert isinstance(envelope, dict)
    signatures: Any = envelope["signatures"]
    for keyid in ("", STRANGER.public.key_id, None):
        signatures[0]["keyid"] = keyid
        assert check(forger.with_member(ENVELOPES, jcs(envelope) + b"\n")).verified
    signatures.clear()
    assert failing_step(forger.with_member(ENVELOPES, jcs(envelope) + b"\n")) == 12


@pytest.mark.parametrize("kind", MEMBERS, ids=name_of)
def test_a_marker_that_drops_a_member_fails(kind: MemberKind) -> None:
    forger = FORGERS["private"]
    marker = forger.document(MARKER.suffix)
    name = kind.name(forger.set_id)
    marker["members"] = [item for item in marker["members"] if item["name"] != name]
    files = {**without(PRIVATE, kind), MARKER.name(forger.set_id): jcs(marker)}
    assert failing_step(files) == 1


def test_a_foreign_file_fails() -> None:
    assert failing_step({**PRIVATE, f"{FORGERS['private'].set_id}.extra.txt": b""}) == 1


@pytest.mark.parametrize(
    "kind", [kind for kind in FILES if kind.visibility == "public"], ids=name_of
)
def test_a_missing_public_member_is_an_incomplete_set(kind: MemberKind) -> None:
    with pytest.raises(NothingToVerifyError) as caught:
        check(without(PRIVATE, kind))
    assert caught.value.exit_code == 4


def test_no_files_are_nothing_to_verify() -> None:
    with pytest.raises(NothingToVerifyError):
        check({})


def test_a_naive_time_is_refused() -> None:
    with pytest.raises(ValueError, match="aware"):
        verify_set(PRIVATE, TRUST, now=NOW.replace(tzinfo=None))


def test_no_failure_repeats_private_values() -> None:
    forger = FORGERS["private"]
    for path in leaves(forger.document(OPENING)):
        value = changed(forger.document(OPENING), path)
        report = check(forger.with_opening(value))
        text = str(as_document(report))
        for secret in ("tally stick", "9004", "1500", str(value["request"]["blind"])):
            assert secret not in text, path


def test_a_report_is_plain_json() -> None:
    report = check(PRIVATE)
    document: Any = parse_strict(jcs(as_document(report)), max_bytes=1 << 20)
    assert document["steps"][0]["status"] == "passed"
    assert document["receipt_digest"] == report.receipt_digest
