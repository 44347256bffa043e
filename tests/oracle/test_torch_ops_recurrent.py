"""Recurrent layers as loops: values and gradients of torch's own modules, and their work."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")
import jax.numpy as jnp

import flint
from flint.frontends.torch_ops.nn import recurrent
from flint.frontends.torch_ops.registry import find_op, known_ops
from flint.ir.op_class import OpClass
from tests.oracle.torch_op_cases import to_jax

STEPS, BATCH, SIZE, HIDDEN = 5, 3, 4, 6
KINDS = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU, "tanh": torch.nn.RNN, "relu": torch.nn.RNN}


def layer(kind: str, **options: Any) -> Any:
    """A module of torch, with the same numbers every time."""
    torch.manual_seed(0)
    more = {"nonlinearity": kind} if KINDS[kind] is torch.nn.RNN else {}
    return KINDS[kind](SIZE, HIDDEN, **more, **options)


@pytest.mark.parametrize(
    ("kind", "reverse"),
    [("lstm", False), ("lstm", True), ("gru", False), ("tanh", True), ("relu", False)],
)
def test_a_layer_and_its_gradients_equal_torch(kind: str, reverse: bool) -> None:
    module = layer(kind)
    x = torch.randn(STEPS, BATCH, SIZE, requires_grad=True)
    h, c = (torch.randn(1, BATCH, HIDDEN, requires_grad=True) for _ in range(2))
    state = (h, c) if kind == "lstm" else h
    out, last = module(x.flip(0) if reverse else x, state)
    results = [out.flip(0) if reverse else out, *(last if kind == "lstm" else [last])]
    grads = [torch.randn_like(r) for r in results]
    inputs = [x, h, *([c] if kind == "lstm" else []), *module.parameters()]
    expected = torch.autograd.grad(results, inputs, grads)

    def run(x: Any, h: Any, c: Any, *rest: Any) -> Any:
        weights, (d_out, d_h, *d_c) = rest[:4], rest[4:]
        forward = find_op("flint::recurrent_layer")
        out, last, cell, *kept = forward(kind, reverse, x, h, c, *weights)
        back = find_op("flint::recurrent_layer_backward")
        d_c = d_c[0] if d_c else jnp.zeros_like(c)
        *found, biases = back(kind, reverse, d_out, d_h, d_c, x, *weights[:2], *kept)
        return (out, last, cell), (*found, *biases)

    empty = torch.zeros(0) if kind != "lstm" else c[0]
    cotangents = [grads[0], *(g[0] for g in grads[1:])]
    arrays = [to_jax(a) for a in (x, h[0], empty, *module.parameters(), *cotangents)]
    got, gradients = jax.jit(run)(*arrays)
    gradients = [g for g in gradients if g.size]
    for mine, torchs in zip([*got[: len(results)], *gradients], [*results, *expected], strict=True):
        torchs = to_jax(torchs).reshape(mine.shape)
        assert float(abs(mine - torchs).max()) < 2e-5 * max(1.0, float(abs(torchs).max()))


class Whole(torch.nn.Module):
    """What the frontend makes of a module: one operator per layer and direction."""

    def __init__(self, kind: str, module: Any) -> None:
        super().__init__()
        name = f"rnn_{kind}" if kind in ("tanh", "relu") else kind
        self.op = recurrent.WHOLE[getattr(torch.ops.aten, name).input]
        self.module, self.lstm = module, kind == "lstm"

    def forward(self, x: Any) -> Any:
        m = self.module
        directions = 2 if m.bidirectional else 1
        batch = x.shape[0 if m.batch_first else 1]
        h = x.new_zeros(m.num_layers * directions, batch, m.hidden_size)
        weights = [getattr(m, name) for name in m._flat_weights_names]
        options = (weights, m.bias, m.num_layers, m.dropout, m.training, m.bidirectional)
        return self.op(x, [h, h] if self.lstm else h, *options, m.batch_first)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("lstm", {"num_layers": 2, "bidirectional": True, "batch_first": True, "dropout": 0.1}),
        ("gru", {"bias": False}),
        ("tanh", {}),
    ],
)
def test_shapes_and_operators_of_a_traced_module(kind: str, options: dict[str, Any]) -> None:
    from torch._functorch.aot_autograd import aot_export_joint_with_descriptors

    shape = (BATCH, STEPS, SIZE) if options.get("batch_first") else (STEPS, BATCH, SIZE)
    module = layer(kind, **options)
    expected = [r.shape for r in torch.utils._pytree.tree_leaves(module(torch.randn(shape)))]
    whole, x = Whole(kind, module).to("meta"), torch.randn(shape, device="meta")
    assert [r.shape for r in whole(x)] == expected

    class Loss(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = whole

        def forward(self, x: Any) -> Any:
            return self.inner(x)[0].sum()

    with contextlib.ExitStack() as stack:
        joint = aot_export_joint_with_descriptors(stack, Loss(), (x,))
    nodes = [n for n in joint.graph_module.graph.nodes if str(n.target).startswith("flint.")]
    layers = options.get("num_layers", 1) * (2 if options.get("bidirectional") else 1)
    assert len(nodes) == 2 * layers
    for node in nodes:  # the types that were promised are those that are computed
        arguments = [_abstract(a) for a in node.args]
        given = [a for a in arguments if isinstance(a, jax.ShapeDtypeStruct)]
        made = jax.eval_shape(partial(_called, node.target.name(), arguments), *given)
        assert [r.shape for r in made] == [tuple(v.shape) for v in node.meta["val"]]


def _called(op: str, arguments: list[Any], *arrays: Any) -> Any:
    rest = iter(arrays)
    given = [next(rest) if isinstance(a, jax.ShapeDtypeStruct) else a for a in arguments]
    return find_op(op)(*given)


def _abstract(argument: Any) -> Any:
    if not isinstance(argument, torch.fx.Node):
        return argument
    value = argument.meta["val"]
    return jax.ShapeDtypeStruct(tuple(value.shape), jnp.float32)


def test_the_loop_is_priced_with_its_steps() -> None:
    def step(x: Any, h: Any, w_ih: Any, w_hh: Any) -> Any:
        found = recurrent.recurrent_layer("lstm", False, x, h, h, w_ih, w_hh, None, None)
        out, _, _, *kept = found
        back = recurrent.recurrent_layer_backward
        return back("lstm", False, out, h, h, x, w_ih, w_hh, *kept)

    shapes = ((16, 8, 32), (8, 64), (256, 32), (256, 64))
    arrays = [jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in shapes]
    program = flint.trace(step, {"x": 1}, *arrays).program
    rows = [program.row(i) for i in range(len(program))]
    dots = [r.flops * int(program.trips[r.number]) for r in rows if r.op == OpClass.MATMUL]
    # forward two products, backward two for each of them
    from_x, from_h = 2 * 16 * 8 * 256 * 32, 2 * 16 * 8 * 256 * 64
    assert sorted(dots) == sorted([from_x] * 3 + [from_h] * 3)


def test_every_operator_has_a_test() -> None:
    assert {n for n in known_ops() if find_op(n).__module__ == recurrent.__name__} == {
        "flint::recurrent_layer.default",
        "flint::recurrent_layer_backward.default",
    }
