"""The product of a weight's gradient that adds to `main_grad` (`fused_weight_gradient_mlp_cuda`)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from flint.frontends.torch_world.packages.kernels import kernel, rows_of
from flint.ir.op_class import OpClass
from flint.ir.product_types import product_type
from flint.passes.work import formulas
from flint.passes.work.declared import KernelCall
from flint.passes.work.work import Work

__all__ = ["wgrad_gemm_accum_fp16", "wgrad_gemm_accum_fp32"]


def _cost(call: KernelCall) -> Work:
    """Gradients (m, n), turned, times rows (m, k), added to (n, k)."""
    (m, k), (_, n) = call.operands[0].shape, call.operands[1].shape
    product = product_type([o.dtype for o in call.operands[:2]])
    found = formulas.product(1, n, k, m, product=product, added=n * k)
    return replace(found, op=OpClass.MATMUL)


@kernel("apex::wgrad_gemm_accum", "(Tensor x, Tensor grad, Tensor(a!) out) -> ()", _cost)
def _accumulate(x: Any, grad: Any, out: Any) -> None:
    """The product, added in place."""


def wgrad_gemm_accum_fp32(x: Any, grad: Any, out: Any) -> None:
    """Add the gradient of a weight to a sum in f32."""
    _accumulate(rows_of(x), rows_of(grad), out)


def wgrad_gemm_accum_fp16(x: Any, grad: Any, out: Any) -> None:
    """Add the gradient of a weight to a sum in half precision."""
    _accumulate(rows_of(x), rows_of(grad), out)
