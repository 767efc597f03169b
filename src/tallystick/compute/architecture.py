"""The description of a model that compute units and schedules are derived from.

It holds what decides how much is computed for a token, and nothing about files, weights or
engines (docs/spec/compute-units.md#architecture-descriptions).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from tallystick.canonical.codec import BinaryReader, BinaryWriter, decode_strict
from tallystick.canonical.hashing import domain_hash
from tallystick.errors import EvidenceError, InputError

MAX_LAYERS: Final = 1024
MAX_ENCODING: Final = 64 * 1024
_MAX_NAME: Final = 64
_SMALLEST_LAYER: Final = 28  # a delta net, a dense feed-forward, a flag
_U32_MAX: Final = 2**32 - 1
_ATTENTION, _DELTA_NET = 0, 1
_DENSE, _EXPERTS = 0, 1
Activation: TypeAlias = Literal["silu", "gelu"]
_ACTIVATIONS: Final[tuple[Activation, ...]] = ("silu", "gelu")


@dataclass(frozen=True, slots=True)
class AttentionMixer:
    """Softmax attention. Widths are per head.

    ``window`` is the number of positions that a token sees, its own included; 0: all before it.
    ``gated``: the query projection is twice as wide, its second half gates the output.
    """

    heads: int
    heads_kv: int
    key_width: int
    value_width: int
    window: int = 0
    gated: bool = False
    head_norms: bool = False
    biased: bool = False


@dataclass(frozen=True, slots=True)
class DeltaNetMixer:
    """A gated delta net: linear attention with a key_width x value_width state per value head."""

    key_heads: int
    value_heads: int
    key_width: int
    value_width: int
    kernel: int

    @property
    def values(self) -> int:
        """Width of all values of a token."""
        return self.value_heads * self.value_width

    @property
    def channels(self) -> int:
        """Width of queries, keys and values together: what the convolution runs over."""
        return 2 * self.key_heads * self.key_width + self.values


@dataclass(frozen=True, slots=True)
class DenseFeedForward:
    """A gated feed-forward: gate, up and down projections of one width."""

    width: int
    activation: Activation = "silu"


@dataclass(frozen=True, slots=True)
class ExpertFeedForward:
    """A mixture of gated feed-forwards: ``used`` of ``experts``, and a shared one (width 0: none).

    ``shared_gate``: a sigmoid of one dot product weighs the shared expert's output.
    """

    experts: int
    used: int
    width: int
    shared_width: int = 0
    shared_gate: bool = False
    activation: Activation = "silu"


Mixer: TypeAlias = AttentionMixer | DeltaNetMixer
FeedForward: TypeAlias = DenseFeedForward | ExpertFeedForward


@dataclass(frozen=True, slots=True)
class LayerDescription:
    """One decoder layer. ``post_norms``: the outputs of both halves are normalised too."""

    mixer: Mixer
    feed_forward: FeedForward
    post_norms: bool = False


@dataclass(frozen=True, slots=True)
class Architecture:
    """A decoder: its family's name, widths, and layers in order.

    ``distinct_layers`` has each description once, in the order of first use; compare them by
    identity. ``architecture_id`` is the 32-byte ``H("palw.architecture", 1, [encoding])``. Both
    are worked out once, as many receipts are priced by one architecture.
    Raises InputError when a number is out of range or the numbers contradict each other.
    """

    name: str
    hidden: int
    vocabulary: int
    layers: tuple[LayerDescription, ...]
    distinct_layers: tuple[LayerDescription, ...] = field(init=False, repr=False, compare=False)
    architecture_id: bytes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check every number once, so that nothing derived from them has to."""
        _positive("hidden width", self.hidden)
        _positive("vocabulary", self.vocabulary)
        if not 1 <= len(self.layers) <= MAX_LAYERS:
            raise _contradiction("number of layers", f"1..{MAX_LAYERS}", str(len(self.layers)))
        # Models repeat a few descriptions many times: equal ones become one object, so that what
        # follows from a layer is worked out once, and found again by identity.
        known: dict[LayerDescription, LayerDescription] = {}
        shared = tuple([known.setdefault(layer, layer) for layer in self.layers])
        object.__setattr__(self, "layers", shared)
        for layer in known:
            _check_mixer(layer.mixer)
            _check_feed_forward(layer.feed_forward)
        object.__setattr__(self, "distinct_layers", tuple(known))
        identity = domain_hash("palw.architecture", 1, [encode_architecture(self)])
        object.__setattr__(self, "architecture_id", identity)

    @property
    def has_experts(self) -> bool:
        """Whether any layer routes tokens to experts."""
        return any(isinstance(x.feed_forward, ExpertFeedForward) for x in self.distinct_layers)


def _contradiction(what: str, expected: str, found: str) -> InputError:
    return InputError(
        f"the architecture description has no usable {what}", expected=expected, found=found
    )


def _positive(what: str, value: int) -> None:
    if not 1 <= value <= _U32_MAX:
        raise _contradiction(what, f"1..{_U32_MAX}", str(value))


def _check_mixer(mixer: Mixer) -> None:
    if isinstance(mixer, AttentionMixer):
        _positive("number of heads", mixer.heads)
        _positive("number of key and value heads", mixer.heads_kv)
        _positive("key width", mixer.key_width)
        _positive("value width", mixer.value_width)
        if not 0 <= mixer.window <= _U32_MAX:
            raise _contradiction("attention window", f"0..{_U32_MAX}", str(mixer.window))
        pair = ("heads", mixer.heads, mixer.heads_kv)
    else:
        _positive("number of key heads", mixer.key_heads)
        _positive("number of value heads", mixer.value_heads)
        _positive("key width", mixer.key_width)
        _positive("value width", mixer.value_width)
        _positive("convolution kernel", mixer.kernel)
        pair = ("value heads", mixer.value_heads, mixer.key_heads)
    what, many, few = pair
    if many % few:
        raise _contradiction(f"number of {what}", f"a multiple of {few}", str(many))


def _check_feed_forward(feed_forward: FeedForward) -> None:
    _positive("feed-forward width", feed_forward.width)
    if isinstance(feed_forward, ExpertFeedForward):
        _positive("number of experts", feed_forward.experts)
        if not 1 <= feed_forward.used <= feed_forward.experts:
            raise _contradiction(
                "number of used experts", f"1..{feed_forward.experts}", str(feed_forward.used)
            )
        if not 0 <= feed_forward.shared_width <= _U32_MAX:
            raise _contradiction(
                "shared expert width", f"0..{_U32_MAX}", str(feed_forward.shared_width)
            )


def encode_architecture(architecture: Architecture) -> bytes:
    """Return the binary encoding that the architecture's id is the hash of."""
    writer = BinaryWriter()
    writer.sized(architecture.name.encode("ascii"), limit=_MAX_NAME)
    writer.u32(architecture.hidden)
    writer.u32(architecture.vocabulary)
    writer.count(len(architecture.layers), limit=MAX_LAYERS)
    encoded = {id(layer): _encoded_layer(layer) for layer in architecture.distinct_layers}
    for layer in architecture.layers:
        data = encoded[id(layer)]
        writer.fixed(data, len(data))
    return writer.finish()


def _encoded_layer(layer: LayerDescription) -> bytes:
    writer = BinaryWriter()
    _write_mixer(writer, layer.mixer)
    _write_feed_forward(writer, layer.feed_forward)
    writer.u8(layer.post_norms)
    return writer.finish()


def _write_mixer(writer: BinaryWriter, mixer: Mixer) -> None:
    if isinstance(mixer, AttentionMixer):
        writer.u8(_ATTENTION)
        for number in (mixer.heads, mixer.heads_kv, mixer.key_width, mixer.value_width):
            writer.u32(number)
        writer.u32(mixer.window)
        for flag in (mixer.gated, mixer.head_norms, mixer.biased):
            writer.u8(flag)
    else:
        writer.u8(_DELTA_NET)
        for number in (mixer.key_heads, mixer.value_heads, mixer.key_width, mixer.value_width):
            writer.u32(number)
        writer.u32(mixer.kernel)


def _write_feed_forward(writer: BinaryWriter, feed_forward: FeedForward) -> None:
    if isinstance(feed_forward, DenseFeedForward):
        writer.u8(_DENSE)
        writer.u32(feed_forward.width)
    else:
        writer.u8(_EXPERTS)
        for number in (feed_forward.experts, feed_forward.used, feed_forward.width):
            writer.u32(number)
        writer.u32(feed_forward.shared_width)
        writer.u8(feed_forward.shared_gate)
    writer.u8(_ACTIVATIONS.index(feed_forward.activation))


def decode_architecture(data: bytes) -> Architecture:
    """Return the description whose encoding is ``data``.

    Raises EvidenceError for anything else, and for numbers that no description may have.
    """
    return decode_strict(data, _read, max_bytes=MAX_ENCODING, where="architecture")


def _read(reader: BinaryReader) -> Architecture:
    name = reader.sized(limit=_MAX_NAME)
    if not all(0x20 <= byte < 0x7F for byte in name):
        raise reader.refusal(
            "a name that is not printable ASCII", expected="printable ASCII", found="other bytes"
        )
    hidden, vocabulary = reader.u32(), reader.u32()
    number = reader.count(limit=MAX_LAYERS, item_bytes=_SMALLEST_LAYER)
    layers = tuple(
        LayerDescription(_read_mixer(reader), _read_feed_forward(reader), _flag(reader))
        for _ in range(number)
    )
    try:
        return Architecture(name.decode("ascii"), hidden, vocabulary, layers)
    except InputError as error:  # the numbers come from evidence
        raise EvidenceError(error.message, expected=error.expected, found=error.found) from None


def _read_mixer(reader: BinaryReader) -> Mixer:
    if _kind(reader) == _ATTENTION:
        heads, heads_kv, key_width, value_width, window = (reader.u32() for _ in range(5))
        gated, head_norms, biased = (_flag(reader) for _ in range(3))
        return AttentionMixer(
            heads, heads_kv, key_width, value_width, window, gated, head_norms, biased
        )
    return DeltaNetMixer(*(reader.u32() for _ in range(5)))


def _read_feed_forward(reader: BinaryReader) -> FeedForward:
    if _kind(reader) == _DENSE:
        return DenseFeedForward(reader.u32(), _ACTIVATIONS[_kind(reader)])
    experts, used, width, shared_width = (reader.u32() for _ in range(4))
    gate = _flag(reader)
    return ExpertFeedForward(experts, used, width, shared_width, gate, _ACTIVATIONS[_kind(reader)])


def _kind(reader: BinaryReader) -> int:
    """Read one of two kinds, as every choice of this encoding is."""
    value = reader.u8()
    if value > 1:
        raise reader.refusal("not one of the kinds", expected="0 or 1", found=str(value))
    return value


def _flag(reader: BinaryReader) -> bool:
    return _kind(reader) == 1
