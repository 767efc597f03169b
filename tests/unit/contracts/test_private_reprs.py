"""No private value stands in a ``repr``, from where it would get into logs and tracebacks."""

from __future__ import annotations

import base64
import importlib
import pkgutil
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest

from tallystick import contracts
from tallystick.contracts.codec import decode_bytes, encode_bytes
from tallystick.contracts.generation import Generation
from tallystick.contracts.opening import Opening
from tallystick.contracts.request import Chat, InferenceRun
from tallystick.contracts.ticket import Ticket
from tallystick.evidence.observer.records import Result, Route, Sketch
from tallystick.receipts.build import Sealing
from tallystick.receipts.compute_case import papers_of
from tallystick.receipts.documents import read_documents
from tallystick.receipts.files import Checks
from tallystick.receipts.scheduling import open_ticket
from tallystick.receipts.sealing import bundle_key_of
from tallystick.receipts.self_local import JOB_SECRETS_BYTES, JobSecrets
from tallystick.receipts.verify import VerifyContext, verify_set
from tallystick.worker.papers import RunPapers
from tallystick.worker.request import RunOptions
from tests.support.documents import every_example, example_opening, example_run
from tests.support.forgery import Forger
from tests.support.sets import (
    AUDIT_KEY,
    NOW,
    OPENING,
    make_generation,
    make_tickets,
    make_traced,
    random_bytes,
)

PRIVATE = {
    InferenceRun: {"prompt", "blind"},
    Chat: {"system"},
    Opening: {"rendered_prompt", "prompt_ids", "sampled_ids", "output", "leaf_checks"},
    Generation: {
        "rendered_prompt",
        "prompt_ids",
        "sampled_ids",
        "output",
        "leaf_checks",
        "routes",
        "observed_evidence",
    },
    RunOptions: {"prompt", "system"},
    Ticket: {"request_nonce"},
}
NAMES = set().union(*PRIVATE.values())


def private_run() -> InferenceRun:
    return replace(
        example_run(),
        prompt="private prompt",
        chat=Chat(system="private system text", clock=7),
        blind="5ec2e7" * 10 + "5ec2",
    )


def private_opening() -> Opening:
    return replace(
        example_opening(),
        request=private_run(),
        rendered_prompt="private rendered text",
        prompt_ids=(90001, 90002),
        sampled_ids=(90003, 90004),
        output="cHJpdmF0ZSBvdXRwdXQ=",
        leaf_checks="cHJpdmF0ZSBsZWF2ZXM=",
    )


def private_documents() -> list[Any]:
    opening = private_opening()
    generation = make_generation(
        rendered_prompt=opening.rendered_prompt,
        prompt_ids=opening.prompt_ids,
        sampled_ids=opening.sampled_ids,
        output=opening.output,
        leaf_checks=opening.leaf_checks,
        routes="cHJpdmF0ZSByb3V0ZXM=",
        observed_evidence="cHJpdmF0ZSBza2V0Y2hlcw==",
    )
    options = RunOptions(prompt="private prompt", system="private system text")
    return [opening, generation, private_run(), options, *every_example()]


def private_values(value: Any) -> Iterator[Any]:
    """Yield the private values of a document, at any depth."""
    if is_dataclass(value):
        for field in fields(value):
            inner = getattr(value, field.name)
            if field.name in PRIVATE.get(type(value), ()):
                yield from inner if isinstance(inner, tuple) else (inner,)
            else:
                yield from private_values(inner)


@pytest.mark.parametrize("document", private_documents(), ids=lambda value: type(value).__name__)
def test_a_repr_shows_no_private_value(document: Any) -> None:
    shown = repr(document)
    assert type(document).__name__ in shown
    for value in private_values(document):
        if value is not None and len(str(value)) > 4:  # shorter ones are in digests by chance
            assert str(value) not in shown


def test_there_was_something_to_hide() -> None:
    found = {str(value) for value in private_values(private_opening())}
    assert {"private prompt", "private system text", "90001", "90004"} <= found
    assert len(found) == 10


def generates_repr(document: Any) -> bool:
    """Say whether fields are shown at all; those of other types are looked at in HOLDERS."""
    shows: bool = document.__dataclass_params__.repr
    return shows


def test_every_field_of_a_private_name_is_hidden() -> None:
    shown = set()
    for info in pkgutil.iter_modules(contracts.__path__, f"{contracts.__name__}."):
        for value in vars(importlib.import_module(info.name)).values():
            if isinstance(value, type) and is_dataclass(value) and generates_repr(value):
                shown |= {(value, f.name) for f in fields(value) if f.repr and f.name in NAMES}
    assert shown == set()


def test_hidden_fields_still_decide_equality_and_are_written() -> None:
    opening = private_opening()
    data = encode_bytes(opening)
    assert decode_bytes(Opening, data, max_bytes=1 << 20) == opening
    for name in PRIVATE[Opening]:
        other = replace(opening, **{name: getattr(example_opening(), name)})
        assert other != opening
        assert encode_bytes(other) != data
    assert replace(private_run(), prompt="another") != private_run()


FORGER = Forger(make_traced("states", "gemm", experts=True).files())
KEY = bundle_key_of(FORGER.envelope, AUDIT_KEY)
DOCUMENTS = read_documents(FORGER.files, FORGER.set_id, AUDIT_KEY)


def sealed_values() -> dict[str, bytes]:
    private, opening = FORGER.private, FORGER.document(OPENING)
    assert private.expert_routes is not None
    assert private.gemm_trace is not None
    return {
        "owner salt": private.owner_salt,
        "owner key": private.owner_key,
        "request nonce": private.request_nonce,
        "prompt nonce": private.prompt_nonce,
        "output nonce": private.output_nonce,
        "routes": private.expert_routes[-40:],
        "trace": private.gemm_trace[-32:],
        "opening": private.opening[:64],
        "blind": bytes.fromhex(opening["request"]["blind"]),
        "prompt": opening["request"]["prompt"].encode(),
        "audit key": AUDIT_KEY.raw,
        "bundle key": KEY.raw,
    }


def holders() -> dict[str, object]:
    """Return every kind of value that holds what is sealed."""
    private, public = FORGER.private, FORGER.public
    papers = papers_of(public, private)
    ticket = make_tickets()[0]
    secrets = JobSecrets.of(random_bytes("secrets", JOB_SECRETS_BYTES))
    return {
        "private part": private,
        "papers": papers,
        "run papers": RunPapers(papers, private.prompt_nonce, private.output_nonce),
        "sealing": Sealing(
            AUDIT_KEY, bytes(32), bytes(24), private.prompt_nonce, private.output_nonce
        ),
        "audit key": AUDIT_KEY,
        "bundle key": KEY,
        "documents": DOCUMENTS,
        "opened bundle": DOCUMENTS.bundle,
        "opening": DOCUMENTS.opening,
        "job": open_ticket(ticket),
        "ticket": ticket,
        "secrets": secrets,
        "report": verify_set(FORGER.files, None, now=NOW, key=AUDIT_KEY),
        "context": VerifyContext(None, NOW, AUDIT_KEY),
        "checks": Checks(None, KEY),
        "built": make_traced("states", "gemm", experts=True),
    }


HOLDERS = holders()


@pytest.mark.parametrize("name", HOLDERS)
def test_what_is_sealed_shows_in_no_repr(name: str) -> None:
    shown = repr(HOLDERS[name]) + str(HOLDERS[name])
    for what, value in sealed_values().items():
        forms = (value.hex(), repr(value)[2:-1], base64.b64encode(value).decode()[:-4])
        assert not [form for form in forms if form in shown], what
    # Nor through the names of fields: what is looked for above was there to be shown.
    assert shown


def test_what_an_observer_derives_shows_in_no_repr() -> None:
    sketch = Sketch("sign_bucket_256_v1", 256, 64, "5ec2e7" * 10 + "5ec2")
    route = Route("route", 1, 1, "prefill", 0, 0, 0, 64, (90001, 90002))
    result = Result("result", "ok", "eog", (90003,), (90004,), (115, 101), 2, 0)
    for value, private in (
        (sketch, sketch.hex),
        (route, "90001"),
        (route, "90002"),
        (result, "90003"),
        (result, "90004"),
        (result, "115, 101"),
    ):
        assert type(value).__name__ in repr(value)
        assert private not in repr(value)
    assert sketch != replace(sketch, hex="00" * 32)
    assert route != replace(route, expert_ids=(1, 2))


def test_the_secrets_of_a_job_show_in_no_repr() -> None:
    raw = random_bytes("secrets", JOB_SECRETS_BYTES)
    assert repr(JobSecrets.of(raw)) == "<JobSecrets>"
    ticket = make_tickets()[0]
    for value in (ticket.request_nonce, ticket.request.blind, ticket.request.prompt):
        assert value not in repr(ticket)
        assert value not in repr(open_ticket(ticket))
