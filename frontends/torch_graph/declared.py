"""Operators that no function computes in JAX, but whose cost the program declares: opaque calls.

One custom call each, under the operator's name. Nothing is known of how it could be partitioned:
every device computes it whole. What it costs is told by `flint.cost_of` where the call is read, or
by a formula of `torch.utils.flop_counter.register_flop_formula`, which is asked here.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.flop_counter import flop_registry

from flint.frontends.torch_declared import PLAIN, by_formula, plain_arguments, with_defaults
from flint.frontends.torch_ops.types import jax_dtype
from flint.frontends.torch_private import OpOverload, pytree, schema_of
from flint.passes.work.declared import ArrayType, KernelCall, declaration_of
from flint.passes.work.work import Work

if TYPE_CHECKING:
    from jax import Array


def is_declared(target: object) -> bool:
    """Whether the program says what an operator costs."""
    if not isinstance(target, OpOverload):
        return False
    own = target.overloadpacket in flop_registry and target.namespace not in ("aten", "prims")
    return own or declaration_of(schema_of(target).name) is not None


def call_of(node: torch.fx.Node) -> Callable[..., Any]:
    """A function of JAX arrays that stands for a node whose cost is declared."""
    name, value = schema_of(node.target).name, node.meta["val"]
    given = value if isinstance(value, tuple | list) else (value,)
    types = tuple((tuple(v.shape), jax_dtype(v.dtype)) for v in given)
    config = json.dumps(_config(node), sort_keys=True)

    def call(*args: Any, **kwargs: Any) -> Any:
        arrays = _arrays((*args, *kwargs.values()))
        found = _primitive().bind(*arrays, name=name, types=types, config=config)
        return type(value)(found) if isinstance(value, tuple | list) else found[0]

    return call


def declared_flops(node: torch.fx.Node) -> int:
    """The FLOPs that the program declares for a node, on whole arrays; see `is_declared`."""
    return _declared(node).flops


def _types_in(values: Any) -> tuple[ArrayType, ...]:
    tensors = [t for t in pytree.tree_leaves(values) if isinstance(t, torch.Tensor)]
    return tuple(
        ArrayType(tuple(t.shape), jax_dtype(t.dtype).name, t.numel() * t.element_size())
        for t in tensors
    )


def _config(node: torch.fx.Node) -> dict[str, Any]:
    """What the custom call carries: attributes, and the FLOPs if only a formula gives them."""
    config: dict[str, Any] = {"attributes": _attributes(node)}
    if declaration_of(schema_of(node.target).name) is None:
        config["cost_estimate"] = {"flops": declared_flops(node)}
    return config


def _attributes(node: torch.fx.Node) -> dict[str, Any]:
    names = [a.name for a in schema_of(node.target).arguments]
    return with_defaults(node.target, plain_arguments(names, node.args, node.kwargs))


def _declared(node: torch.fx.Node) -> Work:
    """What the program declares for a node, on whole arrays."""
    name = schema_of(node.target).name
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    declaration = declaration_of(name)
    if declaration is None:
        formula = flop_registry[node.target.overloadpacket]
        declaration = by_formula(formula, args, kwargs, node.meta["val"])
    operands, results = _types_in((*args, *kwargs.values())), _types_in((node.meta["val"],))
    return declaration.work(name, KernelCall(operands, results, _attributes(node)))


def _arrays(values: Any) -> list[Array]:
    if isinstance(values, tuple | list):
        return [array for value in values for array in _arrays(value)]
    return [] if values is None or isinstance(values, (*PLAIN, torch.dtype)) else [values]


@cache
def _primitive() -> Any:
    from jax.extend.core import Primitive
    from jax.interpreters import mlir

    primitive = Primitive("flint_declared")
    primitive.multiple_results = True
    primitive.def_abstract_eval(_types)
    mlir.register_lowering(primitive, _lower)
    return primitive


def _types(*arrays: Any, types: Any, **_: Any) -> list[Any]:
    from jax.core import ShapedArray

    return [ShapedArray(shape, dtype) for shape, dtype in types]


def _lower(context: Any, *operands: Any, name: str, config: str, **_: Any) -> Any:
    from jax.interpreters import mlir
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    call = stablehlo.CustomCallOp(
        [mlir.aval_to_ir_type(context.module_context, a) for a in context.avals_out],
        operands,
        call_target_name=ir.StringAttr.get(name),
        backend_config=ir.StringAttr.get(config),
    )
    return call.results
