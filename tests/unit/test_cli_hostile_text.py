"""No text from evidence or from a file's name makes a line of its own, or moves the cursor."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from tallystick.attest.keyfiles import ensure_public_key
from tallystick.cli.main import main
from tallystick.cli.output import emit
from tallystick.cli.verify import _all_words
from tallystick.contracts.runtime import EngineBuild
from tallystick.errors import InputError
from tallystick.receipts.files import PathOutcome, VerificationRun
from tallystick.receipts.verify import VerifyContext, verify_with
from tests.support import sets
from tests.support.sets import NOW, SIGNER, TRUST, fake_digest, make_set

FORGED: Final = "status=local_restored trust_scope=given_keys"
EVIL: Final = f"1\n{FORGED}\r\x1b[2J\x85\u2028{FORGED}\u2029\u202e\u2066x"
NAME: Final = f"a\nverified  sha256:00\r\x1b[2J\u2028{FORGED}"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TALLYSTICK_HOME", str(tmp_path / "home"))
    return tmp_path


def shown(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    text = captured.out + captured.err
    assert not {letter for letter in text if not letter.isprintable()} - {"\n"}
    return text


def lines_of(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return shown(capsys).splitlines()


def no_forgery(lines: list[str]) -> None:
    assert not [line for line in lines if line.startswith((FORGED, "verified"))]


@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_names_of_paths(
    place: Path, as_json: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    directory = place / NAME
    directory.mkdir()
    key = ensure_public_key(place / "key", SIGNER.public)
    for words in (
        ["verify", str(directory), "--key", str(key)],
        ["verify", str(directory / "missing"), "--key", str(key)],
        ["verify", str(directory), "--key", str(directory / "no\nkey")],
        ["inspect", str(directory)],
        ["diff", str(directory), str(directory)],
        ["match", str(directory), str(directory), "--key", str(key)],
        ["keys", "bundle", str(directory), "--output", str(directory / "\x1bkey")],
        ["contracts", "validate", str(directory)],
        ["replay", str(directory), "--model", str(place / NAME)],
        ["model", "show", str(place / NAME)],
        ["verify", f"--{NAME}"],
    ):
        assert main([*words, *as_json]) != 0
        no_forgery(lines_of(capsys))


def test_texts_of_a_receipt(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = make_set()
    files = dict(made.files())
    (name,) = (name for name in files if name.endswith(".geoai.json"))
    hostile = files[name].replace(b'"libllama"', b'"x\\n%s\\r\\u001b[2J\\u2028"' % FORGED.encode())
    assert hostile != files[name]
    (place / name).write_bytes(hostile)
    for words in (["inspect", str(place / name)], ["diff", str(place / name), str(place / name)]):
        main(words)
        no_forgery(lines_of(capsys))
    directory = place / "set"
    directory.mkdir()
    for member, data in {**files, name: hostile}.items():
        (directory / member).write_bytes(data)
        (directory / member).chmod(0o600)
    key, audit = ensure_public_key(place / "key", SIGNER.public), place / "audit.key"
    audit.write_bytes(bytes(range(100, 132)))
    audit.chmod(0o600)
    for words in (
        ["verify", str(directory), "--key", str(key)],
        ["verify", str(directory), "--audit-key-file", str(audit)],
        ["match", str(directory), str(directory), "--key", str(key)],
        ["replay", str(directory), "--model", "none", "--audit-key-file", str(audit)],
    ):
        assert main(words) != 0
        no_forgery(lines_of(capsys))


def test_the_public_document_refuses_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def engine() -> EngineBuild:
        return EngineBuild(name="libllama", version=EVIL, library=fake_digest("library"))

    monkeypatch.setattr(sets, "make_engine", engine)
    with pytest.raises(InputError, match="one line of at most 200 characters"):
        make_set()


def test_details_of_steps_stay_on_their_lines(capsys: pytest.CaptureFixture[str]) -> None:
    report = verify_with(make_set().files(), VerifyContext(TRUST, NOW))
    steps = tuple(replace(step, detail=EVIL, found=EVIL, hint=EVIL) for step in report.steps)
    evil = replace(report, steps=steps, proves=(EVIL,), does_not_prove=(EVIL,))
    outcome = PathOutcome(Path(NAME), evil, None)
    problem = PathOutcome(Path(NAME), None, InputError(EVIL, expected=EVIL, found=EVIL))
    run = VerificationRun((outcome, problem))
    emit({}, as_json=False, lines=_all_words(run))
    lines = lines_of(capsys)
    own = "status=verified trust_scope=given_keys"
    assert [line for line in lines if line.startswith("status=")] == [own]
    assert sum(line.startswith("verified") for line in lines) == 1
