"""Numbers in the names of operations, by which their order is found again after XLA."""

from __future__ import annotations

from typing import Any, Final

from flint.passes.locations import Locations
from flint.passes.mlir import make_context, write_bytecode

#: What is before a number. XLA cuts names at other signs, as at the one in names of PyTorch.
MARK: Final = "~#"
CUT: Final = "@"
ESCAPED: Final = "~&"
#: How barriers are called that are there for XLA's partitioner alone.
KEPT: Final = "flint_kept"


def marked(bytecode: bytes) -> bytes:
    """A StableHLO module in which every operation has its position in its name.

    What cannot be read stays as it is: XLA says why.
    """
    from jaxlib.mlir import ir

    with make_context():
        try:
            module = ir.Module.parse(bytecode)
        except ir.MLIRError:
            return bytecode
        _mark(module)
        return write_bytecode(module)


def _mark(module: Any) -> None:
    from jaxlib.mlir import ir

    count, locations = 0, Locations()

    def visit(op: ir.Operation) -> ir.WalkResult:
        nonlocal count
        count += 1
        place = op.location
        child = place.child_loc if isinstance(place, ir.NameLoc) else place
        name = locations.decode(place)[0].replace(CUT, ESCAPED)
        op.location = ir.Location.name(f"{name}{MARK}{count}", child)
        return ir.WalkResult.ADVANCE

    for function in module.body:
        function.operation.walk(visit, ir.WalkOrder.PRE_ORDER)
