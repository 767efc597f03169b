"""The three parts of a runtime manifest: model, runtime and shape (docs/spec/manifest.md)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Self

from tallystick.canonical.codec import BinaryReader, BinaryWriter, decode_strict
from tallystick.canonical.hashing import domain_hash
from tallystick.contracts.codec import decode_bytes
from tallystick.contracts.runtime import ROW_CLASS, SEQUENTIAL, RowClass, RuntimeClass
from tallystick.errors import EvidenceError, InputError

PART_VERSION: Final = 1
MAX_ARCHITECTURE: Final = 64 * 1024
MAX_PROFILE: Final = 72 * 1024
MAX_RUNTIME_CLASS: Final = 16 * 1024
MAX_SHAPE: Final = 2 * 1024
SEQUENTIAL_CONTEXT: Final = 4096
MAX_GENERATED: Final = 1024
_MAX_NAME: Final = 800  # 200 characters of UTF-8
_MAX_QUANTIZATION: Final = 4096
_MAX_JCS: Final = 4096
_ZERO: Final = bytes(32)
#: What a profile calls a position encoding that no pin names: the model file says it.
ROPE_OF_THE_FILE: Final = "model-file"
#: How a pass is cut into batches: docs/spec/execution.md#chunks.
CHUNK_RULE: Final = "tallystick.chunks/v1"
CACHE_TYPE: Final = "f16"
SPLIT_MODE: Final = "none"


class Topology(IntEnum):
    """Whether every token goes through every weight."""

    DENSE = 0
    MIXTURE_OF_EXPERTS = 1


class ShapePolicy(IntEnum):
    """The policy of a run, as a number (docs/spec/execution.md#runtime-class)."""

    ROW_CLASS = 0
    SEQUENTIAL = 1

    @property
    def text(self) -> str:
        """The policy as the documents write it."""
        return ROW_CLASS if self is ShapePolicy.ROW_CLASS else SEQUENTIAL


@dataclass(frozen=True, slots=True)
class ModelProfile:
    """A model: what it is, what it computes, and the files that say so.

    ``head_width`` is the width of one head's keys and independent of ``hidden / heads``.
    ``feed_forward`` is the width of a dense layer or of one expert. ``rope`` names the position
    encoding, for readers. ``architecture`` is the encoding of
    :mod:`tallystick.compute.architecture`, which says the rest. Digests are raw 32 bytes; no chat
    template and no base metadata have digests of their own.
    """

    version: int
    name: str
    rope: str
    topology: Topology
    layers: int
    hidden: int
    heads: int
    heads_kv: int
    head_width: int
    feed_forward: int
    experts: int
    experts_used: int
    vocabulary: int
    native_context_tokens: int
    parameters: int
    model_digest: bytes
    model_bytes: int
    tokenizer_digest: bytes
    special_tokens_digest: bytes
    chat_template_digest: bytes
    base_metadata_digest: bytes
    architecture: bytes

    @property
    def canonical_bytes(self) -> bytes:
        """The one encoding. Raises InputError for a value that does not fit."""
        writer = BinaryWriter()
        writer.u16(self.version)
        write_text(writer, self.name, limit=_MAX_NAME)
        write_text(writer, self.rope, limit=_MAX_NAME)
        writer.u8(self.topology)
        for number in _PROFILE_NUMBERS:
            writer.u32(getattr(self, number))
        writer.u64(self.parameters)
        writer.digest(self.model_digest)
        writer.u64(self.model_bytes)
        for name in _PROFILE_DIGESTS:
            writer.digest(getattr(self, name))
        writer.sized(self.architecture, limit=MAX_ARCHITECTURE)
        return writer.finish()

    @classmethod
    def decode_strict(cls, data: bytes) -> Self:
        """Return the profile whose encoding is ``data``. Raises EvidenceError."""
        return decode_strict(data, cls._read, max_bytes=MAX_PROFILE, where="model profile")

    @classmethod
    def _read(cls, reader: BinaryReader) -> Self:
        return cls(
            version=reader.u16(),
            name=read_text(reader, limit=_MAX_NAME),
            rope=read_text(reader, limit=_MAX_NAME),
            topology=Topology(read_choice(reader, len(Topology))),
            layers=reader.u32(),
            hidden=reader.u32(),
            heads=reader.u32(),
            heads_kv=reader.u32(),
            head_width=reader.u32(),
            feed_forward=reader.u32(),
            experts=reader.u32(),
            experts_used=reader.u32(),
            vocabulary=reader.u32(),
            native_context_tokens=reader.u32(),
            parameters=reader.u64(),
            model_digest=reader.digest(),
            model_bytes=reader.u64(),
            tokenizer_digest=reader.digest(),
            special_tokens_digest=reader.digest(),
            chat_template_digest=reader.digest(),
            base_metadata_digest=reader.digest(),
            architecture=reader.sized(limit=MAX_ARCHITECTURE),
        )

    @property
    def model_profile_id(self) -> bytes:
        """The 32-byte ``H("palw.model-profile", 1, [encoding])``."""
        return domain_hash("palw.model-profile", 1, [self.canonical_bytes])

    def validate(self) -> None:
        """Check the numbers against each other. Raises EvidenceError naming the field.

        What the encoded architecture says is compared in :mod:`tallystick.compute.manifest`.
        """
        require_version("model profile", self.version)
        for name in ("layers", "hidden", "heads", "heads_kv", "head_width", "feed_forward"):
            _positive("model profile", name, getattr(self, name))
        for name in ("vocabulary", "native_context_tokens", "parameters", "model_bytes"):
            _positive("model profile", name, getattr(self, name))
        for name in ("name", "rope"):
            if not getattr(self, name):
                raise refusal("model profile", name, "a name", "no characters")
        _require_multiple("hidden", self.hidden, "heads", self.heads)
        _require_multiple("heads", self.heads, "heads_kv", self.heads_kv)
        self._check_experts()
        for name in ("model_digest", *_PROFILE_DIGESTS):
            if getattr(self, name) == _ZERO:
                raise refusal("model profile", name, "a digest", "only zeros")
        if not self.architecture:
            raise refusal("model profile", "architecture", "a description", "no bytes")

    def _check_experts(self) -> None:
        if self.topology is Topology.DENSE:
            if self.experts or self.experts_used:
                raise refusal("model profile", "experts", "0 in a dense model", str(self.experts))
        elif not 1 <= self.experts_used <= self.experts:
            raise refusal(
                "model profile", "experts_used", f"1..{self.experts}", str(self.experts_used)
            )


_PROFILE_NUMBERS: Final = (
    "layers",
    "hidden",
    "heads",
    "heads_kv",
    "head_width",
    "feed_forward",
    "experts",
    "experts_used",
    "vocabulary",
    "native_context_tokens",
)
_PROFILE_DIGESTS: Final = (
    "tokenizer_digest",
    "special_tokens_digest",
    "chat_template_digest",
    "base_metadata_digest",
)


@dataclass(frozen=True, slots=True)
class PalwRuntimeClass:
    """How the engine is set up: the receipt's runtime class, and what is the same in all of them.

    ``runtime_class`` is the canonical JSON of :class:`tallystick.contracts.runtime.RuntimeClass`.
    ``quantization`` names the weights' types. The other fields have one value each in this version.
    """

    version: int
    runtime_class: bytes
    quantization: str
    cache_key_type: str = CACHE_TYPE
    cache_value_type: str = CACHE_TYPE
    split_mode: str = SPLIT_MODE
    flash_attention: int = 0
    mapped_weights: int = 1
    repacked_weights: int = 0
    offloaded_layers: int = 0

    @property
    def canonical_bytes(self) -> bytes:
        """The one encoding. Raises InputError for a value that does not fit."""
        writer = BinaryWriter()
        writer.u16(self.version)
        writer.sized(self.runtime_class, limit=_MAX_JCS)
        write_text(writer, self.quantization, limit=_MAX_QUANTIZATION)
        for text in (self.cache_key_type, self.cache_value_type, self.split_mode):
            write_text(writer, text, limit=_MAX_NAME)
        for flag in (self.flash_attention, self.mapped_weights, self.repacked_weights):
            writer.u8(flag)
        writer.u32(self.offloaded_layers)
        return writer.finish()

    @classmethod
    def decode_strict(cls, data: bytes) -> Self:
        """Return the runtime class whose encoding is ``data``. Raises EvidenceError."""
        return decode_strict(data, cls._read, max_bytes=MAX_RUNTIME_CLASS, where="runtime class")

    @classmethod
    def _read(cls, reader: BinaryReader) -> Self:
        return cls(
            version=reader.u16(),
            runtime_class=reader.sized(limit=_MAX_JCS),
            quantization=read_text(reader, limit=_MAX_QUANTIZATION),
            cache_key_type=read_text(reader, limit=_MAX_NAME),
            cache_value_type=read_text(reader, limit=_MAX_NAME),
            split_mode=read_text(reader, limit=_MAX_NAME),
            flash_attention=read_choice(reader, 2),
            mapped_weights=read_choice(reader, 2),
            repacked_weights=read_choice(reader, 2),
            offloaded_layers=reader.u32(),
        )

    @property
    def runtime_class_id(self) -> bytes:
        """The 32-byte ``H("palw.runtime-class", 1, [encoding])``."""
        return domain_hash("palw.runtime-class", 1, [self.canonical_bytes])

    def decoded(self) -> RuntimeClass:
        """Return the receipt's runtime class. Raises EvidenceError when it is not one."""
        return decode_bytes(
            RuntimeClass, self.runtime_class, max_bytes=_MAX_JCS, where="runtime class"
        )

    def validate(self) -> None:
        """Check every field against the one set-up that this version has. Raises EvidenceError."""
        require_version("runtime class", self.version)
        self.decoded()
        if not self.quantization:
            raise refusal("runtime class", "quantization", "the weights' types", "no characters")
        fixed = PalwRuntimeClass(self.version, self.runtime_class, self.quantization)
        for name in (
            "cache_key_type",
            "cache_value_type",
            "split_mode",
            "flash_attention",
            "mapped_weights",
            "repacked_weights",
            "offloaded_layers",
        ):
            expected, found = getattr(fixed, name), getattr(self, name)
            if expected != found:
                raise refusal("runtime class", name, str(expected), ascii(found)[:40])


@dataclass(frozen=True, slots=True)
class ShapeProfile:
    """Which numbers of tokens fit, and how they are cut into batches.

    ``context_tokens`` is the number of cells that the run opened. The maxima of prefill and
    generated tokens follow from it and the floor (:func:`shape_profile`).
    """

    version: int
    policy: ShapePolicy
    context_tokens: int
    prompt_class: RowClass
    decode_class: RowClass
    max_prefill_tokens: int
    max_generated_tokens: int
    chunk_rule: str = CHUNK_RULE

    @property
    def canonical_bytes(self) -> bytes:
        """The one encoding. Raises InputError for a value that does not fit."""
        writer = BinaryWriter()
        writer.u16(self.version)
        writer.u8(self.policy)
        writer.u32(self.context_tokens)
        for rows in (self.prompt_class, self.decode_class):
            writer.u32(rows.floor)
            writer.u32(rows.max_rows)
        writer.u32(self.max_prefill_tokens)
        writer.u32(self.max_generated_tokens)
        write_text(writer, self.chunk_rule, limit=_MAX_NAME)
        return writer.finish()

    @classmethod
    def decode_strict(cls, data: bytes) -> Self:
        """Return the shape whose encoding is ``data``. Raises EvidenceError."""
        return decode_strict(data, cls._read, max_bytes=MAX_SHAPE, where="shape profile")

    @classmethod
    def _read(cls, reader: BinaryReader) -> Self:
        return cls(
            reader.u16(),
            ShapePolicy(read_choice(reader, len(ShapePolicy))),
            reader.u32(),
            RowClass(reader.u32(), reader.u32()),
            RowClass(reader.u32(), reader.u32()),
            reader.u32(),
            reader.u32(),
            read_text(reader, limit=_MAX_NAME),
        )

    @property
    def shape_profile_id(self) -> bytes:
        """The 32-byte ``H("palw.shape-profile", 1, [encoding])``."""
        return domain_hash("palw.shape-profile", 1, [self.canonical_bytes])

    def validate(self) -> None:
        """Check that the maxima are those of context and row class. Raises EvidenceError."""
        require_version("shape profile", self.version)
        for name in ("prompt_class", "decode_class"):
            rows: RowClass = getattr(self, name)
            if not 1 <= rows.floor <= rows.max_rows:
                raise refusal(
                    "shape profile",
                    name,
                    "1 <= floor <= max_rows",
                    f"{rows.floor}..{rows.max_rows}",
                )
        sequential = self.policy is ShapePolicy.SEQUENTIAL
        if sequential and self.context_tokens != SEQUENTIAL_CONTEXT:
            raise refusal(
                "shape profile", "context_tokens", str(SEQUENTIAL_CONTEXT), str(self.context_tokens)
            )
        expected = shape_profile(
            self.policy, self.context_tokens, self.prompt_class, self.decode_class
        )
        for name in ("max_prefill_tokens", "max_generated_tokens", "chunk_rule"):
            if getattr(self, name) != getattr(expected, name):
                raise refusal(
                    "shape profile",
                    name,
                    str(getattr(expected, name)),
                    ascii(getattr(self, name))[:40],
                )
        if not self.max_prefill_tokens:
            raise refusal("shape profile", "context_tokens", "room for two tokens", "less")

    def verify_shape(self, prefill_tokens: int, generated_tokens: int) -> None:
        """Check that a run of these counts fits. Raises EvidenceError naming the count."""
        for name, most, found in (
            ("prefill tokens", self.max_prefill_tokens, prefill_tokens),
            ("generated tokens", self.max_generated_tokens, generated_tokens),
        ):
            if not 1 <= found <= most:
                raise EvidenceError(
                    f"the number of {name} is outside the shape profile",
                    expected=f"1..{most}",
                    found=str(found),
                )
        room = self.context_tokens - _scratch(self.decode_class)
        if prefill_tokens + generated_tokens > room:
            raise EvidenceError(
                "prompt and output together are beyond the shape profile's context",
                expected=f"at most {room} tokens",
                found=str(prefill_tokens + generated_tokens),
            )


def shape_profile(
    policy: ShapePolicy, context_tokens: int, prompt_class: RowClass, decode_class: RowClass
) -> ShapeProfile:
    """Return the shape of a run: a function of what its receipt's core shows, and of no more."""
    most = max(0, context_tokens - _scratch(decode_class) - 1)
    return ShapeProfile(
        PART_VERSION,
        policy,
        context_tokens,
        prompt_class,
        decode_class,
        max_prefill_tokens=most,
        max_generated_tokens=min(MAX_GENERATED, most),
    )


def shape_of(runtime: RuntimeClass, context_tokens: int) -> ShapeProfile:
    """Return the shape of a run of class ``runtime`` in a context of ``context_tokens`` cells."""
    policy = ShapePolicy.SEQUENTIAL if runtime.policy == SEQUENTIAL else ShapePolicy.ROW_CLASS
    return shape_profile(policy, context_tokens, runtime.prompt_class, runtime.decode_class)


def _scratch(rows: RowClass) -> int:
    """Cells of a run that hold no token of its own (docs/spec/execution.md#batches)."""
    return rows.floor - 1


def write_text(writer: BinaryWriter, text: str, *, limit: int) -> None:
    """Append ``text`` as UTF-8 of at most ``limit`` bytes. Raises InputError."""
    try:
        data = text.encode("utf-8")
    except UnicodeEncodeError:
        raise InputError("a text cannot be encoded", expected="Unicode scalar values") from None
    writer.sized(data, limit=limit)


def read_text(reader: BinaryReader, *, limit: int) -> str:
    """Read UTF-8 of at most ``limit`` bytes. Raises EvidenceError."""
    data = reader.sized(limit=limit)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise reader.refusal(
            "a text is not UTF-8", expected="UTF-8", found=f"an invalid byte at {error.start}"
        ) from None


def read_choice(reader: BinaryReader, number: int) -> int:
    """Read a u8 below ``number``. Raises EvidenceError."""
    value = reader.u8()
    if value >= number:
        raise reader.refusal("not one of the kinds", expected=f"0..{number - 1}", found=str(value))
    return value


def refusal(what: str, name: str, expected: str, found: str) -> EvidenceError:
    """Return the error for field ``name`` of the part ``what``."""
    return EvidenceError(f"{what}: bad field {name}", expected=expected, found=found)


def require_version(what: str, found: int) -> None:
    """Refuse another version than this one's. Raises EvidenceError."""
    if found != PART_VERSION:
        raise refusal(what, "version", str(PART_VERSION), str(found))


def _positive(what: str, name: str, value: int) -> None:
    if value < 1:
        raise refusal(what, name, "at least 1", str(value))


def _require_multiple(name: str, value: int, of: str, divisor: int) -> None:
    if value % divisor:
        raise refusal("model profile", name, f"a multiple of the {divisor} {of}", str(value))
