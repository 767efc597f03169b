"""Where the layers of a GGUF file lie: the byte ranges that a layer ring moves. Runs in a child."""

from __future__ import annotations

import re
from typing import Final

from tallystick.contracts.residency import MAX_EXTENTS, Extent, LayerExtents
from tallystick.errors import IncomparableError
from tallystick.models.gguf import Header, align, read_header

_LAYER: Final = re.compile(r"blk\.(0|[1-9][0-9]{0,3})\.")


def layer_extents(header: Header) -> LayerExtents:
    """Return the byte ranges of the file that hold ``blk.N.`` tensors, neighbours joined.

    Whatever has no layer in its name (embeddings, the head, norms, rope factors) is in none.
    Raises IncomparableError when the layers are scattered over too many ranges.
    """
    found: list[Extent] = []
    for tensor in header.tensors:
        matched = _LAYER.match(tensor.name)
        if matched is None or not tensor.size:
            continue
        layer, start = int(matched[1]), header.data_offset + tensor.offset
        end = start + tensor.size
        # Tensors lie one after another; between two of a layer there is padding only.
        if found and found[-1].layer == layer and align(found[-1].end, header.alignment) == start:
            found[-1] = Extent(layer, found[-1].start, end)
        else:
            found.append(Extent(layer, start, end))
    if len(found) > MAX_EXTENTS:
        raise IncomparableError(
            "the layers of this model are scattered over the file: no ring can move them",
            expected=f"at most {MAX_EXTENTS} ranges of bytes",
            found=str(len(found)),
            hint="run it without a ring, or convert the model again",
        )
    return LayerExtents(tuple(found))


def extents_of(descriptor: int) -> LayerExtents:
    """Return the extents of the GGUF file behind ``descriptor``. Raises InputError as well."""
    return layer_extents(read_header(descriptor))
