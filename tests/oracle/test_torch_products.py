"""Products that stay whole equal PyTorch's, with their gradients, and move nothing between devices."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import jax
import jax.numpy as jnp

import flint
from flint.frontends.torch_ops.registry import find_op
from flint.frontends.torch_ops.tensors import products
from flint.ir.program import Collective, Kind

CASES = {
    "linear": (products.linear, (3, 4, 5), (6, 5)),
    "linear of a matrix": (products.linear, (4, 5), (6, 5)),
    "matmul by a matrix": (products.matmul, (2, 3, 4, 5), (5, 6)),
    "stacked": (products.matmul, (2, 3, 4, 5), (2, 3, 5, 6)),
    "stacked and broadcast": (products.matmul, (2, 1, 4, 5), (3, 5, 6)),
    "attention scores": (lambda q, k: products.matmul(q, k.mT), (2, 3, 4, 5), (2, 3, 7, 5)),
}


def _traced(function, *tensors):
    """Value and gradients through PyTorch's graph and the table, run by JAX."""
    from torch.fx.experimental.proxy_tensor import make_fx

    from flint.frontends.torch_graph.decompositions import decompositions

    def step(*inputs):
        out = function(*inputs)
        return (out, *torch.autograd.grad(out.sin().sum(), inputs))

    graph = make_fx(step, decompositions(), tracing_mode="fake")(*tensors)
    named = {str(n.target): n for n in graph.graph.nodes if n.op == "call_function"}
    env = {}
    places = iter(tensors)
    for node in graph.graph.nodes:
        if node.op == "placeholder":
            env[node] = jnp.asarray(next(places).detach().numpy())
        elif node.op == "call_function":
            args, kwargs = torch.fx.map_arg((node.args, node.kwargs), env.__getitem__)
            env[node] = find_op(node.target.name())(*args, **kwargs)
    return [env[n] for n in graph.graph.output_node().args[0]], set(named)


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_those_of_pytorch(name):
    from flint.frontends.torch_ops.table import load_table

    load_table()
    function, *shapes = CASES[name]
    torch.manual_seed(0)
    tensors = [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes]
    reference = {products.linear: torch.nn.functional.linear, products.matmul: torch.matmul}.get(
        function, lambda q, k: q @ k.mT
    )
    expected = reference(*tensors)
    gradients = torch.autograd.grad(expected.sin().sum(), tensors)
    with jax.enable_x64(True):
        found, used = _traced(function, *tensors)
    assert any(op.startswith("flint.") for op in used)
    for one, other in zip([expected, *gradients], found, strict=True):
        np.testing.assert_allclose(one.detach().numpy(), other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("order", ["batch first", "sequence first"])
def test_a_batch_that_is_not_the_first_dimension_stays_where_it_is(order):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = torch.nn.Linear(16, 64), torch.nn.Linear(64, 16)

        def forward(self, x):
            return self.down(self.up(x).relu())

    with torch.device("meta"):
        model, x = Model(), torch.empty(8, 8, 16)
    batch = ("data", "model") if order == "batch first" else (None, "data")
    step = flint.TorchStep(model, (x,), loss=torch.mean, shardings={"x": batch})
    program = flint.trace(step, "data=4,model=2").program
    comm = [r for i in range(len(program)) if (r := program.row(i)).kind is Kind.COLLECTIVE]
    gradients = {4 * n for n in (16 * 64, 64, 64 * 16, 16)} | {4}  # and the loss
    assert comm
    assert {r.collective for r in comm} == {Collective.ALL_REDUCE}
    assert {r.comm_bytes for r in comm} <= gradients


@pytest.mark.parametrize("batch_first", [True, False])
def test_attention_of_pytorch_needs_no_communication_over_the_batch(batch_first):
    """`nn.MultiheadAttention` flattens (sequence, batch) before its last product."""
    with torch.device("meta"):
        model = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=batch_first)
        x = torch.empty(8, 8, 64)
    batch = ("data",) if batch_first else (None, "data")
    program = flint.trace(model, "data=4,model=2", x, shardings={"src": batch}).program
    assert not (program.kind == Kind.COLLECTIVE).any()
