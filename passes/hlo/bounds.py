"""What an HLO module may be, before it is walked: sizes that can be, and calls that end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from flint.passes.call_graph import check_call_graph
from flint.passes.hlo.module import HloModule, malformed
from flint.passes.hlo.shapes import BUFFER, OPAQUE, PRIMITIVES, TOKEN, TUPLE

#: Types of elements, and of values that are no arrays: xla.PrimitiveType.
_KNOWN = {*PRIMITIVES, TUPLE, BUFFER, OPAQUE, TOKEN}


def check_module(module: HloModule) -> None:
    """Raise FlintError FL303 for sizes and types that cannot be, calls without end or that multiply.

    The computations of branches, loops, fusions and reductions count as called too.
    """
    calls: dict[str, Counter[str]] = {}
    sizes: dict[str, int] = {}
    for computation in module.computations.values():
        found = calls.setdefault(_name(computation), Counter())
        sizes[_name(computation)] = len(computation.instructions)
        for instruction in computation.instructions:
            for shape in _parts(instruction.shape):
                if wrong := _wrong(shape):
                    raise malformed(module.source, f"'{instruction.name}' has {wrong}")
            found.update(map(_name, module.called(instruction)))
    check_call_graph(calls, sizes, "FL303", module.source)


def _name(computation: Any) -> str:
    return f"{computation.name} ({computation.id})"


def _parts(shape: Any) -> Iterator[Any]:
    yield shape
    for part in shape.tuple_shapes:
        yield from _parts(part)


def _wrong(shape: Any) -> str:
    """What is wrong with a shape; a type that is not known would have no bytes."""
    if shape.element_type not in _KNOWN:
        return f"elements of type {shape.element_type}, which this Flint does not know"
    return "a negative dimension" if min(shape.dimensions, default=0) < 0 else ""
