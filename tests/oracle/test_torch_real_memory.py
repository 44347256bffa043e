"""Steps that put other memory behind a name take as much as when they run for real, on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn, optim
from torch.nn.utils import parameters_to_vector, parametrizations, vector_to_parameters

from benchmarks.real_ranks.real import Peak
from flint.backends.cost.memory.memory import layouts
from flint.frontends.torch_world.program.build import build_program
from flint.frontends.torch_world.record.job import Job
from flint.frontends.torch_world.record.process import RankProcesses
from flint.ir.mesh import Mesh


class Functional(optim.Optimizer):
    """Its state is made anew each step."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for p in self.param_groups[0]["params"]:
            self.state[p]["m"] = 0.9 * self.state[p].get("m", 0.0) + p.grad
            p.add_(self.state[p]["m"], alpha=-0.1)


def assigned(model: nn.Module) -> None:
    for p in model.parameters():
        p.data = p.data * 0.9


@torch.no_grad()
def as_vector(model: nn.Module) -> None:
    vector_to_parameters(parameters_to_vector(model.parameters()) * 0.9, model.parameters())


def averaged(model: nn.Module) -> None:
    kept: dict[str, Tensor] = vars(model).setdefault("kept", {})
    for name, p in model.named_parameters():
        kept[name] = 0.9 * kept.get(name, 0.0) + p.detach()


def exchanged(model: nn.Module) -> None:
    kept: dict[str, Tensor] = vars(model).setdefault("kept", {})
    for name, p in model.named_parameters():
        p.data, kept[name] = kept.get(name, p.data + 1), p.data


SGD = partial(optim.SGD, lr=0.1, momentum=0.9, foreach=True)
Change = Callable[[nn.Module], None]
#: What makes an optimizer, and what happens to the model before each step.
TRAINED: dict[str, tuple[Any, Change]] = {
    "assigned": (SGD, assigned),
    "assigned, adamw": (partial(optim.AdamW, foreach=True), assigned),
    "as one vector": (SGD, as_vector),
    "average made anew": (SGD, averaged),
    "exchanged": (SGD, exchanged),
    "state made anew": (Functional, lambda model: None),
    "rprop": (partial(optim.Rprop, foreach=True), lambda model: None),
    "asgd": (partial(optim.ASGD, foreach=True), lambda model: None),
}
#: Steps without training, of models that ran on the host when they were made.
MOVED: dict[str, Callable[[], nn.Module]] = {
    "spectral norm": lambda: parametrizations.spectral_norm(nn.Linear(64, 64)),
    "sized by a call": lambda: called(nn.Sequential(nn.LazyLinear(64), nn.LazyLinear(64))),
    "half": lambda: called(nn.Linear(64, 64)).half(),
}


def called(model: nn.Module) -> nn.Module:
    model(torch.ones(4, 64))
    return model


def steps(name: str, device: str) -> Callable[[], object]:
    """One more step each time."""
    if name in MOVED:
        module = nn.Sequential(MOVED[name]()).eval().requires_grad_(False).to(device)
        return partial(module, torch.ones(4, 64, dtype=next(module.parameters()).dtype).to(device))
    make, change = TRAINED[name]
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(3))).to(device)
    optimizer, x = make(model.parameters()), torch.ones(4, 64).to(device)

    def step() -> None:
        change(model)
        model(x).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def train(name: str) -> None:
    step = steps(name, "cuda")
    for _ in range(1 if name in MOVED else 3):
        step()


@pytest.fixture(scope="module")
def processes() -> Iterator[RankProcesses]:
    with RankProcesses() as running:
        yield running


@pytest.mark.parametrize("name", [*TRAINED, *MOVED])
def test_the_peak_is_that_of_a_real_step(name: str, processes: RankProcesses) -> None:
    with Peak() as tracker:
        step = steps(name, "cpu")
        for _ in range(0 if name in MOVED else 2):
            step()
        tracker.again()
        step()
    real = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]
    job = Job(call=partial(train, name), steps=0 if name in MOVED else 2)
    [recording] = processes.record([replace(job, mesh_sizes=(1,), mesh_names=("all",))])
    device, host = layouts(build_program(recording, Mesh.parse("all=1")).program)
    # Numbers of the host, as counts of steps, are not in the recorded step.
    assert int((device.live_bytes + host.live_bytes).max()) == pytest.approx(real, abs=64)
