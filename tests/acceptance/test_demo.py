"""``tallystick demo``: everything at once, on the small real model."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.runs import EngineHome, HonestRun

_CLOSING = re.compile(
    r"""(?P<answer>.+)
receipt   (?P<digest>sha256:[0-9a-f]{64})
          in (?P<directory>[^\n]+)
verified  by a second process, with the key (?P<key>[^\n]+)
replayed: (?P<exact>\d+) of (?P<sampled>\d+) positions bit-exact

 *\d+\.\d\d s  model ready
 *\d+\.\d\d s  run and sign[^\n]*
 *\d+\.\d\d s  verify, [^\n]*
 *\d+\.\d\d s  replay, (?P<rows>\d+) rows [^\n]*
""",
    re.DOTALL,
)


def test_the_demo_ends_as_it_says(engine_home: EngineHome, smollm2: str) -> None:
    done = engine_home.cli("demo", "-n", "8")
    assert done.returncode == 0, done.stderr
    found = _CLOSING.match(done.stdout)
    assert found is not None, done.stdout
    directory = Path(found["directory"])
    honest = HonestRun.load(directory)
    core = honest.receipt.core
    assert found["digest"] == honest.opening.receipt_digest
    assert directory.parent == engine_home.path / "receipts"
    assert found["answer"].strip() != ""
    assert int(found["exact"]) == int(found["sampled"]) == core.sampled_tokens == 8
    assert int(found["rows"]) == core.prompt_tokens + 7
    assert core.chat_template_digest is not None
    assert smollm2 in done.stderr
    key = Path(found["key"])
    assert engine_home.cli("verify", directory, "--key", key).returncode == 0
    assert engine_home.cli("replay", directory, "--model", smollm2).returncode == 0
