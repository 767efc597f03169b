"""From a GGUF header to the bounded facts document (docs/spec/models.md). Runs in a child."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Final

from tallystick.canonical.hashing import format_digest, sha256
from tallystick.contracts.model import FACTS_SCHEMA, ModelFacts, WeightType
from tallystick.engine.gguf_writer import ValueType
from tallystick.errors import IncomparableError, InputError
from tallystick.models.gguf import (
    Entry,
    Header,
    TensorInfo,
    encoded_value,
    read_header,
    read_string,
    read_value,
)
from tallystick.models.irregular import find_irregularities
from tallystick.models.shape import bounded, shape_of

TOKENIZER_DOMAIN: Final = "tallystick.tokenizer"
CHAT_TEMPLATE: Final = "tokenizer.chat_template"
MAX_TEMPLATE: Final = 1024 * 1024
MAX_LAYERS: Final = 512
_MAX_TEXT: Final = 4096
_SHORT: Final = 200
_ARCHITECTURE = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


class _Values:
    """Typed access to the few values that the facts need."""

    def __init__(self, descriptor: int, header: Header) -> None:
        self._descriptor = descriptor
        self.header = header
        self._entries = {entry.key: entry for entry in header.entries}

    def entry(self, key: str) -> Entry | None:
        return self._entries.get(key)

    def text(self, key: str) -> str:
        entry = self._entries.get(key)
        raw = read_string(self._descriptor, entry, limit=_MAX_TEXT) if entry else None
        return _one_line((raw or b"").decode("utf-8", "replace"))

    def integer(self, key: str) -> int:
        """Return an integer within 32 bits, 0 when the entry is absent or of another type."""
        entry = self._entries.get(key)
        value = read_value(self._descriptor, entry) if entry else None
        if not isinstance(value, int) or isinstance(value, bool):
            return 0
        return bounded(key, value)

    def template(self) -> bytes | None:
        entry = self._entries.get(CHAT_TEMPLATE)
        return read_string(self._descriptor, entry, limit=MAX_TEMPLATE) if entry else None


def _one_line(text: str) -> str:
    shown = "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text
    )
    return shown[:_SHORT]


def facts_of(descriptor: int) -> ModelFacts:
    """Return the facts about the GGUF file behind ``descriptor``.

    Raises InputError for a file that is not a sound GGUF model, IncomparableError for one shard
    of a split model and for files that are no model (adapters, projectors, vocabularies).
    """
    header = read_header(descriptor)
    values = _Values(descriptor, header)
    architecture = _require_model(values)
    template = values.template()
    return ModelFacts(
        schema=FACTS_SCHEMA,
        gguf_version=header.version,
        architecture=architecture,
        name=values.text("general.name"),
        layers=_layers(values, architecture),
        embedding=values.integer(f"{architecture}.embedding_length"),
        context_train=values.integer(f"{architecture}.context_length"),
        vocabulary=_vocabulary(values, architecture),
        experts=values.integer(f"{architecture}.expert_count"),
        experts_used=values.integer(f"{architecture}.expert_used_count"),
        shape=shape_of(descriptor, header, architecture),
        parameters=sum(tensor.elements for tensor in header.tensors),
        tensors=len(header.tensors),
        weight_types=_weight_types(header.tensors),
        tokenizer_model=values.text("tokenizer.ggml.model"),
        tokenizer_digest=format_digest(tokenizer_digest(descriptor, header)),
        chat_template_digest=None if template is None else format_digest(sha256(template)),
        template_uses_clock=template is not None and b"strftime_now" in template,
        needs_normalising=find_irregularities(header, architecture).reasons(),
    )


def _require_model(values: _Values) -> str:
    kind = values.text("general.type")
    if kind not in ("", "model"):
        raise IncomparableError(
            "the file is not a model",
            expected="general.type model",
            found=f"general.type {kind!a}",
            hint="give the GGUF file of the language model itself",
        )
    parts = values.integer("split.count")
    if parts > 1:
        raise IncomparableError(
            "the file is one part of a split model",
            expected="one whole GGUF file",
            found=f"part {values.integer('split.no') + 1} of {parts}",
            hint="join the parts with `llama-gguf-split --merge FIRST_PART OUT.gguf`, "
            "then add OUT.gguf",
        )
    architecture = values.text("general.architecture")
    if not _ARCHITECTURE.fullmatch(architecture):
        raise InputError(
            "the file names no usable architecture",
            expected="general.architecture, lower-case letters, digits, . _ -",
            found=repr(architecture) if architecture else "none",
        )
    if not values.header.tensors:
        raise InputError("the file has no tensors", hint="give a whole model, not a vocabulary")
    return architecture


def _layers(values: _Values, architecture: str) -> int:
    layers = values.integer(f"{architecture}.block_count")
    if layers > MAX_LAYERS:  # the engine would abort
        raise InputError(
            "the file claims more layers than the engine can hold",
            expected=f"{architecture}.block_count of at most {MAX_LAYERS}",
            found=str(layers),
            hint="the file is damaged: download or convert the model again",
        )
    return layers


def _vocabulary(values: _Values, architecture: str) -> int:
    tokens = values.entry("tokenizer.ggml.tokens")
    if tokens is not None and tokens.type is ValueType.ARRAY:
        return tokens.count
    return values.integer(f"{architecture}.vocab_size")


def _weight_types(tensors: Iterable[TensorInfo]) -> tuple[WeightType, ...]:
    counts: dict[str, tuple[int, int]] = {}
    for tensor in tensors:
        number, size = counts.get(tensor.type.name, (0, 0))
        counts[tensor.type.name] = (number + 1, size + tensor.size)
    return tuple(WeightType(name, *counts[name]) for name in sorted(counts))


def tokenizer_digest(descriptor: int, header: Header) -> bytes:
    """Return H("tallystick.tokenizer", 1, [key, encoded value, ...]) over the sorted entries.

    Every ``tokenizer.*`` entry counts but the chat templates. The hash is fed in pieces, because a
    vocabulary may be large; it equals :func:`tallystick.canonical.hashing.domain_hash`.
    """
    entries = sorted(
        (
            (entry.key.encode("utf-8"), entry)
            for entry in header.entries
            if entry.key.startswith("tokenizer.") and not entry.key.startswith(CHAT_TEMPLATE)
        ),
        key=lambda pair: pair[0],
    )
    digest = hashlib.sha256()
    name = TOKENIZER_DOMAIN.encode("ascii")
    digest.update(len(name).to_bytes(2, "big") + name + (1).to_bytes(2, "big"))
    digest.update((2 * len(entries)).to_bytes(4, "big"))
    for key, entry in entries:
        digest.update(len(key).to_bytes(8, "big") + key)
        digest.update((entry.end - entry.value_start).to_bytes(8, "big"))
        for piece in encoded_value(descriptor, entry):
            digest.update(piece)
    return digest.digest()
