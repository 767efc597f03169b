"""Small public files and large blobs over https, for whoever downloads models or metadata.

Only https, or http to this very machine; a redirect may not weaken that. No credential is ever
sent: no token, no cookie, none of an address. URLs are never put into messages, because a redirect
target may carry a signature in its query.
"""

from __future__ import annotations

import ipaddress
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from typing import IO, Any, Final, Self

from tallystick.errors import EvidenceError, InputError, UnavailableError, UsageError

_MAX_REDIRECTS: Final = 5
_TIMEOUT: Final = 60.0
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
    """An open response: ``start`` is the offset of its first byte, ``total`` the blob's size.

    ``what`` names the server in messages.
    """

    response: HTTPResponse
    start: int
    total: int | None
    what: str

    def read(self, length: int) -> bytes:
        """Return at most ``length`` bytes, b"" at the end. Raises BrokenTransferError."""
        try:
            return self.response.read(length)
        except (OSError, HTTPException) as error:
            raise _broken(error, self.what) from error

    def close(self) -> None:
        """Close the connection."""
        self.response.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class WebClient:
    """Requests to one server. ``address`` is a host or an http(s) URL without credentials.

    ``what`` names the server in messages, such as "registry".
    """

    def __init__(self, address: str, what: str) -> None:
        self._base = _base_url(address, what)
        self._what = what
        handlers: list[urllib.request.BaseHandler] = [_Redirects(what)]
        if _is_loopback(self._base):
            handlers.append(urllib.request.ProxyHandler({}))
        self._opener = urllib.request.build_opener(*handlers)

    def open(self, path: str, headers: Mapping[str, str], start: int = 0) -> BlobStream:
        """Open what is at ``path``, from offset ``start`` if the server can.

        Raises RangeRefusedError or BrokenTransferError (internal, for a caller that tries again),
        InputError when there is nothing, UnavailableError or EvidenceError otherwise.
        """
        asked = {"Range": f"bytes={start}-"} if start else {}
        response = self._open(path, {**headers, **asked})
        try:
            return self._stream(response, start)
        except BaseException:
            response.close()
            raise

    def _open(self, path: str, headers: Mapping[str, str]) -> HTTPResponse:
        request = urllib.request.Request(  # noqa: S310 - the base is https or loopback
            f"{self._base}/{path}",
            headers={"User-Agent": "tallystick", "Accept-Encoding": "identity", **headers},
        )
        try:
            response = self._opener.open(request, timeout=_TIMEOUT)
        except urllib.error.HTTPError as error:
            with error:
                raise self._refusal(error) from None
        except (OSError, HTTPException) as error:
            host = urllib.parse.urlsplit(self._base).netloc
            raise _broken(error, f"{self._what} {host}") from None
        assert isinstance(response, HTTPResponse)
        return response

    def _refusal(self, error: urllib.error.HTTPError) -> Exception:
        what, host = self._what, urllib.parse.urlsplit(self._base).netloc
        if error.code == 416:
            total = _UNSATISFIED.fullmatch(error.headers.get("Content-Range", ""))
            return RangeRefusedError(
                UnavailableError(
                    f"the {what} refuses to continue the transfer",
                    found=f"a blob of {total.group(1)} bytes" if total else "status 416",
                )
            )
        if error.code in _TRANSIENT_STATUS:
            return BrokenTransferError(
                UnavailableError(
                    f"the {what} {host} is not able to serve now",
                    found=f"status {error.code}",
                    hint="try again later",
                )
            )
        if error.code in (401, 403, 404):
            return InputError(
                f"the {what} {host} has no such public model",
                found=f"status {error.code}",
                hint="check the repository and tag or digest",
            )
        if 300 <= error.code < 400:
            return UnavailableError(
                f"the {what} redirects too often, or to where no model can be",
                found=f"status {error.code}",
            )
        return UnavailableError(
            f"the {what} {host} refused the request", found=f"status {error.code}"
        )

    def _stream(self, response: HTTPResponse, start: int) -> BlobStream:
        what = self._what
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise EvidenceError(f"the {what} sends an encoded blob", expected="identity encoding")
        if response.status == 206:
            match = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
            if match is None or int(match.group(1)) != start:
                raise RangeRefusedError(
                    UnavailableError(
                        f"the {what} answers with another range", expected=f"from byte {start}"
                    )
                )
            total = None if match.group(3) == "*" else int(match.group(3))
            return BlobStream(response, start, total, what)
        if response.status != 200:
            raise UnavailableError(f"the {what}'s answer is not usable", found=str(response.status))
        length = response.headers.get("Content-Length", "")
        total = int(length) if re.fullmatch(r"[0-9]{1,19}", length) else None
        return BlobStream(response, 0, total, what)


class _Redirects(urllib.request.HTTPRedirectHandler):
    max_redirections = _MAX_REDIRECTS

    def __init__(self, what: str) -> None:
        self._what = what

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
                f"the {self._what} redirects to an insecure address",
                expected="https",
                found=f"{target.scheme}, host {target.hostname!a}",
                hint=f"do not use this {self._what}",
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _base_url(address: str, what: str) -> str:
    url = address if "://" in address else f"https://{address}"
    try:
        parts = urllib.parse.urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
        parts = urllib.parse.urlsplit("")
    if not host or parts.scheme not in ("http", "https") or parts.query or parts.fragment:
        raise UsageError(f"not a {what}", expected="a host name, or an https URL without query")
    if parts.username is not None or parts.password is not None:
        # The text is not repeated: it holds a password.
        raise UsageError(f"the {what}'s address holds credentials", expected="a plain address")
    if parts.scheme == "http" and not _is_loopback(url):
        raise UsageError(
            f"the {what}'s address is not secure", expected="https", found=f"http, host {host}"
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


def _broken(error: Exception, what: str) -> BrokenTransferError:
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    words = str(reason.strerror or reason) if isinstance(reason, OSError) else type(error).__name__
    return BrokenTransferError(
        UnavailableError(
            f"the {what} could not be reached, or the transfer broke off",
            found=words,
            hint="check the network and try again",
        )
    )
