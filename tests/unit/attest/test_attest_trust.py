"""Trust policies: who may sign what, when, and how."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tallystick.attest.keys import PublicKey, SigningKey
from tallystick.attest.trust import MAX_POLICY_BYTES, TrustedKey, TrustPolicy
from tallystick.errors import EvidenceError, InputError, NoTrustError
from tests.support.documents import ENGINE, digest_of, example_receipt

ALICE = SigningKey.from_seed(b"\x01" * 32).public
BOB = SigningKey.from_seed(b"\x02" * 32).public
EVE = SigningKey.from_seed(b"\x03" * 32).public
BEFORE = "2026-11-30T12:00:01.249Z"
END = "2026-11-30T12:00:01.250Z"  # when the example receipt says that it ended
AFTER = "2026-11-30T12:00:01.251Z"
RETIRED = "2026-12-31T00:00:00.000Z"
NOW = datetime(2026, 12, 1, tzinfo=UTC)


def entry(key: PublicKey = ALICE, /, **changes: object) -> dict[str, Any]:
    return {
        "name": "alice",
        "public_key": key.raw.hex(),
        "links": ["execution"],
        "valid_from": None,
        "valid_to": None,
        "minimum_enforcement": "none",
        "engine_libraries": None,
        **changes,
    }


def document(*keys: dict[str, Any]) -> bytes:
    value = {"schema": "tallystick.trust-policy/v1", "keys": list(keys)}
    return json.dumps(value, indent=2).encode()


def policy(**changes: object) -> TrustPolicy:
    return TrustPolicy.parse(document(entry(**changes)))


def accept(
    trust: TrustPolicy,
    *signers: PublicKey,
    now: datetime = NOW,
    anchored: datetime | None = None,
) -> TrustedKey:
    return trust.accept_execution(
        signers or (ALICE,), example_receipt(), now=now, anchored=anchored
    )


def test_the_example_receipt_ends_when_these_tests_say() -> None:
    assert example_receipt().observed.end_time == END


def test_a_trusted_signer_is_accepted() -> None:
    assert accept(policy()).name == "alice"
    assert policy().execution_keys() == (ALICE,)


def test_another_signer_is_not() -> None:
    with pytest.raises(EvidenceError, match="no trusted key signed"):
        accept(policy(), BOB)


def test_a_key_for_another_link_is_not() -> None:
    trust = policy(links=["source", "acceptance"])
    assert trust.execution_keys() == ()
    with pytest.raises(EvidenceError, match="no trusted key signed"):
        accept(trust)


def test_one_accepted_signer_of_two_is_enough() -> None:
    strict = entry(ALICE, minimum_enforcement="full")
    trust = TrustPolicy.parse(document(strict, entry(BOB, name="bob")))
    assert accept(trust, ALICE, BOB).name == "bob"
    with pytest.raises(EvidenceError, match="enforcement"):
        accept(trust, ALICE)


def test_keys_given_by_hand_are_trusted_for_everything() -> None:
    trust = TrustPolicy.for_keys([ALICE, BOB, ALICE])
    assert trust.execution_keys() == (ALICE, BOB)
    assert accept(trust, BOB, now=datetime(1970, 1, 1, tzinfo=UTC)).name == BOB.key_id
    with pytest.raises(NoTrustError):
        TrustPolicy.for_keys([])


LEVELS = ("none", "process", "namespaces", "full")


@pytest.mark.parametrize("reached", LEVELS)
@pytest.mark.parametrize("asked", LEVELS)
def test_enforcement_levels_are_ordered(reached: str, asked: str) -> None:
    receipt = example_receipt()
    receipt = replace(receipt, observed=replace(receipt.observed, enforcement_level=reached))
    trust = policy(minimum_enforcement=asked)
    if LEVELS.index(reached) >= LEVELS.index(asked):
        assert trust.accept_execution([ALICE], receipt, now=NOW).public == ALICE
    else:
        with pytest.raises(EvidenceError, match="enforcement is below") as caught:
            trust.accept_execution([ALICE], receipt, now=NOW)
        assert caught.value.found == reached


def test_engine_builds() -> None:
    accept(policy(engine_libraries=[digest_of("other"), ENGINE.library]))
    with pytest.raises(EvidenceError, match="does not allow this engine build"):
        accept(policy(engine_libraries=[digest_of("other")]))


@pytest.mark.parametrize("start", [None, BEFORE, END])
@pytest.mark.parametrize("end", [None, RETIRED])
def test_within_the_window_of_a_valid_key(start: str | None, end: str | None) -> None:
    accept(policy(valid_from=start, valid_to=end))


@pytest.mark.parametrize(
    "window", [{"valid_from": AFTER}, {"valid_to": END}, {"valid_to": BEFORE}], ids=str
)
def test_a_claimed_time_outside_the_window_is_refused(window: dict[str, str]) -> None:
    with pytest.raises(EvidenceError, match="not valid at the claimed time"):
        accept(policy(**window))


def test_after_retirement_a_claimed_time_does_not_count() -> None:
    trust = policy(valid_to=RETIRED)
    retirement = datetime.fromisoformat(RETIRED)
    accept(trust, now=retirement - timedelta(milliseconds=1))
    for later in (retirement, retirement + timedelta(days=400)):
        with pytest.raises(EvidenceError) as caught:
            accept(trust, now=later)
        assert caught.value.message == "time claimed, not anchored"


def test_after_retirement_an_anchored_time_counts() -> None:
    trust = policy(valid_from=END, valid_to=RETIRED)
    later = datetime(2028, 1, 1, tzinfo=UTC)
    accept(trust, now=later, anchored=datetime(2026, 12, 2, tzinfo=UTC))
    with pytest.raises(EvidenceError, match="not valid at the anchored time"):
        accept(trust, now=later, anchored=datetime.fromisoformat(RETIRED))
    with pytest.raises(EvidenceError, match="not valid at the claimed time"):
        accept(policy(valid_to=END), now=later, anchored=datetime.fromisoformat(BEFORE))


def test_an_anchor_cannot_precede_what_it_anchors() -> None:
    end = datetime.fromisoformat(END)
    trust = policy(valid_to=RETIRED)
    accept(trust, anchored=end - timedelta(seconds=60))
    with pytest.raises(EvidenceError, match="has not come yet"):
        accept(trust, anchored=end - timedelta(seconds=61))


@pytest.mark.parametrize("window", [{"valid_from": BEFORE}, {"valid_to": RETIRED}], ids=str)
def test_the_worker_s_clock_may_be_a_minute_ahead(window: dict[str, str]) -> None:
    end = datetime.fromisoformat(END)
    for seconds in (59, 60):
        accept(policy(**window), now=end - timedelta(seconds=seconds))
    with pytest.raises(EvidenceError, match="has not come yet"):
        accept(policy(**window), now=end - timedelta(seconds=61))


def test_a_key_without_a_window_needs_no_clock() -> None:
    accept(policy(), now=datetime(1970, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"public_key": "00" * 32}, "public_key"),
        ({"public_key": ALICE.raw.hex().upper()}, "public_key"),
        ({"links": []}, "links"),
        ({"links": ["execution", "execution"]}, "links"),
        ({"links": ["everything"]}, "links"),
        ({"minimum_enforcement": "some"}, "minimum_enforcement"),
        ({"engine_libraries": []}, "engine_libraries"),
        ({"engine_libraries": ["b1"]}, "engine_libraries"),
        ({"valid_from": "2026-11-30"}, "valid_from"),
        ({"valid_to": "2026-02-30T00:00:00.000Z"}, "valid_to"),
        ({"valid_from": END, "valid_to": END}, "window"),
        ({"unknown": 1}, "unknown"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_bad_policy_names_the_field(changes: dict[str, object], named: str) -> None:
    with pytest.raises(InputError) as caught:
        policy(**changes)
    assert caught.value.exit_code == 4
    assert "keys[0]" in str(caught.value)
    assert named in str(caught.value)


def test_a_missing_field_is_named() -> None:
    incomplete = entry()
    del incomplete["valid_to"]
    with pytest.raises(InputError, match="valid_to"):
        TrustPolicy.parse(document(incomplete))


def test_a_key_stands_in_a_policy_once() -> None:
    with pytest.raises(InputError, match=r"keys\[1\]: the same key twice"):
        TrustPolicy.parse(document(entry(), entry(name="again")))


def test_a_policy_without_keys_is_no_trust() -> None:
    with pytest.raises(NoTrustError):
        TrustPolicy.parse(document())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff",
        document(entry())[:-1],
        document(entry()).replace(b"/v1", b"/v2"),
        document(entry()).replace(b'"name"', b'"links": [], "name"'),
        document(entry()) + b" " * MAX_POLICY_BYTES,
    ],
    ids=lambda value: value[:20].hex(),
)
def test_other_documents_are_bad_input(data: bytes) -> None:
    with pytest.raises(InputError):
        TrustPolicy.parse(data)


def test_a_source_link_needs_a_key_for_it_that_is_valid() -> None:
    trust = TrustPolicy.parse(
        document(entry(links=["source"], valid_to=RETIRED), entry(BOB, name="bob"))
    )
    assert trust.source_keys() == (ALICE,)
    assert trust.accept_source([ALICE], END, now=NOW).name == "alice"
    with pytest.raises(EvidenceError, match="time claimed, not anchored"):
        trust.accept_source([ALICE], END, now=NOW + timedelta(days=60))
    for signers in ([BOB], [EVE], []):
        with pytest.raises(EvidenceError, match="no trusted key signed the source link") as told:
            trust.accept_source(signers, END, now=NOW)
        assert told.value.expected == "a signature by one of 1 trusted keys"
        assert told.value.found == f"{len(signers)} other signers"
