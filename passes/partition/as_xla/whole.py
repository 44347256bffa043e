"""Operations that XLA's partitioner does on whole operands, and what leaves a branch.

- A Fourier transform: on all of the operand, its batch included. By Shardy's rule only the
  dimensions that it works along must be whole.
- A slice at a place known at run time: the dimensions that it cuts are gathered first.
- A result of a branch leaves it as the conditional has it, which Shardy does not see to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flint.passes.partition.as_xla.layouts import Layout
from flint.passes.partition.as_xla.placed import (
    axis_sizes,
    is_annotated_here,
    layout_of,
    reshard,
    sharding_at,
    sharding_of,
)


def gather_operands(module: Any) -> None:
    """Put reshards around these operations, in place."""
    from jaxlib.mlir import ir

    found: list[tuple[Any, Callable[[Any, dict[str, int]], None]]] = []

    def visit(op: Any) -> Any:
        name = op.name
        if name == "sdy.manual_computation":
            return ir.WalkResult.SKIP
        change = _CHANGES.get(name)
        if change is not None:
            found.append((op, change))
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit, ir.WalkOrder.PRE_ORDER)
    sizes = axis_sizes(module) if found else {}
    for op, change in found if sizes else ():
        change(op, sizes)


def _leave_branches(op: Any, sizes: dict[str, int]) -> None:
    """Reshard what the branches of a conditional return."""
    results = [_layout(r, sizes) for r in op.results]
    meshes = [s.mesh_or_ref for s in map(sharding_of, op.results) if s is not None]
    for region in op.regions:
        end = list(region.blocks[0])[-1].operation
        for number, value in enumerate(end.operands):
            if not is_annotated_here(value):
                continue
            given, wanted = sharding_of(value), results[number]
            if given is None or wanted is None or layout_of(given, len(wanted), sizes) == wanted:
                continue
            mesh = meshes[0] if meshes else given.mesh_or_ref
            end.operands[number] = reshard(value, sharding_at(wanted, mesh, sizes), end)


def _whole(op: Any, sizes: dict[str, int]) -> None:
    """On all of the operand."""
    layout = _layout(op.operands[0], sizes)
    if layout is not None:
        _work_on(op, tuple(() for _ in layout), sizes)


def _uncut(op: Any, sizes: dict[str, int]) -> None:
    """With the dimensions whole of which a part is taken."""
    from jaxlib.mlir import ir

    layout = _layout(op.operands[0], sizes)
    if layout is None:
        return
    before, after = (ir.RankedTensorType(v.type).shape for v in (op.operands[0], op.results[0]))
    wanted = tuple(() if b != a else axes for axes, b, a in zip(layout, before, after, strict=True))
    _work_on(op, wanted, sizes)


def _work_on(op: Any, wanted: Layout, sizes: dict[str, int]) -> None:
    """Move the first operand, and results from where they are made then."""
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import sdy

    given = sharding_of(op.operands[0])
    if given is None or layout_of(given, len(wanted), sizes) == wanted:
        return
    made = sharding_at(wanted, given.mesh_or_ref, sizes)
    op.operands[0] = reshard(op.operands[0], made, op)
    olds = [sharding_of(r) for r in op.results]
    op.attributes["sdy.sharding"] = sdy.TensorShardingPerValueAttr.get([made] * len(op.results))
    for result, old in zip(op.results, olds, strict=True):
        if old is None or layout_of(old, len(wanted), sizes) == wanted:
            continue
        with ir.InsertionPoint.after(op), op.location:
            moved = sdy.ReshardOp(result, old)
        result.replace_all_uses_except(moved.result, moved.operation)


def _layout(value: Any, sizes: dict[str, int]) -> Layout | None:
    """Axes of a value's dimensions; None where it has none or they are not known here."""
    from jaxlib.mlir import ir

    if not isinstance(value.type, ir.RankedTensorType) or not is_annotated_here(value):
        return None
    return layout_of(sharding_of(value), len(ir.RankedTensorType(value.type).shape), sizes)


_CHANGES: dict[str, Callable[[Any, dict[str, int]], None]] = {
    "stablehlo.case": _leave_branches,
    "stablehlo.if": _leave_branches,
    "stablehlo.fft": _whole,
    "stablehlo.dynamic_slice": _uncut,
}
