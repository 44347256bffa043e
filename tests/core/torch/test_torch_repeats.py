"""Equal layers run once while a module is exported, and the graph is that of all of them."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

from flint.frontends.torch_graph import export as export_module
from flint.frontends.torch_graph.export import export_step
from flint.frontends.torch_graph.repeats import equal_layers_once
from flint.steps.step import TorchStep


class Layer(nn.Module):
    """A layer that counts the runs of all layers of one model."""

    def __init__(self, runs: list[int], number: int = 0) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.runs = runs
        self.number = number

    def forward(self, x: Any, scale: float = 1.0, *, mask: Any = None) -> Any:
        ran(self.runs)
        x = x + torch.tanh(self.inner(x)) * scale
        return (x if mask is None else x * mask), x.mean(), "note"


RUNS: list[int] = []


def ran(_: Any) -> None:
    RUNS.append(1)


class Stack(nn.Module):
    def __init__(self, layers: list[nn.Module], **kwargs: Any) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.kwargs = kwargs

    def forward(self, x: Any, mask: Any) -> Any:
        total = 0.0
        for layer in self.layers:
            x, mean, _ = layer(x, mask=mask, **self.kwargs)
            total = total + mean
        return x, total


def stack(*numbers: int, **kwargs: Any) -> Stack:
    shared: list[int] = []
    with torch.device("meta"):
        return Stack([Layer(shared, n) for n in numbers], **kwargs)


def step_of(module: nn.Module) -> TorchStep:
    return TorchStep(module, (torch.empty(2, 4, device="meta"), torch.empty(2, 1, device="meta")))


def runs_of(module: nn.Module) -> int:
    RUNS.clear()
    export_step(step_of(module))
    return len(RUNS)


def text_of(step: TorchStep) -> Any:
    exported = export_step(step)
    numbers = {n: i for i, n in enumerate(exported.graph_module.graph.nodes)}
    lines = [
        (
            str(node.target),
            str(torch.fx.map_arg((node.args, node.kwargs), lambda n: f"%{numbers[n]}")),
            tuple(node.meta.get("nn_module_stack") or ()),
            node.meta.get("stack_trace"),
        )
        for node in exported.graph_module.graph.nodes
    ]
    return exported.inputs, lines


def test_equal_layers_run_once_and_different_ones_each() -> None:
    assert runs_of(stack(0, 0, 0, 0)) == 1
    assert runs_of(stack(0, 1, 0, 1)) == 2
    assert runs_of(stack(0, 1, 2)) == 3


def test_the_graph_is_the_same_as_without(monkeypatch: pytest.MonkeyPatch) -> None:
    step = step_of(stack(0, 0, 0, scale=2.0))
    once = text_of(step)
    monkeypatch.setattr(export_module, "equal_layers_once", lambda _: contextlib.nullcontext())
    RUNS.clear()
    assert text_of(step) == once
    assert len(RUNS) == 3


def test_forwards_are_back_afterwards_even_if_the_module_raises() -> None:
    module = stack(0, 0)
    with pytest.raises(ZeroDivisionError), equal_layers_once(module):
        assert "forward" in vars(module.layers[0])
        raise ZeroDivisionError
    assert "forward" not in vars(module.layers[0])
    assert not [n for n in torch._C._dispatch_get_all_op_names() if "flint_repeats" in n]


def test_a_layer_that_keeps_something_runs_every_time() -> None:
    class Keeps(Layer):
        calls = 0

        def forward(self, x: Any, **kwargs: Any) -> Any:
            self.calls = self.calls + 1
            return super().forward(x, **kwargs)

    shared: list[int] = []
    with torch.device("meta"):
        module = Stack([Keeps(shared), Keeps(shared), Keeps(shared)])
    assert runs_of(module) == 3


def test_other_shapes_of_arguments_are_other_calls() -> None:
    class Narrowing(Stack):
        def forward(self, x: Any, mask: Any) -> Any:
            x = self.layers[0](x)[0]
            return self.layers[1](x[:1])[0]

    shared: list[int] = []
    with torch.device("meta"):
        module = Narrowing([Layer(shared), Layer(shared)])
    assert runs_of(module) == 2


def test_a_result_that_is_an_argument_is_that_argument() -> None:
    class Passes(Layer):
        def forward(self, x: Any, *, mask: Any = None) -> Any:
            _, mean, note = super().forward(x)
            return x, mean, note

    shared: list[int] = []
    with torch.device("meta"):
        module = Stack([Passes(shared), Passes(shared)])
    exported = export_step(step_of(module))
    graph = exported.graph_module.graph
    x = [n for n in graph.nodes if n.op == "placeholder"][-2]
    assert graph.output_node().args[0][0] is x
