"""Scaled dot-product attention as one operator, forward and backward, from PyTorch to StableHLO.

In PyTorch: `flint::attention` and its gradients, which `scaled_dot_product_attention` calls. In
StableHLO: one custom call each (`flint.attention`, `flint.attention_backward`, with `[causal]`
where the mask is causal), except for the CPU, which computes the exact mathematics. Partition and
pricing know these targets (passes/partition/prepare/attention.py, passes/hlo/work.py).

Queries are (batch, heads, sequence, size); keys and values may have fewer heads.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import torch

from flint.frontends.torch_ops.lazy_jax import jax, jnp
from flint.frontends.torch_ops.registry import torch_op
from flint.frontends.torch_ops.whole import WholeOperator, define

if TYPE_CHECKING:
    from jax import Array
    from jax.extend.core import Primitive
    from jax.interpreters import mlir
    from jaxlib.mlir import ir
    from torch.autograd.function import FunctionCtx


#: Platforms that run attention as one kernel.
KERNEL_PLATFORMS = ("cuda", "rocm", "tpu")
_OPTIONS = "float dropout_p, bool is_causal, float? scale, bool enable_gqa"
_BACKWARD = (
    "(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor? mask, Tensor out, Tensor logsumexp, "
    f"{_OPTIONS})"
)


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """`torch.nn.functional.scaled_dot_product_attention`, as one operator in a traced graph."""
    batch = torch.broadcast_shapes(*(t.shape[:-3] for t in (query, key, value)))
    q, k, v = (
        t if t.shape[:-3] == batch else t.expand(*batch, *t.shape[-3:]) for t in (query, key, value)
    )
    out, _ = torch.ops.flint.attention(
        q, k, v, attn_mask, float(dropout_p), bool(is_causal), scale, bool(enable_gqa)
    )
    return out


# in PyTorch -----------------------------------------------------------------------------------


def _like(tensor: torch.Tensor, last: int) -> torch.Tensor:
    """A new tensor with the order of dimensions in memory of `tensor`, and another last size."""
    order = sorted(range(tensor.dim()), key=lambda d: -tensor.stride(d))
    shape = [*tensor.shape[:-1], last]
    made = tensor.new_empty([shape[d] for d in order])
    return made.permute([order.index(d) for d in range(tensor.dim())])


def _accumulator(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _fake(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, *options: object
) -> tuple[torch.Tensor, torch.Tensor]:
    statistic = q.new_empty(q.shape[:-1], dtype=_accumulator(q.dtype))
    return _like(q, v.shape[-1]), statistic


def _fake_backward(
    grad: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: object
) -> tuple[torch.Tensor, ...]:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _fake_backward_mask(grad: torch.Tensor, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple(map(torch.empty_like, inputs[:4]))


def _save(
    ctx: FunctionCtx, inputs: Sequence[Any], output: tuple[torch.Tensor, torch.Tensor]
) -> None:
    q, k, v, mask, *ctx.options = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(q, k, v, mask, *output)


def _gradients(ctx: FunctionCtx, grad: torch.Tensor, _: object) -> tuple[torch.Tensor | None, ...]:
    q, k, v, mask, out, statistic = ctx.saved_tensors
    of_mask = mask is not None and ctx.needs_input_grad[3]
    ops = torch.ops.flint
    backward = ops.attention_backward_mask if of_mask else ops.attention_backward
    dq, dk, dv, *dmask = backward(grad, q, k, v, mask, out, statistic, *ctx.options)
    return dq, dk, dv, (dmask[0] if dmask else None), None, None, None, None


define(
    WholeOperator(
        "attention",
        f"(Tensor q, Tensor k, Tensor v, Tensor? mask, {_OPTIONS}) -> (Tensor, Tensor)",
        _fake,
        _gradients,
        _save,
    ),
    WholeOperator("attention_backward", f"{_BACKWARD} -> (Tensor, Tensor, Tensor)", _fake_backward),
    WholeOperator(
        "attention_backward_mask",
        f"{_BACKWARD} -> (Tensor, Tensor, Tensor, Tensor)",
        _fake_backward_mask,
    ),
)


# in JAX ---------------------------------------------------------------------------------------


class _Options(TypedDict):
    causal: bool
    scale: float  #: of the scores
    dropout: float  #: the share that is dropped


class _BackwardOptions(_Options):
    of_mask: bool  #: whether the mask is added, and has a gradient


@torch_op("flint::attention")
def attention(
    q: Array, k: Array, v: Array, mask: Array | None, *options: Any
) -> tuple[Array, Array]:
    """Output, and the log-sum-exp of every row of scores."""
    arrays = [_heads_first(x) for x in (q, k, v)]
    if mask is not None:
        arrays.append(_heads_first(_full_mask(mask, q, k)))
    out, statistic = _forward().bind(*arrays, **_options(q, *options))
    return out.reshape(*q.shape[:-1], v.shape[-1]), statistic.reshape(q.shape[:-1])


@torch_op("flint::attention_backward")
def attention_backward(grad: Array, *inputs: Any) -> tuple[Array, ...]:
    found = _bind_backward(grad, *inputs, of_mask=False)
    return tuple(g.reshape(x.shape) for g, x in zip(found, inputs[:3], strict=True))


@torch_op("flint::attention_backward_mask")
def attention_backward_mask(
    grad: Array, q: Array, k: Array, v: Array, mask: Array, *rest: Any
) -> tuple[Array, ...]:
    """Gradients of queries, keys, values and of an added mask."""
    *found, scores = _bind_backward(grad, q, k, v, mask, *rest, of_mask=True)
    scores = scores.reshape(*q.shape[:-1], k.shape[-2])
    missing = scores.ndim - mask.ndim
    widened = [d for d in range(scores.ndim) if d < missing or mask.shape[d - missing] == 1]
    summed = scores.sum([d for d in widened if scores.shape[d] != 1 or d < missing])
    of_mask = summed.reshape(mask.shape).astype(mask.dtype)
    return (*(g.reshape(x.shape) for g, x in zip(found, (q, k, v), strict=True)), of_mask)


def _options(
    q: Array, dropout_p: float, causal: bool, scale: float | None, enable_gqa: bool
) -> _Options:
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else float(scale)
    return {"causal": bool(causal), "scale": scale, "dropout": float(dropout_p)}


def _heads_first(x: Array) -> Array:
    """(batch, heads, sequence, size): further dimensions in front are batch, missing ones 1."""
    if x.ndim == 4:
        return x
    batch = math.prod(x.shape[:-3])
    heads = x.shape[-3] if x.ndim > 2 else 1
    return x.reshape(batch, heads, *x.shape[-2:])


def _full_mask(mask: Array, q: Array, k: Array) -> Array:
    """The mask with as many dimensions as the queries, and with whole rows and columns."""
    missing = q.ndim - mask.ndim
    shape = (1,) * missing + mask.shape
    batch = q.shape[:-3] if q.ndim > 4 else shape[:-3]  # what becomes one dimension is whole
    full = (*batch, *shape[max(q.ndim - 3, 0) : -2], q.shape[-2], k.shape[-2])
    mask = mask.reshape(shape)
    return mask if mask.shape == full else jnp.broadcast_to(mask, full)


def _bind_backward(
    grad: Array,
    q: Array,
    k: Array,
    v: Array,
    mask: Array | None,
    out: Array,
    logsumexp: Array,
    *options: Any,
    of_mask: bool,
) -> list[Array]:
    q4, k4, v4, grad4, out4 = (_heads_first(x) for x in (q, k, v, grad, out))
    arrays = [q4, k4, v4, logsumexp.reshape(q4.shape[:-1]), grad4, out4]
    if mask is not None:
        arrays.append(_heads_first(_full_mask(mask, q, k)))
    found: list[Array] = _backward().bind(*arrays, **_options(q, *options), of_mask=of_mask)
    return found


# the mathematics ------------------------------------------------------------------------------


def _accumulator_of(q: Array) -> Any:
    return jnp.float64 if q.dtype == jnp.float64 else jnp.float32


def _scores(q: Array, k: Array, mask: Array | None, causal: bool, scale: float) -> Array:
    """Scores as (batch, key heads, queries of one key head, queries, keys)."""
    batch, heads, rows, size = q.shape
    q = q.reshape(batch, k.shape[1], -1, rows, size)
    exact = _accumulator_of(q)
    scores = jnp.einsum("bhgsd,bhtd->bhgst", q, k, preferred_element_type=exact) * scale
    if mask is not None:
        mask = jnp.broadcast_to(mask, (batch, heads, *mask.shape[2:])).reshape(scores.shape)
        masked = jnp.where(mask, scores, -jnp.inf) if mask.dtype == bool else scores + mask
        scores = masked.astype(exact)
    if causal:
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -jnp.inf)
    return scores


def _probabilities(scores: Array, statistic: Array) -> Array:
    """Rows of a fully masked score are 0, as PyTorch has them."""
    seen = jnp.isfinite(statistic)
    return jnp.where(seen, jnp.exp(scores - jnp.where(seen, statistic, 0)), 0)


def _kept(shape: tuple[int, ...], dropout: float) -> Array | int:
    """What dropout multiplies probabilities with; the same in forward and backward."""
    if dropout == 0:
        return 1
    key = jnp.zeros(4, jnp.uint32)
    _, bits = jax.lax.rng_bit_generator(key, shape, jnp.uint32)
    return jnp.where(bits >= int(dropout * (2**32 - 1)), 1 / max(1 - dropout, 1e-30), 0)


def _exact_forward(
    q: Array, k: Array, v: Array, *mask: Array, **options: Unpack[_Options]
) -> tuple[Array, Array]:
    scores = _scores(q, k, mask[0] if mask else None, options["causal"], options["scale"])
    statistic = jax.nn.logsumexp(scores, axis=-1, keepdims=True)
    weights = _probabilities(scores, statistic) * _kept(scores.shape, options["dropout"])
    out = jnp.einsum("bhgst,bhtd->bhgsd", weights, v, preferred_element_type=scores.dtype)
    return out.reshape(*q.shape[:-1], v.shape[-1]).astype(q.dtype), statistic.reshape(q.shape[:-1])


def _exact_backward(
    q: Array,
    k: Array,
    v: Array,
    statistic: Array,
    grad: Array,
    out: Array,
    *mask: Array,
    **options: Unpack[_BackwardOptions],
) -> tuple[Array, ...]:
    scores = _scores(q, k, mask[0] if mask else None, options["causal"], options["scale"])
    exact, grouped = scores.dtype, scores.shape[:-1]
    kept = _kept(scores.shape, options["dropout"])
    weights = _probabilities(scores, statistic.reshape(*grouped, 1))
    grad, out = (x.reshape(*grouped, -1).astype(exact) for x in (grad, out))
    dv = jnp.einsum("bhgst,bhgsd->bhtd", weights * kept, grad)
    dweights = jnp.einsum("bhgsd,bhtd->bhgst", grad, v.astype(exact)) * kept
    dscores = weights * (dweights - (grad * out).sum(-1, keepdims=True))
    dq = jnp.einsum("bhgst,bhtd->bhgsd", dscores, k.astype(exact)) * options["scale"]
    dk = jnp.einsum("bhgst,bhgsd->bhtd", dscores, q.reshape(*grouped, -1)) * options["scale"]
    gradients = [dq.reshape(q.shape).astype(q.dtype), dk.astype(k.dtype), dv.astype(v.dtype)]
    if options["of_mask"]:
        gradients.append(dscores.reshape(*q.shape[:-1], k.shape[2]))
    return tuple(gradients)


# the primitives -------------------------------------------------------------------------------


def _forward_types(
    q: Array, k: Array, v: Array, *mask: Array, **options: Unpack[_Options]
) -> list[Array]:
    rows = q.shape[:-1]
    return [_abstract(q, (*rows, v.shape[-1])), _abstract(q, rows, _accumulator_of(q))]


def _backward_types(
    q: Array, k: Array, v: Array, *rest: Array, **options: Unpack[_BackwardOptions]
) -> list[Array]:
    scores = _abstract(q, (*q.shape[:-1], k.shape[2]), _accumulator_of(q))
    return [q, k, v, *([scores] if options["of_mask"] else [])]


def _abstract(q: Array, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> Array:
    """The abstract array `q` with another shape; dimensions that are left keep their sharding."""
    spec = q.sharding.spec[: len(shape)]
    sharding = q.sharding.update(spec=jax.sharding.PartitionSpec(*spec))
    return q.update(shape=shape, dtype=dtype or q.dtype, sharding=sharding)


def _call(name: str) -> Callable[..., Sequence[ir.Value]]:
    """A lowering to one custom call. The causal flag is in its name, so that rows show it."""

    def lower(
        ctx: mlir.LoweringRuleContext, *operands: ir.Value, **options: object
    ) -> Sequence[ir.Value]:
        from jax.interpreters import mlir
        from jaxlib.mlir import ir
        from jaxlib.mlir.dialects import stablehlo

        target = f"{name}[causal]" if options["causal"] else name
        call = stablehlo.CustomCallOp(
            [mlir.aval_to_ir_type(ctx.module_context, a) for a in ctx.avals_out],
            operands,
            call_target_name=ir.StringAttr.get(target),
            backend_config=ir.StringAttr.get(json.dumps(options, sort_keys=True)),
        )
        results: Sequence[ir.Value] = call.results
        return results

    return lower


def _primitive(
    name: str, types: Callable[..., list[Array]], exact: Callable[..., tuple[Array, ...]]
) -> Primitive:
    from jax.extend.core import Primitive
    from jax.interpreters import mlir

    primitive = Primitive(name.replace(".", "_"))
    primitive.multiple_results = True
    primitive.def_abstract_eval(types)
    primitive.def_impl(exact)
    mlir.register_lowering(primitive, mlir.lower_fun(exact, multiple_results=True))
    for platform in KERNEL_PLATFORMS:
        mlir.register_lowering(primitive, _call(name), platform=platform)
    return primitive


@cache
def _forward() -> Primitive:
    return _primitive("flint.attention", _forward_types, _exact_forward)


@cache
def _backward() -> Primitive:
    return _primitive("flint.attention_backward", _backward_types, _exact_backward)
