"""Adding files in place, and normalising the three kinds that the engine's loader refuses."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from gguf import GGUFReader

from tallystick.contracts.model import ModelPin
from tallystick.errors import (
    EvidenceError,
    IncomparableError,
    InputError,
    RunFailedError,
    UnavailableError,
)
from tallystick.models import add as adding
from tallystick.models import normalise
from tallystick.models.add import add, add_normalised, derived_name
from tallystick.models.check import check, describe
from tallystick.models.facts_child import read_facts
from tallystick.models.listing import list_models
from tallystick.models.registry import find_pin, open_model, pin_path, resolve
from tallystick.sandbox import process
from tallystick.sandbox.profiles import SHIPPED
from tests.support.gguf_bytes import (
    I32,
    STRING,
    GgufBytes,
    TensorBytes,
    array,
    as_file,
    scalar,
    tiny,
)
from tests.support.registry_stub import digest_of
from tests.support.sandboxes import need_level

MODEL = tiny().build()
HYBRID = tiny("qwen35moe").with_entries(
    ("qwen35moe.rope.dimension_sections", array(I32, [2, 1, 1, 0])),
    ("after", scalar(STRING, "kept")),
)
DT = TensorBytes("blk.0.ssm_dt.bias", (6,), data=b"\x07" * 24)
TAIL = TensorBytes("output.weight", (5,), data=b"\x09" * 20)
REGULAR = HYBRID.with_tensors(DT, TAIL)
VISION = TensorBytes("v.patch_embd.weight", (9,), data=b"\xaa" * 36)
MTP = TensorBytes("mtp.fc.weight", (7,), data=b"\xbb" * 28)


def short_sections(built: GgufBytes) -> GgufBytes:
    key = "qwen35moe.rope.dimension_sections"
    return built.with_entries((key, array(I32, [2, 1, 1])))


def bare_time_step(built: GgufBytes) -> GgufBytes:
    tensors = tuple(
        replace(tensor, name="blk.0.ssm_dt") if tensor.name == DT.name else tensor
        for tensor in built.tensors
    )
    return replace(built, tensors=tensors)


def siblings(built: GgufBytes) -> GgufBytes:
    first, *rest = built.tensors
    return replace(built, tensors=(VISION, first, MTP, *rest, replace(VISION, name="v.last")))


def everything(built: GgufBytes) -> GgufBytes:
    return short_sections(bare_time_step(siblings(built)))


KINDS = [short_sections, bare_time_step, siblings, everything]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_a_file_is_named_where_it_is(home: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "My Model (v2).Q8_0.gguf", MODEL)
    pin = add(path, home)
    assert pin.name == "my-model-v2-.q8_0"
    assert (pin.path, pin.digest, pin.size) == (str(path), digest_of(MODEL), len(MODEL))
    assert (pin.source, pin.derived_from, pin.transform) == (f"file:{path}", None, None)
    assert [p.name for p in (home / "models").iterdir()] == [f"{pin.name}.json"]
    assert add(path, home) == pin
    assert resolve(pin.name, home).path == path
    assert [(m.name, m.state) for m in list_models(home)] == [(pin.name, "present")]


def test_a_hub_cache_symlink_leads_to_the_blob(home: Path, tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    blob = write(tmp_path / "blobs" / digest_of(MODEL)[7:], MODEL)
    (tmp_path / "snapshots").mkdir()
    link = tmp_path / "snapshots" / "Tiny.gguf"
    link.symlink_to(Path("..") / "blobs" / blob.name)
    pin = add(link, home)
    assert (pin.name, pin.path) == ("tiny", str(blob))
    assert resolve(str(link), home).path == blob


def test_a_relative_path_is_pinned_absolutely(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "m.gguf", MODEL)
    monkeypatch.chdir(tmp_path)
    assert add(Path("m.gguf"), home).path == str(tmp_path / "m.gguf")


@pytest.mark.parametrize("name", ["A", "", "a/b", "../x", "x.gguf", "x.json", "-a", "a" * 101])
def test_names_are_plain(name: str, home: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a usable model name"):
        add(write(tmp_path / "m.gguf", MODEL), home, name=name)


def test_names_are_made_from_file_names() -> None:
    assert derived_name("Qwen3.6 35B_A3B.GGUF") == "qwen3.6-35b_a3b"
    assert derived_name("日本語.gguf") == ""


def test_a_file_name_without_a_usable_letter_asks_for_a_name(home: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "日本.gguf", MODEL)
    with pytest.raises(InputError) as caught:
        add(path, home)
    assert "--name" in (caught.value.hint or "")
    assert add(path, home, name="nihon").path == str(path)


def test_a_path_that_is_not_utf8_is_refused(home: Path, tmp_path: Path) -> None:
    path = write(Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.gguf")), MODEL)
    with pytest.raises(InputError, match="not UTF-8"):
        add(path, home, name="x")


def test_a_name_keeps_its_model(home: Path, tmp_path: Path) -> None:
    add(write(tmp_path / "m.gguf", MODEL), home, name="m")
    other = write(tmp_path / "other.gguf", replace(tiny(), version=2).build())
    with pytest.raises(InputError, match="is taken"):
        add(other, home, name="m")
    pin = find_pin("m", home)
    assert pin is not None
    assert pin.digest == digest_of(MODEL)


def test_a_moved_file_may_be_added_again_under_its_name(home: Path, tmp_path: Path) -> None:
    add(write(tmp_path / "m.gguf", MODEL), home)
    moved = (tmp_path / "m.gguf").rename(tmp_path / "n.gguf")
    assert list_models(home)[0].state == "missing"
    assert add(moved, home, name="m").path == str(moved)


@pytest.mark.parametrize("length", [0, 3, 100, len(MODEL) - 21])
def test_damaged_files_get_no_name(length: int, home: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        add(write(tmp_path / "m.gguf", MODEL[:length]), home)
    assert caught.value.exit_code == 4
    assert not (home / "models").exists()


def test_a_directory_is_refused(home: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a directory"):
        add(tmp_path, home, name="x")


def test_a_file_that_changes_while_it_is_added(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "m.gguf", MODEL)

    def changing(descriptor: int, _sandbox: object) -> object:
        facts = read_facts(descriptor)
        os.utime(path, ns=(1, 1))
        return facts

    monkeypatch.setattr(adding, "read_facts", changing)
    with pytest.raises(InputError, match="changed while"):
        add(path, home)
    assert find_pin("m", home) is None


def test_a_derived_file_is_the_same_when_its_children_are_held(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_level("full")
    levels: list[str] = []
    monkeypatch.setattr(process, "require_passed", lambda report: levels.append(report.level))
    path = write(tmp_path / "m.gguf", everything(REGULAR).build())
    plain = add_normalised(path, home)
    assert levels == []
    held = add_normalised(path, tmp_path / "other", sandbox=SHIPPED["full"])
    assert (held.digest, held.derived_from, held.facts) == (
        plain.digest,
        plain.derived_from,
        plain.facts,
    )
    # The source's facts, the transform, the derived file's facts.
    assert levels == ["full"] * 3


def test_the_regular_file_needs_nothing(home: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", REGULAR.build())
    pin = add_normalised(path, home)
    assert (pin.path, pin.transform, pin.derived_from) == (str(path), None, None)


@pytest.mark.parametrize("kind", KINDS)
def test_a_refused_file_is_told_the_flag(
    kind: Callable[[GgufBytes], GgufBytes], home: Path, tmp_path: Path
) -> None:
    path = write(tmp_path / "m.gguf", kind(REGULAR).build())
    for attempt in (lambda: add(path, home), lambda: resolve(str(path), home)):
        with pytest.raises(IncomparableError) as caught:
            attempt()
        assert caught.value.exit_code == 3
        assert caught.value.found
        assert f"{path} --normalise" in (caught.value.hint or "")
    assert find_pin("m", home) is None
    assert describe(str(path), home).facts.needs_normalising


@pytest.mark.parametrize("kind", KINDS)
def test_the_derived_file_is_what_a_regular_writer_would_have_written(
    kind: Callable[[GgufBytes], GgufBytes], home: Path, tmp_path: Path
) -> None:
    source = kind(REGULAR).build()
    path = write(tmp_path / "m.gguf", source)
    pin = add_normalised(path, home)
    derived = (home / "models" / "m.gguf").read_bytes()
    assert derived == REGULAR.build()
    assert pin.digest == digest_of(derived)
    assert (pin.derived_from, pin.transform) == (digest_of(source), "tallystick.normalise/v1")
    assert (pin.path, pin.source) == ("m.gguf", f"file:{path}")
    assert pin.facts.needs_normalising == ()
    assert path.read_bytes() == source
    assert resolve("m", home).digest == pin.digest


def test_llama_cpps_own_reader_agrees(home: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", everything(REGULAR).build())
    add_normalised(path, home)
    reader = GGUFReader(home / "models" / "m.gguf")
    assert [tensor.name for tensor in reader.tensors] == [t.name for t in REGULAR.tensors]
    assert [bytes(tensor.data) for tensor in reader.tensors] == [t.data for t in REGULAR.tensors]
    field = reader.get_field("qwen35moe.rope.dimension_sections")
    assert field is not None
    assert list(field.contents()) == [2, 1, 1, 0]
    assert len(reader.fields) == len(REGULAR.entries) + 3


def test_normalising_twice_gives_equal_bytes(home: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", everything(REGULAR).build())
    first = add_normalised(path, home)
    assert add_normalised(path, home) == first
    other = add_normalised(path, tmp_path / "other")
    assert other == first
    assert (tmp_path / "other" / "models" / "m.gguf").read_bytes() == REGULAR.build()


def test_other_alignments_and_version_2(home: Path, tmp_path: Path) -> None:
    regular = replace(
        REGULAR.with_entries(("general.alignment", struct.pack("<II", 4, 128))),
        alignment=128,
        version=2,
    )
    path = write(tmp_path / "m.gguf", everything(regular).build())
    add_normalised(path, home)
    assert (home / "models" / "m.gguf").read_bytes() == regular.build()


def test_a_file_without_final_padding_is_derived_with_it(home: Path, tmp_path: Path) -> None:
    source = replace(everything(REGULAR), final_padding=0)
    add_normalised(write(tmp_path / "m.gguf", source.build()), home)
    assert (home / "models" / "m.gguf").read_bytes() == REGULAR.build()


def test_a_file_in_the_way_is_never_overwritten(home: Path, tmp_path: Path) -> None:
    (home / "models").mkdir(mode=0o700, parents=True)
    home.chmod(0o700)
    in_the_way = write(home / "models" / "m.gguf", MODEL)
    path = write(tmp_path / "m.gguf", everything(REGULAR).build())
    with pytest.raises(InputError, match="not overwritten"):
        add_normalised(path, home)
    assert in_the_way.read_bytes() == MODEL
    assert [p.name for p in (home / "models").iterdir()] == ["m.gguf"]


def test_a_pulled_source_keeps_its_place(home: Path) -> None:
    (home / "models").mkdir(mode=0o700, parents=True)
    home.chmod(0o700)
    path = write(home / "models" / "m.gguf", everything(REGULAR).build())
    pin = add_normalised(path, home)
    assert pin.name == "m-normalised"
    assert path.read_bytes() == everything(REGULAR).build()


def test_a_full_disk_leaves_nothing(home: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", everything(REGULAR).build())
    with as_file(path.read_bytes()) as source:
        full = os.open("/dev/full", os.O_RDWR)
        with pytest.raises(UnavailableError) as caught:
            normalise.write_normalised(source, full, lambda *_: None)
        os.close(full)
    assert caught.value.exit_code == 6
    assert caught.value.found == os.strerror(errno.ENOSPC)


def test_a_failed_transform_leaves_nothing(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(source: int, target: int, progress: object, _sandbox: object) -> int:
        os.pwrite(target, b"half", 0)
        raise RunFailedError("the child died")

    monkeypatch.setattr(adding, "write_normalised", failing)
    with pytest.raises(RunFailedError):
        add_normalised(write(tmp_path / "m.gguf", everything(REGULAR).build()), home)
    assert list((home / "models").iterdir()) == []


def test_the_transform_refuses_what_needs_nothing(tmp_path: Path) -> None:
    with as_file(REGULAR.build()) as source, as_file(b"") as target:
        with pytest.raises(InputError, match="needs no normalising"):
            normalise.write_normalised(source, target, lambda *_: None)
        assert os.fstat(target).st_size == 0


def added(home: Path, tmp_path: Path) -> tuple[ModelPin, Path]:
    path = write(tmp_path / "m.gguf", MODEL)
    return add(path, home), path


def test_check_holds_and_notices_one_bit(home: Path, tmp_path: Path) -> None:
    pin, path = added(home, tmp_path)
    assert check("m", home) == pin
    before = path.stat()
    flipped = MODEL[:-30] + bytes([MODEL[-30] ^ 1]) + MODEL[-29:]
    path.write_bytes(flipped)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(EvidenceError) as caught:
        check("m", home)
    assert caught.value.exit_code == 1
    assert digest_of(MODEL) in (caught.value.expected or "")
    assert digest_of(flipped) in (caught.value.found or "")
    with pytest.raises(InputError, match="not the one that was pinned"):
        resolve("m", home)


def test_check_notices_a_pin_that_lies_about_the_file(home: Path, tmp_path: Path) -> None:
    pin, _ = added(home, tmp_path)
    path = home / "models" / "m.json"
    assert b'"layers":2' in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(b'"layers":2', b'"layers":3'))
    with pytest.raises(EvidenceError) as caught:
        check(pin.name, home)
    assert caught.value.found == "different layers"


def test_check_of_what_is_not_there(home: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no model is called"):
        check("nope", home)
    pin, path = added(home, tmp_path)
    path.unlink()
    with pytest.raises(InputError, match="no such model file"):
        check(pin.name, home)
    assert describe("m", home).facts == pin.facts


def test_a_model_of_the_catalogue_that_was_not_pulled_is_told_how(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="was not pulled") as caught:
        resolve("smollm2-135m-instruct", home)
    assert caught.value.hint == "run `tallystick model pull smollm2-135m-instruct`"
    with pytest.raises(InputError, match="no such model file") as caught:
        resolve("smollm2", home)
    assert "model ls" in str(caught.value.hint)
    write(tmp_path / "smollm2-135m-instruct", MODEL)  # a file of that name is a model like any
    assert resolve("smollm2-135m-instruct", home).pin is None


def test_a_model_that_changes_in_use_is_noticed(home: Path, tmp_path: Path) -> None:
    _, path = added(home, tmp_path)
    with open_model(resolve("m", home)) as handle:
        handle.unchanged()
        os.utime(path, ns=(1, 1))
        with pytest.raises(RunFailedError, match="changed while it was in use") as caught:
            handle.unchanged()
    assert "mtime_ns 1" in (caught.value.found or "")
    model = resolve("m", home)
    path.write_bytes(MODEL)
    with pytest.raises(RunFailedError), open_model(model):
        pass


def test_a_replaced_file_does_not_reach_the_open_model(home: Path, tmp_path: Path) -> None:
    pin, path = added(home, tmp_path)
    model = resolve("m", home)
    assert pin_path(pin, home) == path
    write(tmp_path / "new", b"other").replace(path)
    with pytest.raises(RunFailedError, match="inode"), open_model(model):
        pass
