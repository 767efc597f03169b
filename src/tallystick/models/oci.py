"""A client for the two endpoints of a container registry that a model download needs.

Manifest by tag, and blob by digest with resumption (docs/spec/models.md). Only https, or http to
this very machine; a redirect may not weaken that. URLs are never put into messages, because a
redirect target may carry a signature in its query.
"""

from __future__ import annotations

import ipaddress
import re
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from typing import IO, Any, Final

from tallystick.canonical.json import JSONValue, parse_strict
from tallystick.errors import EvidenceError, InputError, UnavailableError, UsageError

DEFAULT_REGISTRY: Final = "registry.ollama.ai"
MODEL_LAYER: Final = "application/vnd.ollama.image.model"
_MANIFEST_TYPES: Final = (
    "application/vnd.docker.distribution.manifest.v2+json, "
    "application/vnd.oci.image.manifest.v1+json"
)
_MAX_MANIFEST: Final = 1024 * 1024
_MAX_REDIRECTS: Final = 5
_TIMEOUT: Final = 60.0
_MAX_BLOB: Final = 2**63 - 1
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
_RANGE: Final = re.compile(r"bytes ([0-9]{1,19})-([0-9]{1,19})/([0-9]{1,19}|\*)")
_UNSATISFIED: Final = re.compile(r"bytes \*/([0-9]{1,19})")
_TRANSIENT_STATUS: Final = frozenset((408, 425, 429, 500, 502, 503, 504))


class TransferError(Exception):
    """Internal: a transfer did not succeed, but may when it is tried again.

    ``error`` is what the user gets to see when it never does.
    """

    def __init__(self, error: UnavailableError) -> None:
        super().__init__(error.message)
        self.error = error


class BrokenTransferError(TransferError):
    """The transfer broke off; what arrived may be kept."""


class RangeRefusedError(TransferError):
    """The server cannot continue at the asked offset; only starting anew may help."""


@dataclass(frozen=True, slots=True)
class BlobStream:
    """An open response: ``start`` is the offset of its first byte, ``total`` the blob's size."""

    response: HTTPResponse
    start: int
    total: int | None

    def read(self, length: int) -> bytes:
        """Return at most ``length`` bytes, b"" at the end. Raises BrokenTransferError."""
        try:
            return self.response.read(length)
        except (OSError, HTTPException) as error:
            raise _broken(error) from error

    def close(self) -> None:
        """Close the connection."""
        self.response.close()


@dataclass(frozen=True, slots=True)
class BlobName:
    """A blob by the digest of its content, with its size when a manifest named it."""

    digest: str
    size: int | None


class RegistryClient:
    """Requests to one registry. ``registry`` is a host or an http(s) URL without credentials."""

    def __init__(self, registry: str = DEFAULT_REGISTRY) -> None:
        self._base = _base_url(registry)
        handlers: list[urllib.request.BaseHandler] = [_Redirects()]
        if _is_loopback(self._base):
            handlers.append(urllib.request.ProxyHandler({}))
        self._opener = urllib.request.build_opener(*handlers)

    def model_of_tag(self, repository: str, tag: str) -> BlobName:
        """Return the model layer that a tag's manifest names.

        Raises InputError when there is no such tag, EvidenceError for a manifest out of form,
        UnavailableError when the registry cannot be reached.
        """
        try:
            response = self._open(f"{repository}/manifests/{tag}", {"Accept": _MANIFEST_TYPES})
            with response:
                data = BlobStream(response, 0, None).read(_MAX_MANIFEST + 1)
        except TransferError as problem:
            raise problem.error from None
        return _model_layer(parse_strict(data, max_bytes=_MAX_MANIFEST))

    def open_blob(self, repository: str, digest: str, start: int) -> BlobStream:
        """Open a blob, from offset ``start`` if the server can; look at the stream's ``start``.

        Raises RangeRefusedError or BrokenTransferError (internal, for a caller that tries again),
        InputError when there is no such blob, UnavailableError or EvidenceError otherwise.
        """
        headers = {"Range": f"bytes={start}-"} if start else {}
        response = self._open(f"{repository}/blobs/{digest}", headers)
        try:
            return _stream(response, start)
        except BaseException:
            response.close()
            raise

    def _open(self, path: str, headers: dict[str, str]) -> HTTPResponse:
        request = urllib.request.Request(  # noqa: S310 - the base is https or loopback
            f"{self._base}/v2/{path}",
            headers={"User-Agent": "tallystick", "Accept-Encoding": "identity", **headers},
        )
        try:
            response = self._opener.open(request, timeout=_TIMEOUT)
        except urllib.error.HTTPError as error:
            with error:
                raise _refusal(error, self._host()) from None
        except (OSError, HTTPException) as error:
            raise _broken(error) from None
        assert isinstance(response, HTTPResponse)
        return response

    def _host(self) -> str:
        return urllib.parse.urlsplit(self._base).netloc


class _Redirects(urllib.request.HTTPRedirectHandler):
    max_redirections = _MAX_REDIRECTS

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: Any,
        newurl: str,
    ) -> urllib.request.Request | None:
        target = urllib.parse.urlsplit(newurl)
        was_https = urllib.parse.urlsplit(req.full_url).scheme == "https"
        local = target.scheme == "http" and not was_https and _is_loopback(newurl)
        if target.scheme != "https" and not local:
            fp.close()
            raise EvidenceError(
                "the registry redirects to an insecure address",
                expected="https",
                found=f"{target.scheme}, host {target.hostname!a}",
                hint="do not use this registry",
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _base_url(registry: str) -> str:
    url = registry if "://" in registry else f"https://{registry}"
    try:
        parts = urllib.parse.urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
        parts = urllib.parse.urlsplit("")
    if not host or parts.scheme not in ("http", "https") or parts.query or parts.fragment:
        raise UsageError("not a registry", expected="a host name, or an https URL without query")
    if parts.username is not None or parts.password is not None:
        # The text is not repeated: it holds a password.
        raise UsageError("the registry's address holds credentials", expected="a plain address")
    if parts.scheme == "http" and not _is_loopback(url):
        raise UsageError(
            "the registry's address is not secure", expected="https", found=f"http, host {host}"
        )
    return url.rstrip("/")


def _is_loopback(url: str) -> bool:
    try:
        host = urllib.parse.urlsplit(url).hostname or ""
    except ValueError:
        return False
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _broken(error: Exception) -> BrokenTransferError:
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    words = str(reason.strerror or reason) if isinstance(reason, OSError) else type(error).__name__
    return BrokenTransferError(
        UnavailableError(
            "the registry could not be reached, or the transfer broke off",
            found=words,
            hint="check the network and try again: what was received is kept",
        )
    )


def _refusal(error: urllib.error.HTTPError, host: str) -> Exception:
    if error.code == 416:
        total = _UNSATISFIED.fullmatch(error.headers.get("Content-Range", ""))
        return RangeRefusedError(
            UnavailableError(
                "the registry refuses to continue the transfer",
                found=f"a blob of {total.group(1)} bytes" if total else "status 416",
            )
        )
    if error.code in _TRANSIENT_STATUS:
        return BrokenTransferError(
            UnavailableError(
                f"the registry {host} is not able to serve now",
                found=f"status {error.code}",
                hint="try again later",
            )
        )
    if error.code in (401, 403, 404):
        return InputError(
            f"the registry {host} has no such public model",
            found=f"status {error.code}",
            hint="check the repository and tag or digest",
        )
    if 300 <= error.code < 400:
        return UnavailableError(
            "the registry redirects too often, or to where no model can be",
            found=f"status {error.code}",
        )
    return UnavailableError(
        f"the registry {host} refused the request", found=f"status {error.code}"
    )


def _stream(response: HTTPResponse, start: int) -> BlobStream:
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise EvidenceError("the registry sends an encoded blob", expected="identity encoding")
    if response.status == 206:
        match = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
        if match is None or int(match.group(1)) != start:
            raise RangeRefusedError(
                UnavailableError(
                    "the registry answers with another range", expected=f"from byte {start}"
                )
            )
        total = None if match.group(3) == "*" else int(match.group(3))
        return BlobStream(response, start, total)
    if response.status != 200:
        raise UnavailableError("the registry's answer is not usable", found=str(response.status))
    length = response.headers.get("Content-Length", "")
    total = int(length) if re.fullmatch(r"[0-9]{1,19}", length) else None
    return BlobStream(response, 0, total)


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
