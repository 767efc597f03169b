"""Twenty tiles from a bundle to replayed receipts, by the very commands of the quickstart."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.runs import EngineHome

ROOT = Path(__file__).resolve().parents[2]
HEADING = "## 9. Twenty tiles of a dataset"
TILES = 20
#: A 90 MB model with 30 layers and a few hundred tokens of context: what is reasonable for it.
MOST_BYTES = 1024**3
SLACK = 16 * 1024**2


def commands() -> list[str]:
    """Return the commands of the section, each with its continuation lines."""
    text = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
    section = text.split(HEADING, 1)[1].split("\n## ", 1)[0]
    found: list[str] = []
    for block in re.findall(r"(?s)```console\n(.*?)```", section):
        joined = block.replace("\\\n", " ")
        found += [line.removeprefix("$ ") for line in joined.splitlines() if line.startswith("$ ")]
    return found


def test_the_quickstart_s_tiles_as_typed(
    engine_home: EngineHome, smollm2: str, tmp_path: Path
) -> None:
    checkout, programs = tmp_path / "checkout", tmp_path / "bin"
    shutil.copytree(ROOT / "examples", checkout / "examples")
    programs.mkdir()
    program = programs / "tallystick"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tallystick "$@"\n')
    program.chmod(0o755)
    home = engine_home.path
    files = {
        "PUBLIC_KEY_FILE": home / "keys" / "default.pub.pem",
        "AUDIT_KEY_FILE": home / "keys" / "audit.key",
    }
    kept = {k: v for k, v in os.environ.items() if not k.startswith("TALLYSTICK_")}
    env = {
        **kept,
        "TALLYSTICK_HOME": str(home),
        "PATH": f"{programs}:{kept['PATH']}",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT / "src"), kept.get("PYTHONPATH")])),
    }
    typed = commands()
    assert [words.split()[1] for words in typed[:5]] == [
        *("bundle", "bundle", "submit", "worker", "verify")
    ]
    assert smollm2 in typed[0]
    outputs: list[str] = []
    for line in typed:
        words = line
        for placeholder, file in files.items():
            words = words.replace(placeholder, str(file))
        done = subprocess.run(
            ["bash", "-eu", "-c", words],
            cwd=checkout,
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{words}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        outputs.append(done.stdout)
    worked, verified, replayed = outputs[3], outputs[4], outputs[5]
    assert worked.count("done  ") == TILES
    assert verified.count("declared = materialised = executed") == TILES
    assert verified.count("status=local_restored") == TILES
    assert replayed.count("positions bit-exact") == TILES
    manifest = json.loads((checkout / "village" / "manifest.json").read_bytes())
    sets = sorted((checkout / "receipts").glob("[0-9a-f]*"))
    assert len(sets) == TILES
    for place in sets:
        check_smoke(place, manifest["model"]["digest"])
    assert sorted(path.name for path in checkout.iterdir()) == [
        *("examples", "one-tile", "provider.key", "provider.pub.pem", "receipts", "runs"),
        *("signed-tiles", "village"),
    ]


def check_smoke(place: Path, model_digest: str) -> None:
    """The seed's M1.4: well-formed, all events logged, clean shutdown, a reasonable peak."""
    receipt: Any = json.loads(next(place.glob("*.geoai.json")).read_bytes())
    core, observed = receipt["core"], receipt["observed"]
    assert core["schema"] == "geoai.receipt/v1alpha1"
    assert core["status"] == "complete"
    assert core["model_digest"] == model_digest
    lines = next(place.glob("*.telemetry.jsonl")).read_bytes().splitlines()
    events = [json.loads(line) for line in lines]
    names = [event["event"] for event in events]
    assert names[:3] == ["Init", "Loading", "LoadComplete"]
    assert names[-1] == "ShutdownComplete"
    assert names.count("TokenEmitted") == core["sampled_tokens"]
    assert observed["dropped_events"] == "0"
    assert observed["evictions"] == "0"
    peak = int(observed["rss"]["peak"])
    assert int(observed["rss"]["before"]) < peak < MOST_BYTES
    # The kernel counts resident pages for each processor, and adds them up late.
    assert peak + SLACK >= max(int(event["rss"]) for event in events[:-1])
