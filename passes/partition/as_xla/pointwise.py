"""Operations on elements, computed where XLA's partitioner computes them: where the result is.

Shardy's explicit reshards look for the sharding that most tensors of an operation have, and move the
result afterwards. XLA brings every operand to the sharding of the result (`HandleElementwise` in
xla/service/spmd/spmd_partitioner.cc). It matters where propagation leaves them different: in
backward passes of models whose activations are pinned between blocks alone.
"""

from __future__ import annotations

from typing import Any

from flint.ir.op_class import ELEMENTWISE
from flint.passes.extract.op_classes import STABLEHLO
from flint.passes.mlir import shape_of
from flint.passes.partition.as_xla.placed import (
    axis_sizes,
    is_annotated_here,
    layout_of,
    reshard,
    sharding_at,
    sharding_of,
)

_NAMES = frozenset(
    f"stablehlo.{name}"
    for c, names in STABLEHLO.items()
    if c in ELEMENTWISE
    for name in names.split()
)
_SHARDING = "sdy.sharding"


def follow_results(module: Any) -> None:
    """Put reshards in front of element by element operations of which operands are elsewhere."""
    from jaxlib.mlir import ir

    found: list[Any] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.name in _NAMES and len(op.operands) > 1 and not _agrees(op):
            found.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    sizes = axis_sizes(module) if found else {}
    for op in found if sizes else ():
        _follow(op, sizes)


def _agrees(op: Any) -> bool:
    """Whether all operands have the very attribute that the result has."""
    mine = op.attributes.get(_SHARDING, None)
    for value in op.operands:
        attributes = getattr(value.owner, "attributes", None)  # a block argument's owner has none
        if attributes is None:
            return False
        other = attributes.get(_SHARDING, None)
        if (mine is None) != (other is None) or (mine is not None and other != mine):
            return False
    return True


def _follow(op: Any, sizes: dict[str, int]) -> None:
    result = op.results[0]
    shape = shape_of(result)
    values = [*op.operands, result]
    if not shape or not all(map(is_annotated_here, values)):
        return
    shardings = [sharding_of(v) for v in values]
    layouts = [layout_of(s, len(shape), sizes) for s in shardings]
    if all(layout == layouts[-1] for layout in layouts):
        return
    mesh = next(s for s in shardings if s is not None).mesh_or_ref
    wanted = sharding_at(layouts[-1], mesh, sizes)
    for number, value in enumerate(op.operands):
        if layouts[number] != layouts[-1] and shape_of(value) == shape:
            op.operands[number] = reshard(value, wanted, op)
