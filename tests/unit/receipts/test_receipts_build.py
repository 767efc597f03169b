from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any

import pytest

from tallystick.attest.trust import TrustPolicy
from tallystick.contracts import digests
from tallystick.contracts.compute_receipt import epoch_of
from tallystick.contracts.generation import Generation
from tallystick.contracts.request import ExpectedDigest
from tallystick.errors import EvidenceError, RunFailedError, SandboxError
from tallystick.receipts.build_parts import require_open_windows, timestamp
from tallystick.receipts.steps_structure import timestamp_ns
from tallystick.receipts.verify import verify_set
from tallystick.telemetry.log import encode_log
from tests.support.sets import (
    NOW,
    OUTPUT,
    STRANGER,
    TRUST,
    fake_digest,
    make_class,
    make_events,
    make_facts,
    make_generation,
    make_inputs,
    make_manifest,
    make_public,
    make_run,
    make_set,
    make_traced,
    stateless,
)


def test_a_built_set_verifies() -> None:
    built = make_set()
    assert verify_set(built.files(), TRUST, now=NOW).verified
    assert built.report.verified
    assert built.receipt_id == digests.receipt_id(built.receipt_digest)
    assert [member.name.removeprefix(built.receipt_id) for member in built.members] == [
        ".palw",
        ".json",
        ".geoai.json",
        ".exec.json",
        ".telemetry.jsonl",
        ".intoto.jsonl",
        ".palw.bundle",
        "palw-state.sqlite3",
    ]
    assert [member.visibility for member in built.members] == ["public"] * 6 + ["private"] * 2


@pytest.mark.parametrize(
    ("parts", "experts", "sequential", "level"),
    [
        ((), False, False, "none"),
        (("graph",), False, True, "graph"),
        (("gemm",), False, False, "gemm_traced"),
        (("gemm",), True, True, "gemm_traced"),
        (("states",), True, False, "state_committed"),
        (("states", "gemm"), True, True, "state_committed"),
        (("states", "graph", "gemm"), True, False, "state_committed"),
    ],
)
def test_every_step_of_a_built_set_passes(
    parts: tuple[str, ...], experts: bool, sequential: bool, level: str
) -> None:
    built = make_traced(*parts, experts=experts, sequential=sequential)
    assert built.receipt.core.evidence.level == level
    built.report.require_complete()
    evidence = built.receipt.core.evidence
    assert (evidence.state_root is not None) is ("states" in parts)
    assert (evidence.gemm_trace_root is not None) is ("gemm" in parts)
    assert (evidence.expert_route_root is not None) is (
        experts and bool({"states", "gemm"} & {*parts})
    )


def test_a_public_chat_run_verifies() -> None:
    built = make_set(*make_public())
    assert built.receipt.core.disclosed is not None


def test_without_states_the_level_is_none() -> None:
    built = make_set(make_run(evidence=()), stateless())
    assert built.receipt.core.evidence.level == "none"
    assert built.receipt.core.evidence.state_root is None


def test_two_runs_of_one_request_have_equal_cores() -> None:
    first = make_set()
    again = make_set(
        make_run(run_id="01890a5d-ac96-774b-bcce-b302099a8058", model_path="/elsewhere.gguf"),
        make_generation(rss_before=1),
        facts=make_facts(start_ns=1_796_000_111_000_000_000),
    )
    assert first.core_digest == again.core_digest
    assert first.receipt_digest != again.receipt_digest


def test_the_builder_reads_no_clock_and_no_randomness() -> None:
    assert make_set().files() == make_set().files()


def test_the_end_is_the_start_plus_the_duration() -> None:
    for start in (1_796_000_000_000_000_000, 1_796_000_000_999_999_999):
        for total in (30_000_000, 30_999_999, 60_000_000_000):
            observed = make_set(facts=make_facts(start_ns=start, total_ns=total)).receipt.observed
            assert observed.start_time == timestamp(start)
            assert observed.end_time == timestamp(start + total)


def test_timestamps_round_trip() -> None:
    assert timestamp(0) == "1970-01-01T00:00:00.000Z"
    assert timestamp(1_796_000_000_123_999_999) == "2026-11-30T00:53:20.123Z"
    assert timestamp_ns("2026-11-30T00:53:20.123Z") == 1_796_000_000_123_000_000


def test_dropped_events_are_told() -> None:
    events = make_events(4)
    built = make_set(telemetry=encode_log(events[:5] + events[6:]))
    assert built.receipt.observed.dropped_events == 1


@pytest.mark.parametrize(
    "changes", [{"sandbox_profile": "strict"}, {"enforcement": "process"}, {"enforcement": "full"}]
)
def test_no_receipt_claims_a_sandbox_that_was_not_there(changes: dict[str, Any]) -> None:
    with pytest.raises(SandboxError) as caught:
        make_set(make_run(**changes))
    assert caught.value.exit_code == 5


@pytest.mark.parametrize("field", ["dataset", "task"])
def test_a_declared_bundle_that_was_not_there_gives_no_set(field: str) -> None:
    name = "bundle" if field == "dataset" else field
    with pytest.raises(EvidenceError, match=f"three-way match: the {name} digest"):
        make_set(make_run(**{field: ExpectedDigest(fake_digest("bundle"))}))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"sampled_ids": (1, 2, 3)}, "state_leaves"),
        ({"sampled_ids": tuple(range(9))}, "decode_tokens"),
        ({"state_leaves": 0}, "state_leaves"),
        ({"layers": 4}, "core.evidence.layers"),
        ({"layers": 0}, "core.evidence.layers"),
        ({"context_tokens": 8}, "context_tokens"),
        ({"leaf_checks": ""}, "leaf_checks"),
        ({"rendered_prompt": "another"}, "rendered_prompt"),
        ({"chat_template_digest": fake_digest("t")}, "chat_template_digest"),
        ({"stop_reason": "length"}, "sampled_tokens"),
        ({"state_root": None}, "required_evidence_level"),
        ({"state_root": None, "state_leaves": 0, "leaf_checks": ""}, "evidence_level"),
    ],
)
def test_a_result_that_contradicts_itself_gives_no_set(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(RunFailedError, match=field):
        make_set(generation=make_generation(**changes), manifest=make_manifest())


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"max_tokens": 3}, "decode_tokens"),
        ({"seed": 1}, "seed"),
        ({"temperature": "0.5"}, "seed"),
        ({"policy": "sequential"}, "policy"),
        ({"expires_at": "2026-11-30T00:53:20.029Z"}, "expired"),
    ],
)
def test_a_result_of_another_request_gives_no_set(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(RunFailedError, match=field):
        make_set(make_run(**changes), manifest=make_manifest())


def test_a_run_of_another_model_gives_no_set() -> None:
    other = fake_digest("other")
    with pytest.raises(EvidenceError, match="three-way match: the model digest"):
        make_set(make_run(model_digest=other), manifest=make_manifest())
    run = make_run(model_digest=other, model=ExpectedDigest(other))
    with pytest.raises(RunFailedError, match=r"core\.model_digest"):
        make_set(run, manifest=make_manifest())


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"engine_library": fake_digest("x")}, "core.runtime_class"),
        (
            {"decode_class": replace(make_class().decode_class, floor=3)},
            "core.runtime_class",
        ),
        ({"policy": "sequential"}, "core.runtime_class"),
    ],
)
def test_a_runtime_class_that_does_not_fit_gives_no_set(
    changes: dict[str, Any], field: str
) -> None:
    with pytest.raises(RunFailedError, match=field):
        make_set(runtime_class=make_class(**changes), manifest=make_manifest())


def test_times_that_contradict_each_other_give_no_set() -> None:
    with pytest.raises(RunFailedError, match=r"durations_ns\.total"):
        make_set(facts=make_facts(total_ns=20_999_999))


def test_telemetry_of_another_run_gives_no_set() -> None:
    with pytest.raises(RunFailedError, match="TokenEmitted"):
        make_set(telemetry=encode_log(make_events(3)))
    with pytest.raises(RunFailedError, match="telemetry"):
        make_set(telemetry=b"{}\n")


def test_what_does_not_verify_is_not_handed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    trust = TrustPolicy.for_keys([STRANGER.public])
    monkeypatch.setattr(TrustPolicy, "for_keys", lambda keys: trust)
    with pytest.raises(RunFailedError, match="does not verify"):
        make_set()


def test_no_private_value_shows_in_errors_or_reprs() -> None:
    generation: Generation = make_generation(rendered_prompt="the other secret")
    with pytest.raises(RunFailedError) as caught:
        make_set(generation=generation)
    built = make_set()
    for text in (str(caught.value), repr(built), repr(built.report)):
        assert "tally stick" not in text
        assert "secret" not in text
        assert base64.b64encode(OUTPUT).decode() not in text
        assert make_run().blind not in text


@pytest.mark.parametrize(
    ("changes", "hours", "what", "expected"),
    [
        ({"expires_at": "2026-11-30T00:53:20.000Z"}, 0, "the run", "an end by 2026-11-30T00:53:20"),
        ({}, 24, "the request", "an end before epoch "),
    ],
)
def test_a_window_that_passed_meanwhile_is_no_defect(
    changes: dict[str, Any], hours: int, what: str, expected: str
) -> None:
    start = make_facts().start_ns + hours * 3_600_000_000_000
    with pytest.raises(RunFailedError, match=f"{what} expired while the run lasted") as caught:
        make_set(make_run(**changes), facts=make_facts(start_ns=start))
    assert expected in str(caught.value)
    assert "defect" not in str(caught.value)
    assert "ask for it anew" in str(caught.value)


@pytest.mark.parametrize("paper", ["request", "assignment", "credential"])
def test_every_paper_has_its_own_window(paper: str) -> None:
    inputs, _ = make_inputs()
    papers, epoch = inputs.papers, epoch_of(inputs.facts.end_ns // 1_000_000)
    require_open_windows(inputs.run, papers, inputs.facts)
    found = getattr(papers, paper)
    if paper == "credential":
        changed = replace(found, expires_epoch=epoch)
    else:
        changed = replace(found, body=replace(found.body, expires_epoch=epoch))
    with pytest.raises(RunFailedError, match=f"{paper} expired while the run lasted"):
        require_open_windows(inputs.run, replace(papers, **{paper: changed}), inputs.facts)
