"""Operators of our own in PyTorch's graphs: what a result is sharded like, and plain names.

They compute nothing. Shardings travel as text, so that graphs can be compared and traced.
"""

from __future__ import annotations

import json
from typing import Any

import torch

_LIBRARY = torch.library.Library("flint", "FRAGMENT")
_LIBRARY.define("constrain(Tensor x, str spec, str gradient_spec) -> Tensor")
_LIBRARY.define("gather_again(Tensor x, str spec) -> Tensor")
_LIBRARY.define("identity(Tensor x) -> Tensor")

#: The spec of a constraint that constrains nothing.
FREE = ""


def text_of(spec: Any) -> str:
    """A PartitionSpec, or None, as the text that the operators take."""
    if spec is None:
        return FREE
    return json.dumps([list(part) if isinstance(part, tuple) else part for part in spec])


def spec_of(text: str) -> Any:
    """The PartitionSpec of `text_of`, or None."""
    from jax.sharding import PartitionSpec

    if text == FREE:
        return None
    parts = json.loads(text)
    return PartitionSpec(*(tuple(p) if isinstance(p, list) else p for p in parts))


def _same(x: torch.Tensor, *_: str) -> torch.Tensor:
    return torch.empty_like(x)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.gradient_spec = inputs[2]


def _constrain_gradient(ctx: Any, gradient: torch.Tensor) -> Any:
    if ctx.gradient_spec == FREE:
        return gradient, None, None
    constrained = torch.ops.flint.constrain(gradient, ctx.gradient_spec, FREE)
    return constrained, None, None


for _name in ("constrain", "gather_again", "identity"):
    torch.library.register_fake(f"flint::{_name}", _same, lib=_LIBRARY)
torch.library.register_autograd(
    "flint::constrain", _constrain_gradient, setup_context=_remember, lib=_LIBRARY
)
torch.library.register_autograd("flint::identity", lambda ctx, g: g, lib=_LIBRARY)
