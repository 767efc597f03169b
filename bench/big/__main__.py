"""The published full geometry of Qwen3.6-35B-A3B with random weights, from the file to the replay.

    python -m bench.big --dir DIR [--model FILE.gguf] [--scale full|toy]

Writes the model into DIR (or takes FILE), adds it, measures this machine for it, and then runs,
verifies and replays 5 + 2 tokens under `sequential` and 30 + 24 under `row-class`, all by the
program's own commands with a data folder in DIR. What has to hold is checked; the figures are
printed as rows of docs/benchmarks.md. Needs 30 GB of disk and 24 GB of memory; `--scale toy` does
the same with toy widths in about a minute. The model and the sets are left in DIR.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bench.big.commands import CommandFailedError, Program
from bench.big.geometry import PROFILE, SCALES, Scale
from bench.big.machine import missing
from bench.big.report import calibration_rows, case_rows, once_rows
from bench.big.scenario import Case, Finding, Outcome, execute
from bench.big.writer import write_model
from tallystick.canonical.hashing import format_digest
from tallystick.contracts.runtime import ROW_CLASS, SEQUENTIAL

MODEL: Final = "big"
_SETS: Final = 10**8  # bytes that everything but the model takes
# A digest is not kept for a file that changed within two seconds of being hashed.
_QUIET: Final = 3.0
# One token a word, by the vocabulary of bench.big.geometry.
SHORT: Final = "the quick brown fox quick"
LONG: Final = "the" + " quick brown fox jumps over lazy dog" * 4 + " quick"
#: What the compute units of the published model are, for 5 + 2 tokens.
PUBLISHED_UNITS: Final = 41692


def say(text: str) -> None:
    """Say on standard error what is going on."""
    print(f"{time.strftime('%H:%M:%S', time.gmtime())} {text}", file=sys.stderr, flush=True)


def cases(short: str, long: str) -> tuple[Case, ...]:
    """Return the two runs. ``short`` and ``long`` are prompts of 5 and 30 tokens."""
    return (
        Case(SEQUENTIAL, short, 5, 2, "states,gemm"),
        Case(ROW_CLASS, long, 30, 24, "states"),
    )


def model_findings(scale: Scale, program: Program, model: str) -> Iterator[Finding]:
    """Hold the description of the model, and its price, to the published one."""
    words = ("units", "--prefill", "5", "--generated", "2")
    found = program.run(*words, "--model", model).document
    expected = format_digest(scale.architecture.architecture_id)
    yield Finding("architecture_id of the model", expected, found["architecture_id"])
    if scale.name == "full":
        published = program.run(*words, "--profile", PROFILE).document
        yield Finding(
            "architecture_id of the profile", published["architecture_id"], found["architecture_id"]
        )
        yield Finding(
            "compute units of 5 + 2 tokens",
            str(PUBLISHED_UNITS),
            found["canonical_compute_units"],
        )


def show(findings: tuple[Finding, ...]) -> bool:
    """Print the findings and return whether all hold."""
    for finding in findings:
        word = "holds" if finding.held else f"FAILED, expected {finding.expected}"
        print(f"- {finding.what}: {finding.found} ({word})")
    return all(finding.held for finding in findings)


def prepare(program: Program, path: Path, written: float | None) -> dict[str, float]:
    """Do what is done once for a file and a machine; return what took how many seconds."""
    seconds = {} if written is None else {"writing the model": written}
    say("reading the facts")
    priced = program.run("units", "--model", path, "--prefill", "5", "--generated", "2")
    seconds["facts alone: `units --model FILE`, by a child"] = priced.seconds
    say("adding the model")
    added = program.run("model", "add", path, "--name", MODEL)
    size = int(added.document["size"]) / 1e9
    seconds[f"hash and facts: `model add`, {size:.2f} GB"] = added.seconds
    say("fingerprint")
    fingerprint = program.run("model", "calibrate", "--fingerprint")
    seconds["fingerprint of the machine: `model calibrate --fingerprint`"] = fingerprint.seconds
    return seconds


def model_of(scale: Scale, folder: Path) -> tuple[Path, float]:
    """Write the model into ``folder``; return where it is, and the seconds."""
    path = folder / f"{scale.name}.gguf"
    say(f"writing {path.name}")
    started = time.monotonic()
    write_model(path, scale)
    written = time.monotonic() - started
    time.sleep(_QUIET)
    return path, written


def new_audit_key(path: Path) -> None:
    """Write a key that seals private halves."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(os.urandom(32))


def benchmark(
    scale: Scale, program: Program, existing: Path | None, prompts: tuple[str, str]
) -> bool:
    """Do all of it beside the program's data folder and return whether everything held.

    What is measured is printed as soon as it is there: the calibration, which takes longest and
    which only `row-class` needs, comes after everything else.
    """
    folder = program.home.parent
    path, written = model_of(scale, folder) if existing is None else (existing, None)
    new_audit_key(folder / "audit.key")
    print("\n".join(once_rows(prepare(program, path, written))))
    held = show(tuple(model_findings(scale, program, MODEL)))
    outcomes: list[Outcome] = []
    try:
        for case in cases(*prompts):
            if case.policy == ROW_CLASS:
                say("calibrating")
                done = program.run("model", "calibrate", MODEL, *program.computing)
                print("\n" + "\n".join(calibration_rows(done)))
            say(f"{case.policy}: run, verify, replay")
            outcomes.append(execute(case, scale, program, MODEL, folder))
            print(f"\n{case.policy}, {case.prompt_tokens} + {case.generated}:")
            held = show(outcomes[-1].findings) and held
    finally:
        print("\n" + "\n".join(case_rows(tuple(outcomes))))
    return held


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.big", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--dir", type=Path, required=True, help="new or empty folder for it all")
    parser.add_argument("--model", type=Path, help="a GGUF file of this geometry that is there")
    parser.add_argument("--scale", choices=sorted(SCALES), default="full")
    parser.add_argument("--threads", type=int, help="default: every core")
    parser.add_argument("--short-prompt", default=SHORT, help="5 tokens by the model's vocabulary")
    parser.add_argument("--long-prompt", default=LONG, help="30 tokens by the model's vocabulary")
    options = parser.parse_args(arguments)
    scale, folder = SCALES[options.scale], options.dir
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        parser.error(f"{folder} is not empty")
    lacking = missing(scale, folder, disk=scale.disk if options.model is None else _SETS)
    if lacking:
        print("\n".join(("this machine is too small:", *lacking)), file=sys.stderr)
        return 2
    try:
        prompts = (options.short_prompt, options.long_prompt)
        program = Program(folder / "home", options.threads)
        held = benchmark(scale, program, options.model, prompts)
    except CommandFailedError as error:
        print(error, file=sys.stderr)
        return 1
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
