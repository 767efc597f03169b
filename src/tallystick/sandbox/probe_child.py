"""The child of ``tallystick sandbox probe``: it is locked and audited, and does nothing else."""

from __future__ import annotations

from typing import Any

from tallystick.sandbox.channel import Channel, serve


def _nothing(_request: Any, channel: Channel) -> None:
    channel.send("result", {})


if __name__ == "__main__":
    serve(_nothing)
