"""The stateless steps: what is honest passes, and every change fails in its own step."""

from __future__ import annotations

import copy
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tallystick.attest import dsse
from tallystick.attest.trust import TrustedKey, TrustPolicy
from tallystick.canonical.hashing import format_digest, sha256
from tallystick.canonical.json import jcs, parse_strict
from tallystick.contracts.layout import ENVELOPES, MARKER, MEMBERS, OPENING, RECEIPT, TELEMETRY
from tallystick.errors import EvidenceError, NothingToVerifyError, NoTrustError
from tallystick.receipts.report import STEP_NAMES, Status, VerificationReport, as_document
from tallystick.receipts.verify import verify_set
from tallystick.telemetry.log import encode_log
from tests.support.sets import (
    NOW,
    SIGNER,
    STRANGER,
    TRUST,
    Forger,
    fake_digest,
    make_events,
    make_facts,
    make_ordinary,
    make_public,
    make_set,
    reseal,
)

Path = tuple[str | int, ...]
PRIVATE = make_set().files()
PUBLIC = make_set(*make_public()).files()
SETS = {"private": PRIVATE, "public": PUBLIC}
ORDINARY = Forger(make_ordinary().files())
FORGERS = {name: Forger(files) for name, files in SETS.items()}
SUFFIXES = (*(kind.suffix for kind in MEMBERS), MARKER.suffix)


def check(files: dict[str, bytes], trust: TrustPolicy = TRUST) -> VerificationReport:
    return verify_set(files, trust, now=NOW)


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


@pytest.mark.parametrize("files", SETS.values(), ids=SETS)
def test_an_honest_set_verifies(files: dict[str, bytes]) -> None:
    report = check(files)
    assert report.verified
    assert report.exit_code == 0
    report.require()
    statuses = {step.number: step.status for step in report.steps}
    assert list(statuses) == list(range(1, 14))
    assert {number for number, status in statuses.items() if status is Status.PASSED} == {1, 11, 12}
    assert set(statuses.values()) == {Status.PASSED, Status.NOT_CHECKED}
    assert len(STEP_NAMES) == 13


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


def test_a_withheld_opening_is_not_checked_and_never_passed() -> None:
    files = {name: data for name, data in PRIVATE.items() if not name.endswith(OPENING.suffix)}
    report = check(files)
    assert report.verified
    assert report.steps[10].status is Status.NOT_CHECKED
    assert report.steps[10].detail == "private opening withheld"


def test_steps_after_a_failure_are_not_checked() -> None:
    report = check(PRIVATE, TrustPolicy.for_keys([STRANGER.public]))
    assert report.steps[11].status is Status.FAILED
    assert report.steps[12].detail == "an earlier step failed"
    assert report.links == ()
    assert report.proves == ()


@pytest.mark.parametrize("suffix", [RECEIPT.suffix, OPENING.suffix, MARKER.suffix])
def test_every_document_has_fields_to_change(suffix: str) -> None:
    assert len(fields_of(suffix)) > 20


@pytest.mark.parametrize(("name", "path"), fields_of(RECEIPT.suffix))
def test_a_changed_receipt_field_fails(name: str, path: Path) -> None:
    forger = FORGERS[name]
    files = dict(SETS[name])
    value = changed(forger.document(RECEIPT.suffix), path)
    # edited in place: the marker notices
    files[forger.set_id + RECEIPT.suffix] = jcs(value)
    assert failing_step(files) == 1
    # every digest made to agree again: the fields contradict each other, the opening does not
    # open it, or nobody signed it
    assert failing_step(forger.with_receipt(value)) in (1, 11, 12)


@pytest.mark.parametrize(("name", "path"), fields_of(RECEIPT.suffix))
def test_a_changed_receipt_signed_by_a_stranger_fails(name: str, path: Path) -> None:
    forger = FORGERS[name]
    value = changed(forger.document(RECEIPT.suffix), path)
    try:
        files = forger.with_receipt(value, key=STRANGER)
    except EvidenceError:
        return  # not even a receipt any more: the statement about it cannot be written
    assert failing_step(files) in (1, 11, 12)
    without_opening = {k: v for k, v in files.items() if not k.endswith(OPENING.suffix)}
    assert failing_step(without_opening) in (1, 12)


@pytest.mark.parametrize(("name", "path"), fields_of(OPENING.suffix))
def test_a_changed_opening_field_fails(name: str, path: Path) -> None:
    forger = FORGERS[name]
    value = changed(forger.document(OPENING.suffix), path)
    files = dict(SETS[name])
    files[forger.set_id + OPENING.suffix] = jcs(value)
    assert failing_step(files) == 1
    if path == ("leaf_checks",):
        return  # bound by its length only: the root is the evidence (docs/spec/artifact-set.md)
    step = failing_step(forger.with_member(OPENING.suffix, jcs(value)))
    assert step == 11 or (step == 1 and not opens_as_document(value))


def opens_as_document(value: Any) -> bool:
    from tallystick.contracts.codec import decode
    from tallystick.contracts.opening import Opening

    try:
        decode(Opening, value)
    except EvidenceError:
        return False
    return True


def test_leaf_checks_are_bound_by_their_length() -> None:
    forger = FORGERS["private"]
    opening = forger.document(OPENING.suffix)
    whole = opening["leaf_checks"]
    for checks in ("", whole[:-8], whole + "AAAA", whole + whole):
        opening["leaf_checks"] = checks
        assert failing_step(forger.with_member(OPENING.suffix, jcs(opening))) == 11


@pytest.mark.parametrize(("name", "path"), fields_of(MARKER.suffix))
def test_a_changed_marker_field_fails(name: str, path: Path) -> None:
    forger = FORGERS[name]
    files = dict(SETS[name])
    files[forger.set_id + MARKER.suffix] = jcs(changed(forger.document(MARKER.suffix), path))
    assert failing_step(files) == 1


def statement_of(forger: Forger) -> Any:
    envelope = forger.files[forger.set_id + ENVELOPES.suffix][:-1]
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
        assert failing_step(forger.with_member(ENVELOPES.suffix, envelope)) == 12


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_flipped_bit_fails(suffix: str) -> None:
    name = FORGERS["private"].set_id + suffix
    data = PRIVATE[name]
    for offset in {*range(0, len(data), 64), len(data) - 1}:
        edited = data[:offset] + bytes([data[offset] ^ 1]) + data[offset + 1 :]
        assert failing_step({**PRIVATE, name: edited}) == 1


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_truncated_file_fails(suffix: str) -> None:
    name = ORDINARY.set_id + suffix
    data = ORDINARY.files[name]
    for size in {*range(0, len(data), 4096), len(data) - 1}:
        assert failing_step({**ORDINARY.files, name: data[:size]}) == 1
        if suffix != MARKER.suffix:  # an attacker who adapts the marker gains nothing
            assert failing_step(ORDINARY.with_member(suffix, data[:size])) in (1, 12)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_lengthened_file_fails(suffix: str) -> None:
    name = FORGERS["private"].set_id + suffix
    for tail in (b"\n", b" ", b"\x00", b"{}\n"):
        assert failing_step({**PRIVATE, name: PRIVATE[name] + tail}) == 1


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_files_swapped_between_two_sets_fail(suffix: str) -> None:
    later = [replace(event, rss=event.rss + 1) for event in make_events(4)]
    other = make_set(facts=make_facts(rss_after=1), telemetry=encode_log(later))
    foreign = other.files()[other.receipt_id + suffix]
    forger = FORGERS["private"]
    assert failing_step({**PRIVATE, forger.set_id + suffix: foreign}) == 1
    if suffix in (ENVELOPES.suffix, OPENING.suffix):
        step = failing_step(forger.with_member(suffix, foreign))
        assert step == {ENVELOPES.suffix: 12, OPENING.suffix: 11}[suffix]


def test_a_set_under_another_id_fails() -> None:
    forger = FORGERS["private"]
    other = "0" * 32
    renamed = {name.replace(forger.set_id, other): data for name, data in PRIVATE.items()}
    assert failing_step(renamed) == 1
    contents = {kind.suffix: PRIVATE[forger.set_id + kind.suffix] for kind in MEMBERS}
    digest = forger.document(MARKER.suffix)["receipt_digest"]
    assert failing_step(reseal(digest, contents, set_id=other)) == 1


def test_the_telemetry_of_the_marker_is_not_enough() -> None:
    forger = FORGERS["private"]
    telemetry = PRIVATE[forger.set_id + TELEMETRY.suffix].replace(b"30000000", b"30000001", 1)
    report = check(forger.with_member(TELEMETRY.suffix, telemetry))
    assert report.failure is not None
    assert report.failure.number == 1
    assert "telemetry_digest" in report.failure.detail


@pytest.mark.parametrize("lines", [b"", b"\n", b"{}\n"])
def test_other_envelope_files_fail(lines: bytes) -> None:
    forger = FORGERS["private"]
    assert failing_step(forger.with_member(ENVELOPES.suffix, lines)) == 12
    envelopes = PRIVATE[forger.set_id + ENVELOPES.suffix]
    assert failing_step(forger.with_member(ENVELOPES.suffix, envelopes + lines + b"x\n")) == 12


def test_a_key_id_decides_nothing() -> None:
    forger = FORGERS["private"]
    envelope = parse_strict(PRIVATE[forger.set_id + ENVELOPES.suffix][:-1], max_bytes=1 << 20)
    assert isinstance(envelope, dict)
    signatures: Any = envelope["signatures"]
    for keyid in ("", STRANGER.public.key_id, None):
        signatures[0]["keyid"] = keyid
        assert check(forger.with_member(ENVELOPES.suffix, jcs(envelope) + b"\n")).verified
    signatures.clear()
    assert failing_step(forger.with_member(ENVELOPES.suffix, jcs(envelope) + b"\n")) == 12


@pytest.mark.parametrize("suffix", [kind.suffix for kind in MEMBERS])
def test_a_marker_that_drops_a_member_fails(suffix: str) -> None:
    forger = FORGERS["private"]
    marker = forger.document(MARKER.suffix)
    marker["members"] = [item for item in marker["members"] if not item["name"].endswith(suffix)]
    files = {name: data for name, data in PRIVATE.items() if not name.endswith(suffix)}
    files[forger.set_id + MARKER.suffix] = jcs(marker)
    assert failing_step(files) == 1


def test_a_foreign_file_fails() -> None:
    assert failing_step({**PRIVATE, f"{FORGERS['private'].set_id}.extra.txt": b""}) == 1


@pytest.mark.parametrize(
    "suffix", [kind.suffix for kind in MEMBERS if kind.visibility == "public"] + [MARKER.suffix]
)
def test_a_missing_public_member_is_an_incomplete_set(suffix: str) -> None:
    files = {name: data for name, data in PRIVATE.items() if not name.endswith(suffix)}
    with pytest.raises(NothingToVerifyError) as caught:
        check(files)
    assert caught.value.exit_code == 4


def test_no_files_are_nothing_to_verify() -> None:
    with pytest.raises(NothingToVerifyError):
        check({})


def policy(**changes: Any) -> TrustPolicy:
    values: dict[str, Any] = {
        "name": "worker",
        "public_key": SIGNER.public.raw.hex(),
        "links": ("execution",),
        "valid_from": None,
        "valid_to": None,
        "minimum_enforcement": "none",
        "engine_libraries": None,
    }
    return TrustPolicy("tallystick.trust-policy/v1", (TrustedKey(**{**values, **changes}),))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"minimum_enforcement": "process"}, "enforcement"),
        ({"engine_libraries": (fake_digest("another"),)}, "engine build"),
        ({"valid_from": "2026-11-30T00:53:20.031Z"}, "not valid at the claimed time"),
        ({"valid_to": "2026-11-30T00:53:20.030Z"}, "not valid at the claimed time"),
        ({"valid_to": "2026-11-30T11:00:00.000Z"}, "time claimed, not anchored"),
        ({"public_key": STRANGER.public.raw.hex()}, "not signed by the trusted keys"),
    ],
)
def test_the_trust_policy_decides_in_step_12(changes: dict[str, Any], message: str) -> None:
    report = check(PRIVATE, policy(**changes))
    assert report.failure is not None
    assert report.failure.number == 12
    assert message in report.failure.detail


def test_a_policy_that_fits_accepts() -> None:
    assert check(
        PRIVATE,
        policy(
            valid_from="2026-11-30T00:53:20.030Z",
            valid_to="2026-12-30T00:00:00.000Z",
            engine_libraries=(fake_digest("library"),),
        ),
    ).verified


def test_a_day_of_clock_difference_matters_only_with_a_window() -> None:
    window = policy(valid_from="2026-01-01T00:00:00.000Z", valid_to="2026-12-01T00:00:00.000Z")
    for days, verified in ((-1, False), (0, True), (1, False)):
        now = NOW + timedelta(days=days)
        assert verify_set(PRIVATE, window, now=now).verified is verified
        assert verify_set(PRIVATE, TRUST, now=now).verified


def test_without_a_key_for_the_link_there_is_no_verdict() -> None:
    with pytest.raises(NoTrustError) as caught:
        check(PRIVATE, policy(links=("source", "acceptance")))
    assert caught.value.exit_code == 4


def test_a_naive_time_is_refused() -> None:
    with pytest.raises(ValueError, match="aware"):
        verify_set(PRIVATE, TRUST, now=NOW.replace(tzinfo=None))


def test_no_failure_repeats_private_values() -> None:
    forger = FORGERS["private"]
    for path in leaves(forger.document(OPENING.suffix)):
        value = changed(forger.document(OPENING.suffix), path)
        report = check(forger.with_member(OPENING.suffix, jcs(value)))
        text = str(as_document(report))
        for secret in ("tally stick", "9004", "1500", str(value["request"]["blind"])):
            assert secret not in text, path


def test_a_report_is_plain_json() -> None:
    report = check(PRIVATE)
    document: Any = parse_strict(jcs(as_document(report)), max_bytes=1 << 20)
    assert document["steps"][0]["status"] == "passed"
    assert document["receipt_digest"] == report.receipt_digest


def test_digests_of_private_texts_are_nowhere_public() -> None:
    """With the right prompt and no blind, nobody can confirm a guess from the public files."""
    from blake3 import blake3

    from tallystick.canonical.hashing import domain_hash, ids_bytes
    from tests.support.sets import OUTPUT, PROMPT, PROMPT_IDS, SAMPLED_IDS

    public = b"".join(
        data for name, data in PRIVATE.items() if not name.endswith((OPENING.suffix,))
    )
    envelope = PRIVATE[FORGERS["private"].set_id + ENVELOPES.suffix][:-1]
    public += dsse.unsafe_payload(envelope)
    prompt, ids, out = PROMPT.encode(), ids_bytes(PROMPT_IDS), ids_bytes(SAMPLED_IDS)
    guesses = [prompt, ids, OUTPUT, out, prompt + OUTPUT, ids + out, OUTPUT.strip(), prompt.lower()]
    domains = ("tallystick.prompt", "tallystick.output", "tallystick.request", "tallystick.run")
    parts = [[*choice] for n in (1, 2, 3) for choice in itertools.permutations(guesses[:4], n)]
    digests = [sha256(guess) for guess in guesses] + [blake3(guess).digest() for guess in guesses]
    for domain, choice in itertools.product(domains, parts):
        digests += [domain_hash(domain, 1, choice), domain_hash(domain, 1, [b"", *choice])]
        digests += [domain_hash(domain, 1, [bytes(32), *choice])]
    for digest in digests:
        assert digest.hex().encode() not in public
    for text in (*guesses, str(list(PROMPT_IDS)).encode(), b"9004"):
        assert text not in public


def test_public_disclosure_shows_exactly_the_plain_digests() -> None:
    from tests.support.sets import OUTPUT, PROMPT

    files = {name: data for name, data in PUBLIC.items() if not name.endswith(OPENING.suffix)}
    receipt = files[FORGERS["public"].set_id + RECEIPT.suffix]
    assert format_digest(sha256(OUTPUT)).encode() in receipt
    assert format_digest(sha256(PROMPT.encode())).encode() in receipt
    assert PROMPT.encode() not in b"".join(files.values())


def test_verification_needs_the_core_install_only() -> None:
    program = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        blocked = ("numpy", "jinja2", "xllamacpp", "tallystick.engine", "tallystick.sandbox",
                   "tallystick.execution", "tallystick.models", "tallystick.worker")
        if name in blocked or name.startswith(tuple(part + "." for part in blocked)):
            raise ImportError("blocked: " + name)
sys.meta_path.insert(0, Block())
import tallystick.receipts.verify, tallystick.receipts.files, tallystick.receipts.inspect
import tallystick.audit.diff, tallystick.cli.verify, tallystick.cli.inspect, tallystick.cli.diff
"""
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, env=os.environ
    )
    assert result.returncode == 0, result.stderr
