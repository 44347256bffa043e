"""Kernels over lists of tensors (Apex' `amp_C`, Transformer Engine's `multi_tensor_*`).

A call is one kernel, whatever the number of tensors; the libraries start one for about 100 of them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from flint.frontends.torch_world.packages.kernels import calculation, kernel
from flint.ir.op_class import OpClass
from flint.passes.work import formulas
from flint.passes.work.declared import KernelCall
from flint.passes.work.work import Work

__all__ = [
    "MultiTensorApply",
    "multi_tensor_adam",
    "multi_tensor_applier",
    "multi_tensor_axpby",
    "multi_tensor_l2norm",
    "multi_tensor_l2norm_scale",
    "multi_tensor_scale",
    "multi_tensor_sgd",
    "multi_tensor_unscale_l2norm",
]
#: Adam for each element, as `_fused_adamw` of PyTorch: averages, denominator, update, decay.
_ADAM = 14
_SGD = 4


def _elements(call: KernelCall, lists: int) -> int:
    return sum(o.num_elements for o in call.operands) // lists


@kernel(
    "amp_C::scale.out",
    "(Tensor[] x, Tensor(a!)[] out) -> ()",
    lambda call: calculation(_elements(call, 2)),
)
def _scale(x: Any, out: Any) -> None:
    """Each tensor times a number, into another."""


def _norm_cost(call: KernelCall) -> Work:
    elements = sum(o.num_elements for o in call.operands)
    return replace(formulas.reduction(elements, 1, 2), op=OpClass.REDUCE)


@kernel("amp_C::l2norm", "(Tensor[] x, bool each) -> (Tensor, Tensor)", _norm_cost)
def _l2norm(x: Any, each: bool) -> Any:
    """The norm of all tensors together, and of each."""
    of_all = x[0].new_empty((1,), dtype=torch.float32)
    return of_all, x[0].new_empty((len(x) if each else 0,), dtype=torch.float32)


def _update_cost(per_element: int, lists: int) -> Any:
    def cost(call: KernelCall) -> Work:
        return Work(flops=per_element * _elements(call, lists), op=OpClass.OPTIMIZER)

    return cost


@kernel(
    "amp_C::adam",
    "(Tensor[] grads, Tensor(a!)[] params, Tensor(b!)[] first, Tensor(c!)[] second) -> ()",
    _update_cost(_ADAM, 4),
)
def _adam(grads: Any, params: Any, first: Any, second: Any) -> None:
    """Adam's update of parameters and both averages."""


@kernel(
    "amp_C::adam_master",
    "(Tensor[] grads, Tensor(a!)[] params, Tensor(b!)[] first, Tensor(c!)[] second, "
    "Tensor(d!)[] masters) -> ()",
    _update_cost(_ADAM, 5),
)
def _adam_master(grads: Any, params: Any, first: Any, second: Any, masters: Any) -> None:
    """The same on a copy of the parameters in f32, which are written rounded."""


@kernel(
    "amp_C::sgd",
    "(Tensor[] grads, Tensor(a!)[] params, Tensor(b!)[] momentum) -> ()",
    _update_cost(_SGD, 3),
)
def _sgd(grads: Any, params: Any, momentum: Any) -> None:
    """Stochastic gradient descent with momentum."""


@kernel(
    "amp_C::axpby.out",
    "(Tensor[] x, Tensor[] y, Tensor(a!)[] out) -> ()",
    lambda call: calculation(3 * _elements(call, 3)),
)
def _axpby(x: Any, y: Any, out: Any) -> None:
    """Two lists, each times a number, added."""


def multi_tensor_scale(chunk_size: int, noop_flag: Any, lists: Any, scale: Any, *rest: Any) -> None:
    """`[sources, targets]`: each target becomes its source times a number."""
    if lists[0]:
        _scale(lists[0], lists[1])


def multi_tensor_l2norm(
    chunk_size: int, noop_flag: Any, lists: Any, per_tensor: bool = False, *rest: Any
) -> Any:
    """The norm of all tensors together, and of each if it is asked for."""
    return _l2norm(lists[0], bool(per_tensor))


def multi_tensor_unscale_l2norm(
    chunk_size: int, noop_flag: Any, lists: Any, inv_scale: Any, per_tensor: bool = False
) -> Any:
    """The same of tensors times a number."""
    return _l2norm(lists[0], bool(per_tensor))


def multi_tensor_l2norm_scale(
    chunk_size: int, noop_flag: Any, lists: Any, scale: Any, per_tensor: bool = False
) -> Any:
    """The norm of all tensors, which are written times a number, too."""
    _scale(lists[0], lists[1])
    return _l2norm(lists[0], bool(per_tensor))


def multi_tensor_axpby(chunk_size: int, noop_flag: Any, lists: Any, *numbers: Any) -> None:
    """`[x, y, out]`: out becomes a x + b y."""
    if lists[0]:
        _axpby(*lists)


def multi_tensor_adam(chunk_size: int, noop_flag: Any, lists: Any, *numbers: Any) -> None:
    """`[gradients, parameters, averages, averages of squares]`, and parameters in f32 if given."""
    if lists[0]:
        (_adam if len(lists) == 4 else _adam_master)(*lists)


def multi_tensor_sgd(chunk_size: int, noop_flag: Any, lists: Any, *numbers: Any) -> None:
    """`[gradients, parameters, momenta]`."""
    if lists[0]:
        _sgd(*lists[:3])


class MultiTensorApply:
    """Calls a kernel on lists."""

    available = True
    warned = False

    def __init__(self, chunk_size: int) -> None:
        self.chunk_size = chunk_size

    def __call__(self, op: Any, noop_flag_buffer: Any, tensor_lists: Any, *args: Any) -> Any:
        """The kernel's result."""
        return op(self.chunk_size, noop_flag_buffer, tensor_lists, *args)


multi_tensor_applier = MultiTensorApply(2048 * 32)
