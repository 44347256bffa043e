"""One linear layer for each expert, the rows of all of them one after the other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from flint.frontends.torch_world.packages.kernels import kernel, rows_of
from flint.ir.op_class import OpClass
from flint.ir.product_types import grouped
from flint.passes.work import formulas
from flint.passes.work.declared import KernelCall
from flint.passes.work.work import Work
from flint.tools.stand_ins.transformer_engine.layers.base import TransformerEngineBaseModule
from flint.tools.stand_ins.transformer_engine.layers.linear import refuse
from flint.tools.stand_ins.transformer_engine.products import dummy_gradient, multiplied, quantize

__all__ = ["GroupedLinear"]


def _sizes(call: KernelCall) -> tuple[int, int]:
    """How many products of one size there are, and how many rows each has.

    Products of different sizes count as one of all rows.
    """
    splits = [int(m) for m in call.attributes["m_splits"]]
    return (len(splits), splits[0]) if len(set(splits)) == 1 else (1, sum(splits))


def _work(
    call: KernelCall, batch: int, m: int, n: int, k: int, added: int, *, sums: bool = False
) -> Work:
    product = grouped(multiplied(call), len(call.attributes["m_splits"]), sums=sums)
    found = formulas.product(batch, m, n, k, product=product, added=added)
    return replace(found, op=OpClass.MATMUL)


def _forward_cost(call: KernelCall) -> Work:
    """Rows of each expert times its transposed weight (n, k)."""
    (batch, m), (n, k) = _sizes(call), call.operands[1].shape
    added = batch * m * n if call.attributes.get("biased") else 0
    return _work(call, batch, m, n, k, added)


@kernel(
    "te::grouped_gemm",
    "(Tensor x, Tensor[] weights, Tensor[] biases, int[] m_splits, bool biased, ScalarType dtype, "
    "int block=0) -> Tensor",
    _forward_cost,
)
def _forward(
    x: Any, weights: Any, biases: Any, m_splits: Any, biased: bool, dtype: Any, block: int = 0
) -> Any:
    return x.new_empty((x.shape[0], weights[0].shape[0]), dtype=dtype)


def _input_gradient_cost(call: KernelCall) -> Work:
    """Gradients (m, n) of each expert times its weight (n, k), in fp8 its transpose."""
    (batch, m), (n, k) = _sizes(call), call.operands[1].shape
    n, k = (k, n) if call.attributes.get("turned") else (n, k)
    return _work(call, batch, m, k, n, 0)


@kernel(
    "te::grouped_dgrad",
    "(Tensor grad, Tensor[] weights, int[] m_splits, bool turned, ScalarType dtype, int block=0) "
    "-> Tensor",
    _input_gradient_cost,
)
def _input_gradient(
    grad: Any, weights: Any, m_splits: Any, turned: bool, dtype: Any, block: int = 0
) -> Any:
    return grad.new_empty((grad.shape[0], weights[0].shape[0 if turned else 1]), dtype=dtype)


def _weight_gradient_cost(call: KernelCall) -> Work:
    """Gradients of each expert, turned, times its rows; added to what is there."""
    batch, m = _sizes(call)
    at = 1 if not call.attributes.get("turned") else 0
    n, k = call.operands[0].shape[at], call.operands[1].shape[at]
    count = len(call.attributes["m_splits"])
    added = count * n * k if call.attributes.get("accumulate") else 0
    added += batch * m * n if call.attributes.get("biased") else 0
    return _work(call, batch, n, k, m, added, sums=True)


@kernel(
    "te::grouped_wgrad",
    "(Tensor grad, Tensor x, int[] m_splits, bool turned, bool biased, ScalarType dtype, "
    "int block=0) -> Tensor[]",
    _weight_gradient_cost,
)
def _weight_gradients(
    grad: Any, x: Any, m_splits: Any, turned: bool, biased: bool, dtype: Any, block: int = 0
) -> list[Any]:
    at = 0 if turned else 1
    n, k = grad.shape[at], x.shape[at]
    weights = [x.new_empty((n, k), dtype=dtype) for _ in m_splits]
    return weights + [x.new_empty((n,), dtype=dtype) for _ in m_splits if biased]


@kernel(
    "te::grouped_wgrad_",
    "(Tensor grad, Tensor x, Tensor(a!)[] out, int[] m_splits, bool turned, bool biased, "
    "bool accumulate, ScalarType dtype, int block=0) -> Tensor[]",
    _weight_gradient_cost,
)
def _weight_gradients_into(
    grad: Any,
    x: Any,
    out: Any,
    m_splits: Any,
    turned: bool,
    biased: bool,
    accumulate: bool,
    dtype: Any,
    block: int = 0,
) -> list[Any]:
    return [x.new_empty((grad.shape[0 if turned else 1],), dtype=dtype) for _ in m_splits if biased]


class _Grouped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, splits: Any, layer: Any, biased: bool, *parameters: Any) -> Any:
        rows, count = rows_of(x), len(splits)
        weights, biases = list(parameters[:count]), list(parameters[count:]) if biased else []
        ctx.splits, ctx.layer, ctx.biased = splits, layer, biased
        ctx.shape, ctx.dtype, ctx.weights = x.shape, x.dtype, weights
        recipe = ctx.recipe = layer.recipe()
        if recipe is None:
            ctx.save_for_backward(rows, *weights)
            out = _forward(rows, weights, biases, splits, biased, x.dtype)
        else:
            types = recipe.fp8_format.value
            left = quantize(rows, types.fwd, True, True, recipe.block)
            right = [quantize(w, types.fwd, True, True, recipe.block) for w in weights]
            ctx.save_for_backward(left[1], *(r[1] for r in right))
            out = _forward(
                left[0], [r[0] for r in right], biases, splits, biased, x.dtype, recipe.block
            )
        return out.view(*x.shape[:-1], out.shape[-1])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        rows, *weights = ctx.saved_tensors
        grad, turned = rows_of(gradients[0]), ctx.recipe is not None
        other = grad
        if turned:
            types = ctx.recipe.fp8_format.value
            grad, other, _ = quantize(grad, types.bwd, True, True, ctx.recipe.block)
        of_input = None
        if ctx.needs_input_grad[0]:
            block = ctx.recipe.block if turned else 0
            of_input = _input_gradient(grad, weights, ctx.splits, turned, ctx.dtype, block)
            of_input = of_input.view(ctx.shape)
        of_parameters = _of_parameters(ctx, other, rows, turned)
        return (of_input, None, None, None, *of_parameters)


def _of_parameters(ctx: Any, grad: Any, rows: Any, turned: bool) -> list[Any]:
    if not any(ctx.needs_input_grad[4:]):
        return [None] * len(ctx.needs_input_grad[4:])
    block = ctx.recipe.block if turned else 0
    if not ctx.layer.fuse_wgrad_accumulation:
        return list(_weight_gradients(grad, rows, ctx.splits, turned, ctx.biased, ctx.dtype, block))
    into = [w.main_grad for w in ctx.weights]
    accumulates = not getattr(ctx.weights[0], "overwrite_main_grad", False)
    of_biases = _weight_gradients_into(
        grad, rows, into, ctx.splits, turned, ctx.biased, accumulates, ctx.dtype, block
    )
    return [dummy_gradient(w, ctx.dtype) for w in ctx.weights] + list(of_biases)


class GroupedLinear(TransformerEngineBaseModule):
    """`transformer_engine.pytorch.GroupedLinear`: products of all experts as one group."""

    def __init__(
        self,
        num_gemms: int,
        in_features: int,
        out_features: int,
        sequence_parallel: bool = False,
        fuse_wgrad_accumulation: bool = False,
        tp_group: Any = None,
        tp_size: int = 1,
        get_rng_state_tracker: Any = None,
        rng_tracker_name: str | None = None,
        init_method: Any = None,
        bias: bool = True,
        return_bias: bool = False,
        params_dtype: torch.dtype | None = None,
        parallel_mode: str | None = None,
        device: Any = "cuda",
        ub_overlap_rs: bool = False,
        ub_overlap_ag: bool = False,
        ub_name: str | None = None,
        delay_wgrad_compute: bool = False,
        save_original_input: bool = False,
    ) -> None:
        super().__init__()
        self._split(tp_group, tp_size, sequence_parallel, parallel_mode)
        if delay_wgrad_compute:
            raise refuse("delay_wgrad_compute", "turn it off: gradients are the same")
        if parallel_mode == "column":
            out_features //= self.tp_size
        elif parallel_mode == "row":
            in_features //= self.tp_size
        self.num_gemms, self.in_features, self.out_features = num_gemms, in_features, out_features
        self.fuse_wgrad_accumulation = fuse_wgrad_accumulation
        self.use_bias, self.return_bias = bias, return_bias
        self.save_original_input = save_original_input
        made = (params_dtype or torch.get_default_dtype(), device)
        fill = init_method or (lambda w: torch.nn.init.normal_(w, mean=0.0, std=0.023))
        split = 1 if parallel_mode == "row" else 0
        for at in range(num_gemms):
            self._weight(f"weight{at}", (out_features, in_features), (*made, fill), split)
            if bias:
                zeros = torch.nn.init.zeros_
                self._weight(f"bias{at}", (out_features,), (*made, zeros), None)

    def forward(
        self, inp: torch.Tensor, m_splits: list[int], is_first_microbatch: bool | None = None
    ) -> Any:
        """The layer; with `return_bias` the biases are given back instead of added."""
        kinds = ("weight", "bias") if self.use_bias else ("weight",)
        named = [[getattr(self, f"{kind}{i}") for i in range(self.num_gemms)] for kind in kinds]
        cast = [[p.to(inp.dtype) for p in group] for group in named]
        biased = self.use_bias and not self.return_bias
        flat = [*cast[0], *(cast[1] if biased else ())]
        splits = [int(m) for m in m_splits]
        out = _Grouped.apply(inp, splits, self, biased, *flat)
        return (out, cast[1] if self.use_bias else []) if self.return_bias else out
