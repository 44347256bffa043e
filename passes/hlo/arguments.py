"""The shardings that a captured program gives its arguments, for programs that others partition."""

from __future__ import annotations

from typing import Any, NamedTuple

from flint.passes.mlir import functions_of, make_context
from flint.passes.tensors import Tensors, show
from flint.steps.captured import Captured

_ARGUMENTS, _SHARDING, _MEMORY = "arg_attrs", "sdy.sharding", "mhlo.memory_kind"
_DONATED = ("jax.buffer_donor", "tf.aliasing_output")


class GivenArgument(NamedTuple):
    """Its sharding in Shardy's spelling, `[{"data"}, {}]` ("": none), whether the host holds it, and whether
    the step may overwrite it.
    """

    sharding: str
    on_host: bool
    donated: bool


def given_arguments(captured: Captured) -> list[GivenArgument]:
    """What a program says of each of its arguments; nothing if it says nothing of any.

    XLA's modules have the parts that a device holds, and say no more of the whole.
    """
    from jaxlib.mlir import ir

    with make_context():
        module = ir.Module.parse(captured.module)  # operations live as long as it does
        main = functions_of(module)["main"]
        if _ARGUMENTS not in main.attributes:
            return []
        tensors = Tensors(captured.mesh)

        def given(a: Any) -> GivenArgument:
            has_sharding = _SHARDING in a and not captured.is_gspmd
            sharding = show(tensors.parse(a[_SHARDING])) if has_sharding else ""
            on_host = _MEMORY in a and "host" in a[_MEMORY].value
            return GivenArgument(sharding, on_host, any(name in a for name in _DONATED))

        return list(map(given, map(ir.DictAttr, ir.ArrayAttr(main.attributes[_ARGUMENTS]))))


def argument_shardings(captured: Captured) -> list[str]:
    """The sharding of each argument, "" where none is given."""
    return [argument.sharding for argument in given_arguments(captured)]
