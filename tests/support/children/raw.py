"""A child program that keeps no rule: it writes what ``$BYTES`` says and reads no request."""

from __future__ import annotations

import os
import sys
import time


def write(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(int(sys.argv[1]), view) :]


if __name__ == "__main__":
    write(bytes.fromhex(os.environ.get("BYTES", "")) * int(os.environ.get("TIMES", "1")))
    if os.environ.get("CLOSE"):
        os.close(int(sys.argv[1]))
    time.sleep(float(os.environ.get("SLEEP", "0")))
