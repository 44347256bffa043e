"""Stages of a PyTorch module, chained over microbatches, compute what the whole module does."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")

import torch.nn.functional as F
from torch import nn

from flint.frontends.torch_graph.stages.programs import StagedModel, staged_model
from flint.ir.mesh import Mesh
from flint.steps.captured import Role
from flint.steps.pipeline import Pipeline
from flint.steps.step import TorchStep

VOCAB, DIM, SEQ, BATCH, MICROBATCHES = 32, 16, 8, 4, 2
#: One device: stages of one position of the pipeline's axis.
MESH = Mesh.parse("pipe=1,data=1")


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(DIM)
        self.qkv = nn.Linear(DIM, 3 * DIM)
        self.out = nn.Linear(DIM, DIM)
        self.up = nn.Linear(DIM, 2 * DIM)
        self.down = nn.Linear(2 * DIM, DIM)

    def forward(self, x: Any, angle: Any) -> Any:
        q, k, v = (
            t.unflatten(-1, (2, -1)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1)
        )
        q = q * angle.cos()
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(heads.transpose(1, 2).flatten(-2))
        return x + self.down(F.gelu(self.up(x)))


class Decoder(nn.Module):
    """Layers between an embedding and a head, with a table of angles that all layers read."""

    def __init__(self, layers: int, tied: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, VOCAB, bias=False)
        self.register_buffer("frequency", torch.linspace(0.1, 1.0, DIM // 2))
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens: Any) -> Any:
        x = self.embed(tokens)
        place = torch.arange(tokens.shape[1], device=tokens.device)
        angle = place[:, None] * self.frequency
        for layer in self.layers:
            x = layer(x, angle)
        return self.head(self.norm(x))


class Normed(nn.Module):
    """In-place activations and running statistics at the cut."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(DIM, DIM),
            nn.BatchNorm1d(DIM),
            nn.ReLU(inplace=True),
            nn.Linear(DIM, DIM),
            nn.BatchNorm1d(DIM),
        )

    def forward(self, x: Any) -> Any:
        return self.body(x)


class TwoPaths(nn.Module):
    """Two values cross, one of them past a stage that does not read it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(DIM, 2 * DIM)
        self.second = nn.Linear(DIM, DIM)
        self.third = nn.Linear(DIM, DIM)

    def forward(self, x: Any) -> Any:
        a, b = self.first(x).chunk(2, -1)
        a = torch.tanh(self.second(a))
        return self.third(a) * b


def cross_entropy(logits: Any, targets: Any) -> Any:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(0, 1))


def square(output: Any, targets: Any) -> Any:
    return ((output - targets) ** 2).mean()


def text() -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(1)
    tokens, targets = torch.randint(VOCAB, (2, BATCH, SEQ), generator=generator)
    return tokens, targets


def points() -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(1)
    x, targets = torch.randn(2, BATCH, DIM, generator=generator)
    return x, targets


class Run:
    """What stages compute in a step, microbatch by microbatch."""

    def __init__(self, model: StagedModel, module: Any, batch: dict[str, Any]) -> None:
        self.model = model
        named = (*module.named_parameters(), *module.named_buffers())
        quick = {"xla_backend_optimization_level": 0}  # to compile
        self.steps = [jax.jit(body.step.function, compiler_options=quick) for body in model.bodies]
        self.values = {name: tensor.detach().numpy().copy() for name, tensor in named}
        self.loss = 0.0
        self.gradients: dict[str, Any] = {}
        for part in range(MICROBATCHES):
            self.microbatch({n: np.split(v.numpy(), MICROBATCHES)[part] for n, v in batch.items()})

    def microbatch(self, batch: dict[str, Any]) -> None:
        """Every stage forward, with zeros for gradients, then backward with the real ones."""
        count = len(self.model.stages)
        inputs: list[dict[Any, Any]] = [{}]
        for stage in range(count - 1):
            inputs.append(self.call(stage, batch, inputs[stage], {})[Role.OUTPUT])
        cotangents: dict[Any, Any] = {0: np.ones((), np.float32)}
        for stage in reversed(range(count)):
            found = self.call(stage, batch, inputs[stage], cotangents)
            cotangents = found[Role.INPUT_GRADIENT]
            self.loss += sum(float(v) for v in found[Role.LOSS].values()) / MICROBATCHES
            for port, gradient in found[Role.GRADIENT].items():
                name = self.own_name(stage, port)
                self.gradients[name] = self.gradients.get(name, 0) + gradient / MICROBATCHES
            self.values |= found[Role.PARAMETER]

    def own_name(self, stage: int, name: str) -> str:
        """A parameter of a stage, which its body calls as in the first stage that has it."""
        offset = stage - self.model.stages.index(self.model.stages[stage])
        return re.sub(r"(?<=^layers\.)\d+", lambda n: str(int(n[0]) + offset), name)

    def call(
        self, stage: int, batch: dict[str, Any], inputs: dict[Any, Any], cotangents: dict[Any, Any]
    ) -> dict[Role, dict[Any, Any]]:
        program = self.model.bodies[self.model.stages[stage]].step
        arrays = []
        for port, argument in zip(program.argument_ports, program.arguments, strict=True):
            held = {
                Role.PARAMETER: self.values,
                Role.BATCH: batch,
                Role.INPUT: inputs,
                Role.COTANGENT: cotangents,
            }[port.role]
            default = np.zeros(argument.shape, argument.dtype)
            name = self.own_name(stage, port.name) if port.role is Role.PARAMETER else port.name
            value = held.get(name or port.number, default)
            assert value.shape == argument.shape and value.dtype == argument.dtype, port
            arrays.append(value)
        with jax.set_mesh(jax.make_mesh((1, 1), MESH.names)), jax.enable_x64(True):
            results = self.steps[self.model.stages[stage]](*arrays)
        found: dict[Role, dict[Any, Any]] = {role: {} for role in Role}
        for port, result in zip(program.result_ports, results, strict=True):
            found[port.role][port.name or port.number] = np.asarray(result)
        return found


def compare(make: Any, data: Any, loss: Any, names: tuple[str, str], **options: Any) -> StagedModel:
    """Stages against the whole module, which runs on microbatches too: statistics depend on it."""
    torch.manual_seed(0)
    module = make()
    inputs, targets = data()
    step = TorchStep(module, (inputs,), loss=loss, loss_args=(targets,))
    stages = options.pop("stages")
    pipeline = Pipeline(model=step, microbatches=MICROBATCHES, chunks=stages, **options)
    model = staged_model(pipeline, MESH)
    run = Run(model, module, dict(zip(names, (inputs, targets), strict=True)))
    total = 0.0
    for part in zip(inputs.chunk(MICROBATCHES), targets.chunk(MICROBATCHES), strict=True):
        value = loss(module(part[0]), part[1]) / MICROBATCHES
        value.backward()
        total += value.item()
    assert run.loss == pytest.approx(total, rel=1e-5)
    expected = {n: p.grad.numpy() for n, p in module.named_parameters() if p.grad is not None}
    assert run.gradients.keys() == expected.keys()
    for name, gradient in expected.items():
        np.testing.assert_allclose(run.gradients[name], gradient, rtol=1e-4, atol=1e-5)
    for name, buffer in module.named_buffers():
        np.testing.assert_allclose(run.values[name], buffer.numpy(), rtol=1e-4, atol=1e-5)
    return model


TEXT = ("tokens", "targets")


def test_stages_of_a_list_of_layers_and_parameters_in_two_of_them() -> None:
    model = compare(
        lambda: Decoder(4, tied=True), text, cross_entropy, TEXT, stages=4, cut="layers"
    )
    assert model.stages == (0, 1, 1, 2)
    assert model.tied == (((0, "embed.weight"), (3, "embed.weight")),)


def test_values_in_place_and_statistics() -> None:
    compare(Normed, points, square, ("x", "targets"), stages=3, cut="body.2,body.4")


def test_two_values_cross() -> None:
    compare(TwoPaths, points, square, ("x", "targets"), stages=3, cut="second,third", crossing=2)
