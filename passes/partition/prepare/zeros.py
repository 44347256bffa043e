"""What every compiler drops or writes otherwise before it partitions: zeros, empty tensors, reshapes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flint.passes.mlir import defining_operation, operations_named, shape_of

if TYPE_CHECKING:
    from jaxlib.mlir import ir


def drop_added_zeros(module: Any) -> None:
    """Replace `x + 0` by `x`, in place: Python's `sum` of a list of arrays begins with one."""
    for op in operations_named(module, "stablehlo.add"):
        for number in (0, 1):
            other = op.operands[1 - number]
            if is_zero(op.operands[number]) and other.type == op.results[0].type:
                op.results[0].replace_all_uses_with(other)
                op.erase()
                break


def add_into_scatters(module: ir.Module) -> None:
    """Write `x + scatter(0, ...)` as `scatter(x, ...)` if the scatter adds, in place.

    The gradient of a table that is looked up and multiplied with is such a sum, and that of scores.
    """
    for op in operations_named(module, "stablehlo.scatter"):
        uses = list(op.results[0].uses)
        reader = uses[0].owner.operation if len(uses) == 1 and _adds(op) else None
        if reader is None or reader.name != "stablehlo.add" or reader.parent != op.parent:
            continue
        other = reader.operands[1 - uses[0].operand_number]
        if is_zero(op.operands[0]) and other.type == op.results[0].type:
            op.move_before(reader)
            op.operands[0] = other
            reader.results[0].replace_all_uses_with(op.results[0])
            reader.erase()


def _adds(scatter: ir.Operation) -> bool:
    """Whether a scatter adds what it writes to what is there."""
    (block,) = scatter.regions[0].blocks
    made = [o.operation for o in block.operations]
    return len(made) == 2 and made[0].name == "stablehlo.add" and len(block.arguments) == 2


def join_reshapes(module: Any) -> None:
    """Write a reshape of a reshape as one, or as none, in place: shardings propagate otherwise."""
    for op in operations_named(module, "stablehlo.reshape"):
        inner = defining_operation(op.operands[0])
        if inner is None or inner.name != op.name:
            continue
        value = inner.operands[0]
        op.operands[0] = value
        if not len(list(inner.results[0].uses)):
            inner.erase()
        if value.type == op.results[0].type:
            op.results[0].replace_all_uses_with(value)
            op.erase()


def pad_with_constants(module: Any) -> None:
    """Write a concatenation with copies of one number as a pad, in place."""
    from jaxlib.mlir import ir

    for op in operations_named(module, "stablehlo.concatenate"):
        splats = [_splat_of(v) for v in op.operands]
        known = [number for number, splat in enumerate(splats) if splat is not None]
        if len(splats) != 2 or len(known) != 1:
            continue
        at = known[0]
        edges = [0] * len(shape_of(op.results[0]))
        along = int(op.attributes["dimension"])
        wide = edges[:along] + [shape_of(op.operands[at])[along]] + edges[along + 1 :]
        low, high = (wide, edges) if at == 0 else (edges, wide)
        widths = {"edge_padding_low": low, "edge_padding_high": high, "interior_padding": edges}
        with ir.InsertionPoint(op), op.location:
            scalar = ir.RankedTensorType.get([], op.results[0].type.element_type)
            held = {"value": ir.DenseElementsAttr.get_splat(scalar, splats[at])}
            number = ir.Operation.create("stablehlo.constant", [scalar], [], held)
            made = ir.Operation.create(
                "stablehlo.pad",
                [op.results[0].type],
                [op.operands[1 - at], number.result],
                {name: ir.DenseI64ArrayAttr.get(w) for name, w in widths.items()},
            )
        op.results[0].replace_all_uses_with(made.result)
        op.erase()


def drop_empty_results(module: Any) -> None:
    """Make what has no elements of nothing, in place: the largest 0 of a row read all of it."""
    from jaxlib.mlir import ir

    found: list[Any] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        name = str(op.name)
        is_made = name.startswith(("stablehlo.", "chlo.")) and name not in _ACTS
        if is_made and len(op.results) and all(map(_is_empty, op.results)):
            found.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    for op in found:
        with ir.InsertionPoint(op), op.location:
            for result in op.results:
                held = {"value": ir.Attribute.parse(f"dense<> : {result.type}")}
                made = ir.Operation.create("stablehlo.constant", [result.type], [], held)
                result.replace_all_uses_with(made.result)
        op.erase()


#: Operations that do something beside their results, or whose results are those of their regions.
_ACTS = frozenset(
    f"stablehlo.{name}"
    for name in [
        "constant",
        "custom_call",
        "while",
        "case",
        "if",
        "infeed",
        "outfeed",
        "send",
        "recv",
        "after_all",
        "all_gather",
        "all_reduce",
        "all_to_all",
        "collective_broadcast",
        "collective_permute",
        "reduce_scatter",
    ]
)


def _is_empty(value: Any) -> bool:
    from jaxlib.mlir import ir

    return isinstance(value.type, ir.RankedTensorType) and 0 in shape_of(value)


def is_zero(value: Any) -> bool:
    """Whether a value is a constant of zeros, or a broadcast of one."""
    splat = _splat_of(value)
    return splat is not None and _number(splat) == 0


def _splat_of(value: Any) -> Any | None:
    """The attribute of the number that all elements of a constant, or a broadcast of one, are."""
    from jaxlib.mlir import ir

    maker = defining_operation(value)
    while maker is not None and (
        maker.name == "stablehlo.broadcast_in_dim" or _converts_nothing(maker)
    ):
        maker = defining_operation(maker.operands[0])
    if maker is None or maker.name != "stablehlo.constant":
        return None
    if isinstance(ir.RankedTensorType(maker.results[0].type).element_type, ir.ComplexType):
        return None  # jaxlib does not read them
    held = ir.DenseElementsAttr(maker.attributes["value"])
    return held.get_splat_value() if held.is_splat else None


def _converts_nothing(op: Any) -> bool:
    return bool(op.name == "stablehlo.convert" and op.operands[0].type == op.results[0].type)


def _number(attribute: Any) -> float:
    from jaxlib.mlir import ir

    if isinstance(attribute, ir.FloatAttr | ir.IntegerAttr | ir.BoolAttr):
        return float(attribute.value)
    return float("nan")
