"""What the table of PyTorch operators holds is asked for: nothing takes it apart before."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import flint
from flint.frontends.torch_graph.decompositions import decompositions
from flint.frontends.torch_graph.optimizer.trace import trace_step
from flint.frontends.torch_ops.registry import find_op, known_ops, torch_op
from flint.frontends.torch_ops.table import load_table

load_table()
OURS = [
    n
    for n in known_ops()
    if find_op(n).__module__.startswith("flint.frontends.")
    and not n.startswith("transformers::")  # which that package defines
]
ABOVE_AUTOGRAD = {"Autograd", "CompositeImplicitAutograd"}


def overload(name: str) -> Any:
    space, _, rest = name.partition("::")
    packet, _, last = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, space), packet), last)


def has_kernel(op: Any, key: str) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), key))


def taken_apart(op: Any) -> bool:
    """Whether graphs of models and of steps only ever have something else in its place."""
    above = {str(key).rpartition(".")[2] for key in op.py_kernels} & ABOVE_AUTOGRAD
    composite = has_kernel(op, "CompositeImplicitAutograd") and not has_kernel(op, "CPU")
    in_tables = op in decompositions() and op in decompositions(of_step=True)
    return bool(op._schema.is_mutable or above or composite or in_tables)


def test_every_overload_is_reached() -> None:
    pytest.importorskip("torch._functorch.aot_autograd")  # registers Python kernels
    assert len(OURS) > 300
    assert [name for name in OURS if taken_apart(overload(name))] == []
    assert taken_apart(torch.ops.aten.softplus.default)
    assert taken_apart(torch.ops.aten.upsample_bilinear2d.default)
    assert taken_apart(torch.ops.aten.reshape.default)


def test_what_a_step_keeps_whole_is_taken_apart_in_a_model() -> None:
    step, model = decompositions(of_step=True), decompositions()
    only = {op.name() for op in model.keys() - step.keys()}
    assert only == {"aten::addcdiv", "aten::addcmul", "aten::lerp.Scalar", "aten::lerp.Tensor"}


def test_an_operator_that_the_user_registers_stays_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    import jax

    from flint.frontends.torch_ops import registry

    monkeypatch.setattr(registry, "_TABLE", dict(registry._TABLE))
    called = []

    @torch_op("aten::softplus")
    def softplus(x: Any, beta: float = 1, threshold: float = 20) -> Any:
        called.append((beta, threshold))
        return jax.nn.softplus(x)

    class Model(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.nn.functional.softplus(x)

    with torch.device("meta"):
        flint.trace(flint.TorchStep(Model(), (torch.empty(8),)), {"x": 1})
    assert called == [(1, 20)]


@pytest.mark.parametrize("name", ["Adam", "Adagrad", "Adamax", "NAdam", "Muon", "Rprop", "SGD"])
def test_steps_of_optimizers_have_operators_of_the_table(name: str) -> None:
    parameter = torch.nn.Parameter(torch.empty(4, 6, device="meta"))
    made = getattr(torch.optim, name)([parameter])
    graph = trace_step(made, made.param_groups[0], parameter, {})
    assert graph.nodes and all(find_op(n.target.name()) for n in graph.nodes)
