"""A container registry on the loopback, which can misbehave in every way that a download meets."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


@dataclass
class Behaviour:
    """What the stub does; tests change it between requests.

    ``cut_after``: bytes of the body that are sent before the connection closes, one per request.
    ``statuses``: answers to give, one per request, before behaving. ``range_mode``: honour,
    ignore, wrong, refuse.
    """

    blobs: dict[str, bytes] = field(default_factory=dict)
    manifests: dict[str, bytes] = field(default_factory=dict)
    cut_after: list[int] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    range_mode: str = "honour"
    send_length: bool = True
    declared_length: int | None = None
    redirect_to: str | None = None
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    def add(self, data: bytes) -> str:
        digest = digest_of(data)
        self.blobs[digest] = data
        return digest

    def tag(self, name: str, *layers: dict[str, Any]) -> None:
        manifest = {"schemaVersion": 2, "config": {}, "layers": list(layers)}
        self.manifests[name] = json.dumps(manifest).encode()


def model_layer(data: bytes, **changes: Any) -> dict[str, Any]:
    layer: dict[str, Any] = {
        "mediaType": "application/vnd.ollama.image.model",
        "digest": digest_of(data),
        "size": len(data),
    }
    return {**layer, **changes}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        behaviour = self.server.behaviour
        behaviour.requests.append((self.path, self.headers.get("Range")))
        behaviour.headers.append(dict(self.headers.items()))
        self.close_connection = True
        if behaviour.statuses:
            self._answer(behaviour.statuses.pop(0), b"")
        elif "/manifests/" in self.path:
            self._manifest(behaviour)
        elif behaviour.redirect_to is not None and not self.path.startswith("/elsewhere/"):
            self.send_response(307)
            self.send_header("Location", behaviour.redirect_to + self.path)
            self.send_header("Content-Length", "0")
            self.end_headers()
        else:
            self._blob(behaviour, self.path.rpartition("/")[2])

    def _manifest(self, behaviour: Behaviour) -> None:
        data = behaviour.manifests.get(self.path.removeprefix("/v2/"))
        self._answer(404 if data is None else 200, data or b"")

    def _blob(self, behaviour: Behaviour, digest: str) -> None:
        data = behaviour.blobs.get(digest)
        if data is None:
            self._answer(404, b"")
            return
        match = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")
        start = int(match.group(1)) if match else 0
        if start and behaviour.range_mode == "refuse":
            self._answer(416, b"", [("Content-Range", f"bytes */{len(data)}")])
        elif start and behaviour.range_mode == "honour":
            if start >= len(data):
                self._answer(416, b"", [("Content-Range", f"bytes */{len(data)}")])
                return
            span = f"bytes {start}-{len(data) - 1}/{len(data)}"
            self._answer(206, data[start:], [("Content-Range", span)])
        elif start and behaviour.range_mode == "wrong":
            span = f"bytes {start + 1}-{len(data) - 1}/{len(data)}"
            self._answer(206, data[start + 1 :], [("Content-Range", span)])
        else:
            self._answer(200, data)

    def _answer(self, status: int, body: bytes, extra: list[tuple[str, str]] | None = None) -> None:
        behaviour = self.server.behaviour
        self.send_response(status)
        for name, value in extra or ():
            self.send_header(name, value)
        if behaviour.send_length or "/manifests/" in self.path:
            declared = behaviour.declared_length
            self.send_header("Content-Length", str(len(body) if declared is None else declared))
        self.send_header("Connection", "close")
        self.end_headers()
        if behaviour.cut_after and "/blobs/" in self.path and status in (200, 206):
            body = body[: behaviour.cut_after.pop(0)]
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


class _Server(ThreadingHTTPServer):
    behaviour: Behaviour


@contextmanager
def registry_stub() -> Iterator[tuple[str, Behaviour]]:
    """Yield the stub's base URL and its behaviour."""
    server = _Server(("127.0.0.1", 0), _Handler)
    server.behaviour = Behaviour()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", server.behaviour
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
