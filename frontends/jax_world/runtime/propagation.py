"""How Shardy shards the results of a module."""

from __future__ import annotations

import contextlib
import io
from typing import TYPE_CHECKING, Any

from flint.passes.mlir import functions_of, make_context, write_bytecode
from flint.passes.partition.prepare.attention import attach_attention_rules
from flint.passes.partition.shardy_pipeline import propagated_module

if TYPE_CHECKING:
    from jaxlib.mlir import ir

#: For each dimension the axes that shard it, None for none.
Spec = tuple[tuple[str, ...] | None, ...]


def result_specs(module: ir.Module) -> list[Spec]:
    """The axes of each dimension of each result of `main`, after propagation.

    A part of an axis (Shardy's sub-axes) shards nothing here: JAX's shardings have no name for it.
    Raises FlintError FL402 with the compiler's diagnostic.
    """
    from jaxlib.mlir import ir

    attach_attention_rules(module)
    written = write_bytecode(module)
    silent = contextlib.redirect_stderr(io.StringIO())  # a worker says there what it does
    with make_context(), silent:
        main = functions_of(propagated_module(written))["main"]
        kind = ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value)
        if "res_attrs" not in main.attributes:
            return [()] * len(kind.results)
        return [_spec(a) for a in main.attributes["res_attrs"]]


def _spec(attributes: Any) -> Spec:
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import sdy

    found = ir.DictAttr(attributes) if attributes else {}
    if "sdy.sharding" not in found:
        return ()
    sharding = sdy.TensorShardingAttr(found["sdy.sharding"])
    axes = [_axes(d) for d in sharding.dimension_shardings]
    while axes and axes[-1] is None:  # as JAX itself shortens them
        axes.pop()
    return tuple(axes)


def _axes(dimension: Any) -> tuple[str, ...] | None:
    from jaxlib.mlir.dialects import sdy

    names = []
    for attribute in sdy.DimensionShardingAttr(dimension).axes:
        axis = sdy.AxisRefAttr(attribute)
        if axis.sub_axis_info is not None:
            break
        names.append(str(axis.name))
    return tuple(names) or None
