"""What a record of a transcript has to be, whatever is before it (docs/spec/observer.md)."""

from __future__ import annotations

from math import prod

from tallystick.errors import EvidenceError
from tallystick.evidence.observer.derive import categories_of, gemm_of, layer_of
from tallystick.evidence.observer.event_lines import check_digits
from tallystick.evidence.observer.records import (
    EXECUTION_POLICY,
    KERNEL_TRACE,
    OBSERVATION_POLICY,
    PRODUCT,
    TRACE_VARIANT,
    AnyEvent,
    Event,
    GemmEvent,
    SketchEvent,
)
from tallystick.evidence.observer.sealing import AnyHeader, SealingHeader, check_policy
from tallystick.evidence.observer.sketch import SKETCH_ELEMENTS


def check_header_values(header: AnyHeader) -> None:
    """Require the one value of each field that has one. Raises EvidenceError."""
    if isinstance(header, SealingHeader):
        check_policy(header.execution_policy)
    elif header.execution_policy != EXECUTION_POLICY:
        raise EvidenceError("the header's execution_policy is not the one that is accepted")
    for name, expected, found in (
        ("observation_policy", OBSERVATION_POLICY, header.observation_policy),
        ("trace_variant", TRACE_VARIANT[header.observer], header.trace_variant),
        ("cuda_kernel_trace", False, header.cuda_kernel_trace),
    ):
        if expected != found:
            raise EvidenceError(f"the header's {name} is not the one that is accepted")


def check_event(event: AnyEvent, observer: str) -> None:
    """Require that an event has the parts that its operation and the mode ask for, and no other.

    Raises EvidenceError.
    """
    if observer == "off":
        raise EvidenceError("a transcript of an unobserved run has an event")
    tensor = event.tensor
    if len(tensor.shape) != 4 or any(len(source.shape) != 4 for source in event.sources):
        raise EvidenceError(
            "a shape does not have four extents",
            expected="4 of the tensor and of each source",
            found=str([len(tensor.shape), *(len(source.shape) for source in event.sources)]),
        )
    product = tensor.op == PRODUCT
    kind = Event if not product else SketchEvent if observer == "sketch" else GemmEvent
    if not isinstance(event, kind):
        raise EvidenceError(
            "an event has not the parts that its operation has in this mode",
            expected="gemm for matrix products; sketch, tile and kernel_trace in mode sketch only",
        )
    if event.layer != layer_of(tensor.name) or event.categories != categories_of(tensor):
        raise EvidenceError("an event's layer or categories do not follow from its tensor")
    if isinstance(event, GemmEvent | SketchEvent) and event.gemm != gemm_of(tensor, event.sources):
        raise EvidenceError("an event's gemm does not follow from its shapes")
    if isinstance(event, SketchEvent):
        _check_sketch(event)


def _check_sketch(event: SketchEvent) -> None:
    count = min(SKETCH_ELEMENTS, prod(event.tensor.shape))
    if event.sketch.elements != count or event.tile.elements != count:
        raise EvidenceError("a sketch covers another number of elements than it should")
    check_digits(event.sketch)
    if event.kernel_trace != KERNEL_TRACE:
        raise EvidenceError("a kernel trace is claimed, and there is none")
