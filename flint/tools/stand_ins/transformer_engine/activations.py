"""Activations, one kernel each way, as modules of `transformer_engine.pytorch.ops`."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from flint.frontends.torch_world.packages.kernels import calculation, kernel
from flint.passes.work.declared import KernelCall
from flint.passes.work.work import Work

__all__ = [
    "GEGLU",
    "GELU",
    "FusibleOperation",
    "ReGLU",
    "ReLU",
    "Sequential",
    "SiLU",
    "SwiGLU",
    "activated",
]
#: Operations and transcendental functions of an element of the result; backward of an element of
#: the gradient: `x * s(x)` and its derivative, and the product of a gated unit.
_FORWARD = {"gelu": (5, 1), "silu": (2, 1), "relu": (1, 0)}
_BACKWARD = {"gelu": (9, 2), "silu": (6, 1), "relu": (2, 0)}
#: Names of activations to what they apply, and whether a second half of the input is a gate.
_KINDS = {
    "gelu": ("gelu", False),
    "relu": ("relu", False),
    "silu": ("silu", False),
    "geglu": ("gelu", True),
    "reglu": ("relu", True),
    "swiglu": ("silu", True),
}


def _forward_cost(call: KernelCall) -> Work:
    function, gated = _KINDS[str(call.attributes["name"])]
    flops, functions = _FORWARD[function]
    elements = call.results[0].num_elements
    return calculation((flops + gated) * elements, functions=functions * elements)


def _backward_cost(call: KernelCall) -> Work:
    function, gated = _KINDS[str(call.attributes["name"])]
    flops, functions = _BACKWARD[function]
    flops += (_FORWARD[function][0] + 2) * gated  # of the gate: the activation again, two products
    elements = call.operands[0].num_elements
    return calculation(flops * elements, functions=functions * elements)


@kernel("te::activation", "(Tensor x, str name) -> Tensor", _forward_cost)
def _forward(x: Any, name: str) -> torch.Tensor:
    size = x.shape[-1] // 2 if _KINDS[name][1] else x.shape[-1]
    return x.new_empty((*x.shape[:-1], size))


@kernel("te::activation_backward", "(Tensor grad, Tensor x, str name) -> Tensor", _backward_cost)
def _backward(grad: Any, x: Any, name: str) -> torch.Tensor:
    return x.new_empty(x.shape)


class _Activation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, name: str) -> Any:
        ctx.name = name
        ctx.save_for_backward(x)
        return _forward(x, name)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (x,) = ctx.saved_tensors
        return _backward(gradients[0].contiguous(), x, ctx.name), None


def activated(x: torch.Tensor, name: str) -> Any:
    """An activation by its name (`swiglu`)."""
    return _Activation.apply(x, name)


class FusibleOperation(nn.Module):
    """An operation of `transformer_engine.pytorch.ops`."""


class Sequential(nn.Sequential):
    """Operations one after the other, each by itself: none are fused here."""


class _Module(FusibleOperation):
    activation = ""

    def __init__(self, *, cache_quantized_input: bool = False) -> None:
        super().__init__()

    def forward(self, x: torch.Tensor) -> Any:
        return activated(x, self.activation)


class GELU(_Module):
    """The Gaussian error linear unit."""

    activation = "gelu"


class ReLU(_Module):
    """The rectified linear unit."""

    activation = "relu"


class SiLU(_Module):
    """The sigmoid linear unit."""

    activation = "silu"


class GEGLU(_Module):
    """A gated unit with GELU."""

    activation = "geglu"


class ReGLU(_Module):
    """A gated unit with ReLU."""

    activation = "reglu"


class SwiGLU(_Module):
    """A gated unit with SiLU."""

    activation = "swiglu"
