"""An engine child that computes honestly and then lies: which lie, its run's prompt says."""

from __future__ import annotations

import base64
import os
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from tallystick.canonical.json import JSONValue
from tallystick.execution.child import handle
from tallystick.sandbox.channel import Channel, serve

Body = dict[str, Any]


class Liar(Channel):
    """A channel on which one thing is not what it should be."""

    def __init__(self, honest: Channel, lie: str) -> None:
        super().__init__(honest.descriptor)
        self._lie = LIES.get(lie)
        self.held: Body = {}  # a message that is kept back

    def send(self, kind: str, body: dict[str, JSONValue]) -> None:
        if self._lie is None:
            self.truly(kind, body)
        else:
            self._lie(self, kind, body)

    def post(self, kind: str, body: dict[str, JSONValue]) -> None:
        self.send(kind, body)

    def offer(self, kind: str, body: dict[str, JSONValue]) -> bool:
        self.send(kind, body)
        return True

    def truly(self, kind: str, body: Body) -> None:
        """Send as it is."""
        super().send(kind, body)

    def raw(self, data: bytes) -> None:
        """Write what is no message."""
        self._write(data)


def in_result(**changes: Callable[[Any], Any]) -> Callable[[Liar, str, Body], None]:
    """Return a lie about fields of the generation."""

    def lie(channel: Liar, kind: str, body: Body) -> None:
        if kind == "result":
            generation = body["generation"]
            changed = {name: change(generation[name]) for name, change in changes.items()}
            body = {**body, "generation": {**generation, **changed}}
        channel.truly(kind, body)

    return lie


def in_events(change: Callable[[Liar, Body], None]) -> Callable[[Liar, str, Body], None]:
    """Return a lie about the events of tokens."""

    def lie(channel: Liar, kind: str, body: Body) -> None:
        if kind == "event" and body["event"] == "TokenEmitted":
            change(channel, body)
        else:
            channel.truly(kind, body)

    return lie


def at_result(instead: Callable[[Liar, Body], None]) -> Callable[[Liar, str, Body], None]:
    """Return a lie that is told when the result is due."""

    def lie(channel: Liar, kind: str, body: Body) -> None:
        if kind == "result":
            instead(channel, body)
        else:
            channel.truly(kind, body)

    return lie


def _twice(channel: Liar, body: Body) -> None:
    channel.truly("event", body)
    channel.truly("event", body)


def _two_results(channel: Liar, body: Body) -> None:
    channel.truly("result", body)
    channel.truly("result", body)


def _flood_of_text(channel: Liar, _: Body) -> None:
    for index in range(10**6):
        channel.truly("text", {"index": index, "bytes": base64.b64encode(b"x" * 4096).decode()})


def _flood_of_events(channel: Liar, body: Body) -> None:
    for seq in range(10**6):
        channel.truly("event", {**body, "seq": seq})


def _endless_line(channel: Liar, _: Body) -> None:
    while True:
        channel.raw(b"x" * (1 << 20))


def _early(channel: Liar, kind: str, body: Body) -> None:
    """Send the result, and then an event: it had come before."""
    if kind == "event" and body["event"] == "ArenaReset":
        channel.held = body
        return
    channel.truly(kind, body)
    if kind == "result":
        channel.truly("event", channel.held)


def _leave_somebody(channel: Liar, body: Body) -> None:
    if os.fork() == 0:
        time.sleep(600)
    channel.truly("result", body)


def _claim_a_cage(channel: Liar, body: Body) -> None:
    for kind in ("locked", "audit", "control"):
        channel.truly(kind, {"level": "full", "result": "passed"})
    channel.truly("result", {**body, "audit": {"level": "full", "result": "passed"}})


def _go_on(channel: Liar, body: Body) -> None:
    """Be done, and go on as if nothing were: what comes then is nobody's."""
    channel.truly("result", body)
    channel.truly("done", {})
    for _ in range(3):
        channel.truly("result", {"generation": {}})
    os.close(int(sys.argv[1]))
    time.sleep(600)


def _fewer_events(channel: Liar, body: Body) -> None:
    channel.truly("result", {**body, "events": body["events"] - 1})


LIES: Final[dict[str, Callable[[Liar, str, Body], None]]] = {
    "fewer tokens": in_result(sampled_ids=lambda ids: ids[:-1]),
    "another token": in_result(prompt_ids=lambda ids: [*ids, 1]),
    "another answer": in_result(
        output=lambda text: base64.b64encode(base64.b64decode(text)[::-1] + b"!").decode()
    ),
    "other leaves": in_result(state_leaves=lambda count: count + 1),
    "no states": in_result(state_root=lambda _: None),
    "two roots in one": in_result(worker_state_root=lambda _: None),
    "another stop": in_result(stop_reason=lambda _: "end_of_generation"),
    "invented states": in_result(
        state_root=lambda root: root[:-1] + ("0" if root[-1] != "0" else "1")
    ),
    "long times": in_result(timings=lambda times: {**times, "load": str(10**15)}),
    "a field more": in_result(layers=lambda layers: [layers]),
    "an event twice": in_events(_twice),
    "no events": in_events(lambda _channel, _body: None),
    "huge memory": in_events(
        lambda channel, body: channel.truly("event", {**body, "rss": str(2**50)})
    ),
    "fewer events than there were": at_result(_fewer_events),
    "a flood of events": in_events(_flood_of_events),
    "a flood of text": at_result(_flood_of_text),
    "an endless line": at_result(_endless_line),
    "no message": at_result(lambda channel, _: channel.raw(b"\x00\xff{]\n")),
    "two results": at_result(_two_results),
    "the result too early": _early,
    "an error of its own": at_result(
        lambda channel, _: channel.truly("error", {"type": "EvidenceError", "message": "x"})
    ),
    "no result": at_result(lambda channel, _: channel.truly("done", {})),
    "an end": at_result(lambda _channel, _body: os._exit(0)),
    "an abort": at_result(lambda _channel, _body: os.abort()),
    "a cage": at_result(_claim_a_cage),
    "somebody left": at_result(_leave_somebody),
    "no end": at_result(_go_on),
}
#: What makes no difference: the receipt says what is true all the same.
HARMLESS: Final = ("no events", "a cage", "somebody left", "no end")
#: What no supervisor can know: a replay finds it.
FOR_A_REPLAY: Final = ("another stop", "invented states")


def work(request: Any, channel: Channel) -> None:
    """Do the job, and tell of it what its prompt says."""
    run = request["job"].get("run") or {}
    handle(request, Liar(channel, run.get("prompt", "")))


if __name__ == "__main__":
    os.umask(0o077)
    serve(work)
