"""``tallystick model``: the models on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from tallystick.cli.extras import require_engine
from tallystick.cli.options import PATH, json_option, sandbox_option, threads_option
from tallystick.cli.output import emit, table
from tallystick.cli.progress import WorkProgress
from tallystick.errors import UsageError

if TYPE_CHECKING:
    from tallystick.canonical.json import JSONValue
    from tallystick.contracts.model import ModelFacts, ModelPin
    from tallystick.models.listing import ListedModel

_NONE: Final = "no models yet: try `tallystick model pull smollm2-135m-instruct`"


@click.group()
def command() -> None:
    """Pull, add, list, check and calibrate models.

    A named model is a pin: where the GGUF file is, and the sha256 that it must have. Pins and
    pulled files are kept in the models folder of TALLYSTICK_HOME.
    """


@command.command()
@click.argument("model", metavar="MODEL")
@click.option(
    "--registry",
    metavar="HOST",
    envvar=["TALLYSTICK_MODEL_PULL_REGISTRY", "TALLYSTICK_MODEL_REGISTRY"],
    help="Container registry (host or https URL) that serves ollama: models.",
)
@click.option("--name", metavar="NAME", help="Name of the model here; default: made from MODEL.")
@json_option
def pull(model: str, registry: str | None, name: str | None, as_json: bool) -> None:
    """Download a model, check its sha256, and name it.

    MODEL is a name of the built-in catalogue (smollm2-135m-instruct), ollama:REPO:TAG, or
    ollama:REPO@sha256:DIGEST. An interrupted download is continued by the same command.
    """
    from tallystick.models.oci import DEFAULT_REGISTRY
    from tallystick.models.pull import PullOptions
    from tallystick.models.pull import pull as pull_model
    from tallystick.store.home import home

    options = PullOptions(registry=registry or DEFAULT_REGISTRY, name=name)
    with WorkProgress() as work:
        pin = pull_model(model, home(), options=options, progress=work.update)
    _emit_pin(pin, as_json)


@command.command()
@click.argument("path", type=PATH)
@click.option("--name", metavar="NAME", help="Name of the model; default: made from the file name.")
@click.option(
    "--normalise",
    is_flag=True,
    help="If the engine would refuse the file, write a derived one that it accepts.",
)
@sandbox_option
@json_option
def add(path: Path, name: str | None, normalise: bool, sandbox: str, as_json: bool) -> None:
    """Name a GGUF file where it is; it is not copied."""
    from tallystick.models import add as adding
    from tallystick.sandbox.profiles import strictly
    from tallystick.store.home import home

    register = adding.add_normalised if normalise else adding.add
    with WorkProgress() as work:
        pin = register(path, home(), name=name, progress=work.update, sandbox=strictly(sandbox))
    _emit_pin(pin, as_json)


@command.command()
@json_option
def ls(as_json: bool) -> None:
    """List the named models."""
    from tallystick.models.listing import list_models
    from tallystick.store.home import home

    models = list_models(home())
    document: JSONValue = {"models": [_listed_document(model) for model in models]}
    lines = [_listed_line(model) for model in models]
    emit(document, as_json=as_json, lines=lines or [_NONE])


@command.command()
@click.argument("model", metavar="MODEL")
@json_option
def show(model: str, as_json: bool) -> None:
    """Show what a model is.

    Architecture, layers, quantisations, tokenizer and template digests. MODEL is a name or the path
    of a GGUF file.
    """
    from tallystick.contracts.codec import encode
    from tallystick.models.check import describe
    from tallystick.store.home import home

    with WorkProgress() as work:
        found = describe(model, home(), progress=work.update)
    document: JSONValue = {
        "name": None if found.pin is None else found.pin.name,
        "path": _text(found.path),
        "digest": found.digest,
        "size": str(found.size),
        "source": None if found.pin is None else found.pin.source,
        "derived_from": None if found.pin is None else found.pin.derived_from,
        "transform": None if found.pin is None else found.pin.transform,
        "facts": encode(found.facts),
    }
    rows = [("path", _text(found.path)), ("sha256", found.digest), ("bytes", f"{found.size:,}")]
    if found.pin is not None:
        rows[:0] = [("name", found.pin.name)]
        rows += [("source", found.pin.source)]
    if found.pin is not None and found.pin.derived_from is not None:
        rows += [("derived from", found.pin.derived_from), ("by", str(found.pin.transform))]
    emit(document, as_json=as_json, lines=table(rows + _fact_rows(found.facts)))


@command.command()
@click.argument("name", metavar="NAME")
@json_option
def check(name: str, as_json: bool) -> None:
    """Hash a named model's file anew and compare it with its pin.

    Exit status: 0, 1 it differs.
    """
    from tallystick.models.check import check as check_model
    from tallystick.store.home import home

    with WorkProgress() as work:
        pin = check_model(name, home(), progress=work.update)
    document: JSONValue = {
        "name": pin.name,
        "digest": pin.digest,
        "size": str(pin.size),
        "status": "unchanged",
    }
    emit(document, as_json=as_json, lines=[f"{pin.name}: unchanged, {pin.digest}"])


@command.command()
@click.argument("name", metavar="NAME")
@click.option(
    "--output",
    type=PATH,
    required=True,
    metavar="DIR",
    help="Directory for the files: new, empty, or one that this command filled.",
)
@click.option("--endpoint", metavar="URL", help="Hub (host or https URL) that serves the files.")
@json_option
def metadata(name: str, output: Path, endpoint: str | None, as_json: bool) -> None:
    """Fetch the small files that describe a known model's base.

    NAME is smollm2-135m-instruct or qwen3.6-35b-a3b-abliterated. Downloads are anonymous: no token
    is read or sent. A directory that was filled before is checked instead, and nothing is
    downloaded; exit 1 when it differs.
    """
    from tallystick.contracts.codec import encode
    from tallystick.models import base_metadata
    from tallystick.models.profiles import profile_pin

    pin = profile_pin(name)
    if base_metadata.has_record(output):
        found = base_metadata.check(pin, output)
    else:
        where = endpoint or base_metadata.DEFAULT_ENDPOINT
        with WorkProgress() as work:
            found = base_metadata.fetch(pin, output, where, work.update)
    rows = [("profile", found.profile_name), ("base", f"{found.repository} at {found.revision}")]
    rows += [(file.path, f"{file.bytes:,} bytes, sha256 {file.sha256}") for file in found.files]
    emit(encode(found), as_json=as_json, lines=table(rows))


@command.command()
@click.argument("model", metavar="[MODEL]", required=False)
@click.option(
    "--fingerprint", is_flag=True, help="Measure this machine's numeric fingerprint anew instead."
)
@threads_option
@sandbox_option
@json_option
def calibrate(
    model: str | None, fingerprint: bool, threads: int | None, sandbox: str, as_json: bool
) -> None:
    """Find the settings under which MODEL is exact here.

    `run` and `replay` do this by themselves when it was not done; the result is kept for this
    engine build and numeric fingerprint. Exit status 3: no setting is exact, and why.
    """
    require_engine()
    if fingerprint == (model is not None):
        raise UsageError("name a model, or give --fingerprint", expected="exactly one of them")
    with WorkProgress() as work:
        if model is None:
            document, lines = _measured_fingerprint(work)
        else:
            document, lines = _calibrated(model, threads, sandbox, work)
    emit(document, as_json=as_json, lines=lines)


def _measured_fingerprint(work: WorkProgress) -> tuple[JSONValue, list[str]]:
    from tallystick.execution.calibrate_model import measure_fingerprint

    found = measure_fingerprint(on_progress=work.update)
    parts: JSONValue = {part.name: part.digest for part in found.parts}
    return {"fingerprint": found.digest, "parts": parts}, table(
        [("numeric fingerprint", found.digest), ("parts", str(len(found.parts)))]
    )


def _calibrated(
    model: str, threads: int | None, sandbox: str, work: WorkProgress
) -> tuple[JSONValue, list[str]]:
    from tallystick.contracts.codec import encode
    from tallystick.execution.calibrate_model import calibrate_model
    from tallystick.execution.knobs import knob_text
    from tallystick.sandbox.profiles import strictly

    found = calibrate_model(
        model, threads=threads, sandbox=strictly(sandbox), on_progress=work.update
    ).calibration
    rows = [("model", found.model_digest), ("layers", str(found.layers))]
    for number, exact in enumerate(found.combinations):
        row_class = exact.row_class
        speeds = f"{exact.decode_speed / 1000:.0f} generated, {exact.prefill_speed / 1000:.0f} in"
        what = f"{row_class.floor} to {row_class.max_rows} rows, {knob_text(exact.knobs)}"
        name = "used" if number == 0 else "exact too"
        rows.append((name, f"{what}: tokens a second about {speeds} a batched pass"))
    return encode(found), table(rows)


def _emit_pin(pin: ModelPin, as_json: bool) -> None:
    from tallystick.contracts.codec import encode

    rows = [("name", pin.name), ("path", pin.path), ("sha256", pin.digest)]
    if pin.derived_from is not None:
        rows += [("derived from", pin.derived_from), ("by", str(pin.transform))]
    emit(encode(pin), as_json=as_json, lines=table(rows))


def _listed_document(model: ListedModel) -> JSONValue:
    pin = model.pin
    return {
        "name": model.name,
        "state": model.state,
        "digest": None if pin is None else pin.digest,
        "size": None if pin is None else str(pin.size),
        "architecture": None if pin is None else pin.facts.architecture,
        "path": None if pin is None else pin.path,
        "source": None if pin is None else pin.source,
    }


def _listed_line(model: ListedModel) -> str:
    if model.pin is None:
        return f"{model.name}  ({model.state} pin: remove it and add the model again)"
    state = "" if model.state == "present" else f"  (file {model.state})"
    short = model.pin.digest[7:19]
    return f"{model.name}  {model.pin.facts.architecture}  {model.pin.size:,} bytes  {short}{state}"


def _fact_rows(facts: ModelFacts) -> list[tuple[str, str]]:
    weights = ", ".join(
        f"{kind.name} ({kind.tensors} tensors, {kind.bytes:,} bytes)" for kind in facts.weight_types
    )
    rows = [
        ("architecture", facts.architecture),
        ("model", facts.name or "-"),
        ("layers", str(facts.layers)),
        ("embedding", str(facts.embedding)),
        ("vocabulary", str(facts.vocabulary)),
        ("trained context", str(facts.context_train)),
        ("parameters", f"{facts.parameters:,}"),
        ("weights", weights),
        ("tokenizer", f"{facts.tokenizer_model or '-'}, {facts.tokenizer_digest}"),
        ("chat template", facts.chat_template_digest or "none"),
    ]
    if facts.experts:
        rows.insert(4, ("experts", f"{facts.experts}, {facts.experts_used} used per token"))
    if facts.template_uses_clock:
        rows.append(("template clock", "the chat template asks for the date"))
    if facts.needs_normalising:
        rows.append(("must be normalised", "; ".join(facts.needs_normalising)))
    return rows


def _text(path: Path) -> str:
    return str(path).encode("utf-8", "backslashreplace").decode("utf-8")
