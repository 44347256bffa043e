"""Ways in which programs start their ranks and draw on DTensors, recorded as a rank that is not the first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from flint.errors import FlintError
from flint.frontends.torch_world.record.job import Job
from flint.frontends.torch_world.record.process import RankProcesses
from flint.frontends.torch_world.record.recording import Recording

STEPS = """
def train(m, x):
    o = torch.optim.SGD(m.parameters(), 0.1)
    for _ in range(2):
        m(x).sum().backward(); o.step(); o.zero_grad()
"""
IMPORTS = "import os, torch, torch.nn as nn, torch.distributed as dist\n"
STARTED = {
    "spawned": """
import torch.multiprocessing as mp
def main(rank, size):
    os.environ["MASTER_PORT"] = "1"
    torch.cuda.set_device(rank); dist.init_process_group("nccl", rank=rank, world_size=size)
    train(nn.parallel.DistributedDataParallel(nn.Linear(8, 8).to(rank), device_ids=[rank]), torch.ones(2, 8).to(rank))
if __name__ == "__main__":
    mp.spawn(main, args=(torch.cuda.device_count(),), nprocs=torch.cuda.device_count())
""",
    "by a mesh alone": """
from torch.distributed._tensor.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
mesh = init_device_mesh("cuda", (int(os.environ["WORLD_SIZE"]),))
plan = ColwiseParallel(output_layouts=torch.distributed.tensor.Replicate())
train(parallelize_module(nn.Linear(8, 8).cuda(), mesh, plan), torch.ones(2, 8, device="cuda"))
""",
    "random on DTensors": """
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, rand
torch.cuda.set_device(int(os.environ["LOCAL_RANK"])); dist.init_process_group("nccl")
mesh = dist.device_mesh.init_device_mesh("cuda", (4,))
with torch.device("meta"):
    m = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1))
fully_shard(m[0]); fully_shard(m); m.to_empty(device="cuda"); m[0].reset_parameters()
for p in m.parameters():
    p.data.normal_(); torch.rand_like(p); nn.init.uniform_(p); p.detach().bernoulli_(0.5)
nn.functional.dropout(rand(8, 8, device_mesh=mesh, placements=[Shard(0)]), 0.5)
train(m, torch.ones(2, 8, device="cuda"))
""",
}


@pytest.fixture(scope="module")
def processes() -> Iterator[RankProcesses]:
    with RankProcesses() as running:
        yield running


def record(
    text: str, folder: Path, processes: RankProcesses, steps: int | None = None
) -> Recording:
    script = folder / "train.py"
    script.write_text(IMPORTS + STEPS + text)
    job = replace(Job.of_script(script), world_size=4, rank=3, mesh_sizes=(4,), mesh_names=("d",))
    return processes.record([job if steps is None else replace(job, steps=steps)])[0]


@pytest.mark.parametrize("name", STARTED)
def test_a_rank_that_is_not_the_first(name: str, tmp_path: Path, processes: RankProcesses) -> None:
    found = record(STARTED[name], tmp_path, processes)
    groups = {found.groups[e.comm.group].ranks for e in found.events if e.comm is not None}
    assert found.rank == 3 and groups == {(0, 1, 2, 3)}


#: What is refused, and what is said of it.
REFUSED = {
    'import torch.distributed.rpc as rpc\nrpc.init_rpc("worker3", rank=3, world_size=4)\n': "rpc cannot be recorded",
    "(torch.ones(4, device='cuda') * 2).sum()\n": r"called no torch\.nn\.Module",
    "nn.Identity()(torch.ones(4))\n": "the model is on the CPU",
    """
from torch._higher_order_ops.scan import scan
x = nn.Identity()(torch.ones(5, 4, device="cuda"))
scan(lambda c, x: (c + x, c.clone()), torch.zeros(4, device="cuda"), x)
""": "scan cannot be recorded: it runs functions",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_cannot_be_recorded_is_refused_by_name(
    text: str, tmp_path: Path, processes: RankProcesses
) -> None:
    with pytest.raises(FlintError, match=REFUSED[text]) as caught:
        record(text, tmp_path, processes, steps=0)
    assert caught.value.code == "FL235"


def test_control_flow_runs_as_that_of_python(tmp_path: Path, processes: RankProcesses) -> None:
    text = """
x = nn.Identity()(torch.ones(4, 4, device="cuda"))
torch.cond(x.norm() < 0, lambda x: x @ x, lambda x: x.sin(), (x,))
torch.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x @ x), (torch.tensor(0), x))
"""
    found = record(text, tmp_path, processes, steps=0)
    ran = [e.op for e in found.events if e.op in ("aten.mm.default", "aten.sin.default")]
    assert ran == ["aten.sin.default", *["aten.mm.default"] * 3]
