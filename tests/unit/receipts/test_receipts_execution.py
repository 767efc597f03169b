"""The execution envelope, the source link and the three-way match of a set over a bundle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from tallystick.attest.source import sign_source
from tallystick.attest.trust import TrustPolicy
from tallystick.bundles.match import AttestedData, BundlePrompt, Materialised, ThreeDigests
from tallystick.canonical.hashing import format_digest, sha256
from tallystick.canonical.json import jcs, parse_strict
from tallystick.contracts.dataset import tile_set_digest
from tallystick.contracts.exec_envelope import RECEIPT_SCHEMA_DIGEST
from tallystick.contracts.layout import BUNDLE, ENVELOPES, EXEC, RECEIPT
from tallystick.contracts.receipt import RECEIPT_SCHEMA
from tallystick.contracts.request import ExpectedDigest
from tallystick.contracts.schemas import schema_digest
from tallystick.contracts.source import SourceFile
from tallystick.errors import EvidenceError
from tallystick.receipts.report import Status, VerificationReport
from tallystick.receipts.steps_match import Parties
from tallystick.receipts.verify import VerifyContext, verify_with
from tests.support.forgery import Forger, edited, leaves
from tests.support.sets import (
    AUDIT_KEY,
    NOW,
    PROMPT,
    SCHEDULER,
    SIGNER,
    STRANGER,
    fake_digest,
    make_run,
    make_set,
)

FILES = (SourceFile("data/a.png", "a" * 64, 3),)
SOURCE = sign_source(FILES, "CC0-1.0", "drawn", SCHEDULER)
ATTESTED = AttestedData(
    SOURCE, tile_set_digest((file.path, file.size, file.sha256) for file in FILES), "CC0-1.0"
)
PROVIDED = BundlePrompt("task/prompt.txt", "west", "1/0/0", PROMPT)
MATERIALISED = Materialised(
    ThreeDigests(fake_digest("bundle"), fake_digest("task"), fake_digest("model")),
    fake_digest("manifest"),
    ATTESTED,
    PROVIDED,
)
RUN = make_run(
    dataset=ExpectedDigest(MATERIALISED.digests.bundle),
    task=ExpectedDigest(MATERIALISED.digests.task),
    prompt_path=PROVIDED.path,
    split=PROVIDED.split,
    tile=PROVIDED.tile,
)
BUILT = make_set(RUN, materialised=MATERIALISED)
FORGER = Forger(BUILT.files())
PLAIN = Forger(make_set().files())
KEYS = TrustPolicy.for_keys([SIGNER.public])
WITH_SOURCE = TrustPolicy.for_keys([SIGNER.public, SCHEDULER.public])
ENVELOPE: Any = parse_strict(FORGER.data(EXEC), max_bytes=1 << 20)


def verified(
    files: Mapping[str, bytes],
    trust: TrustPolicy = WITH_SOURCE,
    parties: Parties | None = None,
) -> VerificationReport:
    context = VerifyContext(trust, NOW, AUDIT_KEY, parties=parties or Parties())
    return verify_with(files, context)


def failing(report: VerificationReport) -> int:
    assert report.failure is not None
    return report.failure.number


def without_bundle(files: Mapping[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in files.items() if not name.endswith(BUNDLE.suffix)}


def resigned(envelope: Any, source: bytes = SOURCE + b"\n") -> dict[str, bytes]:
    """Return the set whose own worker signed another execution envelope."""
    data = jcs(envelope)
    value = FORGER.document(RECEIPT.suffix)
    value["observed"]["exec_envelope_digest"] = format_digest(sha256(data))
    return FORGER.with_receipt(value, key=SIGNER, execution=data, source=source)


def changed(path: tuple[str, ...]) -> Any:
    """Return the envelope with one value changed into another of its kind."""
    envelope: Any = parse_strict(FORGER.data(EXEC), max_bytes=1 << 20)
    holder = envelope
    for key in path[:-1]:
        holder = holder[key]
    old = holder[path[-1]]
    digest = old.startswith("sha256:")
    holder[path[-1]] = fake_digest("another") if digest else f"{old}x"
    return envelope


def test_the_schema_that_a_receipt_is_held_to_is_the_published_one() -> None:
    assert schema_digest(RECEIPT_SCHEMA) == RECEIPT_SCHEMA_DIGEST


def test_a_set_over_a_bundle_verifies_and_says_who_agreed() -> None:
    report = verified(BUILT.files(), parties=Parties(RUN, MATERIALISED))
    assert report.verified
    assert report.match == ("declared", "materialised", "executed")
    assert [link.status for link in report.links] == ["verified", "verified", "missing"]
    assert report.links[0].signers == (SCHEDULER.public.key_id,)
    assert "2 of 3 links, missing: acceptance" in report.steps[11].detail
    assert "declared = materialised = executed" in report.steps[11].detail
    assert not any("source" in line for line in report.does_not_prove)
    (whose,) = (line for line in report.proves if "tile set" in line)
    assert whose.endswith("signed the tile set of the bundle that you gave.")
    (whose,) = (line for line in verified(BUILT.files()).proves if "tile set" in line)
    assert whose.endswith("the signer states that it is that of the bundle.")


def test_a_source_that_nobody_trusts_is_shown_as_that() -> None:
    report = verified(BUILT.files(), KEYS)
    assert report.verified
    assert report.links[0].status == "present, no trusted key"
    assert "source: present, no trusted key" in report.steps[11].detail
    assert "1 of 3 links, missing: acceptance" in report.steps[11].detail
    assert any("no key that you trust" in line for line in report.does_not_prove)
    assert report.match == ("declared", "executed")
    plain = verified(PLAIN.files, KEYS)
    assert plain.links[0].status == "missing"
    assert any("there is no source attestation" in line for line in plain.does_not_prove)


def test_a_worker_does_not_vouch_for_its_own_source() -> None:
    own = sign_source(FILES, "CC0-1.0", "drawn", SIGNER)
    built = make_set(
        RUN, materialised=replace(MATERIALISED, source=replace(ATTESTED, envelope=own))
    )
    assert verified(built.files(), KEYS).links[0].status == "present, no trusted key"


@pytest.mark.parametrize("path", list(leaves(ENVELOPE)), ids=".".join)
def test_each_field_changed_alone_is_refused(path: tuple[str, ...]) -> None:
    edited = jcs(changed(path))
    assert failing(verified(FORGER.in_place(EXEC, edited))) == 1
    assert failing(verified(FORGER.with_member(EXEC, edited))) == 1
    # Its own worker signed it: what the other documents do not say, he is believed.
    later: dict[tuple[str, ...], int] = {
        ("receipt_validator", "version"): 13,
        ("provenance_chain", "source_attestation_digest"): 12,
        ("provenance_chain", "manifest_digest"): 12,
    }
    files = resigned(changed(path))
    report = verified(files, parties=Parties(None, MATERIALISED))
    assert failing(report) == later.get(path, 1)
    name = path[-1] if path not in later or path[-1] != "source_attestation_digest" else "source"
    assert name in (report.failure.detail if report.failure else "") or path[-1] in (
        "schema",
        "producer",
    )
    assert verified(without_bundle(files)).verified is (
        path in (("receipt_validator", "version"), ("provenance_chain", "manifest_digest"))
    )


@pytest.mark.parametrize("field", ["manifest_digest", "source_attestation_digest"])
def test_a_chain_that_lacks_a_link_of_its_bundle_is_refused(field: str) -> None:
    envelope: Any = parse_strict(FORGER.data(EXEC), max_bytes=1 << 20)
    envelope["provenance_chain"][field] = None
    assert failing(verified(resigned(envelope))) == (1 if field == "manifest_digest" else 12)
    plain: Any = parse_strict(PLAIN.data(EXEC), max_bytes=1 << 20)
    plain["provenance_chain"][field] = fake_digest("something")
    data = jcs(plain)
    value = PLAIN.document(RECEIPT.suffix)
    value["observed"]["exec_envelope_digest"] = format_digest(sha256(data))
    assert failing(verified(PLAIN.with_receipt(value, key=SIGNER, execution=data))) == 1


def test_a_task_without_a_bundle_is_refused() -> None:
    value = FORGER.document(RECEIPT.suffix)
    value["core"]["task_digest"] = PLAIN.document(RECEIPT.suffix)["core"]["task_digest"]
    files = FORGER.with_receipt(value, key=SIGNER, source=SOURCE + b"\n")
    assert failing(verified(files)) == 1


def test_another_source_envelope_is_refused() -> None:
    other = sign_source((SourceFile("data/b.png", "b" * 64, 3),), "CC0-1.0", "drawn", SCHEDULER)
    own = FORGER.data(ENVELOPES).split(b"\n")[0] + b"\n"
    for lines in (own + other + b"\n", own, own + SOURCE, own + SOURCE + b"\n" + SOURCE + b"\n"):
        assert failing(verified(FORGER.with_member(ENVELOPES, lines))) == 12
    # Named and signed by the worker, but of no sound statement: no receipt can carry it.
    envelope: Any = parse_strict(FORGER.data(EXEC), max_bytes=1 << 20)
    for bad in (own[:-1], b"{}", SOURCE.replace(b"payloadType", b"payloadtype")):
        envelope["provenance_chain"]["source_attestation_digest"] = format_digest(sha256(bad))
        assert failing(verified(resigned(envelope, bad + b"\n"))) == 12


def test_a_retired_source_key_is_refused() -> None:
    end = "2026-11-30T11:00:00.000Z"
    keys = tuple(
        replace(key, valid_to=end) if key.public_key == SCHEDULER.public.raw.hex() else key
        for key in WITH_SOURCE.keys
    )
    report = verified(BUILT.files(), replace(WITH_SOURCE, keys=keys))
    assert failing(report) == 12
    assert report.failure is not None
    assert "not anchored" in report.failure.detail


MISMATCHES: dict[str, tuple[Materialised, str]] = {
    "bundle": (
        replace(MATERIALISED, digests=replace(MATERIALISED.digests, bundle=fake_digest("another"))),
        "the bundle digest executed",
    ),
    "task": (
        replace(MATERIALISED, digests=replace(MATERIALISED.digests, task=fake_digest("another"))),
        "the task digest executed",
    ),
    "model": (
        replace(MATERIALISED, digests=replace(MATERIALISED.digests, model=fake_digest("another"))),
        "the model digest executed",
    ),
    "manifest": (replace(MATERIALISED, manifest_digest=fake_digest("another")), "manifest_digest"),
    "no attestation": (replace(MATERIALISED, source=None), "source_attestation_digest"),
    "other data": (
        replace(MATERIALISED, source=replace(ATTESTED, tile_set_digest=fake_digest("other"))),
        "about another tile set",
    ),
    "another licence": (
        replace(MATERIALISED, source=replace(ATTESTED, license="none")),
        "another licence",
    ),
    "prompt": (replace(MATERIALISED, prompt=replace(PROVIDED, text="other")), "another prompt"),
    "no prompt": (replace(MATERIALISED, prompt=None), "the prompt materialised"),
}


@pytest.mark.parametrize(("found", "words"), MISMATCHES.values(), ids=MISMATCHES)
def test_another_bundle_on_disk_is_refused(found: Materialised, words: str) -> None:
    report = verified(BUILT.files(), parties=Parties(None, found))
    assert failing(report) == 12
    assert report.failure is not None
    assert words in report.failure.detail
    assert PROMPT not in str(report)


def test_another_declaration_is_refused() -> None:
    for changes, words in (
        ({"dataset": ExpectedDigest(fake_digest("other"))}, "the bundle digest executed"),
        ({"task": ExpectedDigest(fake_digest("other"))}, "the task digest executed"),
        ({"model": ExpectedDigest(fake_digest("other"))}, "the model digest executed"),
        ({"tile": "1/0/1"}, "request_digest"),
        ({"prompt": "other"}, "request_digest"),
    ):
        report = verified(BUILT.files(), parties=Parties(replace(RUN, **changes)))
        assert failing(report) == 12
        assert report.failure is not None
        assert words in report.failure.detail
    # Another id of the same request is the same declaration, as a scheduler's ticket is.
    other = replace(RUN, run_id="01890a5d-ac96-774b-bcce-b302099a8058")
    assert verified(BUILT.files(), parties=Parties(other)).verified


def test_a_plain_set_is_of_no_bundle() -> None:
    report = verified(PLAIN.files, parties=Parties(None, MATERIALISED))
    assert failing(report) == 12
    assert verified(PLAIN.files, parties=Parties(make_run())).match == ("declared", "executed")


def test_without_the_private_half_digests_are_compared_and_no_prompt() -> None:
    found = replace(MATERIALISED, prompt=None)
    context = VerifyContext(WITH_SOURCE, NOW, parties=Parties(None, found))
    report = verify_with(BUILT.files(), context)
    assert report.verified
    assert report.match == ("materialised", "executed")
    assert report.steps[10].status is Status.NOT_CHECKED


@pytest.mark.parametrize("field", ["prompt_path", "tile", "split"])
def test_an_opened_run_whose_source_does_not_fit_is_refused(field: str) -> None:
    with pytest.raises(EvidenceError, match="the prompt materialised is not the one declared"):
        make_set(edited(RUN, field, None), materialised=MATERIALISED)


def test_a_stranger_cannot_sign_another_envelope() -> None:
    envelope = changed(("provenance_chain", "manifest_digest"))
    value = FORGER.document(RECEIPT.suffix)
    value["observed"]["exec_envelope_digest"] = format_digest(sha256(jcs(envelope)))
    files = FORGER.with_receipt(value, key=STRANGER, execution=jcs(envelope), source=SOURCE + b"\n")
    assert failing(verified(files)) == 12
