"""A small pipeline in every form: `python pipelines.py SCHEDULE [options]`, under torchrun.

Ranks are `pipe` x `data` x `model`; stages are equal blocks, with FSDP2 over `data`, tensor
parallelism over `model`, and a step of AdamW. See `main` for the options.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, SplitPoint, pipe_split, pipeline, schedules
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

WIDTH, TOKENS, HIDDEN = 64, 32, 256


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(x)))


class Marked(nn.Module):
    """A whole model that says itself where it is to be split."""

    def __init__(self, stages: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(stages))

    def forward(self, x: Tensor) -> Tensor:
        for index, block in enumerate(self.blocks):
            if index:
                pipe_split()
            x = block(x)
        return x


def distribute(block: nn.Module, mesh: DeviceMesh, parallel: str) -> nn.Module:
    if mesh["model"].size() > 1:
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        parallelize_module(block, mesh["model"], plan)
    if parallel == "fsdp":
        return fully_shard(block, mesh=mesh["data"], reshard_after_forward=False)
    if parallel == "ddp":
        return DistributedDataParallel(block, process_group=mesh["data"].get_group())
    return block


def traced(options: argparse.Namespace, mesh: DeviceMesh, indices: list[int]) -> list[object]:
    """Stages that `pipeline()` finds in a whole model."""
    microbatch = torch.randn(options.batch // options.microbatches, TOKENS, WIDTH)
    if options.trace == "marked":
        pipe = pipeline(Marked(options.stages), (microbatch,))
    else:
        whole = nn.Sequential(*(Block() for _ in range(options.stages)))
        split = {str(i): SplitPoint.BEGINNING for i in range(1, options.stages)}
        pipe = pipeline(whole, (microbatch,), split_spec=split)
    assert pipe.num_stages == options.stages
    for index in indices:
        distribute(pipe.get_stage_module(index).cuda(), mesh, options.parallel)
    group = mesh["pipe"].get_group()
    return [pipe.build_stage(index, torch.device("cuda"), group) for index in indices]


def manual(options: argparse.Namespace, mesh: DeviceMesh, indices: list[int]) -> list[object]:
    """Stages that the program makes itself."""
    made = []
    for index in indices:
        module = distribute(Block().cuda(), mesh, options.parallel)
        group = mesh["pipe"].get_group()
        stage = PipelineStage(module, index, options.stages, torch.device("cuda"), group=group)
        made.append(stage)
    return made


def owned(options: argparse.Namespace, mesh: DeviceMesh) -> list[int]:
    rank, ranks = mesh["pipe"].get_local_rank(), mesh["pipe"].size()
    if options.schedule in ("ScheduleZBVZeroBubble", "ScheduleDualPipeV"):
        return [rank, 2 * ranks - 1 - rank]
    return list(range(rank, options.stages, ranks))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("schedule")
    parser.add_argument("--pipe", type=int, default=2)
    parser.add_argument("--model", type=int, default=1)
    parser.add_argument("--stages", type=int, default=0, help="0 is one for each rank")
    parser.add_argument("--microbatches", type=int, default=4)
    parser.add_argument("--parallel", choices=("none", "fsdp", "ddp"), default="none")
    parser.add_argument("--trace", choices=("", "spec", "marked"), default="")
    parser.add_argument("--eval", action="store_true", help="forward only")
    options = parser.parse_args()
    options.stages = options.stages or options.pipe
    options.batch = 2 * options.microbatches
    return options


def main() -> None:
    options = parsed()
    dist.init_process_group("nccl")
    data = dist.get_world_size() // options.pipe // options.model
    shape, names = (options.pipe, data, options.model), ("pipe", "data", "model")
    mesh = init_device_mesh("cuda", shape, mesh_dim_names=names)
    indices = owned(options, mesh)
    stages = (traced if options.trace else manual)(options, mesh, indices)
    schedule_class = getattr(schedules, options.schedule)
    single = issubclass(schedule_class, schedules.PipelineScheduleSingle)
    without_loss = schedule_class is schedules._ScheduleForwardOnly
    loss = {} if without_loss else {"loss_fn": F.mse_loss}
    schedule = schedule_class(stages[0] if single else stages, options.microbatches, **loss)

    x = torch.randn(options.batch, TOKENS, WIDTH, device="cuda")
    inputs = (x,) if 0 in indices else ()
    target = {"target": x} if options.stages - 1 in indices and not without_loss else {}
    if options.eval:
        with torch.no_grad():
            (schedule.step if without_loss else schedule.eval)(*inputs, **target)
        return
    optimizer = torch.optim.AdamW([p for stage in stages for p in stage.submod.parameters()])
    for _ in range(2):
        schedule.step(*inputs, **target)
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
