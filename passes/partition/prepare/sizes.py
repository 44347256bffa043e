"""Refuse tensors whose number of elements does not fit int64.

Compilers multiply dimensions in int64. Where that wraps round, Shardy asks for as many gigabytes as
there are, and XLA aborts.
"""

from __future__ import annotations

import math
from typing import Any

from flint.errors import FlintError
from flint.ir.program import MOST_INT64
from flint.passes.locations import decode_location
from flint.passes.mlir import shape_of


def refuse_huge_tensors(module: Any) -> bool:
    """Raise FlintError FL407 with the first operation of a module that makes a tensor too large.

    Returns whether any tensor has no elements.
    """
    from jaxlib.mlir import ir

    small: set[Any] = set()
    huge: list[Any] = []
    is_any_empty = False

    def check(value: Any) -> None:
        if value.type in small:
            return
        small.add(value.type)
        nonlocal is_any_empty
        if isinstance(value.type, ir.RankedTensorType):
            elements = math.prod(shape_of(value))
            is_any_empty |= not elements
            huge.extend([value] * (elements > MOST_INT64))

    def visit(op: ir.Operation) -> ir.WalkResult:
        for region in op.regions:
            for block in region:
                for argument in block.arguments:
                    check(argument)
        for result in op.results:
            check(result)
        return ir.WalkResult.INTERRUPT if huge else ir.WalkResult.ADVANCE

    module.operation.walk(visit, ir.WalkOrder.PRE_ORDER)
    if huge:
        raise _too_large(huge[0])
    return is_any_empty


def _too_large(value: Any) -> FlintError:
    from jaxlib.mlir import ir

    shape = shape_of(value)
    is_argument = isinstance(value, ir.BlockArgument)
    what = "an argument" if is_argument else f"the result of {value.owner.name}"
    name, place = decode_location(value.location)
    return FlintError(
        "FL407",
        f"{what} is {value.type}: {math.prod(shape):.3g} elements, and they have to be below 2^63",
        place=place or name or None,
        help="is a size wrong by some orders of magnitude?",
    )
