"""``tallystick demo``: everything at once, on the small real model."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tallystick.contracts.digests import core_digest
from tests.support.runs import EngineHome, HonestRun, output_of

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


def test_the_demo_as_json_without_a_public_key_file(engine_home: EngineHome, smollm2: str) -> None:
    public = engine_home.path / "keys" / "default.pub.pem"
    public.unlink(missing_ok=True)
    done = engine_home.cli("demo", "-n", "4", "--prompt", "Hello", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert public.exists()
    directory = Path(document["directory"])
    honest = HonestRun.load(directory)
    seconds = document.pop("seconds")
    assert sorted(seconds) == ["model", "replay", "run", "verify"]
    assert all(value > 0 for value in seconds.values())
    assert document == {
        "receipt_digest": honest.opening.receipt_digest,
        "core_digest": core_digest(honest.receipt.core),
        "directory": str(directory),
        "text": output_of(honest.opening).decode("utf-8", "replace"),
        "verified": True,
        "exact": honest.receipt.core.sampled_tokens,
        "sampled": honest.receipt.core.sampled_tokens,
    }
