"""Four processes that talk through gloo do what recorded ranks do: a part of `benchmarks.real_ranks`.

And steps of one process that put other memory behind a name take as much as when they run on the CPU.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn, optim
from torch.nn.utils import parameters_to_vector, parametrizations, vector_to_parameters

from benchmarks.real_ranks.compare import RANKS, Compared, compared
from benchmarks.real_ranks.real import Peak
from flint.backends.cost.memory.memory import layouts
from flint.frontends.torch_world.program.build import build_program
from flint.frontends.torch_world.record.child import _preload
from flint.frontends.torch_world.record.job import Job
from flint.frontends.torch_world.record.process import RankProcesses
from flint.ir.mesh import Mesh

#: Programs that take few seconds together; `python -m benchmarks.real_ranks` has all.
PROGRAMS = (
    *("ddp unused parameters", "fsdp uneven", "fsdp mixed precision", "fsdp fused attention"),
    *("fsdp clipped", "hsdp", "sequence parallel", "embedding by uneven rows"),
    *("experts uneven", "ring attention", "pipeline 1f1b", "pipeline interleaved", "muon by torch"),
    *("filled by parts", "fsdp second dimension", "fsdp offload", "ddp views of buckets"),
)
#: The map of used parameters is the host's in a real run, and filled one by one; CPUs keep statistics
#: of norms in bfloat16; CUDA has no flash attention for float32; on CPUs nothing is copied to the host.
OTHER_OPERATORS = (
    "ddp unused parameters",
    "fsdp mixed precision",
    "fsdp fused attention",
    "fsdp offload",
)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[int, Compared]]:
    """Both sides of each program, by rank."""
    if not torch.distributed.is_gloo_available():
        pytest.skip("this PyTorch has no gloo")
    return dict(compared(PROGRAMS, tmp_path_factory.mktemp("real")))


@pytest.mark.long
@pytest.mark.parametrize("name", PROGRAMS)
def test_ranks_do_what_real_ones_do(name: str, both: dict[str, dict[int, Compared]]) -> None:
    for rank in RANKS:
        one = both[name][rank]
        assert one.is_equal["collectives"] and one.is_equal["products"], one.difference()
        assert one.is_equal["operators"] or name in OTHER_OPERATORS, one.difference()
        assert one.is_equal["memory"], one.memory_error


class Functional(optim.SGD):
    """Its state is made anew each step."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for p in self.param_groups[0]["params"]:
            self.state[p]["m"] = 0.9 * self.state[p].get("m", 0.0) + p.grad
            p.add_(self.state[p]["m"], alpha=-0.1)


def assigned(model: Any) -> None:
    for p in model.parameters():
        p.data = p.data * 0.9


@torch.no_grad()
def as_vector(model: Any) -> None:
    vector_to_parameters(parameters_to_vector(model.parameters()) * 0.9, model.parameters())


@torch.no_grad()
def averaged(model: Any) -> None:
    model.kept = {n: 0.9 * model.kept.get(n, 0.0) + p for n, p in model.named_parameters()}


def called(model: nn.Module) -> nn.Module:
    model(torch.ones(4, 64))
    return model


SGD = partial(optim.SGD, lr=0.1, momentum=0.9, foreach=True)
#: What makes an optimizer and what happens before each step; or a model that ran on the host, and is run.
STEPS: dict[str, Callable[[], nn.Module] | tuple[Any, Callable[[Any], None]]] = {
    "assigned": (SGD, assigned),
    "assigned, adamw": (partial(optim.AdamW, foreach=True), assigned),
    "fused": (partial(optim.AdamW, fused=True), lambda model: None),
    "one vector": (SGD, as_vector),
    "average": (SGD, averaged),
    "state": (partial(Functional, lr=0.1), lambda model: None),
    "rprop": (partial(optim.Rprop, foreach=True), lambda model: None),
    "asgd": (partial(optim.ASGD, foreach=True), lambda model: None),
    "spectral norm": lambda: parametrizations.spectral_norm(nn.Linear(64, 64)),
    "sized": lambda: called(nn.Sequential(nn.LazyLinear(64), nn.LazyLinear(64))),
}


def run(name: str, device: str, before_last: Callable[[], None] = lambda: None) -> None:
    chosen, x = STEPS[name], torch.ones(4, 64).to(device)
    if not isinstance(chosen, tuple):
        model = nn.Sequential(chosen()).eval().requires_grad_(False).to(device)
        before_last()
        model(x)
        return
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(3))).to(device)
    optimizer, model.kept = chosen[0](model.parameters()), {}
    for number in range(3):
        if number == 2:
            before_last()
        chosen[1](model)
        model(x).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def peaks(name: str) -> tuple[int, int]:
    """The bytes that a step takes, recorded and real."""
    with Peak() as tracker:
        run(name, "cpu", tracker.again)
    real = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]
    job = Job(call=partial(run, name, "cuda"), steps=2 if isinstance(STEPS[name], tuple) else 0)
    with RankProcesses() as processes:
        [recording] = processes.record([replace(job, mesh_sizes=(1,), mesh_names=("all",))])
    device, host = layouts(build_program(recording, Mesh.parse("all=1")).program)
    return int((device.live_bytes + host.live_bytes).max()), real


@pytest.fixture(scope="module")
def of_steps() -> dict[str, tuple[int, int]]:
    """All of them, by a process without JAX: recordings are forks."""
    command = [sys.executable, "-m", "tests.oracle.test_torch_real_ranks"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=300)
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("name", STEPS)
def test_a_step_takes_the_memory_of_a_real_one(
    name: str, of_steps: dict[str, tuple[int, int]]
) -> None:
    most, real = of_steps[name]
    assert most == pytest.approx(real, abs=64)  # the host counts steps


if __name__ == "__main__":
    _preload()  # else each fork imports it
    print(json.dumps({name: peaks(name) for name in STEPS}))
