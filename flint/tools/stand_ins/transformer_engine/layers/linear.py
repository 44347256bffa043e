"""Linear layers: a product forward, two backward, and the collectives of tensor parallelism."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from flint.errors import FlintError
from flint.frontends.torch_world.packages.kernels import rows_of
from flint.frontends.torch_world.packages.package import tell
from flint.tools.stand_ins.transformer_engine.groups import (
    all_reduce,
    gather_rows,
    reduce_scatter_rows,
)
from flint.tools.stand_ins.transformer_engine.layers.base import TransformerEngineBaseModule
from flint.tools.stand_ins.transformer_engine.products import (
    amax,
    gemm,
    input_gradient,
    packed,
    quantize,
    transpose,
    weight_gradient,
)
from flint.tools.stand_ins.transformer_engine.recipes import Recipe

__all__ = ["Linear"]


@dataclass(frozen=True)
class LinearCall:
    """How one call of a linear layer runs.

    `mode` is "column", "row" or None; `cache` holds the weight in fp8 from the first microbatch on.
    """

    mode: str | None
    group: Any
    size: int
    sequence_parallel: bool
    fuses: bool
    recipe: Recipe | None
    cache: dict[str, Any] = field(default_factory=dict)

    @property
    def gathers_input(self) -> bool:
        """Whether the rows of all ranks are multiplied by this rank's columns of the weight."""
        return self.mode == "column" and self.sequence_parallel

    @property
    def scatters_result(self) -> bool:
        """Whether the sum over ranks is split by rows."""
        return self.mode == "row" and self.sequence_parallel

    @property
    def splits(self) -> bool:
        """Whether the layer is split over ranks at all."""
        return self.mode is not None and self.size > 1


class LinearFunction(torch.autograd.Function):
    """A linear layer, as Transformer Engine's `_Linear`: in this order, and saving this."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, bias: Any, call: LinearCall) -> Any:
        rows = rows_of(x)
        ctx.call, ctx.shape, ctx.dtype = call, x.shape, x.dtype
        ctx.biased, ctx.turned = bias is not None, ""
        if call.recipe is None:
            whole = gather_rows(rows, call.group)[0] if call.gathers_input else rows
            out = gemm(whole, weight, bias, rows.dtype)
            ctx.save_for_backward(rows, weight)
        else:
            out = _forward_in_fp8(ctx, rows, weight, bias, call)
        if call.scatters_result:
            out = reduce_scatter_rows(out, call.group)[0]
        elif call.mode == "row" and call.splits:
            out = all_reduce(out, call.group)[0]
        ctx.weight = weight
        return out.view(-1, *x.shape[1:-1], out.shape[-1])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        call, grad = ctx.call, rows_of(gradients[0])
        in_fp8 = call.recipe is not None
        needs_input, needs_weight = ctx.needs_input_grad[:2]
        quantized = _quantized(grad, call.recipe, backward=True) if in_fp8 else None
        if call.scatters_result:
            grad = gather_rows(grad if quantized is None else quantized.rows, call.group)[0]
        rows, weight = ctx.saved_tensors
        gathered, work = rows, None
        if call.gathers_input and needs_weight:
            gathered, work = gather_rows(rows, call.group, asynchronous=True)
        of_input, reduced = None, None
        if needs_input:
            left = grad if quantized is None or call.scatters_result else quantized.rows
            if ctx.turned:
                weight = transpose(weight) if ctx.turned == "late" else weight
                of_input = gemm(left, weight, None, ctx.dtype, call.recipe.block)
            else:
                of_input = input_gradient(left, weight, ctx.dtype)
            of_input, reduced = _reduce_input_gradient(of_input, call)
        if work is not None:
            work.wait()
        of_weight = of_bias = None
        if needs_weight:
            right = gathered
            if quantized is not None and ctx.turned:
                grad = transpose(grad) if call.scatters_result else quantized.turned
                right = transpose(gathered) if call.gathers_input else gathered
            elif quantized is not None and not call.scatters_result:
                grad = quantized.rows
            of_weight, of_bias = weight_gradient(
                *(grad, right, ctx.weight),
                fuses=call.fuses,
                bias=ctx.biased and ctx.needs_input_grad[2],
                dtype=ctx.dtype,
                turned=bool(ctx.turned),
                block=call.recipe.block if in_fp8 else 0,
            )
        if reduced is not None:
            reduced.wait()
        shaped = of_input.view(ctx.shape) if of_input is not None else None
        return shaped, of_weight, of_bias, None


def _reduce_input_gradient(gradient: Any, call: LinearCall) -> tuple[Any, Any]:
    """Its sum over ranks, which runs while the weight's gradient is calculated."""
    if call.mode != "column" or not call.splits:
        return gradient, None
    if call.sequence_parallel:
        return reduce_scatter_rows(gradient, call.group, asynchronous=True)
    return all_reduce(gradient, call.group, asynchronous=True)


@dataclass(frozen=True)
class Quantized:
    """A matrix in fp8, and its transpose where products of gradients need that."""

    rows: Any
    turned: Any


def _quantized(
    x: Any, recipe: Any, *, backward: bool = False, rows: bool = True, turned: bool = True
) -> Quantized:
    if recipe.passes:
        amax(x)
    types, turned = recipe.fp8_format.value, turned and needs_transposes(recipe)
    found = quantize(x, types.bwd if backward else types.fwd, rows, turned, recipe.block)
    return Quantized(found[0], found[1])


def _forward_in_fp8(ctx: Any, rows: Any, weight: Any, bias: Any, call: LinearCall) -> Any:
    """The product in fp8. What is kept for the backward pass is in fp8, too."""
    assert call.recipe is not None, "without a recipe nothing is in fp8"
    turned = ctx.needs_input_grad[1] and not call.gathers_input
    x = _quantized(rows, call.recipe, turned=turned)
    kept = call.cache.get("weight")
    if kept is None and weight.dtype in (torch.float8_e4m3fn, torch.float4_e2m1fn_x2):
        pair = packed(weight.dtype)
        across = weight.new_empty((pair * weight.shape[1], weight.shape[0] // pair))
        kept = Quantized(weight, weight if pair == 1 else across)  # in fp4 both are kept
    elif kept is None:
        kept = call.cache["weight"] = _quantized(weight, call.recipe)
    if needs_transposes(call.recipe):
        ctx.turned = "late" if kept.turned is weight else "saved"
    whole = gather_rows(x.rows, call.group)[0] if call.gathers_input else x.rows
    out = gemm(whole, kept.rows, bias, rows.dtype, call.recipe.block)
    row_wise = call.gathers_input or not ctx.turned
    ctx.save_for_backward(
        x.rows if row_wise else x.turned, kept.turned if ctx.turned else kept.rows
    )
    return out


def needs_transposes(recipe: Recipe) -> bool:
    """Whether products read both operands along the dimension that they sum over.

    With one scale for a tensor, data centers' chips from Blackwell on multiply in any layout
    (Transformer Engine's `is_non_tn_fp8_gemm_supported`).
    """
    major = torch.cuda.get_device_capability()[0]
    return bool(recipe.block) or major < 10 or major == 12


def refuse(what: str, help: str) -> FlintError:
    """The error for an option that cannot be recorded."""
    return FlintError("FL235", f"Transformer Engine's {what} cannot be recorded", help=help)


class Linear(TransformerEngineBaseModule):
    """`transformer_engine.pytorch.Linear`."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        sequence_parallel: bool = False,
        fuse_wgrad_accumulation: bool = False,
        tp_group: Any = None,
        tp_size: int = 1,
        get_rng_state_tracker: Callable[..., Any] | None = None,
        init_method: Callable[..., Any] | None = None,
        bias: bool = True,
        return_bias: bool = False,
        params_dtype: torch.dtype | None = None,
        parallel_mode: str | None = None,
        parameters_split: Any = None,
        device: Any = "cuda",
        ub_overlap_ag: bool = False,
        ub_overlap_rs: bool = False,
        ub_overlap_rs_dgrad: bool = False,
        ub_bulk_dgrad: bool = False,
        ub_bulk_wgrad: bool = False,
        ub_name: str | None = None,
        delay_wgrad_compute: bool = False,
        symmetric_ar_type: str | None = None,
        save_original_input: bool = False,
        rng_tracker_name: str | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__()
        self._split(tp_group, tp_size, sequence_parallel, parallel_mode)
        _told_of_overlap(ub_overlap_ag, ub_overlap_rs, ub_overlap_rs_dgrad, ub_bulk_dgrad)
        if delay_wgrad_compute:
            raise refuse("delay_wgrad_compute", "turn it off: gradients are the same")
        if parallel_mode == "column":
            out_features //= self.tp_size
        elif parallel_mode == "row":
            in_features //= self.tp_size
        self.in_features, self.out_features = in_features, out_features
        self.fuse_wgrad_accumulation = fuse_wgrad_accumulation
        self.use_bias, self.return_bias = bias, return_bias
        self.apply_bias = bias and not return_bias
        self.ub_name, self.save_original_input = ub_name, save_original_input
        self._fp8_weights: dict[str, Any] = {}
        made = (params_dtype or torch.get_default_dtype(), device)
        fill = init_method or (lambda w: torch.nn.init.normal_(w, mean=0.0, std=0.023))
        split = 1 if parallel_mode == "row" else 0
        self._weight("weight", (out_features, in_features), (*made, fill), split)
        self._make_bias(bias, made)

    def _make_bias(self, bias: bool, made: tuple[Any, Any]) -> None:
        if not bias:
            self.bias = torch.empty(0, dtype=made[0])
            return
        along = 0 if self.parallel_mode == "column" else None
        self._weight("bias", (self.out_features,), (*made, torch.nn.init.zeros_), along)
        if self.parallel_mode == "row":
            self.bias.sequence_parallel = self.sequence_parallel

    def reset_parameters(self, defer_init: bool = False) -> None:
        """Fill the parameters again: values do not matter."""

    def linear_call(self, is_first_microbatch: bool | None) -> LinearCall:
        """How the next call runs."""
        if is_first_microbatch is None or is_first_microbatch:
            self._fp8_weights = {}
        return LinearCall(
            self.parallel_mode,
            self.tp_group,
            self.tp_size,
            self.sequence_parallel,
            self.fuse_wgrad_accumulation,
            self.recipe(),
            self._fp8_weights if is_first_microbatch is not None else {},
        )

    def forward(
        self,
        inp: torch.Tensor,
        is_first_microbatch: bool | None = None,
        fp8_output: bool = False,
        fp8_grad: bool = False,
    ) -> Any:
        """The layer; with `return_bias` the bias is given back instead of added."""
        return self.multiply(inp, is_first_microbatch)

    def multiply(self, inp: torch.Tensor, is_first_microbatch: bool | None) -> Any:
        """The product, its collectives and what is done with the bias."""
        call = self.linear_call(is_first_microbatch)
        dtype = _autocast_type(inp)
        x, weight = inp.to(dtype), self.weight
        if call.recipe is None or weight.dtype.itemsize > 1:  # not kept in fp8
            weight = weight.to(dtype)
        if weight is not self.weight and call.fuses:
            raise refuse("fuse_wgrad_accumulation under autocast", "use parameters of one type")
        bias = self.bias.to(dtype) if self.use_bias else None
        late = call.mode == "row" and call.splits  # added once, after the sum over ranks
        in_product = bias if self.apply_bias and not late else None
        out = LinearFunction.apply(x, weight, in_product, call)
        if self.apply_bias and late:
            out = out + bias
        return (out, bias) if self.return_bias else out


def _autocast_type(x: torch.Tensor) -> torch.dtype:
    """What products are calculated in: autocast's type, or the input's."""
    kind = x.device.type
    if torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return x.dtype


def _told_of_overlap(*asked: bool) -> None:
    if any(asked):
        tell(
            "communication that Transformer Engine overlaps with its products in user buffers "
            "(tp_comm_overlap) was recorded whole, before and after them"
        )
