"""DLRM: embedding tables spread over all ranks, dense layers data parallel; a torchrun script.

    flint capture examples/torch_dlrm.py --mesh 64 --world -o trace
    torchrun --nproc-per-node 8 examples/torch_dlrm.py --rows 100000

Each rank keeps whole tables and looks up what the whole batch asks of them; an all-to-all then
hands every rank the vectors of its own samples, and another one takes the gradients back. Dense
layers are replicated and their gradients averaged (DistributedDataParallel).

The same model for one device; here the rows of every table are sharded over the mesh:

    flint capture examples/torch_dlrm.py --mesh 64 -o trace

"Deep Learning Recommendation Model for Personalization and Recommendation Systems" (arXiv
1906.00091); the dense layers and the width of the vectors are those of MLPerf's benchmark, whose 26
tables of very different sizes are 64 of one size here.
"""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import flint

if TYPE_CHECKING:
    from jax.sharding import AbstractMesh

NUM_DENSE, NUM_TABLES, DIM = 13, 64, 128
BOTTOM, TOP = (512, 256, DIM), (1024, 1024, 512, 256, 1)
LOOKUPS = 8  #: rows that a sample reads from each table


def layers(width: int, widths: tuple[int, ...]) -> nn.Sequential:
    """Linear layers with a ReLU between them."""
    modules: list[nn.Module] = []
    for next_width in widths:
        modules += [nn.Linear(width, next_width), nn.ReLU()]
        width = next_width
    return nn.Sequential(*modules[:-1])


class Dense(nn.Module):
    """Dense features and the tables' vectors to one number per sample."""

    def __init__(self) -> None:
        super().__init__()
        pairs = (NUM_TABLES + 1) * NUM_TABLES // 2
        self.bottom = layers(NUM_DENSE, BOTTOM)
        self.top = layers(DIM + pairs, TOP)
        rows, columns = torch.tril_indices(NUM_TABLES + 1, NUM_TABLES + 1, -1, device="cpu")
        self.pairs = [int(i) for i in rows * (NUM_TABLES + 1) + columns]

    def forward(self, dense: Tensor, vectors: Tensor) -> Tensor:
        """`vectors` are (batch, tables, dim): products of all pairs of them, and of them with x."""
        x = F.relu(self.bottom(dense))
        every = torch.cat([x[:, None], vectors], dim=1)
        products = torch.bmm(every, every.transpose(1, 2)).flatten(1)
        where = torch.tensor(self.pairs, device=products.device)
        return self.top(torch.cat([x, products.index_select(1, where)], dim=1)).squeeze(1)


def table(rows: int) -> nn.EmbeddingBag:
    bag = nn.EmbeddingBag(rows, DIM, mode="sum")
    nn.init.uniform_(bag.weight, -(rows**-0.5), rows**-0.5)
    return bag


class Exchange(torch.autograd.Function):
    """(my tables, whole batch, dim) to (all tables, my batch, dim), tables in the order of ranks."""

    @staticmethod
    def forward(context, mine: Tensor, counts: list[int]) -> Tensor:
        world, rank = dist.get_world_size(), dist.get_rank()
        context.counts = counts
        batch = mine.shape[1] // world
        sent = mine.unflatten(1, (world, batch)).transpose(0, 1).contiguous()
        received = mine.new_empty(sum(counts), batch, mine.shape[2])
        dist.all_to_all_single(received, sent.flatten(0, 1), counts, [counts[rank]] * world)
        return received

    @staticmethod
    def backward(context, gradient: Tensor) -> tuple[Tensor, None]:
        world, counts = dist.get_world_size(), context.counts
        own = counts[dist.get_rank()]
        received = gradient.new_empty(world * own, *gradient.shape[1:])
        dist.all_to_all_single(received, gradient.contiguous(), [own] * world, counts)
        return received.unflatten(0, (world, own)).transpose(0, 1).flatten(1, 2), None


def tables_of_ranks() -> list[int]:
    """How many tables each rank has. Ranks beyond the number of tables have none."""
    world = dist.get_world_size()
    return [len(range(rank, NUM_TABLES, world)) for rank in range(world)]


class WholeModel(nn.Module):
    """The same on one device."""

    def __init__(self, rows: int):
        super().__init__()
        self.tables = nn.ModuleList(table(rows) for _ in range(NUM_TABLES))
        self.dense = Dense()

    def forward(self, features: Tensor, lookups: Tensor) -> Tensor:
        vectors = [bag(lookups[i]) for i, bag in enumerate(self.tables)]
        return self.dense(features, torch.stack(vectors, dim=1))


@flint.entry(axes=("data",))
def annotated(mesh: AbstractMesh, *, batch: int = 65_536, rows: int = 1 << 20) -> flint.TorchStep:
    """One training step; every table is sharded by rows, the batch over the same devices."""
    with torch.device("meta"):
        model = WholeModel(rows)
        features, clicks = torch.empty(batch, NUM_DENSE), torch.empty(batch)
        lookups = torch.empty(NUM_TABLES, batch, LOOKUPS, dtype=torch.int64)
    return flint.TorchStep(
        model,
        (features, lookups),
        loss=F.binary_cross_entropy_with_logits,
        loss_args=(clicks,),
        optimizer="sgd",
        shardings={
            "tables.*.weight": ("data", None),
            "features": ("data", None),
            "lookups": (None, "data", None),
            "target": ("data",),
        },
        name="dlrm",
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Train DLRM on random clicks.")
    parser.add_argument("--batch", type=int, default=512, help="samples of a rank")
    parser.add_argument("--rows", type=int, default=1 << 20, help="rows of a table")
    parser.add_argument("--steps", type=int, default=2)
    options = parser.parse_args(arguments)
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    device = torch.device(accelerator.type if accelerator else "cpu")
    if accelerator:
        torch.accelerator.set_device_index(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group()
    counts, everyone = tables_of_ranks(), options.batch * dist.get_world_size()
    own = counts[dist.get_rank()]

    torch.manual_seed(0)
    tables = nn.ModuleList(table(options.rows) for _ in range(own)).to(device)
    no_table = torch.empty(0, everyone, DIM, device=device, requires_grad=True)
    dense = DistributedDataParallel(Dense().to(device))
    optimizer = torch.optim.SGD([*tables.parameters(), *dense.parameters()], lr=0.01)
    for step in range(options.steps):
        features = torch.randn(options.batch, NUM_DENSE, device=device)
        clicks = torch.randint(2, (options.batch,), device=device).float()
        lookups = torch.randint(options.rows, (own, everyone, LOOKUPS), device=device)
        mine = [bag(lookups[i]) for i, bag in enumerate(tables)]
        # A rank without tables takes part in the exchange all the same, backward too.
        vectors = Exchange.apply(torch.stack(mine) if mine else no_table, counts).transpose(0, 1)
        loss = F.binary_cross_entropy_with_logits(dense(features, vectors), clicks)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0:
            print(f"step {step + 1}: loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
