"""A real, tiny generation held by a sandbox: ``python -m tests.support.held_run MODEL HOME LEVEL``.

Prints one JSON object: the generation (of a toy model), the report on the sandbox, the user.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from tallystick.contracts.codec import encode
from tallystick.contracts.runtime import RowClass
from tallystick.execution.jobs import GenerateJob
from tallystick.execution.launch import Outcome, find_engine, run_job
from tallystick.execution.templates import Templates
from tallystick.sandbox.profiles import load_profile
from tests.support.child_runs import CREDENTIAL
from tests.support.documents import example_run


def held_run(
    model: Path,
    home: Path,
    level: str | None,
    templates: Templates | None = None,
    **changes: Any,
) -> Outcome:
    """Generate a few tokens; ``level`` names a shipped profile, None is the plain child."""
    run = replace(example_run(), **{"max_tokens": 6, "evidence": ("states",), **changes})
    descriptor = os.open(model, os.O_RDONLY)
    try:
        job = GenerateJob(
            setup=find_engine(home).setup(2),
            model_fd=descriptor,
            run=run,
            row_class=RowClass(2, 8) if run.policy == "row-class" else RowClass(1, 1),
            credential_id=CREDENTIAL.hex(),
            max_prompt_tokens=4096,
            self_check="yes",
        )
        profile = None if level is None else load_profile(level)
        return run_job(job, (), model_fd=descriptor, sandbox=profile, templates=templates)
    finally:
        os.close(descriptor)


def comparable(generation: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that do not depend on time or memory."""
    return {k: v for k, v in generation.items() if k not in ("timings", "rss_before")}


def main() -> None:
    """Run and print."""
    model, home, level = sys.argv[1:]
    outcome = held_run(Path(model), Path(home), None if level == "plain" else level)
    json.dump(
        {
            "generation": comparable(outcome.body["generation"]),
            "audit": None if outcome.audit is None else encode(outcome.audit),
            "uid": os.getuid(),
            "rss": [event.rss for event in outcome.events],
        },
        sys.stdout,
    )


if __name__ == "__main__":
    main()
