"""Reshapes move behind operations on elements, as XLA's `ReshapeMover` moves them.

What is left of them joins others or goes: shardings propagate otherwise through a dimension that is
split, or dropped and added again. Transposes stay: moved ones lead Shardy away from XLA's choice.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from flint.ir.op_class import ELEMENTWISE
from flint.passes.extract.op_classes import class_of
from flint.passes.mlir import defining_operation, shape_of

#: Operations whose operands are all reshaped from one shape, and that shape.
_Found: TypeAlias = dict[Any, tuple[int, ...]]
_RESHAPE = "stablehlo.reshape"
_SHARDED = ("sdy.sharding", "mhlo.sharding")
#: Rounds at most: an operation moves a reshape one step down.
_ROUNDS = 64


def move_reshapes(module: Any) -> None:
    """Move them in place, as long as one can be moved."""
    for _ in range(_ROUNDS):
        found = _candidates(module)
        while (left := _alone(found)) != found:
            found = left
        if not found:
            return
        for op, shape in found.items():
            _sink(op, shape)


def _candidates(module: Any) -> _Found:
    """Operations on elements whose operands are reshaped alike, or numbers that are repeated."""
    from jaxlib.mlir import ir

    found: _Found = {}

    def visit(op: ir.Operation) -> ir.WalkResult:
        name = str(op.name)
        is_one = name.startswith("stablehlo.") and len(op.results) == 1 and len(op.operands) > 0
        if is_one and class_of(name) in ELEMENTWISE and not {*_SHARDED} & {*op.attributes}:
            before = {_shape_before(v) for v in op.operands if not _repeats(v)}
            shapes = {shape_of(v) for v in [*op.operands, op.results[0]]}
            if len(before) == len(shapes) == 1 and (shape := before.pop()) is not None:
                found[op] = shape
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return found


def _shape_before(value: Any) -> tuple[int, ...] | None:
    """The shape of what was reshaped to a value; None if it is no reshape."""
    op = defining_operation(value)
    return shape_of(op.operands[0]) if op is not None and op.name == _RESHAPE else None


def _repeats(value: Any) -> bool:
    """Whether a value is one number everywhere."""
    from jaxlib.mlir import ir

    op = defining_operation(value)
    if op is not None and op.name == "stablehlo.broadcast_in_dim":
        return not shape_of(op.operands[0])
    if op is None or op.name != "stablehlo.constant":
        return False
    held = op.attributes["value"]
    return isinstance(held, ir.DenseElementsAttr) and held.is_splat


def _alone(found: _Found) -> _Found:
    """Those of whose reshaped operands nothing but others of them reads any."""

    def is_alone(op: Any) -> bool:
        reshaped = [v for v in op.operands if not _repeats(v)]
        return all(
            getattr(u.owner, "operation", u.owner) in found for v in reshaped for u in v.uses
        )

    return {op: shape for op, shape in found.items() if is_alone(op)}


def _sink(op: Any, shape: tuple[int, ...]) -> None:
    """The operation on what was reshaped, and a reshape of its result."""
    from jaxlib.mlir import ir

    def typed(value: Any) -> Any:
        return ir.RankedTensorType.get(shape, ir.RankedTensorType(value.type).element_type)

    before = dict.fromkeys(defining_operation(v) for v in op.operands if not _repeats(v))
    with ir.InsertionPoint(op), op.location:
        operands = [
            _repeated(v, typed(v)) if _repeats(v) else defining_operation(v).operands[0]
            for v in op.operands
        ]
        own = {a: op.attributes[a] for a in op.attributes}
        made = ir.Operation.create(op.name, [typed(op.results[0])], operands, own)
        back = ir.Operation.create(_RESHAPE, [op.results[0].type], [made.result])
    op.results[0].replace_all_uses_with(back.result)
    op.erase()
    for one in before:
        if not len(list(one.results[0].uses)):
            one.erase()


def _repeated(value: Any, kind: Any) -> Any:
    """The same number in another shape."""
    from jaxlib.mlir import ir

    op = defining_operation(value)
    if op.name == "stablehlo.constant":
        one = ir.DenseElementsAttr(op.attributes["value"]).get_splat_value()
        held = {"value": ir.DenseElementsAttr.get_splat(kind, one)}
        return ir.Operation.create(op.name, [kind], [], held).result
    whole = {"broadcast_dimensions": ir.DenseI64ArrayAttr.get([])}
    return ir.Operation.create(op.name, [kind], list(op.operands), whole).result
