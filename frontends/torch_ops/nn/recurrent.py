"""Recurrent layers as loops: LSTM, GRU and plain, one operator per layer and direction.

PyTorch takes `aten::lstm.input` apart into thirty operations for every step of the sequence. Here
the product of all inputs is done first, as libraries do, and the loop has the product with the
hidden state and the cell. Backward reads what forward kept and runs the loop the other way round;
gradients of weights are products over the whole sequence.

`flint::recurrent_layer` takes (sequence, batch, size). Layers that only have a hidden state get an
empty one for the cell. `WHOLE` says what replaces which operator before a graph is differentiated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from flint.frontends.torch_ops.lazy_jax import jax, jnp, lax
from flint.frontends.torch_ops.registry import torch_op
from flint.frontends.torch_ops.whole import WholeOperator, define

if TYPE_CHECKING:
    from jax import Array
    from torch.autograd.function import FunctionCtx


#: Gates of each kind of layer.
GATES = {"lstm": 4, "gru": 3, "tanh": 1, "relu": 1}
_WEIGHTS = "Tensor w_ih, Tensor w_hh, Tensor? b_ih, Tensor? b_hh"


# in PyTorch -----------------------------------------------------------------------------------


def _fake(
    kind: str,
    reverse: bool,
    x: torch.Tensor,
    h: torch.Tensor,
    c: torch.Tensor,
    *weights: torch.Tensor | None,
) -> tuple[torch.Tensor, ...]:
    steps, size = x.shape[0], h.shape[-1]
    gates = x.new_empty((*x.shape[:-1], GATES[kind] * size))
    hidden = x.new_empty((*x.shape[:-1], size))
    cells = x.new_empty((steps, *c.shape))
    kept = (gates, torch.empty_like(gates), torch.empty_like(hidden), cells)
    return hidden, torch.empty_like(h), torch.empty_like(c), *kept


def _fake_backward(kind: str, reverse: bool, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    _, d_h, d_c, x, w_ih, w_hh, *_ = tensors
    made = [torch.empty_like(t) for t in (x, d_h, d_c, w_ih, w_hh)]
    return *made, w_ih.new_empty(2, w_ih.shape[0])


def _save(ctx: FunctionCtx, inputs: Sequence[Any], output: Sequence[torch.Tensor]) -> None:
    ctx.kind, ctx.reverse, x, _, _, w_ih, w_hh, b_ih, _ = inputs
    ctx.mark_non_differentiable(*output[3:])
    ctx.save_for_backward(x, w_ih, w_hh, *output[3:])
    ctx.biased = b_ih is not None


def _gradients(
    ctx: FunctionCtx, d_out: torch.Tensor, d_h: torch.Tensor, d_c: torch.Tensor, *rest: object
) -> tuple[torch.Tensor | None, ...]:
    saved = ctx.saved_tensors
    found = torch.ops.flint.recurrent_layer_backward(ctx.kind, ctx.reverse, d_out, d_h, d_c, *saved)
    *others, biases = found
    return None, None, *others, *(biases.unbind() if ctx.biased else (None, None))


define(
    WholeOperator(
        "recurrent_layer",
        f"(str kind, bool reverse, Tensor x, Tensor h, Tensor c, {_WEIGHTS})"
        " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
        _fake,
        _gradients,
        _save,
    ),
    WholeOperator(
        "recurrent_layer_backward",
        "(str kind, bool reverse, Tensor d_out, Tensor d_h, Tensor d_c, Tensor x, Tensor w_ih, "
        "Tensor w_hh, Tensor from_x, Tensor from_h, Tensor hidden, Tensor cells)"
        " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
        _fake_backward,
    ),
)


def _stacked(
    kind: str,
    x: torch.Tensor,
    hidden: torch.Tensor,
    cells: torch.Tensor,
    params: Sequence[torch.Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Layers over each other, directions beside each other: the sequence and the last states."""
    per_layer, directions = (4 if has_biases else 2), (2 if bidirectional else 1)
    x = x.transpose(0, 1) if batch_first else x
    last_h, last_c = [], []
    for layer in range(num_layers):
        outs = []
        for reverse in range(directions):
            number = layer * directions + reverse
            weights = list(params[number * per_layer : (number + 1) * per_layer])
            weights += [] if has_biases else [None, None]
            out, h, c, *_ = torch.ops.flint.recurrent_layer(
                kind, bool(reverse), x, hidden[number], cells[number], *weights
            )
            outs.append(out)
            last_h.append(h)
            last_c.append(c)
        x = torch.cat(outs, -1) if bidirectional else outs[0]
        if train and dropout and layer + 1 < num_layers:
            x = torch.native_dropout(x, dropout, True)[0]
    out = x.transpose(0, 1) if batch_first else x
    return out, torch.stack(last_h), torch.stack(last_c)


def lstm(
    x: torch.Tensor,
    states: Sequence[torch.Tensor],
    params: Sequence[torch.Tensor],
    has_biases: bool,
    num_layers: int,
    *options: Any,
) -> tuple[torch.Tensor, ...]:
    """`aten::lstm.input` from one operator per layer and direction."""
    hidden, cells = states
    if hidden.shape[-1] != cells.shape[-1] or x.dim() != 3:  # projections
        arguments = (x, states, params, has_biases, num_layers, *options)
        whole: tuple[torch.Tensor, ...] = torch.ops.aten.lstm.input(*arguments)
        return whole
    return _stacked("lstm", x, hidden, cells, params, has_biases, num_layers, *options)


def _simple(kind: str) -> Callable[..., tuple[torch.Tensor, ...]]:
    """The operator of a layer without cells, from one operator per layer and direction."""

    def layers(x: torch.Tensor, hidden: torch.Tensor, *options: Any) -> tuple[torch.Tensor, ...]:
        cells = hidden.new_zeros((hidden.shape[0], 0))
        return _stacked(kind, x, hidden, cells, *options)[:2]

    return layers


#: What takes the place of operators that PyTorch would take apart step by step.
WHOLE: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.lstm.input: lstm,
    torch.ops.aten.gru.input: _simple("gru"),
    torch.ops.aten.rnn_tanh.input: _simple("tanh"),
    torch.ops.aten.rnn_relu.input: _simple("relu"),
}


# in JAX ---------------------------------------------------------------------------------------


def _cell(kind: str, from_x: Array, from_h: Array, h: Array, *c: Array) -> tuple[Array, ...]:
    """The next hidden state, and cell of an LSTM; `from_x` and `from_h` are the products."""
    if kind == "gru":
        (rx, zx, nx), (rh, zh, nh) = (jnp.split(g, 3, -1) for g in (from_x, from_h))
        update = jax.nn.sigmoid(zx + zh)
        new = jnp.tanh(nx + jax.nn.sigmoid(rx + rh) * nh)
        return ((h - new) * update + new,)
    gates = from_x + from_h
    if kind != "lstm":
        return (jnp.tanh(gates) if kind == "tanh" else jax.nn.relu(gates),)
    write, forget, new, out = jnp.split(gates, 4, -1)
    cell = jax.nn.sigmoid(forget) * c[0] + jax.nn.sigmoid(write) * jnp.tanh(new)
    return jax.nn.sigmoid(out) * jnp.tanh(cell), cell


def _times(x: Array, weight: Array, bias: Array | None) -> Array:
    """x times the transposed weight, plus bias."""
    out = lax.dot_general(x, weight, (((x.ndim - 1,), (1,)), ((), ())))
    return out if bias is None else out + bias


@torch_op("flint::recurrent_layer")
def recurrent_layer(
    kind: str,
    reverse: bool,
    x: Array,
    h: Array,
    c: Array,
    w_ih: Array,
    w_hh: Array,
    b_ih: Array | None,
    b_hh: Array | None,
) -> tuple[Array, ...]:
    """The sequence, the last hidden state and cell, and what backward needs of each step."""

    def step(
        state: tuple[Array, ...], from_x: Array
    ) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        from_h = _times(state[0], w_hh, b_hh)
        new = _cell(kind, from_x, from_h, *state)
        return new, (new[0], from_h, *state)

    from_x = _times(x, w_ih, b_ih)
    first = (h, c) if kind == "lstm" else (h,)
    (h, *cell), (out, *kept) = lax.scan(step, first, from_x, reverse=reverse)
    if kind == "lstm":
        return out, h, cell[0], from_x, *kept
    return out, h, c, from_x, *kept, jnp.zeros((len(x), *c.shape), c.dtype)


@torch_op("flint::recurrent_layer_backward")
def recurrent_layer_backward(
    kind: str,
    reverse: bool,
    d_out: Array,
    d_h: Array,
    d_c: Array,
    x: Array,
    w_ih: Array,
    w_hh: Array,
    *kept: Array,
) -> tuple[Array, ...]:
    """Gradients of the sequence, the first states, both weights, and both biases in one array."""

    def step(
        state: tuple[Array, ...], given: tuple[Array, ...]
    ) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        d_out, *point = given
        _, pull = jax.vjp(partial(_cell, kind), *point)
        d_from_x, d_from_h, d_h, *d_c = pull((state[0] + d_out, *state[1:]))
        d_h = d_h + lax.dot_general(d_from_h, w_hh, (((1,), (0,)), ((), ())))
        return (d_h, *d_c), (d_from_x, d_from_h)

    last, point = ((d_h, d_c), kept) if kind == "lstm" else ((d_h,), kept[:3])
    (d_h, *d_cell), (d_from_x, d_from_h) = lax.scan(
        step, last, (d_out, *point), reverse=not reverse
    )
    d_c = d_cell[0] if d_cell else d_c
    d_x = lax.dot_general(d_from_x, w_ih, (((2,), (0,)), ((), ())))
    over = (((0, 1), (0, 1)), ((), ()))
    d_w_ih, d_w_hh = lax.dot_general(d_from_x, x, over), lax.dot_general(d_from_h, kept[2], over)
    d_biases = jnp.stack([jnp.sum(g, (0, 1), dtype=g.dtype) for g in (d_from_x, d_from_h)])
    return d_x, d_h, d_c, d_w_ih, d_w_hh, d_biases
