"""What a receipt's manifest says of the model, held against the model file itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tallystick.contracts.manifest import RuntimeManifest
from tallystick.contracts.manifest_facts import quantization
from tallystick.contracts.model import WeightType
from tallystick.errors import EvidenceError
from tallystick.models.manifest import PinnedFacts, model_profile

#: Fields of a model profile that follow from the file alone. Names are left out: they come from
#: the profiles that a version of this program ships.
_OF_THE_FILE: Final = (
    "architecture",
    "vocabulary",
    "native_context_tokens",
    "parameters",
    "model_bytes",
    "tokenizer_digest",
    "special_tokens_digest",
    "chat_template_digest",
)


def require_claims(manifest: RuntimeManifest, model: PinnedFacts) -> None:
    """Require that the manifest describes ``model``, and so prices it, as its file does.

    Raises EvidenceError naming the first field that is another.
    """
    for name, claimed, found in _pairs(manifest, model):
        if claimed != found:
            raise EvidenceError(
                "the receipt's manifest describes the model in another way than the file does",
                expected=f"the file's own {name}, {_shown(found)}",
                found=_shown(claimed),
            )


def _pairs(manifest: RuntimeManifest, model: PinnedFacts) -> Iterator[tuple[str, object, object]]:
    profile = model_profile(model)
    for name in _OF_THE_FILE:
        yield name, getattr(manifest.model_profile, name), getattr(profile, name)
    claimed, facts = manifest.decoded_facts(), model.facts
    types = tuple(sorted(facts.weight_types, key=lambda kind: kind.name))
    yield "weight types", claimed.weight_types, types
    yield "quantization", manifest.runtime_class.quantization, quantization(types)
    for name in ("tokenizer_model", "tokenizer_digest", "chat_template_digest"):
        yield name, getattr(claimed, name), getattr(facts, name)


def _shown(value: object) -> str:
    if isinstance(value, bytes):
        return value.hex() if len(value) <= 32 else f"{len(value)} bytes"
    if isinstance(value, tuple):
        kinds = (kind for kind in value if isinstance(kind, WeightType))
        return ", ".join(f"{kind.name} {kind.tensors}x ({kind.bytes} bytes)" for kind in kinds)
    return str(value)
