"""Operators of our own in PyTorch's graphs: what a result is sharded like, and plain names.

They compute nothing. Shardings travel as text, so that graphs can be compared and traced.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from flint.frontends.torch_graph.shardings.placements import OPEN

if TYPE_CHECKING:
    from jax.sharding import PartitionSpec
    from torch.autograd.function import FunctionCtx


_LIBRARY = torch.library.Library("flint", "FRAGMENT")
_LIBRARY.define("constrain(Tensor x, str spec, str gradient_spec) -> Tensor")
_LIBRARY.define("gather_again(Tensor x, str spec) -> Tensor")
_LIBRARY.define("identity(Tensor x) -> Tensor")

#: The spec of a constraint that constrains nothing.
FREE = ""


def text_of(spec: Iterable[Any] | None) -> str:
    """A PartitionSpec, or None, as the text that the operators take."""
    from jax.sharding import PartitionSpec

    def plain(part: Any) -> Any:
        if part is PartitionSpec.UNCONSTRAINED:
            return OPEN
        return list(part) if isinstance(part, tuple) else part

    return FREE if spec is None else json.dumps([plain(part) for part in spec])


def spec_of(text: str) -> PartitionSpec | None:
    """The PartitionSpec of `text_of`, or None."""
    from jax.sharding import PartitionSpec

    if text == FREE:
        return None

    def entry(part: Any) -> Any:
        if part == OPEN:
            return PartitionSpec.UNCONSTRAINED
        return tuple(part) if isinstance(part, list) else part

    return PartitionSpec(*(entry(part) for part in json.loads(text)))


def _same(x: torch.Tensor, *_: str) -> torch.Tensor:
    return torch.empty_like(x)


def _remember(ctx: FunctionCtx, inputs: tuple[Any, ...], output: object) -> None:
    _, ctx.spec, ctx.gradient_spec = inputs


def _constrain_gradient(
    ctx: FunctionCtx, gradient: torch.Tensor
) -> tuple[torch.Tensor, None, None]:
    """A gradient is summed up as the value is used, then laid out as it is at rest.

    With the second alone, propagation would rather gather what a product computes the gradient
    from. Vectors are sums, which become reduce-scatters by themselves.
    """
    specs = (ctx.spec, ctx.gradient_spec) if gradient.dim() > 1 else (ctx.gradient_spec,)
    for spec in dict.fromkeys(s for s in specs if s != FREE and ctx.gradient_spec != FREE):
        gradient = torch.ops.flint.constrain(gradient, spec, FREE)
    return gradient, None, None


for _name in ("constrain", "gather_again", "identity"):
    torch.library.register_fake(f"flint::{_name}", _same, lib=_LIBRARY)
torch.library.register_autograd(
    "flint::constrain", _constrain_gradient, setup_context=_remember, lib=_LIBRARY
)
torch.library.register_autograd("flint::identity", lambda ctx, g: g, lib=_LIBRARY)
