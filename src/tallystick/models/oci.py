"""The two endpoints of a container registry that a model download needs.

Manifest by tag, and blob by digest with resumption (docs/spec/models.md).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from tallystick.canonical.json import JSONValue, parse_strict
from tallystick.errors import EvidenceError
from tallystick.models.web import BlobStream, TransferError, WebClient

DEFAULT_REGISTRY: Final = "registry.ollama.ai"
MODEL_LAYER: Final = "application/vnd.ollama.image.model"
_MANIFEST_TYPES: Final = (
    "application/vnd.docker.distribution.manifest.v2+json, "
    "application/vnd.oci.image.manifest.v1+json"
)
_MAX_MANIFEST: Final = 1024 * 1024
_MAX_BLOB: Final = 2**63 - 1
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class BlobName:
    """A blob by the digest of its content, with its size when a manifest named it."""

    digest: str
    size: int | None


class RegistryClient:
    """Requests to one registry. ``registry`` is a host or an http(s) URL without credentials."""

    def __init__(self, registry: str = DEFAULT_REGISTRY) -> None:
        self._client = WebClient(registry, "registry")

    def model_of_tag(self, repository: str, tag: str) -> BlobName:
        """Return the model layer that a tag's manifest names.

        Raises InputError when there is no such tag, EvidenceError for a manifest out of form,
        UnavailableError when the registry cannot be reached.
        """
        path = f"v2/{repository}/manifests/{tag}"
        try:
            with self._client.open(path, {"Accept": _MANIFEST_TYPES}) as stream:
                data = stream.read(_MAX_MANIFEST + 1)
        except TransferError as problem:
            raise problem.error from None
        return _model_layer(parse_strict(data, max_bytes=_MAX_MANIFEST))

    def open_blob(self, repository: str, digest: str, start: int) -> BlobStream:
        """Open a blob, from offset ``start`` if the server can; look at the stream's ``start``.

        Raises what :meth:`tallystick.models.web.WebClient.open` raises.
        """
        return self._client.open(f"v2/{repository}/blobs/{digest}", {}, start)


def _model_layer(manifest: JSONValue) -> BlobName:
    layers = manifest.get("layers") if isinstance(manifest, dict) else None
    models = [
        layer
        for layer in (layers if isinstance(layers, list) else [])
        if isinstance(layer, dict) and layer.get("mediaType") == MODEL_LAYER
    ]
    if len(models) != 1:
        raise EvidenceError(
            "the manifest does not name one model",
            expected=f"one layer of type {MODEL_LAYER}",
            found=f"{len(models)} layers",
        )
    digest, size = models[0].get("digest"), models[0].get("size")
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise EvidenceError("the manifest's model layer has no sha256 digest")
    if not isinstance(size, int) or isinstance(size, bool) or not 0 < size <= _MAX_BLOB:
        raise EvidenceError("the manifest's model layer has no usable size")
    return BlobName(digest, size)
