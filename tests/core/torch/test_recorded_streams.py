"""Kernels that a program put on a stream of its own run beside those of the compute stream."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flint.backends.cost.estimate import Estimate, estimate
from flint.backends.cost.memory.memory import layouts
from flint.backends.cost.simulate.critical_path import critical_path
from flint.backends.cost.simulate.timeline import POLICIES
from flint.cluster.models import Cluster
from flint.ir.mesh import AxisRef, Group, Mesh
from flint.ir.op_class import OpClass
from flint.ir.program import Collective, Kind, Phase, Program
from flint.ir.rank_class import RankClass
from flint.ir.workload import Workload
from flint.requests.estimate import EstimateRequest
from tests.program_rows import ProgramBuilder

MESH = Mesh(("data",), (16,))
DATA = Group((AxisRef("data"),))
AHEAD = sorted(name for name, policy in POLICIES.items() if policy.keeps_streams)
LAYERS = 4
WIDTH = 8192


def layers(copies: str) -> Program:
    """Layers whose weights are copied together on the stream `copies`, gathered and multiplied.

    As FSDP does, what gathers for a layer is issued when the layer before has been, and waits for
    the layer before that.
    """
    b = ProgramBuilder(MESH)
    bytes_ = 2 * WIDTH * WIDTH
    x = b.add("x", Kind.PARAMETER, result_bytes=bytes_, dtype="bf16")
    done = [x, x]
    for layer in range(LAYERS):
        scope = f"layers.{layer}"
        shard = b.add("weight", Kind.PARAMETER, result_bytes=bytes_ // 16, dtype="bf16")
        copied = b.add(
            "aten._foreach_copy_", deps=[shard, done[-2]], result_bytes=bytes_ // 16,
            operand_bytes=bytes_ // 16, dtype="bf16", scope=scope, stream=copies,
        )  # fmt: skip
        gathered = b.add(
            "c10d.all_gather", Kind.COLLECTIVE, deps=[copied], collective=Collective.ALL_GATHER,
            group=DATA, comm_bytes=bytes_ // 16, result_bytes=bytes_, dtype="bf16", scope=scope,
            phase=Phase.FORWARD,
        )  # fmt: skip
        done.append(
            b.add(
                "stablehlo.dot_general", deps=[done[-1], gathered], dims=(1, WIDTH, WIDTH, WIDTH),
                flops=2 * WIDTH**3, result_bytes=bytes_, operand_bytes=2 * bytes_, dtype="bf16",
                scope=scope, phase=Phase.FORWARD,
            )
        )  # fmt: skip
    return b.build()


def estimated(program: Program, policy: str = "overlap") -> Estimate:
    workload = Workload(program.mesh, (program,), (RankClass("all", 0),), {})
    return estimate(workload, EstimateRequest(Cluster.load("h100-dgx"), policy=policy))


def begins(found: Estimate, kind: Kind) -> list[float]:
    track = found.timeline.classes[0]
    return track.start_ns[track.work.program.kind[track.work.nodes.row] == kind].tolist()


@pytest.mark.parametrize("policy", AHEAD)
def test_a_copy_on_another_stream_does_not_hold_its_gather_back(policy: str) -> None:
    beside = estimated(layers("copies"), policy)
    track = beside.timeline.classes[0]
    kernels = track.end_ns[track.work.stream[track.work.nodes.row] == 0]
    assert len(kernels) == LAYERS
    gathers = begins(beside, Kind.COLLECTIVE)
    assert all(g < end for g, end in zip(gathers[1:], kernels[:-1].tolist(), strict=True))
    behind = estimated(layers("compute"), policy)
    assert beside.step_time_ns < 0.9 * behind.step_time_ns


@pytest.mark.parametrize("policy", sorted(set(POLICIES) - set(AHEAD)))
def test_policies_without_overlap_know_one_stream(policy: str) -> None:
    times = [estimated(layers(s), policy).step_time_ns for s in ("copies", "compute")]
    assert times[0] == times[1]


def test_times_of_two_streams_add_up_to_the_step() -> None:
    found = estimated(layers("copies"))
    shares = found.classes[0].shares
    assert sum(s.exposed_ns for s in shares) == pytest.approx(found.step_time_ns)
    copies = next(s for s in shares if s.kind == "copy")
    assert copies.count == LAYERS and 0 < copies.exposed_ns < copies.busy_ns
    path = critical_path(found.timeline, POLICIES["overlap"])
    assert sum(s.total_ns for s in path) == pytest.approx(found.step_time_ns)


SCRIPT = """
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

device = torch.accelerator.current_accelerator()
mesh = init_device_mesh(device.type, (16,), mesh_dim_names=("data",))
with torch.device("meta"):
    model = nn.Sequential(*(nn.Linear(4096, 4096, bias=False, dtype=torch.bfloat16) for _ in range(4)))
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
model.to_empty(device=device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(2):
    model(torch.zeros(65536, 4096, device=device, dtype=torch.bfloat16)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def recorded(script: str, folder: Path) -> Program:
    """The program of the first of 16 ranks that run a script."""
    pytest.importorskip("torch")
    from flint.frontends.torch_world.program.build import build_program
    from flint.frontends.torch_world.record.job import Job
    from flint.frontends.torch_world.record.process import record

    (folder / "train.py").write_text(script)
    job = replace(Job.of_script(folder / "train.py"), world_size=16, mesh_sizes=(16,))
    return build_program(record([job])[0], MESH).program


def test_fsdp_gathers_for_the_next_layer_while_one_runs(tmp_path: Path) -> None:
    program = recorded(SCRIPT, tmp_path)
    found = estimated(program)
    track = found.timeline.classes[0]
    row = track.work.nodes.row
    forward = program.phase[row] == Phase.FORWARD
    gathers = np.flatnonzero(forward & (program.collective[row] == Collective.ALL_GATHER))
    products = np.flatnonzero(forward & (program.flops[row] >= 2 * 65536 * 4096**2))
    assert len(gathers) == len(products) == 4
    assert (track.start_ns[gathers[1:]] < track.end_ns[products[:-1]]).all()
    assert (track.end_ns[gathers[1:]] <= track.start_ns[products[1:]]).all()
    assert sum(s.exposed_ns for s in found.classes[0].shares) == pytest.approx(found.step_time_ns)
    late = estimated(program, "in-order").timeline.classes[0]
    assert (late.start_ns[gathers[1:]] >= late.start_ns[products[:-1]]).all()


LISTS = """
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
model, n = torch.nn.Linear(8, 8, device="cuda"), dist.get_world_size()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
one = torch.randn(1 << 20, device="cuda")
every = [torch.empty(1 << 20, device="cuda") for _ in range(n)]
for _ in range(2):
    CALL
    model(one[:8] + every[0][:8]).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("call", "collective"),
    [
        ("dist.all_gather(every, one)", Collective.ALL_GATHER),
        ("dist.all_gather(every, one, async_op=True).wait()", Collective.ALL_GATHER),
        ("dist.reduce_scatter(one, every)", Collective.REDUCE_SCATTER),
    ],
)
def test_collectives_of_lists_go_through_flat_memory(
    call: str, collective: Collective, tmp_path: Path
) -> None:
    program = recorded(LISTS.replace("CALL", call), tmp_path)
    copies = np.flatnonzero((program.op == OpClass.COPY) & (program.kind == Kind.COMPUTE))
    assert program.result_bytes[copies].tolist() == [4 << 20] * 16
    (moved,) = np.flatnonzero(program.collective == collective)
    gathers = collective is Collective.ALL_GATHER
    assert ((copies > moved) == gathers).all()
    assert layouts(program)[0].live_bytes.max() >= (16 + 16 + 1) * (4 << 20)
