"""Forgeries that are signed and consistent: a replay says what differs, and where."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from gguf import GGUFReader

from tallystick.contracts.codec import encode_bytes
from tallystick.contracts.generation import Generation
from tallystick.contracts.manifest_facts import chat_template_digest
from tallystick.errors import EvidenceError, IncomparableError
from tallystick.execution.jobs import ReplayJob
from tallystick.execution.launch import find_engine, run_job
from tallystick.models.registry import open_model, resolve
from tests.support.gguf_files import flip_weight_bit
from tests.support.runs import EngineHome, HonestRun, output_of, replay_forgery
from tests.support.tokenizer import EOS_ID

Endless = Callable[[str], Path]

PROMPT = "A tally stick is split in two."
N = 12
PROMPT_END = -1
OTHER_RUN = "01890a5d-ac96-774b-bcce-b302099a8057"


@pytest.fixture(scope="module")
def model(endless_model: Endless) -> Path:
    return endless_model("llama-q8_0")


@pytest.fixture(scope="module")
def honest(engine_home: EngineHome, model: Path) -> HonestRun:
    return HonestRun.load(engine_home.run(model, PROMPT, N).directory)


@pytest.fixture(scope="module")
def seeded(engine_home: EngineHome, model: Path) -> HonestRun:
    result = engine_home.run(model, PROMPT, N, temperature="1", seed=5)
    return HonestRun.load(result.directory)


def test_the_tools_forge_nothing_by_themselves(
    honest: HonestRun, model: Path, engine_home: EngineHome, tmp_path: Path
) -> None:
    report = replay_forgery(engine_home, honest.resign(), tmp_path / "set", model)
    assert (report.exact, report.difference, report.signature) == (N, None, "passed")


@pytest.mark.parametrize("index", [0, N // 2, N - 1])
def test_one_replaced_token(
    index: int, honest: HonestRun, model: Path, engine_home: EngineHome, tmp_path: Path
) -> None:
    ids = list(honest.opening.sampled_ids)
    ids[index] = 100 if ids[index] != 100 else 101
    forged = honest.resign(generation=honest.generation(sampled_ids=tuple(ids)))
    report = replay_forgery(engine_home, forged, tmp_path / "set", model)
    assert report.exit_code == 1
    assert report.difference is not None
    last = honest.receipt.core.prompt_tokens - 1
    assert (report.difference.position, report.difference.layer) == (last + index, None)
    assert f"generated token {index} " in report.difference.what
    assert report.exact < N
    # A replaced token is fed to the model like any other: everything behind it is other too.
    assert report.states == ("equal" if index == N - 1 else "differ")


def test_a_shortened_output(
    honest: HonestRun, model: Path, engine_home: EngineHome, tmp_path: Path
) -> None:
    short = base64.b64encode(output_of(honest.opening)[:-1]).decode()
    forged = honest.resign(generation=honest.generation(output=short))
    report = replay_forgery(engine_home, forged, tmp_path / "set", model)
    assert not report.verified
    assert "output bytes" in str(report.difference)


def test_an_early_stop(model: Path, engine_home: EngineHome, tmp_path: Path) -> None:
    # Everything is computed honestly, but the run was stopped where the model had not ended.
    short = HonestRun.load(engine_home.run(model, PROMPT, 5).directory)
    forged = short.resign(
        short.request(max_tokens=N), short.generation(stop_reason="end_of_generation")
    )
    report = replay_forgery(engine_home, forged, tmp_path / "set", model)
    assert not report.verified
    assert "stops by length, the receipt says end_of_generation" in str(report.difference)


def _frequent_token_ends(source: Path, out: Path, token: int) -> None:
    """Make EOS a twin of ``token`` with a lower id: where the two tie, greedy decoding takes it."""
    data = bytearray(source.read_bytes())
    for tensor in GGUFReader(source).tensors:
        if tensor.name in {"output.weight", "token_embd.weight"}:
            start, row = int(tensor.data_offset), int(tensor.n_bytes) // int(tensor.shape[1])
            twin = data[start + token * row : start + (token + 1) * row]
            data[start + EOS_ID * row : start + (EOS_ID + 1) * row] = twin
    out.write_bytes(data)


def _re_execute(home: EngineHome, model: Path, run: HonestRun, ids: tuple[int, ...]) -> Generation:
    """Return what follows from claimed ids that need not have been sampled."""
    engine = find_engine(home.path)
    with open_model(resolve(str(model), home.path)) as opened:
        core = run.receipt.core
        job = ReplayJob(
            engine.setup(None), opened.fd, run.opening.request, core.runtime_class.decode_class,
            ids, "00" * 32, run.receipt.observed.host.renderer,
        )  # fmt: skip
        return run_job(job, core.runtime_class.knobs, model_fd=opened.fd).generation()


@pytest.mark.parametrize("claimed_stop", ["length", "end_of_generation"])
def test_a_run_that_went_on_after_its_end(
    claimed_stop: str, model: Path, engine_home: EngineHome, tmp_path: Path
) -> None:
    prompt = "The quick brown fox"
    plain = HonestRun.load(engine_home.run(model, prompt, 64).directory)
    ids = plain.opening.sampled_ids
    token, count = Counter(ids).most_common(1)[0]
    assert count >= 2
    other = tmp_path / "ends.gguf"
    _frequent_token_ends(model, other, token)
    engine_home.calibrate_like(model, other)
    ended = HonestRun.load(engine_home.run(other, prompt, 64).directory)
    assert ended.receipt.core.stop_reason == "end_of_generation"
    claimed = [EOS_ID if i == token else i for i in ids]
    while claimed[-1] != EOS_ID:
        claimed.pop()
    assert len(claimed) > len(ended.opening.sampled_ids)
    went_on = _re_execute(engine_home, other, ended, tuple(claimed))
    forged = ended.resign(
        ended.request(max_tokens=len(claimed) if claimed_stop == "length" else 64),
        ended.generation(
            sampled_ids=tuple(claimed),
            state_root=went_on.state_root,
            state_leaves=went_on.state_leaves,
            leaf_checks=went_on.leaf_checks,
            stop_reason=claimed_stop,
        ),
    )
    report = replay_forgery(engine_home, forged, tmp_path / "set", other)
    assert report.states == "equal"
    assert report.difference is not None
    # Every token follows from the one before it, but the run was over with the first end.
    end = len(ended.opening.sampled_ids)
    assert f"is over at generated token {end - 1}" in report.difference.what


def test_an_edited_prompt(
    honest: HonestRun, model: Path, engine_home: EngineHome, tmp_path: Path
) -> None:
    edited = PROMPT.replace("split", "Split")
    request = honest.request(prompt=edited)
    forged = honest.resign(request, honest.generation(rendered_prompt=edited))
    report = replay_forgery(engine_home, forged, tmp_path / "text", model)
    assert report.difference is not None
    assert "the prompt has another token at position" in report.difference.what
    # With the ids of the edited prompt, the states behind it give it away.
    other = HonestRun.load(engine_home.run(model, edited, 1).directory).opening.prompt_ids
    pairs = zip(other, honest.opening.prompt_ids, strict=True)
    first = next(i for i, (theirs, ours) in enumerate(pairs) if theirs != ours)
    assert report.difference.position == first > 0
    forged = honest.resign(request, honest.generation(rendered_prompt=edited, prompt_ids=other))
    report = replay_forgery(engine_home, forged, tmp_path / "ids", model)
    assert report.difference is not None
    assert (report.difference.position, report.difference.layer) == (first, 0)


@pytest.mark.parametrize("changes", [{"seed": 6}, {"temperature": "2"}, {"temperature": "0.0001"}])
def test_other_sampling(
    changes: dict[str, object],
    seeded: HonestRun,
    model: Path,
    engine_home: EngineHome,
    tmp_path: Path,
) -> None:
    forged = seeded.resign(seeded.request(**changes))
    report = replay_forgery(engine_home, forged, tmp_path / "set", model)
    assert report.difference is not None
    assert report.states == "equal"
    assert report.difference.layer is None
    assert "does not follow from the logits" in report.difference.what


def test_greedy_passed_off_as_drawn(
    honest: HonestRun, model: Path, engine_home: EngineHome, tmp_path: Path
) -> None:
    forged = honest.resign(honest.request(temperature="2", seed=1))
    report = replay_forgery(engine_home, forged, tmp_path / "set", model)
    assert (report.verified, report.states) == (False, "equal")


def test_a_system_message_added(model: Path, engine_home: EngineHome, tmp_path: Path) -> None:
    run = HonestRun.load(engine_home.run(model, PROMPT, 4, chat="template").directory)
    assert run.opening.request.chat is not None
    chat = replace(run.opening.request.chat, system="Say nothing of tally sticks.")
    report = replay_forgery(
        engine_home, run.resign(run.request(chat=chat)), tmp_path / "set", model
    )
    assert str(report.difference) == "the chat template renders another prompt"


def test_a_prompt_of_another_renderer_is_no_failure(
    model: Path, engine_home: EngineHome, tmp_path: Path
) -> None:
    run = HonestRun.load(engine_home.run(model, PROMPT, 4, chat="template").directory)
    host = run.generation().host
    assert host.renderer.startswith("jinja2 3.")
    other = replace(host, renderer="jinja2 0.1, Python 3.11")
    # Another renderer with an equal rendering makes no difference.
    forged = run.resign(generation=run.generation(host=other))
    assert replay_forgery(engine_home, forged, tmp_path / "equal", model).verified
    rendered = run.generation(host=other, rendered_prompt=run.opening.rendered_prompt + " ")
    with pytest.raises(IncomparableError, match="rendered by another renderer") as caught:
        replay_forgery(engine_home, run.resign(generation=rendered), tmp_path / "other", model)
    assert (caught.value.expected, caught.value.found) == (other.renderer, host.renderer)


def test_another_template(model: Path, engine_home: EngineHome, tmp_path: Path) -> None:
    run = HonestRun.load(engine_home.run(model, PROMPT, 4, chat="template").directory)
    digest = run.receipt.core.model_digest
    facts = replace(run.manifest.decoded_facts(), chat_template_digest=digest)
    profile = replace(run.manifest.model_profile, chat_template_digest=chat_template_digest(digest))
    manifest = replace(run.manifest, facts=encode_bytes(facts), model_profile=profile)
    # Another profile is another request: the job's papers name it.
    forged = replace(run, manifest=manifest).resign(
        run.request(run_id=OTHER_RUN), run.generation(chat_template_digest=digest)
    )
    with pytest.raises(EvidenceError, match="describes the model in another way") as caught:
        replay_forgery(engine_home, forged, tmp_path / "set", model)
    own = run.manifest.model_profile.chat_template_digest.hex()
    assert caught.value.expected == f"the file's own chat_template_digest, {own}"


@pytest.mark.parametrize("field", ["parameters", "native_context_tokens"])
def test_a_manifest_of_another_model(
    field: str, honest: HonestRun, model: Path, engine_home: EngineHome, tmp_path: Path
) -> None:
    profile = honest.manifest.model_profile
    other = replace(profile, **{field: getattr(profile, field) + 1})
    forged = replace(honest, manifest=replace(honest.manifest, model_profile=other))
    job = forged.request(run_id=OTHER_RUN)
    with pytest.raises(EvidenceError, match="describes the model in another way") as caught:
        replay_forgery(engine_home, forged.resign(job), tmp_path / "set", model)
    assert caught.value.expected == f"the file's own {field}, {getattr(profile, field)}"


def test_invented_states(
    honest: HonestRun, model: Path, engine_home: EngineHome, tmp_path: Path
) -> None:
    forged = honest.resign(
        generation=honest.generation(state_root=honest.receipt.core.model_digest)
    )
    report = replay_forgery(engine_home, forged, tmp_path / "root", model)
    assert report.states == "differ"
    assert "state root" in str(report.difference)
    checks = bytearray(base64.b64decode(honest.opening.leaf_checks))
    checks[-1] ^= 1
    forged = honest.resign(
        generation=honest.generation(
            state_root=honest.receipt.core.model_digest,
            leaf_checks=base64.b64encode(checks).decode(),
        )
    )
    report = replay_forgery(engine_home, forged, tmp_path / "checks", model)
    assert report.difference is not None
    assert report.difference.position == honest.receipt.core.prompt_tokens + N - 2
    assert report.difference.layer == honest.receipt.core.evidence.layers
    assert report.exact == N - 1


@pytest.mark.parametrize(
    ("name", "tensor", "layer", "first"),
    [
        ("llama-q8_0", "blk.0.attn_v.weight", 0, 0),
        ("llama-q8_0", "blk.1.ffn_down.weight", 1, 0),
        # One key is all of the softmax, whatever it is: the first row to show it is the second.
        ("llama-q8_0", "blk.1.attn_k.weight", 1, 1),
        # The last layer is committed to from the last prompt token on.
        ("llama-q8_0", "blk.2.ffn_up.weight", 2, PROMPT_END),
        ("llama-q8_0", "output.weight", 3, PROMPT_END),
        ("hybrid-q4k", "blk.2.ssm_out.weight", 2, 0),
        ("hybrid-q4k", "blk.3.attn_k.weight", 3, 1),
        ("hybrid-q4k", "blk.5.ffn_down_shexp.weight", 5, 0),
        ("hybrid-q4k", "blk.6.ffn_down_exps.weight", 6, None),  # wherever that expert is used
    ],
)
def test_one_flipped_weight_bit(
    name: str,
    tensor: str,
    layer: int,
    first: int | None,
    endless_model: Endless,
    engine_home: EngineHome,
    tmp_path: Path,
) -> None:
    model, flipped = endless_model(name), tmp_path / "flipped.gguf"
    engine_home.run(model, PROMPT, 1)
    flip_weight_bit(model, flipped, tensor)
    engine_home.calibrate_like(model, flipped)
    run = HonestRun.load(engine_home.run(flipped, PROMPT, N).directory)
    digest = engine_home.digest_of(model)
    forged = run.resign(run.request(model_digest=digest))
    report = replay_forgery(engine_home, forged, tmp_path / "set", model)
    assert (report.states, report.exit_code) == ("differ", 1)
    assert report.difference is not None
    assert report.difference.layer == layer
    assert report.difference.position is not None
    if first is not None:
        end = run.receipt.core.prompt_tokens - 1
        assert report.difference.position == (end if first == PROMPT_END else first)
    where = "logits" if tensor == "output.weight" else f"layer {layer} of "
    assert f"position {report.difference.position}, {where}" in report.difference.what


def test_the_flipped_model_itself_is_another_model(
    honest: HonestRun, model: Path, engine_home: EngineHome, tmp_path: Path
) -> None:
    flipped = tmp_path / "flipped.gguf"
    flip_weight_bit(model, flipped, "blk.1.ffn_down.weight")
    with pytest.raises(EvidenceError, match="not the one of the receipt"):
        replay_forgery(engine_home, honest.resign(), tmp_path / "set", flipped)
