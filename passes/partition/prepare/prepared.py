"""What XLA's compilers do to a program before they simplify it, and the one for CPUs does not."""

from __future__ import annotations

import math
from typing import Any, Final

from flint.passes.mlir import operations_named, rewritten, shape_of
from flint.passes.partition.prepare.host_calls import rename_moves, take_host_calls_apart
from flint.passes.partition.prepare.inline import inline_calls
from flint.passes.partition.prepare.kept_fills import keep_fills
from flint.passes.partition.prepare.scans import scans_as_windows
from flint.passes.partition.prepare.single_scatters import expand_single_scatters


def prepared(bytecode: bytes) -> bytes:
    """A StableHLO module as XLA simplifies it. To be called where MLIR may be loaded."""

    def change(module: Any) -> None:
        inline_calls(module)
        take_host_calls_apart(module, bytecode)
        rename_moves(module)
        if b"scan" in bytecode:
            scans_as_windows(module)
        if b"scatter" in bytecode:
            expand_single_scatters(module)
        _call_searches(module)
        keep_fills(module)

    return rewritten(bytecode, change)


# The largest few, as rows and a call (`TopkRewriter`): XLA's partitioner searches parts of such a call, and
# gathers the operand of any other form.

_TARGET, _COMPARE = "TopK", "flint_greater_than"
_COMPARISON: Final = """
func.func private @{name}(%a: tensor<{type}>, %b: tensor<{type}>, %c: tensor<i32>, %d: tensor<i32>) -> tensor<i1> {{
  %0 = stablehlo.compare GT, %a, %b : (tensor<{type}>, tensor<{type}>) -> tensor<i1>
  return %0 : tensor<i1>
}}
"""


def _call_searches(module: Any) -> None:
    """Rewrite every `chlo.top_k` of `module` in place."""
    from jaxlib.mlir import ir

    named: set[str] = set()
    for op in operations_named(module, "chlo.top_k"):
        if 0 in shape_of(op.results[0]):
            continue
        element = str(ir.RankedTensorType(op.operands[0].type).element_type)
        name = f"{_COMPARE}_{element}"
        if name not in named:
            named.add(name)
            made = ir.Module.parse(_COMPARISON.format(name=name, type=element))
            module.body.append(made.body.operations[0].operation.clone())
        with ir.InsertionPoint(op), op.location:
            _call(op, name)
        op.erase()


def _call(op: Any, compare: str) -> None:
    from jaxlib.mlir import ir

    def rows(value_type: Any) -> Any:
        kind = ir.RankedTensorType(value_type)
        whole = [math.prod(kind.shape[:-1]), kind.shape[-1]]
        return ir.RankedTensorType.get(whole, kind.element_type)

    searched = _reshaped(op.operands[0], rows(op.operands[0].type))
    call = ir.Operation.create(
        "stablehlo.custom_call",
        results=[rows(r.type) for r in op.results],
        operands=[searched],
        attributes={
            "call_target_name": ir.StringAttr.get(_TARGET),
            "called_computations": ir.ArrayAttr.get([ir.FlatSymbolRefAttr.get(compare)]),
        },
    )
    for old, new in zip(op.results, call.results, strict=True):
        old.replace_all_uses_with(_reshaped(new, old.type))


def _reshaped(value: Any, result_type: Any) -> Any:
    from jaxlib.mlir import ir

    if value.type == result_type:
        return value
    return ir.Operation.create("stablehlo.reshape", results=[result_type], operands=[value]).result
