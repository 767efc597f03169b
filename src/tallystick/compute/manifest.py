"""Check a runtime manifest against what architectures and rulesets mean (docs/spec/manifest.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tallystick.compute.architecture import (
    Architecture,
    AttentionMixer,
    DenseFeedForward,
    ExpertFeedForward,
    decode_architecture,
)
from tallystick.compute.graph_mapping import adapter_mapping_id
from tallystick.compute.rules import RULESETS, matching_ruleset_id
from tallystick.contracts.manifest import RuntimeManifest
from tallystick.contracts.manifest_parts import ModelProfile, Topology
from tallystick.errors import EvidenceError, IncomparableError


@dataclass(frozen=True, slots=True)
class ProfileNumbers:
    """What a model profile repeats of its architecture, under the profile's names."""

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


_NAMES: Final = tuple(ProfileNumbers.__dataclass_fields__)


def profile_numbers(architecture: Architecture) -> ProfileNumbers:
    """Return the numbers that a profile of ``architecture`` has.

    Layers of linear attention have no heads of keys and values and do not count. Raises
    IncomparableError when the other layers, or the feed-forwards, are not of one size.
    """
    attention = {
        (mixer.heads, mixer.heads_kv, mixer.key_width)
        for layer in architecture.layers
        if isinstance(mixer := layer.mixer, AttentionMixer)
    }
    forwards = {layer.feed_forward for layer in architecture.layers}
    if len(attention) != 1 or len(forwards) != 1:
        raise IncomparableError(
            "no model profile can describe this architecture",
            expected="softmax attention of one size, and one kind of feed-forward",
            found=f"{len(attention)} and {len(forwards)} kinds",
        )
    ((heads, heads_kv, head_width),) = attention
    (forward,) = forwards
    experts, used = 0, 0
    if isinstance(forward, ExpertFeedForward):
        experts, used = forward.experts, forward.used
    dense = isinstance(forward, DenseFeedForward)
    return ProfileNumbers(
        topology=Topology.DENSE if dense else Topology.MIXTURE_OF_EXPERTS,
        layers=len(architecture.layers),
        hidden=architecture.hidden,
        heads=heads,
        heads_kv=heads_kv,
        head_width=head_width,
        feed_forward=forward.width,
        experts=experts,
        experts_used=used,
        vocabulary=architecture.vocabulary,
    )


def verify_manifest(manifest: RuntimeManifest) -> Architecture:
    """Check the whole manifest and return its model's architecture.

    Raises EvidenceError naming the first field that does not fit.
    """
    manifest.validate()
    if matching_ruleset_id(manifest.cu_ruleset_id) is None:
        raise EvidenceError(
            "runtime manifest: bad field cu_ruleset_id",
            expected=" or ".join(rules.ruleset_id.hex() for rules in RULESETS),
            found=manifest.cu_ruleset_id.hex(),
        )
    if manifest.adapter_mapping_id != adapter_mapping_id():
        raise EvidenceError(
            "runtime manifest: bad field adapter_mapping_id",
            expected=adapter_mapping_id().hex(),
            found=manifest.adapter_mapping_id.hex(),
        )
    architecture = decode_architecture(manifest.model_profile.architecture)
    _check_numbers(manifest.model_profile, architecture)
    return architecture


def _check_numbers(profile: ModelProfile, architecture: Architecture) -> None:
    try:
        numbers = profile_numbers(architecture)
    except IncomparableError as error:  # the description comes from evidence
        raise EvidenceError(error.message, expected=error.expected, found=error.found) from None
    for name in _NAMES:
        expected, found = getattr(numbers, name), getattr(profile, name)
        if expected != found:
            raise EvidenceError(
                f"model profile: bad field {name}",
                expected=f"{expected}, as its architecture says",
                found=str(found),
            )
