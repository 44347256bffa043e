"""The shardings that a captured program gives its arguments, for programs that others partition."""

from __future__ import annotations

from flint.passes.extract.tensors import Tensors, show
from flint.passes.mlir import functions_of, make_context
from flint.steps.captured import Captured

_ARGUMENTS, _SHARDING = "arg_attrs", "sdy.sharding"


def argument_shardings(captured: Captured) -> list[str]:
    """In Shardy's spelling, `[{"data"}, {}]`, one for each argument; "" where none is given.

    XLA's modules have the parts that a device holds, and say no more of the whole.
    """
    from jaxlib.mlir import ir

    with make_context():
        module = ir.Module.parse(captured.module)  # operations live as long as it does
        main = functions_of(module)["main"]
        if _ARGUMENTS not in main.attributes:
            return []
        tensors = Tensors(captured.mesh)
        given = (ir.DictAttr(a) for a in ir.ArrayAttr(main.attributes[_ARGUMENTS]))
        return [show(tensors.parse(a[_SHARDING])) if _SHARDING in a else "" for a in given]
