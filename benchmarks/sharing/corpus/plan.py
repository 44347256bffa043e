"""What surrounds a model: a mesh, what is sharded over its axes, precision, optimizer; drawn at random."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random
from typing import Literal

Role = Literal["data", "shard", "tensor", "expert", "sequence"]

#: Names that an axis of a role may have.
NAMES: dict[Role, tuple[str, ...]] = {
    "data": ("data", "dp", "batch", "replica", "d", "rep"),
    "shard": ("fsdp", "shard", "zero", "x", "dp_shard"),
    "tensor": ("model", "tp", "tensor", "mp", "m", "y"),
    "expert": ("expert", "ep", "experts", "e"),
    "sequence": ("seq", "cp", "context", "sequence", "z"),
}
#: Sizes of axes by role; those of "data" and "shard" fill the mesh.
SIZES: dict[Role, tuple[int, ...]] = {
    "tensor": (2, 4, 4, 8, 8, 16),
    "expert": (2, 4, 8, 8, 16, 32),
    "sequence": (2, 4, 8, 16),
}
FILLING = (2, 4, 6, 8, 8, 12, 16, 16, 24, 32, 32, 48, 64, 64, 96, 128, 256, 512, 1024)
FEWEST, MOST = 8, 4096
#: Ways to be parallel: the roles of the axes of meshes that it may have.
STYLES: dict[str, tuple[tuple[Role, ...], ...]] = {
    "dp": (("data",), ("data",), ("data", "data")),
    "fsdp": (("shard",), ("data", "shard"), ("shard", "shard")),
    "tp": (("data", "tensor"), ("data", "tensor"), ("data", "data", "tensor")),
    "fsdp+tp": (("shard", "tensor"), ("shard", "tensor"), ("data", "shard", "tensor")),
    "tp+sp": (("data", "tensor"),),
    "fsdp+tp+sp": (("shard", "tensor"), ("data", "shard", "tensor")),
    "cp": (("data", "sequence"),),
    "fsdp+cp": (("shard", "sequence"), ("data", "shard", "sequence")),
    "tp+cp": (("data", "sequence", "tensor"),),
    "ep": (("data", "expert"), ("expert",), ("data", "data", "expert")),
    "fsdp+ep": (("shard", "expert"), ("data", "shard", "expert")),
    "ep+tp": (("data", "expert", "tensor"), ("shard", "expert", "tensor")),
}
OPTIMIZERS = ("adamw", "adamw", "adam", "momentum", "adafactor", "lion", "sgd")
PRECISIONS = ("bf16", "bf16", "mixed", "mixed", "f32")
REMATS = ("none", "full", "full", "dots")


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis of the mesh and what it is for."""

    name: str
    size: int
    role: Role


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything but the model. `micro` 1 accumulates no gradients; `batch` is of one position of the axes over which a batch is sharded."""

    style: str
    axes: tuple[Axis, ...]
    training: bool
    precision: str
    optimizer: str
    remat: str
    micro: int
    clip: bool
    scan: bool
    batch: int

    @property
    def mesh(self) -> str:
        """As `flint capture --mesh` reads it."""
        return ",".join(f"{axis.name}={axis.size}" for axis in self.axes)

    @property
    def words(self) -> str:
        """Options in one line."""
        served = "inference" if not self.training else ""
        trained = (
            f"optimizer={self.optimizer} remat={self.remat} micro={self.micro} clip={self.clip}"
        )
        return (
            f"parallel={self.style} precision={self.precision} batch={self.batch} "
            f"{served or trained} scan={self.scan}"
        )


def drawn_plan(rng: Random, styles: tuple[str, ...], inference: float) -> Plan:
    """A plan of one of the styles; a share `inference` of plans is a forward pass only."""
    style = rng.choice(styles)
    training = rng.random() >= inference
    micro = rng.choice((2, 4, 8, 16)) if training and rng.random() < 0.15 else 1
    return Plan(
        style,
        _axes(rng, rng.choice(STYLES[style])),
        training,
        rng.choice(PRECISIONS) if training else rng.choice(("bf16", "bf16", "f32")),
        rng.choice(OPTIMIZERS) if training else "none",
        rng.choice(REMATS) if training else "none",
        micro,
        clip=training and rng.random() < 0.3,
        scan=rng.random() < 0.85,
        batch=rng.choice((1, 2, 4, 8, 16)),
    )


def _axes(rng: Random, roles: tuple[Role, ...]) -> tuple[Axis, ...]:
    """Axes of different names, of `FEWEST` to `MOST` devices together, in any order."""
    while True:
        sizes = [rng.choice(SIZES.get(role, FILLING)) for role in roles]
        names = [rng.choice(NAMES[role]) for role in roles]
        if FEWEST <= math.prod(sizes) <= MOST and len(set(names)) == len(names):
            break
    axes = [Axis(*one) for one in zip(names, sizes, roles, strict=True)]
    if rng.random() < 0.15:
        rng.shuffle(axes)
    return tuple(axes)
