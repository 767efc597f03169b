"""From a provider's signature to the source link of a receipt, as three users would type it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tallystick.attest.keyfiles import write_key
from tallystick.attest.keys import SigningKey
from tests.support.runs import EngineHome

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "tiles"
PROVIDER = SigningKey.from_seed(bytes(range(7, 39)))
TILE = "17/65538/65532"
ATTESTATION = "data/source.intoto.json"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A copy of the example whose settings name the provider's attestation, yet to be made."""
    place = tmp_path / "tiles"
    shutil.copytree(EXAMPLE, place)
    settings = place / "bundle.yaml"
    named = f"imagery:\n  source_attestation: {ATTESTATION}\n"
    text = settings.read_text().replace("imagery:\n", named)
    settings.write_text(text.replace("run:\n", "run:\n  disclosure: public\n"))
    write_key(tmp_path / "provider.key", PROVIDER, None)
    return place


def attest(home: EngineHome, source: Path, license_text: str = "CC0-1.0") -> Mapping[str, Any]:
    done = home.cli(
        *("attest", "source", source, "--license", license_text, "--acquisition", "drawn"),
        *("--output", source / ATTESTATION, "--key", source.parent / "provider.key", "--json"),
    )
    assert done.returncode == 0, done.stderr
    found: Mapping[str, Any] = json.loads(done.stdout)
    return found


def test_a_tile_from_its_provider_to_a_receipt_with_two_links(
    engine_home: EngineHome, toy_llama: Path, source: Path, tmp_path: Path
) -> None:
    attested = attest(engine_home, source)
    assert attested["signers"] == [PROVIDER.public.key_id]
    bundle, provider = tmp_path / "bundle", tmp_path / "provider.pub.pem"
    words = ("bundle", "create", source, "--output", bundle, "--model", toy_llama, "--json")
    made = json.loads(engine_home.cli(*words).stdout)
    assert made["source_attestation_digest"] == attested["digest"]
    assert made["tile_set_digest"] == attested["tile_set_digest"]
    checked = engine_home.cli(
        *("attest", "verify", bundle / ATTESTATION, "--key", provider, "--bundle-dir", bundle)
    )
    assert checked.returncode == 0, checked.stderr
    assert attested["tile_set_digest"] in checked.stdout
    ran = engine_home.cli(
        *("run", "--model", toy_llama, "--bundle-dir", bundle, "--tile", TILE, "--split", "west"),
        *("--output-dir", tmp_path / "set", "--json"),
    )
    assert ran.returncode == 0, ran.stderr
    receipt = json.loads(next((tmp_path / "set").glob("*.geoai.json")).read_bytes())
    assert receipt["core"]["bundle_digest"] == made["bundle_digest"]
    assert receipt["core"]["disclosed"] is not None
    lines = next((tmp_path / "set").glob("*.intoto.jsonl")).read_bytes().splitlines()
    assert lines[1] == (bundle / ATTESTATION).read_bytes()
    home = engine_home.path / "keys"
    both = ("--key", home / "default.pub.pem", "--key", provider)
    whole = ("--audit-key-file", home / "audit.key", "--bundle-dir", bundle)
    verified = engine_home.cli("verify", tmp_path / "set", *both, *whole, "--json")
    (outcome,) = json.loads(verified.stdout)["outcomes"]
    assert outcome["match"] == ["declared", "materialised", "executed"]
    links = {link["name"]: link["status"] for link in outcome["links"]}
    assert links == {"source": "verified", "execution": "verified", "acceptance": "missing"}
    alone = engine_home.cli("verify", tmp_path / "set", *both[:2])
    assert alone.returncode == 0
    assert "1 of 3 links" in alone.stdout
    assert "source: present, no trusted key" in alone.stdout
    replayed = engine_home.cli("replay", tmp_path / "set", "--model", toy_llama)
    assert replayed.returncode == 0, replayed.stderr
    # The same set beside its bundle, whose template was touched since.
    (bundle / "task" / "prompt.txt").write_text("{tile}?")
    assert engine_home.cli("verify", tmp_path / "set", *both, *whole).returncode == 1


def test_what_is_attested_is_what_is_there(
    engine_home: EngineHome, toy_llama: Path, source: Path, tmp_path: Path
) -> None:
    attest(engine_home, source)
    again = engine_home.cli(
        *("attest", "source", source, "--license", "x", "--acquisition", "y"),
        *("--output", source / ATTESTATION, "--key", tmp_path / "provider.key"),
    )
    assert again.returncode == 4
    words = ("attest", "verify", source / ATTESTATION)
    stranger = engine_home.path / "keys" / "default.pub.pem"
    assert engine_home.cli(*words).returncode == 4
    assert engine_home.cli(*words, "--key", tmp_path / "provider.pub.pem").returncode == 0
    refused = engine_home.cli(*words, "--key", stranger)
    assert refused.returncode == 1
    assert "no trusted key" in refused.stderr
    envelope = (source / ATTESTATION).read_bytes()
    longer = tmp_path / "longer.dsse"
    longer.write_bytes(envelope + b"\n")
    refused = engine_home.cli("attest", "verify", longer, "--key", tmp_path / "provider.pub.pem")
    assert refused.returncode == 1
    assert "one line without a newline" in refused.stderr
    (source / "data" / "more.txt").write_text("made up")
    create = ("bundle", "create", source, "--output", tmp_path / "b", "--model", toy_llama)
    made = engine_home.cli(*create)
    assert made.returncode == 4
    assert "another tile set" in made.stderr
    assert not (tmp_path / "b").exists()
    (source / "data" / "more.txt").unlink()
    (source / ATTESTATION).unlink()
    attest(engine_home, source, "CC-BY-4.0")
    made = engine_home.cli(*create)
    assert made.returncode == 4
    assert "another licence" in made.stderr


def test_no_provider_attests_names_that_some_file_systems_take_for_one(
    engine_home: EngineHome, source: Path, tmp_path: Path
) -> None:
    for name in ("twin.txt", "Twin.txt"):
        (source / "data" / name).write_text(name)
    done = engine_home.cli(
        *("attest", "source", source, "--license", "x", "--acquisition", "y"),
        *("--output", tmp_path / "made.dsse", "--key", tmp_path / "provider.key"),
    )
    assert done.returncode == 4
    assert "take for one" in done.stderr
    assert not (tmp_path / "made.dsse").exists()


def test_options_that_the_bundle_decides(engine_home: EngineHome, tmp_path: Path) -> None:
    words = ("run", "--model", "m", "--bundle-dir", tmp_path)
    for more in (("-n", "3"), ("a prompt",), ("--sandbox", "none"), ("--split", "west")):
        assert engine_home.cli(*words, *more).returncode == 2
    assert engine_home.cli("run", "--model", "m", "--tile", TILE, "a prompt").returncode == 2
    assert engine_home.cli(*words, "--tile", TILE).returncode == 4
