"""A run over a dataset bundle, for whoever has it at hand (docs/spec/bundles.md#runs)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tallystick.attest.keyfiles import commit_key
from tallystick.bundles.check import check_bundle
from tallystick.bundles.prompts import split_of
from tallystick.bundles.runs import declare_runs, declare_whole
from tallystick.errors import UsageError
from tallystick.execution.launch import OnProgress, OnText, no_progress, no_text
from tallystick.store.home import home as default_home
from tallystick.worker.execute import Show
from tallystick.worker.run import Place, RunResult, run_declared


def run_bundle(
    model: str,
    directory: Path,
    *,
    tile: str | None = None,
    split: str | None = None,
    threads: int | None = None,
    ring_depth: int = 0,
    place: Place | None = None,
    on_text: OnText = no_text,
    on_progress: OnProgress = no_progress,
) -> RunResult:
    """Run ``model`` on the prompt that the bundle in ``directory`` gives, as the bundle says.

    ``tile`` (z/x/y) is one of ``split``, which may be None when it is in one only; without a tile
    the prompt is about the bundle as a whole. Raises as :func:`tallystick.worker.run.run_declared`
    does, EvidenceError when the directory is not the bundle that its manifest declares, InputError
    when it has no such tile or template.
    """
    if split is not None and tile is None:
        raise UsageError("a split says which tile is meant", expected="a tile of it")
    where = place or Place()
    bundle = check_bundle(directory)
    commit = commit_key(where.home or default_home())
    if tile is None:
        run = declare_whole(bundle, commit_key=commit)
    else:
        name = split_of(bundle, tile) if split is None else split
        run = declare_runs(bundle, name, commit_key=commit, tiles=[tile])[0].run
    return run_declared(
        model,
        run,
        threads=threads,
        ring_depth=ring_depth,
        place=replace(where, checked=bundle),
        show=Show(on_text, on_progress),
    )
