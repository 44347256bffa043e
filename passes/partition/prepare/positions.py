"""Numbers in the names of operations, by which their order is found again after XLA."""

from __future__ import annotations

from typing import Any, Final

from flint.passes.mlir import rewritten

#: What is before a number. XLA cuts names at other signs.
MARK: Final = "~#"
#: How barriers are called that are there for XLA's partitioner alone.
KEPT: Final = "flint_kept"


def marked(bytecode: bytes) -> bytes:
    """A StableHLO module in which every operation has its position in its name."""
    return rewritten(bytecode, _mark)


def _mark(module: Any) -> None:
    from jaxlib.mlir import ir

    count = 0

    def visit(op: ir.Operation) -> ir.WalkResult:
        nonlocal count
        count += 1
        place = op.location
        named = isinstance(place, ir.NameLoc)
        name, child = (place.name_str, place.child_loc) if named else ("", place)
        op.location = ir.Location.name(f"{name}{MARK}{count}", child)
        return ir.WalkResult.ADVANCE

    for function in module.body:
        function.operation.walk(visit, ir.WalkOrder.PRE_ORDER)
