"""Products of stacked matrices as one operator each, forward and backward.

PyTorch's `linear` and `matmul` flatten the leading dimensions of what they multiply, and unflatten the
result. A sharded dimension that is not the first of those joined has no place in the flat one, and
a partitioner gathers it. Here the dimensions stay as they are: one `dot_general` over any of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from flint.frontends.torch_ops.lazy_jax import lax
from flint.frontends.torch_ops.registry import torch_op
from flint.frontends.torch_ops.whole import WholeOperator, define

if TYPE_CHECKING:
    from jax import Array
    from torch.autograd.function import FunctionCtx


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """`torch.nn.functional.linear`, as one product in a traced graph, and an addition."""
    if x.dim() < 2 or weight.dim() != 2:
        return torch.nn.functional.linear(x, weight, bias)
    product = torch.ops.flint.linear(x, weight, False)
    return product if bias is None else product + bias


def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """`torch.matmul`, as one product in a traced graph wherever an operand is stacked."""
    if a.dim() > 2 and b.dim() == 2:
        return torch.ops.flint.linear(a, b, True)
    if a.dim() > 2 and b.dim() > 2:
        stack = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        a, b = (t.expand(*stack, *t.shape[-2:]) for t in (a, b))
        return torch.ops.flint.stacked(a, b, False, False)
    return torch.matmul(a, b)


#: What stands for operators of PyTorch in a graph that is about to be differentiated.
WHOLE = {torch.ops.aten.linear.default: linear, torch.ops.aten.matmul.default: matmul}


# in PyTorch -----------------------------------------------------------------------------------


def _fake_linear(x: torch.Tensor, weight: torch.Tensor, inputs_first: bool) -> torch.Tensor:
    return x.new_empty([*x.shape[:-1], weight.shape[1 if inputs_first else 0]])


def _fake_weight_gradient(grad: torch.Tensor, x: torch.Tensor, inputs_first: bool) -> torch.Tensor:
    sizes = [grad.shape[-1], x.shape[-1]]
    return grad.new_empty(sizes[::-1] if inputs_first else sizes)


def _fake_stacked(
    a: torch.Tensor, b: torch.Tensor, a_transposed: bool, b_transposed: bool
) -> torch.Tensor:
    rows, columns = a.shape[-1 if a_transposed else -2], b.shape[-2 if b_transposed else -1]
    return a.new_empty([*a.shape[:-2], rows, columns])


def _save(ctx: FunctionCtx, inputs: Sequence[Any], output: torch.Tensor) -> None:
    a, b, *ctx.options = inputs
    ctx.save_for_backward(a, b)


def _linear_gradients(ctx: FunctionCtx, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    (x, weight), (inputs_first,) = ctx.saved_tensors, ctx.options
    ops = torch.ops.flint
    of_x = of_weight = None
    if ctx.needs_input_grad[0]:
        of_x = ops.linear(grad, weight, not inputs_first)
    if ctx.needs_input_grad[1]:
        of_weight = ops.linear_weight_gradient(grad, x, inputs_first)
    return of_x, of_weight, None


def _stacked_gradients(ctx: FunctionCtx, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    """Of A B: grad B^T and A^T grad, each transposed where its operand was given so."""
    (a, b), (ta, tb) = ctx.saved_tensors, ctx.options
    product = torch.ops.flint.stacked
    of_a = of_b = None
    if ctx.needs_input_grad[0]:
        of_a = product(b, grad, tb, True) if ta else product(grad, b, False, not tb)
    if ctx.needs_input_grad[1]:
        of_b = product(grad, a, True, ta) if tb else product(a, grad, not ta, False)
    return of_a, of_b, None, None


define(
    WholeOperator(
        "linear",
        "(Tensor x, Tensor weight, bool inputs_first) -> Tensor",
        _fake_linear,
        _linear_gradients,
        _save,
    ),
    WholeOperator(
        "linear_weight_gradient",
        "(Tensor grad, Tensor x, bool inputs_first) -> Tensor",
        _fake_weight_gradient,
    ),
    WholeOperator(
        "stacked",
        "(Tensor a, Tensor b, bool a_transposed, bool b_transposed) -> Tensor",
        _fake_stacked,
        _stacked_gradients,
        _save,
    ),
)


# in JAX ---------------------------------------------------------------------------------------


@torch_op("flint::linear")
def linear_product(x: Array, weight: Array, inputs_first: bool) -> Array:
    """(..., in) x (out, in), or x (in, out): over the last dimension of `x`."""
    return lax.dot_general(x, weight, (((x.ndim - 1,), (0 if inputs_first else 1,)), ((), ())))


@torch_op("flint::linear_weight_gradient")
def linear_weight_gradient(grad: Array, x: Array, inputs_first: bool) -> Array:
    """(..., out) x (..., in) over all leading dimensions: (out, in), or (in, out)."""
    leading = tuple(range(x.ndim - 1))
    a, b = (x, grad) if inputs_first else (grad, x)
    return lax.dot_general(a, b, ((leading, leading), ((), ())))


@torch_op("flint::stacked")
def stacked(a: Array, b: Array, a_transposed: bool, b_transposed: bool) -> Array:
    """(..., m, k) x (..., k, n), each of which may be given with its last two exchanged."""
    leading = tuple(range(a.ndim - 2))
    contracted = ((a.ndim - (2 if a_transposed else 1),), (b.ndim - (1 if b_transposed else 2),))
    return lax.dot_general(a, b, (contracted, (leading, leading)))
