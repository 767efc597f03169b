"""A declared run in this (child) process: what generation and re-execution have in common."""

from __future__ import annotations

import base64
import platform
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tallystick.contracts.generation import Generation, HostFacts, Timings
from tallystick.contracts.platform import PlatformFacts
from tallystick.contracts.request import InferenceRun
from tallystick.contracts.runtime import SEQUENTIAL
from tallystick.evidence.adapter.collector import Collector
from tallystick.execution.chat import renderer
from tallystick.execution.child_engine import Engine
from tallystick.execution.evidence import (
    Evidence,
    EvidencePlan,
    Gathered,
    commit,
    figures_of,
)
from tallystick.execution.jobs import EngineSetup, GenerateJob, ReplayJob
from tallystick.execution.platform import build_facts, platform_facts, processor_name
from tallystick.execution.prompt import Prompt
from tallystick.execution.sampling import parse_temperature
from tallystick.execution.schedule import Chunk, chunks
from tallystick.execution.session import Execution, Plan, Sampler


@dataclass(frozen=True, slots=True)
class ChildRun:
    """One run, ready to be executed."""

    engine: Engine
    setup: EngineSetup
    run: InferenceRun = field(repr=False)
    prompt: Prompt = field(repr=False)
    plan: Plan
    sampler: Sampler
    evidence: EvidencePlan
    rss_before: int

    @classmethod
    def of(
        cls,
        job: GenerateJob | ReplayJob,
        engine: Engine,
        prompt: Prompt,
        cells: int,
        rss_before: int,
    ) -> ChildRun:
        """Return the run of ``job``; ``cells`` is the size of its context."""
        run, model = job.run, engine.model
        return cls(
            engine,
            job.setup,
            run,
            prompt,
            Plan(run.policy, job.row_class, cells, engine.threads),
            Sampler(parse_temperature(run.temperature), run.seed),
            EvidencePlan(
                run,
                len(prompt.ids),
                figures_of(model.summary()),
                bytes.fromhex(job.credential_id),
            ),
            rss_before,
        )

    def events(self) -> int:
        """Return how many operations an evaluation has at most, by one in a context of its own.

        The first one of a context has the most. Raises IncomparableError when one of them is none
        that evidence is defined for.
        """
        graph = Collector(self.evidence.figures, "nothing")
        execution = Execution(self.engine.model, self.plan, 1, Evidence(graph=graph))
        try:
            execution.evaluate(self.prompt.ids[:1], Chunk(0, 1))
        finally:
            execution.close()
        return graph.operations

    def steps(self, generated: int) -> int:
        """Return how many evaluations show the graphs of a run with ``generated`` tokens."""
        return sum(1 for _ in chunks(len(self.prompt.ids) + generated - 1, self.plan.row_class))

    def result(
        self,
        ids: tuple[int, ...],
        gathered: Gathered,
        timings: Timings,
        *,
        stop_reason: Literal["length", "end_of_generation"],
        self_check: Literal["not_run", "passed"],
    ) -> Generation:
        """Return what the child reports of ``ids`` and of the evidence."""
        model = self.engine.model
        output = b"".join(model.piece(token, special=False) for token in ids)
        generation = Generation(
            rendered_prompt=self.prompt.text,
            chat_template_digest=self.prompt.template_digest,
            prompt_ids=self.prompt.ids,
            sampled_ids=ids,
            output=base64.b64encode(output).decode(),
            stop_reason=stop_reason,
            context_tokens=self.plan.cells,
            layers=model.layers,
            state_root=None,
            state_leaves=0,
            leaf_checks="",
            worker_state_root=None,
            expert_route_root=None,
            routes="",
            schedule_commitment=None,
            schedule_events=0,
            gemm_trace_root=None,
            trace_events=0,
            observed_evidence="",
            self_check=self_check,
            timings=timings,
            rss_before=self.rss_before,
            residency=self.engine.residency(),
            host=self._host(),
            platform=self._platform(),
        )
        return commit(generation, gathered, bytes.fromhex(self.run.blind))

    def _host(self) -> HostFacts:
        run, engine = self.run, self.engine
        return HostFacts(
            cpu=processor_name()[:200],
            cpu_features=engine.library.system_info()[:200],
            libc=" ".join(platform.libc_ver())[:200],
            kernel=f"{platform.system()} {platform.release()}"[:200],
            python=platform.python_version(),
            threads=1 if run.policy == SEQUENTIAL else engine.threads,
            observer=engine.observer if run.evidence else "none",
            renderer="none" if run.chat is None else renderer(),
        )

    def _platform(self) -> PlatformFacts:
        setup = self.setup
        return platform_facts(
            Path(setup.library),
            setup.digest,
            build_facts(self.engine.model.engine_summary()),
            None if setup.observer is None else Path(setup.observer),
        )
