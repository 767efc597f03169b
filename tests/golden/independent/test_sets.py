"""The independent checker over whole sets: the committed one, fresh ones, tampered ones."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from tallystick.attest.trust import TrustPolicy
from tallystick.contracts.layout import BUNDLE, COMPUTE_RECEIPT, ENVELOPES, MEMBERS, RECEIPT
from tallystick.receipts.verify import verify_set
from tests.golden.example_sets import AUDIT_KEY, COMMITTED, KINDS, Kind, example, row
from tests.golden.independent import check_set as checker
from tests.golden.independent.basics import RefusedError
from tests.golden.write_example_set import FOLDER, read, readme, text
from tests.support import sets
from tests.support.forgery import Forger
from tests.support.manifests import family_facts

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
KEY, TRUSTED = AUDIT_KEY.raw, sets.SIGNER.public.raw
SOURCES = sorted(path for path in HERE.glob("*.py") if not path.name.startswith("test_"))
ALLOWED = {"__future__", "base64", "blake3", "collections", "datetime", "functools", "hashlib"}
ALLOWED |= {"json", "math", "nacl", "pathlib", "re", "sqlite3", "struct", "sys", "typing", "tests"}


def rows_of(kind: Kind) -> Callable[[int, int], bytes] | None:
    """Return the invented states of an example, None when it has none."""
    if "states" not in kind.parts:
        return None
    facts = family_facts(kind.family)

    def rows(layer: int, position: int) -> bytes:
        return row(layer, position, facts.vocabulary if layer == facts.layers else facts.embedding)

    return rows


def test_the_committed_set_holds() -> None:
    checker.check_set(read(), KEY, TRUSTED, rows_of(KINDS[COMMITTED]))


def test_the_program_verifies_the_committed_set() -> None:
    trust, later = TrustPolicy.for_keys([sets.SIGNER.public]), sets.NOW + timedelta(days=400)
    verify_set(read(), trust, now=later, key=AUDIT_KEY).require_complete()


def test_the_committed_set_is_what_the_program_makes_now() -> None:
    """All but the state store, whose bytes depend on SQLite's version, and the marker over it."""
    made, found = example(COMMITTED).files(), read()
    assert made.keys() == found.keys()
    for name, data in made.items():
        assert data == found[name] or name.endswith((".sqlite3", ".complete")), name
    assert (FOLDER / "README.md").read_text(encoding="utf-8") == readme()
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 200_000


def test_the_values_file_is_what_the_checker_finds() -> None:
    assert (FOLDER.parent / "set.json").read_text(encoding="utf-8") == text(read())


@pytest.mark.parametrize("name", KINDS)
def test_fresh_sets_hold(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = example(name)
    checker.check_set(made.files(), KEY, TRUSTED, rows_of(KINDS[name]))
    for file, data in made.files().items():
        (tmp_path / file).write_bytes(data)
    (tmp_path / "audit.key").write_bytes(KEY)
    arguments = (str(tmp_path), str(tmp_path / "audit.key"), TRUSTED.hex())

    assert checker.main(*arguments) == 0
    assert capsys.readouterr().out == f"holds: {made.receipt_digest}\n"
    (tmp_path / "audit.key").write_bytes(bytes(31) + b"\1")
    assert checker.main(*arguments) == 1
    assert capsys.readouterr().out == "refused: bundle: sealed with another key\n"


def test_the_ordinary_example_of_the_tests_holds() -> None:
    checker.check_set(sets.make_set(*sets.make_public()).files(), KEY, TRUSTED)


@pytest.mark.parametrize("place", [0, 0.2, 0.5, 0.8, 1])
@pytest.mark.parametrize("member", range(len(MEMBERS) + 1))
def test_a_flipped_byte_is_refused(member: int, place: float) -> None:
    files = dict(example(COMMITTED).files())
    name = sorted(files)[member]
    data = bytearray(files[name])
    data[round(place * (len(data) - 1))] ^= 0x10
    with pytest.raises(RefusedError):
        checker.check_set({**files, name: bytes(data)}, KEY, TRUSTED)


@pytest.mark.parametrize("place", range(0, 670, 23))
def test_a_flipped_byte_of_the_receipt_is_refused_under_a_marker_that_fits(place: int) -> None:
    forger = Forger(example(COMMITTED).files())
    data = bytearray(forger.data(COMPUTE_RECEIPT))
    data[place] ^= 1
    with pytest.raises(RefusedError):
        checker.check_set(forger.with_member(COMPUTE_RECEIPT, bytes(data)), KEY, TRUSTED)


def test_another_core_is_refused_under_a_marker_that_fits() -> None:
    forger = Forger(example(COMMITTED).files())
    value = forger.document(RECEIPT.suffix)
    value["core"]["context_tokens"] += 1
    with pytest.raises(RefusedError, match=r"^12: the signature$|^13:"):
        checker.check_set(forger.with_receipt(value), KEY, TRUSTED)
    with pytest.raises(RefusedError, match=r"^13: core.context_tokens$"):
        checker.check_set(forger.with_receipt(value, key=sets.SIGNER), KEY, TRUSTED)


def test_another_opening_is_refused_though_it_is_sealed_with_the_key() -> None:
    forger = Forger(example(COMMITTED).files())
    opening = forger.document(sets.OPENING)
    opening["sampled_ids"][0] += 1
    with pytest.raises(RefusedError, match=r"^11: output_commitment$"):
        checker.check_set(forger.with_opening(opening), KEY, TRUSTED)


def test_files_of_two_sets_do_not_mix() -> None:
    forger = Forger(example(COMMITTED).files())
    other = Forger(example("gemm of experts, sequential").files())
    different = [kind for kind in MEMBERS if forger.data(kind) != other.data(kind)]
    assert len(different) == len(MEMBERS) - 1  # both runs had the same events
    for kind in different:
        with pytest.raises(RefusedError):
            checker.check_set(forger.with_member(kind, other.data(kind)), KEY, TRUSTED)


def test_another_key_is_not_trusted() -> None:
    with pytest.raises(RefusedError, match=r"^12: the signature$"):
        checker.check_set(read(), KEY, sets.STRANGER.public.raw)


def test_a_stranger_who_signs_again_is_refused() -> None:
    forger = Forger(example(COMMITTED).files())
    value = json.loads(forger.data(RECEIPT))
    forged = forger.with_receipt(value, key=sets.STRANGER)
    assert forged != example(COMMITTED).files()
    assert forger.data(ENVELOPES) != Forger(forged).data(ENVELOPES)
    assert forger.data(BUNDLE) == Forger(forged).data(BUNDLE)
    with pytest.raises(RefusedError, match=r"^12: the signature$"):
        checker.check_set(forged, KEY, TRUSTED)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_the_checker_imports_nothing_of_the_program(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            names = [node.module or ""]
        else:
            continue
        for name in names:
            assert name.partition(".")[0] in ALLOWED, name
            local = name.startswith("tests.")
            assert not local or name.startswith("tests.golden.independent"), name


def test_the_checker_runs_without_the_program() -> None:
    code = (
        "import sys\nimport tests.golden.independent.check_set as checker\n"
        "assert not [name for name in sys.modules if name.startswith('tallystick')]\n"
        "sys.exit(checker.main(*sys.argv[1:]))\n"
    )
    key = FOLDER.parent / "set.json"
    found = subprocess.run(
        [sys.executable, "-c", code, str(FOLDER), str(key), TRUSTED.hex()],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (found.returncode, found.stderr) == (1, "")
    assert found.stdout == "refused: bundle: sealed with another key\n"
