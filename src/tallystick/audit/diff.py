"""Compare two receipts field by field, in the order of the specification."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass

from tallystick.contracts.codec import encode_bytes
from tallystick.errors import EvidenceError
from tallystick.receipts.inspect import ReceiptSummary, inspect_receipt


@dataclass(frozen=True, slots=True)
class Difference:
    """One field whose values differ, both as texts (``absent`` where there is none)."""

    field: str
    left: str
    right: str


@dataclass(frozen=True, slots=True)
class ReceiptDiff:
    """How two receipts differ; ``differences`` has the core's fields before the observed ones.

    ``same_request`` and ``same_runtime_class`` say whether differing results mean anything: the
    bits of two runtime classes may differ without anyone having lied.
    """

    left: str
    right: str
    core_equal: bool
    same_request: bool
    same_runtime_class: bool
    differences: tuple[Difference, ...]

    @property
    def first(self) -> Difference | None:
        """The first differing field, None for equal receipts."""
        return self.differences[0] if self.differences else None

    @property
    def exit_code(self) -> int:
        """0 when the cores are equal, else 1."""
        return 0 if self.core_equal else EvidenceError.exit_code


def diff_receipts(left: bytes, right: bytes) -> ReceiptDiff:
    """Compare the bytes of two receipt files. Raises EvidenceError when one is no receipt."""
    return diff_summaries(inspect_receipt(left), inspect_receipt(right))


def diff_summaries(left: ReceiptSummary, right: ReceiptSummary) -> ReceiptDiff:
    """Compare two receipts."""
    mine, theirs = left.receipt, right.receipt
    return ReceiptDiff(
        left=left.receipt_digest,
        right=right.receipt_digest,
        core_equal=left.core_digest == right.core_digest,
        same_request=mine.core.request_digest == theirs.core.request_digest,
        same_runtime_class=mine.core.runtime_class_id == theirs.core.runtime_class_id,
        differences=tuple(_differences(mine, theirs, "")),
    )


def _differences(left: object, right: object, path: str) -> Iterator[Difference]:
    if left == right:
        return
    if is_dataclass(left) and type(left) is type(right):
        for item in fields(left):
            name = f"{path}.{item.name}" if path else item.name
            yield from _differences(getattr(left, item.name), getattr(right, item.name), name)
    elif isinstance(left, tuple) and isinstance(right, tuple) and len(left) == len(right):
        for index, (mine, theirs) in enumerate(zip(left, right, strict=True)):
            yield from _differences(mine, theirs, f"{path}[{index}]")
    else:
        yield Difference(path, _text(left), _text(right))


def _text(value: object) -> str:
    if value is None:
        return "absent"
    if isinstance(value, tuple):
        return f"{len(value)} entries"
    return encode_bytes(value).decode("utf-8") if is_dataclass(value) else str(value)
