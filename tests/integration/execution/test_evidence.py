"""Evidence of real runs: the census, live against sealed, the transcript's, and a second look."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tallystick.contracts.generation import Generation
from tallystick.contracts.request import InferenceRun
from tallystick.contracts.runtime import Knob, RowClass
from tallystick.errors import UsageError
from tallystick.evidence.adapter.gates import gate_of
from tallystick.evidence.adapter.transcript import adapt_transcript
from tallystick.evidence.gemm_trace import TRACE_SCHEME_LIVE, TRACE_SCHEME_SEALING
from tallystick.evidence.observed import ObservedEvidence, decode_observed, encode_observed
from tallystick.evidence.routes import ExpertRoutes, decode_routes, encode_routes, route_rows
from tallystick.evidence.schedule import SchedulePhase
from tallystick.execution.jobs import GenerateJob, ReplayJob
from tallystick.execution.launch import find_engine, run_job
from tallystick.execution.observe import ObserveOptions, observe
from tallystick.models.registry import open_model, resolve
from tests.support.documents import example_run
from tests.support.runs import EngineHome, HonestRun, replay_forgery

Endless = Callable[[str], Path]

FIVE_TOKENS = "the quick brown fox quick"  # models that never end have no BOS
THREE_TOKENS = "the quick brown"
LAYERS, PRODUCTS, EXPERTS, USED = 40, 411, 256, 8
BLIND = "5b" * 32
WORKER, OTHER_WORKER = "11" * 32, "22" * 32
#: Everything of a Generation that evidence is.
EVIDENCE = (
    "state_root",
    "state_leaves",
    "leaf_checks",
    "worker_state_root",
    "expert_route_root",
    "routes",
    "schedule_commitment",
    "schedule_events",
    "gemm_trace_root",
    "trace_events",
    "observed_evidence",
)


@dataclass(frozen=True, slots=True)
class Setting:
    """A model in an engine's hands, and a way to run it."""

    home: EngineHome
    model: Path
    policy: str = "sequential"
    knobs: tuple[Knob, ...] = ()

    @property
    def row_class(self) -> RowClass:
        return RowClass(1, 1) if self.policy == "sequential" else RowClass(2, 512)

    def declared(self, prompt: str, n: int, *parts: str) -> InferenceRun:
        return replace(
            example_run(),
            policy=self.policy,
            evidence=parts,
            prompt=prompt,
            chat=None,
            add_special=True,
            parse_special=True,
            temperature="0",
            seed=None,
            max_tokens=n,
            blind=BLIND,
        )

    def generate(self, prompt: str, n: int, *parts: str, check: str = "no") -> Generation:
        """Generate in a child, as a worker would."""
        engine = find_engine(self.home.path)
        with open_model(resolve(str(self.model), self.home.path)) as opened:
            run = self.declared(prompt, n, *parts)
            job = GenerateJob(engine.setup(2), opened.fd, run, self.row_class, WORKER, 4096, check)
            return run_job(job, self.knobs, model_fd=opened.fd).generation()

    def re_execute(self, found: Generation, n: int, *parts: str, worker: str) -> Generation:
        """Execute again in a child, as a replay would."""
        engine = find_engine(self.home.path)
        with open_model(resolve(str(self.model), self.home.path)) as opened:
            run = self.declared(found.rendered_prompt, n, *parts)
            job = ReplayJob(
                engine.setup(2), opened.fd, run, self.row_class, found.sampled_ids, worker, "none"
            )
            return run_job(job, self.knobs, model_fd=opened.fd).generation()


def observed_of(found: Generation) -> ObservedEvidence:
    return decode_observed(base64.b64decode(found.observed_evidence))


def routes_of(found: Generation) -> ExpertRoutes:
    return decode_routes(base64.b64decode(found.routes))


def without_evidence(found: Generation) -> tuple[str, ...]:
    return tuple(name for name in EVIDENCE if not getattr(found, name))


@pytest.fixture(scope="module")
def sequential(engine_home: EngineHome, endless_model: Endless) -> Setting:
    return Setting(engine_home, endless_model("hybrid-q8"))


@pytest.fixture(scope="module")
def batched(engine_home: EngineHome, endless_model: Endless) -> Setting:
    return Setting(engine_home, endless_model("hybrid-q8"), "row-class")


@pytest.fixture(scope="module")
def census(sequential: Setting) -> Generation:
    return sequential.generate(FIVE_TOKENS, 2, "states", "gemm")


def test_the_published_census(census: Generation) -> None:
    observed, routes = observed_of(census), routes_of(census)
    assert (len(census.prompt_ids), len(census.sampled_ids)) == (5, 2)
    assert observed.schedule.gemms == observed.trace_events == census.trace_events == 2466
    assert (routes.rows, routes.layers, routes.experts, routes.used) == (240, LAYERS, EXPERTS, USED)
    steps = [(s.phase, s.number, s.first_position, s.tokens) for s in observed.schedule.steps]
    assert steps == [
        *((SchedulePhase.PREFILL, i, i, 1) for i in range(5)),
        (SchedulePhase.DECODE, 0, 5, 1),
    ]
    assert observed.trace is not None
    assert observed.trace.scheme == TRACE_SCHEME_LIVE
    assert census.schedule_events == observed.schedule.events
    assert census.self_check == "not_run"


@pytest.mark.parametrize("n", [1, 4])
def test_every_further_step_has_so_many_products_and_routes(n: int, sequential: Setting) -> None:
    found = sequential.generate(THREE_TOKENS, n, "gemm")
    positions = 3 + n - 1
    assert found.trace_events == PRODUCTS * positions
    assert routes_of(found).rows == LAYERS * positions
    assert (found.state_root, found.worker_state_root) == (None, None)


@pytest.mark.parametrize("observer", ["graph", "sketch"])
def test_a_run_shows_what_its_transcript_shows(
    observer: str, sequential: Setting, census: Generation
) -> None:
    lines: list[bytes] = []
    observe(
        str(sequential.model),
        ObserveOptions(prompt=FIVE_TOKENS, observer=observer, max_tokens=2),
        on_line=lines.append,
        home=sequential.home.path,
    )
    facts = resolve(str(sequential.model), sequential.home.path).facts
    adapted = adapt_transcript(lines, gate_of(facts), bytes.fromhex(BLIND))
    live = observed_of(census)
    assert adapted.evidence.schedule == live.schedule
    if observer == "sketch":
        assert adapted.evidence == live
        assert adapted.routes == routes_of(census)
        assert f"sha256:{(adapted.gemm_root or b'').hex()}" == census.gemm_trace_root
        assert f"sha256:{(adapted.expert_route_root or b'').hex()}" == census.expert_route_root


@pytest.mark.parametrize(
    ("name", "knobs"),
    [("hybrid-q8", ()), ("hybrid-q4k", (Knob("GGML_CPU_TILED_MM", "0"),)), ("moe-q8", ())],
)
def test_live_routes_are_those_of_the_sealing_pass(
    name: str, knobs: tuple[Knob, ...], engine_home: EngineHome, endless_model: Endless
) -> None:
    setting = Setting(engine_home, endless_model(name), "row-class", knobs)
    live = setting.generate(FIVE_TOKENS, 9, "states")
    sealed = setting.generate(FIVE_TOKENS, 9, "gemm")
    assert live.sampled_ids == sealed.sampled_ids
    assert live.routes == sealed.routes != ""
    assert live.expert_route_root == sealed.expert_route_root
    routes = routes_of(live)
    assert routes.rows == route_rows(routes.layers, 5, 9, last_from=4)


def test_a_sealing_pass_is_a_self_check_and_changes_nothing(batched: Setting) -> None:
    live = batched.generate(FIVE_TOKENS, 9, "states")
    sealed = batched.generate(FIVE_TOKENS, 9, "states", "gemm")
    graph = batched.generate(FIVE_TOKENS, 9, "states", "graph", check="yes")
    assert (live.self_check, sealed.self_check, graph.self_check) == ("not_run", "passed", "passed")
    for name in ("sampled_ids", *EVIDENCE[:6]):
        assert getattr(live, name) == getattr(sealed, name) == getattr(graph, name)
    assert without_evidence(live) == EVIDENCE[6:]
    assert without_evidence(graph) == ("gemm_trace_root", "trace_events")
    assert graph.schedule_commitment == sealed.schedule_commitment
    observed = observed_of(sealed)
    assert [(s.phase, s.tokens) for s in observed.schedule.steps] == [(SchedulePhase.SEALING, 13)]
    assert observed.trace is not None
    assert observed.trace.scheme == TRACE_SCHEME_SEALING
    assert observed.trace_events == PRODUCTS


def test_a_second_run_step_by_step_has_the_same_evidence(
    sequential: Setting, census: Generation
) -> None:
    found = sequential.generate(FIVE_TOKENS, 2, "states", "gemm", check="yes")
    assert found.self_check == "passed"
    assert [getattr(found, name) for name in EVIDENCE] == [getattr(census, n) for n in EVIDENCE]


@pytest.mark.parametrize("policy", ["sequential", "row-class"])
def test_a_replay_derives_all_of_it_again(
    policy: str, sequential: Setting, batched: Setting
) -> None:
    setting = sequential if policy == "sequential" else batched
    parts = ("states", "gemm")
    found = setting.generate(THREE_TOKENS, 3, *parts)
    again = setting.re_execute(found, 3, *parts, worker=WORKER)
    other = setting.re_execute(found, 3, *parts, worker=OTHER_WORKER)
    assert without_evidence(found) == ()
    assert [getattr(again, name) for name in EVIDENCE] == [getattr(found, n) for n in EVIDENCE]
    assert other.state_root == found.state_root
    assert len({found.state_root, found.worker_state_root, other.worker_state_root}) == 3


def test_a_dense_model_has_no_routes(engine_home: EngineHome, endless_model: Endless) -> None:
    setting = Setting(engine_home, endless_model("llama-q8_0"))
    found = setting.generate(THREE_TOKENS, 2, "states", "gemm")
    assert without_evidence(found) == ("expert_route_root", "routes")
    assert found.trace_events > 0


def test_both_observers_show_the_same(
    sequential: Setting, census: Generation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TALLYSTICK_OBSERVER", "python")
    found = sequential.generate(FIVE_TOKENS, 2, "states", "gemm")
    assert found.host.observer == "python"
    assert [getattr(found, name) for name in EVIDENCE] == [getattr(census, n) for n in EVIDENCE]


def test_what_would_pass_the_bound_is_refused_before_it_starts(
    sequential: Setting, census: Generation
) -> None:
    first = observed_of(census).schedule.steps[0].events
    largest = 250_000 // first - 5 + 1
    with pytest.raises(UsageError) as caught:
        sequential.generate(FIVE_TOKENS, largest + 1, "graph")
    assert caught.value.exit_code == 2
    assert (caught.value.hint or "").startswith(f"--n-predict {largest} is the largest")
    assert caught.value.found == f"{250_000 // first + 1} steps of {first} operations"


# What follows is about whole receipts, forged and signed again by the key that made them.
@pytest.fixture(scope="module")
def honest(sequential: Setting) -> HonestRun:
    result = sequential.home.run(
        sequential.model,
        THREE_TOKENS,
        2,
        policy="sequential",
        evidence=("states", "gemm"),
    )
    return HonestRun.load(result.directory)


def forged(honest: HonestRun, setting: Setting, place: Path, **changes: object) -> str:
    built = honest.resign(generation=honest.generation(**changes))
    report = replay_forgery(setting.home, built, place, setting.model)
    assert report.exit_code == 1
    return str(report.difference)


def test_an_honest_receipt_is_equal_in_every_part(
    honest: HonestRun, sequential: Setting, tmp_path: Path
) -> None:
    report = replay_forgery(sequential.home, honest.resign(), tmp_path / "set", sequential.model)
    assert report.verified
    verdicts = (
        report.states,
        report.worker_states,
        report.routes,
        report.schedule,
        report.products,
    )
    assert verdicts == ("equal",) * 5


def test_another_choice_of_experts(honest: HonestRun, sequential: Setting, tmp_path: Path) -> None:
    routes = routes_of(honest.generation())
    at = (2 * LAYERS + 7) * 4 * USED  # position 2, layer 7
    ids = bytearray(routes.ids)
    ids[at : at + 4], ids[at + 4 : at + 8] = ids[at + 4 : at + 8], ids[at : at + 4]
    other = replace(routes, ids=bytes(ids))
    words = forged(honest, sequential, tmp_path / "set", **evidence(routes=other))
    assert "chosen experts differ first at position 2, layer 7 of 40" in words


def test_another_sketch(honest: HonestRun, sequential: Setting, tmp_path: Path) -> None:
    observed = observed_of(honest.generation())
    assert observed.trace is not None
    groups = bytearray(observed.trace.groups)
    groups[(PRODUCTS + 3) * 36 + 4] ^= 0x80
    other = replace(observed, trace=replace(observed.trace, groups=bytes(groups)))
    words = forged(honest, sequential, tmp_path / "set", **evidence(observed=other))
    assert f"matrix product {PRODUCTS + 3} differs, operation" in words
    assert "of prefill step 1, layer 0" in words


def test_a_root_of_another_worker(honest: HonestRun, sequential: Setting, tmp_path: Path) -> None:
    words = forged(honest, sequential, tmp_path / "set", worker_state_root="sha256:" + "ab" * 32)
    assert "computed for another worker" in words


def evidence(
    routes: ExpertRoutes | None = None, observed: ObservedEvidence | None = None
) -> dict[str, str]:
    """The fields of a Generation about forged parts. Their roots follow when it is built."""
    changes = {}
    if routes is not None:
        changes["routes"] = base64.b64encode(encode_routes(routes)).decode()
    if observed is not None:
        changes["observed_evidence"] = base64.b64encode(encode_observed(observed)).decode()
    return changes
