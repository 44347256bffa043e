"""Programs whose ranks divide the model: tensors, sequences, experts, stages."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.nn.functional import all_to_all_single
from torch.distributed.pipelining import PipelineStage, schedules
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

from benchmarks.real_ranks.replicated import adam, changed, fsdp, trained
from benchmarks.real_ranks.table import (
    PROGRAMS,
    TOKENS,
    WIDTH,
    WORLD,
    Block,
    Model,
    Training,
    loss_of,
    program,
    stepping,
    tokens_of,
)

COLUMNS = {f"attention.{n}": ColwiseParallel() for n in "qkv"}
BLOCK = {
    **COLUMNS,
    "attention.o": RowwiseParallel(),
    "up": ColwiseParallel(),
    "down": RowwiseParallel(),
}
#: Rows of a sequence are divided where norms run.
SEQUENCE = {
    "norm": SequenceParallel(),
    "attention": PrepareModuleInput(
        input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)
    ),
    **COLUMNS,
    "attention.o": RowwiseParallel(output_layouts=Shard(1)),
    "up": ColwiseParallel(input_layouts=Shard(1)),
    "down": RowwiseParallel(output_layouts=Shard(1)),
}


def tensor_parallel(
    device: str, mesh: DeviceMesh, plan: dict[str, Any], block: dict[str, Any] = BLOCK, **model: Any
) -> Model:
    """A model whose blocks are divided by columns and rows."""
    made = Model(**model).to(device)
    for each in made.blocks:
        parallelize_module(each, mesh, block)
    return parallelize_module(made, mesh, plan)


def all_ranks(device: str, name: str = "tp") -> DeviceMesh:
    """A mesh of one axis."""
    return init_device_mesh(device, (WORLD,), mesh_dim_names=(name,))


#: Of embeddings and logits.
HEAD = {"head": ColwiseParallel(output_layouts=Replicate())}
EMBEDDING = {"embed": RowwiseParallel(input_layouts=Replicate())}
ALONG = {
    "embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
    "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
}


def over_all(device: str, *plans: dict[str, Any], **model: Any) -> Training:
    """Tensor parallelism over all ranks."""
    return trained(device, tensor_parallel(device, all_ranks(device), *plans, **model))


PROGRAMS.update(
    {
        "tensor parallel plain": lambda d: over_all(d, HEAD),
        "sequence parallel": lambda d: over_all(d, ALONG, SEQUENCE),
        "uneven vocabulary": lambda d: over_all(d, HEAD, vocabulary=98),
        "embedding by rows": lambda d: over_all(d, EMBEDDING),
        "embedding by uneven rows": lambda d: over_all(d, EMBEDDING, vocabulary=98),
    }
)


@program
def loss_over_the_vocabulary(device: str) -> Training:
    plan = {"head": ColwiseParallel(use_local_output=False)}
    model, tokens = tensor_parallel(device, all_ranks(device), plan), tokens_of(device)

    def backward() -> None:
        with loss_parallel():
            loss_of(model, tokens).backward()

    return stepping(backward, adam(model), model, tokens)


@program
def fsdp_over_tensor_parallel(device: str) -> Training:
    mesh = init_device_mesh(device, (2, 2), mesh_dim_names=("dp", "tp"))
    model = tensor_parallel(device, mesh["tp"], HEAD)
    for block in model.blocks:
        fully_shard(block, mesh=mesh["dp"])
    return trained(device, fully_shard(model, mesh=mesh["dp"]))


@program
def products_of_dtensors(device: str) -> Training:
    mesh = init_device_mesh(device, (2, 2), mesh_dim_names=("a", "b"))

    def divided(rows: int, columns: int, *placements: Replicate | Shard) -> Tensor:
        return distribute_tensor(torch.randn(rows, columns, device=device), mesh, placements)

    weight = nn.Parameter(divided(WIDTH, 128, Replicate(), Shard(1)))
    other = nn.Parameter(divided(128, WIDTH, Replicate(), Shard(0)))
    x = divided(32, WIDTH, Shard(0), Replicate())
    optimizer = torch.optim.SGD([weight, other], 0.1, foreach=True)

    def step() -> None:
        y = torch.relu(x @ weight) @ other  # is held while the weights are updated
        y.redistribute(placements=[Shard(0), Shard(1)]).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return Training(step, (weight, other, x, optimizer))


# --- sequences ------------------------------------------------------------------------------------


class Exchange(torch.autograd.Function):
    """A tensor goes to the next rank of a ring; its gradient goes back."""

    @staticmethod
    def forward(context: Any, x: Tensor, by: int = 1) -> Tensor:
        context.by = by
        rank, received = dist.get_rank(), torch.empty_like(x, memory_format=torch.contiguous_format)
        sent = dist.P2POp(dist.isend, x.contiguous(), (rank + by) % WORLD)
        got = dist.P2POp(dist.irecv, received, (rank - by) % WORLD)
        for work in dist.batch_isend_irecv([sent, got]):
            work.wait()
        return received

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Any:
        return Exchange.apply(gradient, -context.by), None


class Ring(nn.Module):
    """Attention over a sequence in parts, whose keys and values go round."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.inner = attention

    def forward(self, x: Tensor) -> Tensor:
        inner = self.inner
        q, k, v = (f(x) for f in (inner.q, inner.k, inner.v))
        scores, values = [], []
        for turn in range(WORLD):
            if turn:
                k, v = Exchange.apply(k), Exchange.apply(v)
            scores.append(q @ k.transpose(-2, -1))
            values.append(v)
        return inner.o(torch.softmax(torch.cat(scores, -1), -1) @ torch.cat(values, -2))


class Ulysses(nn.Module):
    """Attention over whole sequences, of some heads on each rank."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.inner = attention

    def forward(self, x: Tensor) -> Tensor:
        def turned(y: Tensor) -> Tensor:
            parts = torch.stack(y.chunk(WORLD, -1)).contiguous()
            return torch.cat(all_to_all_single(torch.empty_like(parts), parts).unbind(0), 1)

        q, k, v = (turned(f(x)) for f in (self.inner.q, self.inner.k, self.inner.v))
        y = torch.softmax(q @ k.transpose(-2, -1), -1) @ v
        parts = torch.stack(y.chunk(WORLD, 1)).contiguous()
        back = all_to_all_single(torch.empty_like(parts), parts)
        return self.inner.o(torch.cat(back.unbind(0), -1))


class Gather(torch.autograd.Function):
    """Rows of all ranks; gradients are summed and scattered."""

    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        every = x.new_empty(WORLD * x.shape[0], *x.shape[1:])
        dist.all_gather_into_tensor(every, x.contiguous())
        return every

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        mine = gradient.new_empty(gradient.shape[0] // WORLD, *gradient.shape[1:])
        dist.reduce_scatter_tensor(mine, gradient.contiguous())
        return mine


class Gathered(Ring):
    """Attention of a part of a sequence with the keys and values of all."""

    def forward(self, x: Tensor) -> Tensor:
        inner = self.inner
        k, v = (torch.cat(Gather.apply(f(x)).chunk(WORLD), 1) for f in (inner.k, inner.v))
        return inner.o(torch.softmax(inner.q(x) @ k.transpose(-2, -1), -1) @ v)


SEQUENCES = {"ring attention": Ring, "ulysses": Ulysses, "keys gathered": Gathered}
PROGRAMS.update(
    {
        name: lambda d, kind=kind: trained(d, fsdp(d, changed(Model(), attention=kind)))
        for name, kind in SEQUENCES.items()
    }
)


# --- experts --------------------------------------------------------------------------------------


class Experts(nn.Module):
    """An expert on each rank. `sent` says how many rows go to each rank, the same from all."""

    def __init__(self, sent: tuple[int, ...] = (16, 16, 16, 16)) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, WORLD, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 128), nn.Linear(128, WIDTH)
        self.sent = sent

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, 1)
        weight = torch.softmax(self.router(rows), -1).amax(-1, keepdim=True)
        sent, got = list(self.sent), [self.sent[dist.get_rank()]] * WORLD
        here = all_to_all_single(rows.new_empty(sum(got), WIDTH), rows, got, sent)
        done = self.down(F.relu(self.up(here)))
        back = all_to_all_single(torch.empty_like(rows), done, sent, got)
        return x + (back * weight).view_as(x)


def of_experts(device: str, experts: Experts) -> Training:
    """One layer of experts between replicated layers; gradients of these are summed."""
    model = Model(1)
    model.blocks.append(experts)
    model.to(device)
    shared = [p for n, p in model.named_parameters() if ".1.up" not in n and ".1.down" not in n]

    def between() -> None:
        for p in shared:
            dist.all_reduce(p.grad, op=dist.ReduceOp.SUM)

    return trained(device, model, between=between)


class Every(Experts):
    """All ranks calculate their expert on all tokens."""

    def forward(self, x: Tensor) -> Tensor:
        rows = Gather.apply(x.flatten(0, 1))
        weight = torch.softmax(self.router(rows), -1)[:, dist.get_rank(), None]
        return x + Scatter.apply(self.down(F.relu(self.up(rows))) * weight).view_as(x)


class Scatter(torch.autograd.Function):
    """The other way round."""

    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        return Gather.backward(context, x)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        return Gather.forward(context, gradient)


PROGRAMS.update(
    {
        "experts even": lambda d: of_experts(d, Experts()),
        "experts uneven": lambda d: of_experts(d, Experts((28, 20, 12, 4))),
        "experts gathered": lambda d: of_experts(d, Every()),
    }
)


# --- stages ---------------------------------------------------------------------------------------


def pipeline(
    device: str, schedule: str, chunks: int = 1, mesh: DeviceMesh | None = None
) -> Training:
    """Stages of equal blocks, four microbatches."""
    ranks = mesh["pipe"].size() if mesh else WORLD
    rank = mesh["pipe"].get_local_rank() if mesh else dist.get_rank()
    modules = [Block().to(device) for _ in range(chunks)]
    if mesh:
        modules = [fully_shard(m, mesh=mesh["dp"]) for m in modules]
    group = mesh["pipe"].get_group() if mesh else None
    stages = [
        PipelineStage(m, rank + n * ranks, ranks * chunks, torch.device(device), group=group)
        for n, m in enumerate(modules)
    ]
    made = getattr(schedules, f"Schedule{schedule}")(
        stages if chunks > 1 else stages[0], 4, loss_fn=lambda y, t: F.mse_loss(y, t)
    )
    optimizer = torch.optim.AdamW([p for m in modules for p in m.parameters()], foreach=True)
    x, target = (torch.randn(8, TOKENS, WIDTH, device=device) for _ in range(2))

    def backward() -> None:
        inputs = (x,) if rank == 0 else ()
        made.step(*inputs, target=target if rank == ranks - 1 else None, losses=[])

    return stepping(backward, optimizer, *modules, x, target)


PROGRAMS.update(
    {
        "pipeline gpipe": lambda d: pipeline(d, "GPipe"),
        "pipeline 1f1b": lambda d: pipeline(d, "1F1B"),
        "pipeline interleaved": lambda d: pipeline(d, "Interleaved1F1B", chunks=2),
        "pipeline of fsdp": lambda d: pipeline(
            d, "1F1B", mesh=init_device_mesh(d, (2, 2), mesh_dim_names=("pipe", "dp"))
        ),
    }
)
