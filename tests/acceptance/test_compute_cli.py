"""A run with its compute receipt, sealed with an audit key, and verified file by file."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tallystick.attest.auditkeys import write_bundle_key
from tallystick.attest.bundlekeys import AuditKey
from tallystick.canonical.json import jcs
from tallystick.contracts.layout import (
    BUNDLE,
    COMPUTE_RECEIPT,
    MARKER,
    MEMBERS,
    PUBLIC_JSON,
    RECEIPT,
    STATE,
    MemberKind,
)
from tallystick.receipts.sealing import bundle_key_of, parse
from tests.support.forgery import Forger, edited, flipped
from tests.support.runs import Completed, EngineHome
from tests.support.sets import AUDIT_KEY, OPENING, SIGNER, STRANGER

PROMPT = "The capital of France is"
MODELS = ("hybrid", "smollm2")
STATUS_WORDS = ("status=local_restored", "trust_scope=embedded_local_snapshot")


@dataclass(frozen=True)
class Sealed:
    """A set that a user made with an audit key of the tests, and how to verify it."""

    home: EngineHome
    directory: Path
    key: Path
    model: Path | str

    @property
    def set_id(self) -> str:
        return next(self.directory.glob("*.complete")).name[:32]

    @property
    def files(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.directory.iterdir()}

    def file(self, kind: MemberKind) -> Path:
        return self.directory / kind.name(self.set_id)

    def explicit(self, key: Path | None = None) -> tuple[str | Path, ...]:
        return (
            *("--receipt", self.file(COMPUTE_RECEIPT), "--bundle", self.file(BUNDLE)),
            *("--public-json", self.file(PUBLIC_JSON), "--state-db", self.file(STATE)),
            *("--audit-key-file", self.key if key is None else key),
        )

    def verify(self, *words: str | Path) -> Completed:
        return self.home.cli("verify", *self.explicit(), *words)

    def copied(self, place: Path, files: dict[str, bytes] | None = None) -> Sealed:
        """Return a copy, as its holder keeps it, with other bytes in its files."""
        place.mkdir(mode=0o700)
        data = self.files if files is None else files
        set_id = next(name for name in data if name.endswith(MARKER.suffix))[:32]
        for kind in (*MEMBERS, MARKER):
            path = place / kind.name(set_id)
            path.touch(mode=kind.mode)
            path.write_bytes(data[path.name])
            path.chmod(kind.mode)
        return replace(self, directory=place)


def write_key(path: Path, data: bytes, mode: int = 0o600) -> Path:
    path.touch(mode=0o600)
    path.write_bytes(data)
    path.chmod(mode)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("sealed")
    yield path
    shutil.rmtree(path)


def make_sealed(home: EngineHome, folder: Path, name: str, model: Path | str) -> Sealed:
    key = write_key(folder / f"{name}.key", AUDIT_KEY.raw)
    done = home.cli(
        *("run", "--model", model, "--policy", "sequential", "--prompt-stdin"),
        *("--audit-key-file", key, "--output-dir", folder / name, "--n-predict", "2"),
        stdin=PROMPT,
    )
    assert done.returncode == 0, done.stderr
    return Sealed(home, folder / name, key, model)


@pytest.fixture(scope="module", params=MODELS)
def sealed(request: pytest.FixtureRequest, engine_home: EngineHome, folder: Path) -> Sealed:
    """A run of either model under the sequential policy, as the documentation shows it."""
    if request.param == "smollm2":
        model: Path | str = request.getfixturevalue("smollm2")
    else:
        model = request.getfixturevalue("toy_hybrid_q8")
    return make_sealed(engine_home, folder, request.param, model)


@pytest.fixture(scope="module")
def toy(engine_home: EngineHome, folder: Path, toy_moe: Path) -> Sealed:
    """A small run with experts, for what has nothing to do with the model."""
    return make_sealed(engine_home, folder, "toy", toy_moe)


def failed_step(done: Completed) -> int:
    assert done.returncode == 1, done.stdout + done.stderr
    (line,) = (line for line in done.stdout.splitlines() if "  FAILED  " in line)
    return int(line.split()[0])


def test_a_run_is_verified_by_its_files_in_another_process(sealed: Sealed) -> None:
    done = sealed.verify()
    assert done.returncode == 0, done.stdout + done.stderr
    for words in STATUS_WORDS:
        assert words in done.stdout
    assert "not checked" not in done.stdout
    assert "FAILED" not in done.stdout
    assert PROMPT not in done.stdout + done.stderr
    document = json.loads(sealed.verify("--json").stdout)
    outcome = document["outcomes"][0]
    assert [step["status"] for step in outcome["steps"]] == ["passed"] * 13
    assert outcome["status"] == "local_restored"
    assert outcome["trust_scope"] == "embedded_local_snapshot"


def test_the_worker_s_key_makes_the_trust_a_given_one(sealed: Sealed) -> None:
    public = sealed.home.path / "keys" / "default.pub.pem"
    done = sealed.verify("--key", public)
    assert done.returncode == 0
    assert "status=local_restored" in done.stdout
    assert "trust_scope=given_keys" in done.stdout


def test_the_receipt_says_what_was_done(sealed: Sealed) -> None:
    forger = Forger(sealed.files)
    body, document = forger.compute.body, forger.document(PUBLIC_JSON.suffix)
    assert body.decode_tokens == 2
    assert body.prefill_tokens + body.decode_tokens - 1 == (
        document["prefill_graph_steps"] + document["decode_graph_steps"]
    )
    assert document["evidence_level"] == "gemm_traced"
    assert document["trace_evidence"] == "graph_fallback"
    assert document["schedule_kind"] == "observed"
    if "hybrid" in sealed.directory.name:
        steps = body.prefill_tokens + 1
        assert body.trace_event_count == 411 * steps
        assert document["expert_route"]["route_event_count"] == str(40 * steps)
        assert document["semantic_schedule"]["expert_route_ops"] == "80"


def test_the_run_is_replayed_with_the_audit_key(sealed: Sealed) -> None:
    words = ("replay", sealed.directory, "--model", sealed.model)
    done = sealed.home.cli(*words, "--audit-key-file", sealed.key)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("replayed: 2 of 2 ")


def test_another_audit_key_opens_nothing(toy: Sealed, tmp_path: Path) -> None:
    other = write_key(tmp_path / "other.key", bytes(range(1, 33)))
    done = toy.home.cli("verify", *toy.explicit(other))
    assert failed_step(done) == 1
    assert "another key" in done.stdout


BAD_KEYS = ("31 bytes", "33 bytes", "zeros", "mode", "inside", "symlink", "hard link", "missing")


def bad_key(kind: str, tmp_path: Path, inside: Path) -> Path:
    path = (inside if kind == "inside" else tmp_path) / "bad.key"
    raw = {"31 bytes": AUDIT_KEY.raw[:31], "33 bytes": AUDIT_KEY.raw + b"\n", "zeros": bytes(32)}
    if kind == "missing":
        return path
    if kind == "symlink":
        path.symlink_to(write_key(tmp_path / "real.key", AUDIT_KEY.raw))
        return path
    write_key(path, raw.get(kind, AUDIT_KEY.raw), 0o644 if kind == "mode" else 0o600)
    if kind == "hard link":
        os.link(path, tmp_path / "second.key")
    return path


@pytest.mark.parametrize("kind", BAD_KEYS)
def test_a_bad_audit_key_file_exits_4(
    kind: str, toy: Sealed, engine_home: EngineHome, tmp_path: Path
) -> None:
    copy = toy.copied(tmp_path / "set")
    key = bad_key(kind, tmp_path, copy.directory)
    done = toy.home.cli("verify", *copy.explicit(key))
    assert (done.returncode, done.stdout) == (4, ""), done.stdout
    done = toy.home.cli("verify", copy.directory, "--bundle-key-file", key)
    assert (done.returncode, done.stdout) == (4, "")
    out = tmp_path / "out"
    if kind == "inside":
        out.mkdir(mode=0o700)
        key = bad_key(kind, tmp_path, out)
    before = set(engine_home.path.rglob("*"))
    done = engine_home.cli(
        *("run", "--model", toy.model, "--policy", "sequential", "--prompt-stdin"),
        *("--audit-key-file", key, "--output-dir", out, "--json"),
        stdin=PROMPT,
    )
    assert (done.returncode, done.stdout) == (4, ""), done.stderr
    assert json.loads(done.stderr)["error"]["type"] == "InputError"
    assert AUDIT_KEY.raw.hex()[:16] not in done.stderr
    assert set(engine_home.path.rglob("*")) == before
    assert out.exists() is (kind == "inside")


def test_a_bundle_key_opens_one_bundle(
    toy: Sealed, engine_home: EngineHome, tmp_path: Path
) -> None:
    envelope = parse(toy.file(BUNDLE).read_bytes())
    key = tmp_path / "one.key"
    write_bundle_key(key, bundle_key_of(envelope, AuditKey(toy.key.read_bytes())))
    done = engine_home.cli("verify", toy.directory, "--bundle-key-file", key)
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(words in done.stdout for words in STATUS_WORDS)
    again = engine_home.cli(
        *("run", "--model", toy.model, "-n", "2", "--prompt-stdin", "--json"),
        *("--audit-key-file", toy.key, "--output-dir", tmp_path / "again"),
        stdin=PROMPT,
    )
    assert again.returncode == 0, again.stderr
    other = engine_home.cli("verify", tmp_path / "again", "--bundle-key-file", key)
    assert failed_step(other) == 1
    assert "another key" in other.stdout
    whole = engine_home.cli("verify", tmp_path / "again", "--audit-key-file", toy.key)
    assert whole.returncode == 0
    replayed = engine_home.cli(
        "replay", toy.directory, "--model", toy.model, "--bundle-key-file", key
    )
    assert replayed.returncode == 0, replayed.stderr


def test_two_kinds_of_keys_or_names_at_once_are_wrong_use(toy: Sealed) -> None:
    both = toy.verify("--bundle-key-file", toy.key)
    assert (both.returncode, both.stdout) == (2, "")
    assert toy.verify(toy.directory).returncode == 2
    some = toy.home.cli("verify", *toy.explicit()[:4], "--audit-key-file", toy.key)
    assert (some.returncode, some.stdout) == (2, "")
    without = toy.home.cli("verify", *toy.explicit()[:8])
    assert (without.returncode, without.stdout) == (2, "")


def test_without_trust_and_key_there_is_no_verdict(toy: Sealed) -> None:
    done = toy.home.cli("verify", toy.directory)
    assert (done.returncode, done.stdout) == (4, "")
    assert "no trust was given" in done.stderr


def test_another_network_fails_step_2(toy: Sealed) -> None:
    assert failed_step(toy.verify("--network", "ab" * 32)) == 2
    own = Forger(toy.files).compute.body.network_id.hex()
    assert toy.verify("--network", own).returncode == 0
    for text in ("local", "AB" * 32, "ab" * 31, ""):
        assert toy.verify("--network", text).returncode == 2


def test_a_time_outside_of_the_window_fails_step_2(toy: Sealed) -> None:
    for now in ("2020-01-01T00:00:00Z", "2222-01-01T00:00:00Z"):
        done = toy.verify("--now", now)
        assert failed_step(done) == 2
        assert "does not hold now" in done.stdout


def forged_bundle(forger: Forger, name: str) -> dict[str, bytes]:
    """Return a set around a bundle that was changed and sealed again."""
    private, opening = forger.private, forger.document(OPENING)
    if name == "request":
        opening["request"]["prompt"] += "!"
    elif name == "tokens":
        opening["sampled_ids"][0] ^= 1
    elif name == "manifest":
        data = forger.public.manifest
        public = edited(forger.public, "manifest", flipped(data, len(data) // 2))
        return forger.with_bundle(forger.sealed(public=public))
    else:
        data = getattr(private, name)
        private = edited(private, name, flipped(data, len(data) - 4))
        return forger.with_bundle(forger.sealed(private))
    return forger.with_opening(opening)


def forged_receipt(forger: Forger, name: str) -> dict[str, bytes]:
    """Return a set around a receipt that was changed; everything that names it agrees again."""
    receipt, document = forger.document(RECEIPT.suffix), forger.document(PUBLIC_JSON.suffix)
    if name == "core":
        receipt["core"]["engine"]["version"] += "x"
        return forger.with_receipt(receipt, key=SIGNER)
    if name == "attestation":
        receipt["observed"]["host"]["cpu"] = "Another CPU"
        return forger.with_receipt(receipt)
    if name == "mint":
        document["mint"]["eligible"] = True
        return forger.with_member(PUBLIC_JSON, jcs(document))
    if name == "signature":
        return forger.with_compute(forger.signed(STRANGER))
    value = getattr(forger.compute.body, name)
    other = b"\x01" * 32 if isinstance(value, bytes) else value + 1
    return forger.with_compute(forger.signed(SIGNER, **{name: other}), key=SIGNER)


BUNDLE_STEPS = {
    "request": 3,
    "owner_salt": 4,
    "manifest": 5,
    "gemm_trace": 10,
    "expert_routes": 10,
    "tokens": 11,
    "output_nonce": 13,
}
RECEIPT_STEPS = {
    "network_id": 2,
    "signature": 4,
    "runtime_class_id": 6,
    "cu_ruleset_id": 7,
    "execution_nullifier": 8,
    "canonical_compute_units": 9,
    "attestation": 12,
    "core": 13,
    "mint": 13,
}


@pytest.mark.parametrize("name", [*BUNDLE_STEPS, *RECEIPT_STEPS])
def test_what_is_tampered_with_exits_1_and_names_its_step(
    name: str, toy: Sealed, tmp_path: Path
) -> None:
    steps = {**BUNDLE_STEPS, **RECEIPT_STEPS}
    assert {*steps.values()} == {2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13}
    forger = Forger(toy.files)
    forge = forged_bundle if name in BUNDLE_STEPS else forged_receipt
    forged = toy.copied(tmp_path / "set", forge(forger, name))
    done = forged.verify()
    # A bit of the manifest may be one that contradicts nothing but the ids that were signed.
    assert failed_step(done) in ((5, 6) if name == "manifest" else (steps[name],))
    assert "local_restored" not in done.stdout
    assert PROMPT not in done.stdout + done.stderr


@pytest.mark.parametrize("kind", [*MEMBERS, MARKER], ids=lambda kind: kind.shared or kind.suffix)
def test_a_file_that_is_edited_exits_1_at_step_1(
    kind: MemberKind, toy: Sealed, tmp_path: Path
) -> None:
    copy = toy.copied(tmp_path / "set")
    data = copy.file(kind).read_bytes()
    copy.file(kind).write_bytes(flipped(data, len(data) // 2))
    assert failed_step(copy.verify()) == 1


def test_a_state_store_of_another_run_exits_1(toy: Sealed, sealed: Sealed, tmp_path: Path) -> None:
    other = sealed.file(STATE).read_bytes()
    copy = toy.copied(tmp_path / "set", Forger(toy.files).with_member(STATE, other))
    done = copy.verify()
    assert done.returncode == 1
    assert "has not accepted this receipt" in done.stdout
    copy.file(STATE).unlink()
    missing = copy.verify()
    assert missing.returncode == 4
    # Without naming it, everything else still holds, and nothing is said of a store.
    held: Any = toy.home.cli("verify", copy.directory, "--audit-key-file", toy.key)
    assert held.returncode == 0
    assert "status=verified" in held.stdout


@pytest.mark.parametrize("how", ["mode", "directory", "symlink", "hard link", "foreign"])
def test_files_that_are_not_as_their_holder_keeps_them_exit_1(
    how: str, toy: Sealed, tmp_path: Path
) -> None:
    copy = toy.copied(tmp_path / "set")
    bundle = copy.file(BUNDLE)
    if how == "mode":
        bundle.chmod(0o644)
    elif how == "directory":
        copy.directory.chmod(0o755)
    elif how == "symlink":
        bundle.rename(tmp_path / "moved")
        bundle.symlink_to(tmp_path / "moved")
    elif how == "hard link":
        os.link(bundle, tmp_path / "second")
    else:
        (copy.directory / f"{toy.set_id}.notes").touch()
    assert failed_step(copy.verify()) == 1
