"""Transformer Engine's products of matrices: cuBLASLt with a bias, into a sum of gradients, in fp8."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from flint.frontends.torch_world.packages.kernels import calculation, copies, kernel, per_element
from flint.ir.op_class import OpClass
from flint.ir.product_types import by_block, product_type
from flint.passes.work import formulas
from flint.passes.work.declared import KernelCall
from flint.passes.work.work import Work

__all__ = [
    "amax",
    "dequantize",
    "dummy_gradient",
    "gemm",
    "input_gradient",
    "multiplied",
    "quantize",
    "transpose",
    "weight_gradient",
]


def _product(m: int, n: int, k: int, call: KernelCall, added: int, batch: int = 1) -> Work:
    found = formulas.product(batch, m, n, k, product=multiplied(call), added=added)
    return replace(found, op=OpClass.MATMUL)


def multiplied(call: KernelCall) -> str:
    """What a product multiplies; `block` elements of an operand share a scale (0: all)."""
    types = ["f4E2M1FN" if packed(o.dtype) > 1 else o.dtype for o in call.operands[:2]]
    name = product_type(types)
    return by_block(name) if call.attributes.get("block") else name


def packed(dtype: object) -> int:
    """Numbers in an element: 2 of 4 bits."""
    return 2 if str(dtype).endswith("_x2") else 1


def _forward_cost(call: KernelCall) -> Work:
    """Rows (m, k) times the transposed weight (n, k); a bias is one more for each result."""
    (m, k), (n, _) = call.operands[0].shape, call.operands[1].shape
    k *= packed(call.operands[0].dtype)
    biased = len(call.operands) > 2
    return _product(m, n, k, call, m * n if biased else 0)


@kernel(
    "te::gemm",
    "(Tensor x, Tensor weight, Tensor? bias, ScalarType dtype, int block=0) -> Tensor",
    _forward_cost,
)
def gemm(x: Any, weight: Any, bias: Any, dtype: torch.dtype, block: int = 0) -> torch.Tensor:
    """Rows times the transposed weight, and a bias in the product's epilogue."""
    return x.new_empty((x.shape[0], weight.shape[0]), dtype=dtype)


def _input_gradient_cost(call: KernelCall) -> Work:
    """Gradients (m, n) times the weight (n, k)."""
    (m, n), (_, k) = call.operands[0].shape, call.operands[1].shape
    return _product(m, k, n, call, 0)


@kernel(
    "te::dgrad", "(Tensor grad, Tensor weight, ScalarType dtype) -> Tensor", _input_gradient_cost
)
def input_gradient(grad: Any, weight: Any, dtype: torch.dtype) -> torch.Tensor:
    """The gradient of a linear layer's input."""
    return grad.new_empty((grad.shape[0], weight.shape[1]), dtype=dtype)


def _weight_gradient_cost(call: KernelCall) -> Work:
    """Gradients (m, n), turned, times rows (m, k); added to what is there; a sum for the bias.

    In fp8 both were written turned.
    """
    (m, n), (_, k) = call.operands[0].shape, call.operands[1].shape
    if call.attributes.get("turned"):
        (n, m), (k, _) = call.operands[0].shape, call.operands[1].shape
        m *= packed(call.operands[0].dtype)
    adds = n * k if call.attributes.get("accumulate") else 0
    adds += m * n if call.attributes.get("bias") else 0
    return _product(n, k, m, call, adds)


@kernel(
    "te::wgrad",
    "(Tensor grad, Tensor x, ScalarType dtype, bool bias, bool turned, int block=0) "
    "-> (Tensor, Tensor)",
    _weight_gradient_cost,
)
def _new_weight_gradient(
    grad: Any, x: Any, dtype: torch.dtype, bias: bool, turned: bool, block: int = 0
) -> Any:
    n, k = (grad.shape[0], x.shape[0]) if turned else (grad.shape[1], x.shape[1])
    return x.new_empty((n, k), dtype=dtype), x.new_empty((n if bias else 0,), dtype=dtype)


@kernel(
    "te::wgrad_",
    "(Tensor grad, Tensor x, Tensor(a!) out, ScalarType dtype, bool accumulate, bool bias, "
    "bool turned, int block=0) -> Tensor",
    _weight_gradient_cost,
)
def _weight_gradient_into(
    grad: Any,
    x: Any,
    out: Any,
    dtype: Any,
    accumulate: bool,
    bias: bool,
    turned: bool,
    block: int = 0,
) -> Any:
    return x.new_empty((out.shape[0] if bias else 0,), dtype=dtype)


def weight_gradient(
    grad: Any,
    x: Any,
    weight: Any,
    *,
    fuses: bool,
    bias: bool,
    dtype: torch.dtype,
    turned: bool = False,
    block: int = 0,
) -> tuple[Any, Any]:
    """The gradients of a weight and its bias, the bias' in the epilogue of the product.

    With `fuses` (`fuse_wgrad_accumulation`) the product adds to `weight.main_grad`, and what
    autograd gets is a tensor that nothing is written to.
    """
    if not fuses:
        return _pair(_new_weight_gradient(grad, x, dtype, bias, turned, block), bias)
    accumulates = not getattr(weight, "overwrite_main_grad", False)
    into = weight.main_grad
    of_bias = _weight_gradient_into(grad, x, into, dtype, accumulates, bias, turned, block)
    return _pair((dummy_gradient(weight, dtype), of_bias), bias)


def dummy_gradient(weight: Any, dtype: torch.dtype) -> Any:
    """What autograd is given for a weight whose gradient is in `main_grad`."""
    if hasattr(weight, "grad_added_to_main_grad"):
        weight.grad_added_to_main_grad = True
        if getattr(weight, "zero_out_wgrad", False):
            return torch.zeros(weight.shape, dtype=dtype, device=weight.device)
        return torch.empty(weight.shape, dtype=dtype, device=weight.device)
    return None


def _pair(found: Any, bias: bool) -> tuple[Any, Any]:
    return found[0], found[1] if bias else None


def _sum_cost(call: KernelCall) -> Work:
    elements, rows = call.operands[0].num_elements, call.results[0].num_elements
    return replace(formulas.reduction(elements, rows), op=OpClass.REDUCE)


# --- fp8 and fp4 ------------------------------------------------------------------------------------------


def _quantize_cost(call: KernelCall) -> Work:
    """A scale, a maximum and a conversion for each element, for each way that it is written."""
    elements = call.operands[0].num_elements
    written = sum(1 for r in call.results[:2] if r.num_elements)
    return calculation(elements * (1 + written))


@kernel(
    "te::quantize",
    "(Tensor x, ScalarType dtype, bool rowwise, bool columnwise, int block) -> (Tensor, Tensor, Tensor)",
    _quantize_cost,
)
def quantize(x: Any, dtype: torch.dtype, rowwise: bool, columnwise: bool, block: int) -> Any:
    """Rows in fp8 or fp4, and their transpose, which products of gradients read; scales of blocks."""
    pair = packed(dtype)
    rows = x.new_empty((*x.shape[:-1], x.shape[-1] // pair) if rowwise else (0,), dtype=dtype)
    turned = (x.shape[1], x.shape[0] // pair) if columnwise else (0,)
    turned = x.new_empty(turned, dtype=dtype)
    ways = int(rowwise) + int(columnwise)
    scales = ways * (-(-x.numel() // block)) if block else ways
    return rows, turned, x.new_empty((scales,), dtype=torch.uint8 if block else torch.float32)


@kernel("te::dequantize", "(Tensor x, ScalarType dtype) -> Tensor", per_element(1))
def dequantize(x: Any, dtype: torch.dtype) -> torch.Tensor:
    """Numbers of 8 bits in a wider type."""
    return torch.empty_like(x, dtype=dtype)


@kernel("te::transpose", "(Tensor x) -> Tensor", copies)
def transpose(x: Any) -> torch.Tensor:
    """What was gathered in fp8, turned for the product of the weight's gradient."""
    return x.new_empty((x.shape[1], x.shape[0]))


@kernel("te::compute_amax", "(Tensor x) -> Tensor", _sum_cost)
def amax(x: Any) -> torch.Tensor:
    """The largest magnitude of a tensor, which current scaling needs before it quantizes."""
    return x.new_empty((1,), dtype=torch.float32)
