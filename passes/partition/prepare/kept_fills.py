"""Loops get fills, one number everywhere, from before them, as in XLA's compilers for GPUs.

XLA makes them in the loops that read them when it reads a module, and its compiler for GPUs moves what
does not change out of loops again: they are arrays that are there all loop long.
Profiles of other compilers move them (`sinks` of fuse-chains, `sink-fills`).
"""

from __future__ import annotations

from typing import Any, Final

from flint.ir.program import Phase
from flint.passes.locations import Locations, split_name_stack
from flint.passes.mlir import defining_operation, functions_of, operations_named, shape_of
from flint.passes.partition.prepare.positions import KEPT

#: Operations that leave a fill one.
_PASSES: Final = ("stablehlo.broadcast_in_dim", "stablehlo.convert", "stablehlo.reshape")
#: Phases after the forward pass.
_BACKWARD: Final = (Phase.BACKWARD, Phase.REMAT)


def keep_fills(module: Any) -> None:
    """Put a barrier behind each fill that a loop of `module` only reads, in place; `tidy` drops it.

    Zeros get none: XLA simplifies what is added to them, or written into them, before it partitions.
    """
    from jaxlib.mlir import ir

    for loop in operations_named(module, "stablehlo.while"):
        body = loop.regions[1].blocks[0]
        for number, given_on in enumerate(body.operations[len(body.operations) - 1].operands):
            value = loop.operands[number]
            if given_on == body.arguments[number] and _is_fill(value):
                with ir.InsertionPoint(loop), ir.Location.name(KEPT):
                    loop.operands[number] = _barrier(value)


def keep_passes(module: Any) -> None:
    """Put a barrier between what the forward pass of `main` makes and the backward pass reads, in place.

    Else XLA makes one of what both calculate, and the one pass would keep for the other what it
    calculates again. `tidy` drops the barriers.
    """
    from jaxlib.mlir import ir

    locations, made = Locations(), dict[Any, Phase]()
    kept: dict[Any, Any] = {}
    ops = [op.operation for op in functions_of(module)["main"].regions[0].blocks[0].operations]
    for op in ops:
        phase = split_name_stack(locations.decode(op.location)[0])[1]
        made |= dict.fromkeys(op.results, phase)
        for number, value in enumerate(op.operands if phase in _BACKWARD else ()):
            if made.get(value) is Phase.FORWARD and _has_dimensions(value):
                if value not in kept:
                    with ir.InsertionPoint(op), ir.Location.name(KEPT):
                        kept[value] = _barrier(value)
                op.operands[number] = kept[value]


def _barrier(value: Any) -> Any:
    from jaxlib.mlir import ir

    barrier = "stablehlo.optimization_barrier"
    return ir.Operation.create(barrier, [value.type], [value]).result


def _has_dimensions(value: Any) -> bool:
    from jaxlib.mlir import ir

    return isinstance(value.type, ir.RankedTensorType) and bool(shape_of(value))  # or a token


def _is_fill(value: Any) -> bool:
    from jaxlib.mlir import ir

    op = defining_operation(value) if _has_dimensions(value) else None
    while op is not None and op.name in _PASSES:
        op = defining_operation(op.operands[0])
    held = op.attributes["value"] if op is not None and op.name == "stablehlo.constant" else None
    if not isinstance(held, ir.DenseElementsAttr) or not held.is_splat:
        return False
    if isinstance(ir.RankedTensorType(held.type).element_type, ir.ComplexType):
        return True  # jaxlib does not read them
    number = held.get_splat_value()
    return not isinstance(number, ir.FloatAttr | ir.IntegerAttr | ir.BoolAttr) or bool(number.value)
