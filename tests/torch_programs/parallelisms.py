"""A torchrun script that trains two transformer blocks, distributed as its argument says."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.pipelining import ScheduleGPipe, SplitPoint, pipeline
from torch.distributed.tensor.experimental import context_parallel
from torch.nn.parallel import DistributedDataParallel

WIDTH, HEADS, TOKENS = 256, 4, 128


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        parts = self.qkv(self.norm(x)).chunk(3, -1)
        q, k, v = (part.view(batch, tokens, HEADS, -1).transpose(1, 2) for part in parts)
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(heads.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.mlp(x)


def model() -> nn.Sequential:
    return nn.Sequential(Block(), Block())


def train(parameters: Iterable[Tensor], step: Callable[[], None]) -> None:
    optimizer = torch.optim.AdamW(parameters)
    for _ in range(2):
        step()
        optimizer.step()
        optimizer.zero_grad()


def context(x: Tensor) -> None:
    mesh = init_device_mesh("cuda", (dist.get_world_size(),), mesh_dim_names=("cp",))
    made = model().cuda().bfloat16()  # flash attention: the ring cannot merge padded statistics

    def step() -> None:
        part = x.bfloat16()
        with context_parallel(mesh, buffers=[part], buffer_seq_dims=[1]):
            made(part).mean().backward()

    train(made.parameters(), step)


def accumulate(x: Tensor) -> None:
    made: Any = model().cuda()
    for block in made:
        fully_shard(block)
    fully_shard(made)

    def step() -> None:
        for microbatch in range(3):
            made.set_requires_gradient_sync(microbatch == 2)
            made(x).mean().backward()

    train(made.parameters(), step)


def hybrid(x: Tensor) -> None:
    shape = (2, dist.get_world_size() // 2)
    mesh = init_device_mesh("cuda", shape, mesh_dim_names=("replicate", "shard"))
    made = model().cuda()
    for block in made:
        fully_shard(block, mesh=mesh)
    fully_shard(made, mesh=mesh)
    train(made.parameters(), lambda: made(x).mean().backward())


def fsdp1(x: Tensor) -> None:
    policy = ModuleWrapPolicy({Block})
    made = FullyShardedDataParallel(model().cuda(), auto_wrap_policy=policy, use_orig_params=True)

    def step() -> None:
        made(x).mean().backward()
        made.clip_grad_norm_(1.0)

    train(made.parameters(), step)


def objects(x: Tensor) -> None:
    options = [{"scale": 2.0}] if dist.get_rank() == 0 else [None]
    dist.broadcast_object_list(options, src=0)
    names: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(names, "rank")
    assert names[-1] == "rank"
    made = DistributedDataParallel(model().cuda(), device_ids=[0])

    def step() -> None:
        dist.barrier()
        loss = made(x).mean()
        loss.backward()
        if torch.isnan(loss):
            raise ValueError("the loss is not a number")

    train(made.parameters(), step)


def traced_pipeline(x: Tensor) -> None:
    whole = model()
    pipe = pipeline(whole, (torch.randn(1, TOKENS, WIDTH),), split_spec={"1": SplitPoint.BEGINNING})
    stage = pipe.build_stage(dist.get_rank(), torch.device("cuda", 0))
    stage.submod.cuda()
    schedule = ScheduleGPipe(stage, 2, loss_fn=F.mse_loss)
    inputs = {"args": (x,), "target": None} if dist.get_rank() == 0 else {"args": (), "target": x}
    step = lambda: schedule.step(*inputs["args"], target=inputs["target"])
    train(stage.submod.parameters(), step)


if __name__ == "__main__":
    dist.init_process_group("nccl")
    torch.cuda.set_device(0)
    globals()[sys.argv[1]](torch.randn(2, TOKENS, WIDTH, device="cuda"))
