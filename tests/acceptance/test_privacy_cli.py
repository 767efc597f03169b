"""Nothing private leaves a run but through the answer and the sealed half of its bundle."""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tallystick.canonical.hashing import ids_bytes
from tallystick.contracts.layout import BUNDLE, MARKER, MEMBERS, STATE, MemberKind
from tallystick.receipts.sealing import bundle_key_of
from tests.support.forgery import Forger
from tests.support.runs import EngineHome, HonestRun, children_of, output_of
from tests.support.sets import AUDIT_KEY, STRANGER

Endless = Callable[[str], Path]

PROMPT = "Qx7 the hidden words of nobody else, vjk 4711"
POLICIES = ("row-class", "sequential")


@pytest.fixture(scope="module", params=POLICIES)
def place(
    request: pytest.FixtureRequest,
    engine_home: EngineHome,
    toy_moe: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """A run with every part of evidence, whose standard error is kept beside its set."""
    folder = tmp_path_factory.mktemp("private")
    done = engine_home.cli(
        *("run", "--model", toy_moe, "--policy", request.param, "--prompt-stdin", "-n", "6"),
        *("--evidence", "states,graph,gemm", "--output-dir", folder / "set"),
        stdin=PROMPT,
    )
    assert done.returncode == 0, done.stderr
    (folder / "stderr").write_text(done.stderr)
    return folder / "set"


def secrets_of(place: Path) -> dict[str, bytes]:
    """Return every private value of a set, opened with its audit key."""
    honest = HonestRun.load(place)
    opening, private = honest.opening, honest.private
    forger = Forger({path.name: path.read_bytes() for path in place.iterdir()})
    return {
        "prompt": PROMPT.encode(),
        "words of the prompt": b"the hidden words",
        "rendered prompt": opening.rendered_prompt.encode(),
        "output": output_of(opening),
        "prompt ids": ids_bytes(opening.prompt_ids),
        "sampled ids": ids_bytes(opening.sampled_ids),
        **{
            f"{what} ids {separator!r}": separator.join(map(str, ids)).encode()
            for what, ids in (("prompt", opening.prompt_ids), ("sampled", opening.sampled_ids))
            for separator in (",", ", ", " ")
        },
        "blind": bytes.fromhex(opening.request.blind),
        "owner salt": private.owner_salt,
        "owner key": private.owner_key,
        "request nonce": private.request_nonce,
        "prompt nonce": private.prompt_nonce,
        "output nonce": private.output_nonce,
        "audit key": AUDIT_KEY.raw,
        "bundle key": bundle_key_of(forger.envelope, AUDIT_KEY).raw,
        "expert routes": (private.expert_routes or b"")[-48:],
        "sketches": (private.gemm_trace or b"")[-32:],
        "leaf checks": base64.b64decode(opening.leaf_checks)[:24],
    }


def spellings(secret: bytes) -> Iterator[bytes]:
    """Yield the forms in which a value could be written down."""
    yield secret
    yield secret.hex().encode()
    yield secret.hex().upper().encode()
    yield base64.b64encode(secret)
    for alphabet in (base64.b64encode, base64.urlsafe_b64encode):
        for shift in range(3):  # where a text begins inside a longer one
            whole = alphabet(bytes(shift) + secret)
            yield whole[4 if shift else 0 : len(whole) - len(whole) % 4 - 4]
    yield json.dumps(secret.decode("utf-8", "replace"))[1:-1].encode()


def found_in(data: bytes, secrets: dict[str, bytes]) -> set[str]:
    return {
        name
        for name, secret in secrets.items()
        if any(len(text) >= 8 and text in data for text in spellings(secret))
    }


def test_the_search_finds_what_is_there(place: Path) -> None:
    """In the opened private half everything is, so the tests below look for the right things."""
    secrets = secrets_of(place)
    private = HonestRun.load(place).private
    opened = b"".join(
        (
            private.opening,
            private.owner_key,
            private.owner_salt,
            private.request_nonce,
            private.prompt_nonce,
            private.output_nonce,
            private.expert_routes or b"",
            private.gemm_trace or b"",
        )
    )
    missing = set(secrets) - found_in(opened, secrets)
    # Keys are in no file of a set; ids are written in JSON one way only.
    assert missing <= {"audit key", "bundle key", "prompt ids", "sampled ids"} | {
        name for name in secrets if name.endswith(("', '", "' '"))
    }
    assert len(secrets) - len(missing) >= 12


@pytest.mark.parametrize("kind", [*MEMBERS, MARKER], ids=lambda kind: kind.shared or kind.suffix)
def test_no_file_shows_anything_private(place: Path, kind: MemberKind) -> None:
    path = place / kind.name(next(place.glob("*.complete")).name[:32])
    assert found_in(path.read_bytes(), secrets_of(place)) == set()
    assert kind not in (BUNDLE, STATE) or path.stat().st_mode & 0o077 == 0


def test_no_verb_says_anything_private(
    place: Path, engine_home: EngineHome, toy_moe: Path, tmp_path: Path
) -> None:
    secrets = secrets_of(place)
    stranger = tmp_path / "stranger.pem"
    stranger.write_text(STRANGER.public.pem())
    public = engine_home.path / "keys" / "default.pub.pem"
    audit = engine_home.path / "keys" / "audit.key"
    other = tmp_path / "other.key"
    other.touch(mode=0o600)
    other.write_bytes(bytes(range(7, 39)))
    damaged = tmp_path / "damaged"
    damaged.mkdir(mode=0o700)
    for path in place.iterdir():
        data = path.read_bytes()
        copy = damaged / path.name
        copy.write_bytes(data[:-1] if path.name.endswith(".bundle") else data)
        copy.chmod(path.stat().st_mode & 0o777)
    calls: tuple[tuple[int, tuple[str | Path, ...]], ...] = (
        (0, ("verify", place, "--key", public)),
        (0, ("verify", place, "--audit-key-file", audit, "--json")),
        (1, ("verify", place, "--audit-key-file", other)),
        (1, ("verify", place, "--key", stranger, "--json")),
        (1, ("verify", damaged, "--audit-key-file", audit)),
        (0, ("inspect", place)),
        (0, ("inspect", place, "--json")),
        (0, ("diff", place, place)),
        (1, ("match", place, place, "--key", public)),
        (0, ("replay", place, "--model", toy_moe)),
        (0, ("replay", place, "--model", toy_moe, "--json")),
        (1, ("replay", damaged, "--model", toy_moe)),
    )
    said = (place.parent / "stderr").read_bytes()
    for code, words in calls:
        done = engine_home.cli(*words, variables={"TALLYSTICK_DEBUG": "1"})
        assert done.returncode == code, (words, done.stdout, done.stderr)
        said += (done.stdout + done.stderr).encode()
    assert found_in(said, secrets) == set()


@pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")
def test_the_engine_process_shows_nothing_private(
    engine_home: EngineHome, endless_model: Endless, tmp_path: Path
) -> None:
    model = endless_model("hybrid-q4k")
    engine_home.run(model, PROMPT, 1)
    prompt = tmp_path / "prompt"
    prompt.write_text(PROMPT)
    process = engine_home.start(
        *("run", "--model", model, "-n", "1024", "--prompt-file", prompt),
        *("--output-dir", tmp_path / "out"),
    )
    try:
        assert process.stdout is not None
        assert process.stdout.read(1) != b""
        (child,) = children_of(process.pid)
        shown = b""
        for pid in (process.pid, child):
            shown += Path(f"/proc/{pid}/cmdline").read_bytes()
            try:
                shown += Path(f"/proc/{pid}/environ").read_bytes()
            except PermissionError:  # not dumpable: nobody but root may look
                assert os.geteuid() != 0
        commit = (engine_home.path / "keys" / "commit.key").read_bytes()
        assert len(shown) > 100
        assert found_in(shown, {"prompt": PROMPT.encode(), "audit key": AUDIT_KEY.raw,
                                "commit key": commit}) == set()  # fmt: skip
        limits = Path(f"/proc/{child}/limits").read_text()
        (core,) = (line for line in limits.splitlines() if line.startswith("Max core file size"))
        assert core.split()[4:6] == ["0", "0"]
    finally:
        process.kill()
        process.communicate()
