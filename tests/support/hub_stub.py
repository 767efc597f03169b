"""A model hub on the loopback that serves files of one commit, and can misbehave."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Hub:
    """What the stub does. ``files`` by path; ``statuses`` are given first, one per request.

    ``cut_after``: bytes of the next bodies that are sent before the connection closes.
    ``redirect_to``: where every first request of a file is sent to.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    statuses: list[int] = field(default_factory=list)
    cut_after: list[int] = field(default_factory=list)
    redirect_to: str | None = None
    encoding: str | None = None
    send_length: bool = True
    requests: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        hub = self.server.hub
        hub.requests.append(self.path)
        hub.headers.append({name.lower(): value for name, value in self.headers.items()})
        self.close_connection = True
        data = hub.files.get(self.path.removeprefix("/elsewhere"))
        if hub.statuses:
            self._answer(hub.statuses.pop(0), b"")
        elif hub.redirect_to is not None and not self.path.startswith("/elsewhere"):
            self._answer(302, b"", {"Location": hub.redirect_to + self.path, "Set-Cookie": "a=b"})
        elif data is None:
            self._answer(404, b"")
        else:
            self._answer(200, data, {"Set-Cookie": "a=b"})

    def _answer(self, status: int, body: bytes, extra: dict[str, str] | None = None) -> None:
        hub = self.server.hub
        self.send_response(status)
        for name, value in (extra or {}).items():
            self.send_header(name, value)
        if hub.encoding is not None:
            self.send_header("Content-Encoding", hub.encoding)
        if hub.send_length:
            self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        if hub.cut_after and status == 200:
            body = body[: hub.cut_after.pop(0)]
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


class _Server(ThreadingHTTPServer):
    hub: Hub


@contextmanager
def hub_stub() -> Iterator[tuple[str, Hub]]:
    """Yield the stub's base URL and what it does."""
    server = _Server(("127.0.0.1", 0), _Handler)
    server.hub = Hub()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", server.hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
