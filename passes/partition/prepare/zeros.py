"""What every compiler drops before it partitions: empty tensors."""

from __future__ import annotations

from typing import Any

from flint.passes.mlir import shape_of


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
