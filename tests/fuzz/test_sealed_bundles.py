"""Hostile envelopes: the project's error, and nothing else."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tallystick.attest.bundlekeys import AuditKey
from tallystick.errors import EvidenceError
from tallystick.receipts.sealing import MAGIC, open_with, parse, seal

KEY = AuditKey(b"\x07" * 32)
SEALED = seal(
    b"public part",
    b"private part",
    receipt_binding=b"\x01" * 32,
    key=KEY,
    salt=b"\x02" * 32,
    nonce=b"\x03" * 24,
)


def opens(data: bytes) -> bool:
    try:
        open_with(parse(data), KEY)
    except EvidenceError:
        return False
    return True


def test_the_whole_opens() -> None:
    assert opens(SEALED)


@settings(deadline=None)
@given(st.binary(max_size=400), st.sampled_from([b"", MAGIC, MAGIC + b"\x01\x00", SEALED[:140]]))
def test_random_bytes(data: bytes, start: bytes) -> None:
    assert not opens(start + data)


@settings(deadline=None)
@given(st.data())
def test_spliced_bytes(draw: st.DataObject) -> None:
    start = draw.draw(st.integers(0, len(SEALED)))
    end = draw.draw(st.integers(start, len(SEALED)))
    edited = SEALED[:start] + draw.draw(st.binary(max_size=40)) + SEALED[end:]
    assert opens(edited) == (edited == SEALED)
