"""Layers that repeat are traced once: found, compared, and worth the same as each by itself."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")

from torch import nn

from flint.frontends.torch_export import lowered
from flint.frontends.torch_graph.blocks import differentiable_nodes, repeated_parts
from flint.frontends.torch_graph.export import export_step
from flint.frontends.torch_graph.interpreter import Interpreter
from flint.frontends.torch_graph.program import TorchProgram, torch_program
from flint.ir.mesh import Mesh
from flint.ir.program import Kind, Program
from flint.passes.partition.xla import partition_xla
from flint.steps.captured import Captured
from flint.steps.step import TorchStep

MESH = Mesh.parse("data=2,model=2")
QUICK = {"xla_backend_optimization_level": 0}  # to compile


class Layer(nn.Module):
    """Enough operators to be a block: a gated MLP with a norm and a residual."""

    def __init__(self, width: int, scale: float = 1.0, dropout: float = 0.0) -> None:
        super().__init__()
        self.up = nn.Linear(width, 2 * width)
        self.gate = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(dropout)
        self.scale = scale

    def forward(self, x: Any) -> Any:
        centered = (x - x.mean(-1, keepdim=True)) * torch.rsqrt(x.var(-1, keepdim=True) + 1e-5)
        hidden = torch.sigmoid(self.gate(centered)) * self.up(centered)
        return x + self.scale * self.dropout(self.down(hidden)).tanh()


class Stack(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.start = nn.Parameter(torch.zeros(()))
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Any) -> Any:
        x = x + self.start  # so that the first layer is differentiated like the others
        for layer in self.layers:
            x = layer(x)
        return x


def square(output: Any) -> Any:
    return output.square().mean()


def step_of(module: Any, rows: int = 4, width: int = 8, **options: Any) -> TorchStep:
    torch.manual_seed(0)
    x = torch.randn(rows, width)
    return TorchStep(module, (x,), loss=square, platform="cpu", **options)


def groups_of(module: Any) -> list[list[str]]:
    exported = export_step(step_of(module))
    trainable = [i.trainable for i in exported.inputs]
    flows = differentiable_nodes(exported.graph_module, trainable)
    found = repeated_parts(exported.graph_module, flows)
    return [[part.path for part in group] for group in found]


def numbers_of(program: TorchProgram, step: TorchStep) -> Any:
    """Loss and gradients of a step without optimizer, computed by JAX."""
    tensors = dict(step.module.named_parameters()) | dict(step.module.named_buffers())
    tensors["x"] = step.args[0]
    arrays = [tensors[a.name].detach().numpy() for a in program.arguments]
    with jax.set_mesh(jax.make_mesh((1, 1), ("data", "model"))), jax.enable_x64(True):
        outputs, gradients, _ = jax.jit(program.function, compiler_options=QUICK)(*arrays)
    return float(outputs[0]), {n: np.asarray(g) for n, g in gradients.items()}


def rows_of(step: TorchStep, *, blocks: bool) -> Program:
    module = lowered(torch_program(step, MESH, blocks=blocks), MESH, "cuda", "step")
    return partition_xla(Captured(module, MESH, "step", "step"))


def test_equal_layers_are_one_group_and_others_are_apart() -> None:
    layers = [Layer(8), Layer(8), Layer(8, scale=0.5), Layer(8)]
    assert groups_of(Stack(*layers)) == [["layers.0", "layers.1", "layers.3"]]


def test_the_level_that_saves_most_is_the_block() -> None:
    towers = Stack(Stack(Layer(8), Layer(8), Layer(8)), Stack(Layer(8), Layer(8), Layer(8)))
    assert groups_of(towers) == [[f"layers.{t}.layers.{n}" for t in (0, 1) for n in (0, 1, 2)]]


def test_a_layer_that_changes_a_tensor_from_outside_is_no_block() -> None:
    class Counting(Layer):
        def __init__(self) -> None:
            super().__init__(8)
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x: Any) -> Any:
            self.seen.add_(1)
            return super().forward(x)

    assert groups_of(Stack(Counting(), Counting())) == []


def test_a_layer_with_another_trainable_part_is_apart() -> None:
    frozen = Layer(8)
    frozen.up.weight.requires_grad_(False)
    assert groups_of(Stack(Layer(8), frozen, Layer(8))) == [["layers.0", "layers.2"]]


def test_loss_and_gradients_are_those_of_pytorch_with_and_without_blocks() -> None:
    torch.manual_seed(1)
    step = step_of(Stack(Layer(8), Layer(8)))
    loss = square(step.module(step.args[0]))
    loss.backward()
    for blocks in (True, False):
        found, gradients = numbers_of(torch_program(step, MESH, blocks=blocks), step)
        assert found == pytest.approx(loss.item(), rel=1e-5)
        for name, parameter in step.module.named_parameters():
            np.testing.assert_allclose(gradients[name], parameter.grad, rtol=1e-4, atol=1e-6)


def test_each_block_is_interpreted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: Counter[str] = Counter()
    run = Interpreter.run

    def count(self: Interpreter, nodes: Any, values: Any, phase: str) -> None:
        seen[f"{phase} {self.inside}"] += 1
        run(self, nodes, values, phase)

    monkeypatch.setattr(Interpreter, "run", count)
    step = step_of(Stack(*(Layer(8) for _ in range(4))))
    lowered(torch_program(step, MESH), MESH, "cuda", "step")
    assert seen == {"forward ": 1, "backward ": 1, "forward layers.0": 1, "backward layers.0": 1}


def test_totals_are_equal_with_and_without_blocks() -> None:
    step = step_of(
        Stack(Layer(64), Layer(64)),
        rows=32,
        width=64,
        shardings={
            "x": ("data",),
            "layers.*.up.weight": ("model", None),
            "layers.*.gate.weight": ("model", None),
            "layers.*.down.weight": (None, "model"),
            "layers.*.up.bias": ("model",),
            "layers.*.gate.bias": ("model",),
        },
        fsdp="data",
    )
    once, apart = (rows_of(step, blocks=b) for b in (True, False))
    assert collectives(once) == collectives(apart)
    assert work(once) == work(apart)
    assert len(once) == len(apart)


def collectives(program: Program) -> Counter[Any]:
    rows = (program.row(i) for i in range(len(program)))
    return Counter(
        (r.collective.name, str(r.group), r.comm_bytes, r.phase.name)
        for r in rows
        if r.kind == Kind.COLLECTIVE
    )


def work(program: Program) -> tuple[int, int]:
    """FLOPs, and bytes read and written by what computes."""
    rows = [program.row(i) for i in range(len(program))]
    computing = [r for r in rows if r.kind == Kind.COMPUTE]
    flops = sum(r.flops for r in computing)
    assert flops > 0
    return flops, sum(r.result_bytes + r.operand_bytes for r in computing)


def test_rows_say_which_layer_they_are_of() -> None:
    program = rows_of(step_of(Stack(*(Layer(64) for _ in range(3))), 32, 64), blocks=True)
    rows = [program.row(i) for i in range(len(program))]
    dots = [r for r in rows if r.opcode == "hlo.dot"]
    forward = sorted(r.scope for r in dots if r.phase.name == "FORWARD")
    assert forward == sorted(f"layers/{n}/{p}" for n in range(3) for p in ("down", "gate", "up"))
    backward = Counter(r.scope for r in dots if r.phase.name == "BACKWARD")
    assert backward["layers/1/gate"] == 2 and backward["layers/2/down"] == 2
    assert {r.location.partition(":")[0] for r in dots} == {"test_torch_blocks.py"}


def test_operators_of_blocks_exist_while_they_are_traced_only() -> None:
    step = step_of(Stack(Layer(8), Layer(8)))
    for _ in range(2):  # the same names again
        torch_program(step, MESH)
        assert not [n for n in torch._C._dispatch_get_all_op_names() if "flint_blocks" in n]


def test_a_layer_whose_input_has_no_gradient_is_apart() -> None:
    class Bare(Stack):
        def forward(self, x: Any) -> Any:
            for layer in self.layers:
                x = layer(x)
            return x

    assert groups_of(Bare(Layer(8), Layer(8), Layer(8))) == [["layers.1", "layers.2"]]


def test_dropout_in_blocks_is_one_program() -> None:
    layers = [Layer(8, dropout=0.1) for _ in range(2)]
    assert groups_of(Stack(*layers)) == [["layers.0", "layers.1"]]
