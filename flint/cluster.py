"""Cluster and Chip: what a step is estimated on, read from TOML, every number with its source."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class SourceKind(StrEnum):
    """Where a number comes from."""

    DATASHEET = "datasheet"
    MEASURED = "measured"
    FITTED = "fitted"
    ASSUMED = "assumed"


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Quantity(_Model):
    """A number, how it is known, and from where."""

    value: float
    kind: SourceKind
    source: str = Field(min_length=1)


class Gpu(_Model):
    """What a GPU's latency model needs beside peak and memory."""

    sms: Quantity
    clock_hz: Quantity
    l2_bytes: Quantity
    l2_bandwidth_bytes_per_s: Quantity | None = None
    #: Fitted constants of the kernel models by "model.constant" (`gemm.efficiency`), see
    #: backends/cost/gpu. Missing ones are scaled from the chip named `like`.
    constants: dict[str, Quantity] = Field(default_factory=dict)
    like: str = ""


class Systolic(_Model):
    """Systolic arrays: `cores` cores, each with `arrays` arrays of `rows` x `columns`."""

    cores: Quantity
    arrays: Quantity
    rows: Quantity
    columns: Quantity
    clock_hz: Quantity
    vmem_bytes: Quantity
    #: "tpu" (pipelined folds, the default) or "scalesim" (SCALE-Sim's cycles, exactly).
    mode: Literal["tpu", "scalesim"] = "tpu"
    dataflow: Literal["ws", "os", "is"] = "ws"
    constants: dict[str, Quantity] = Field(default_factory=dict)


class Chip(_Model):
    """One accelerator. Exactly one of `gpu` and `systolic` is given.

    `peak_flops_per_s` is dense, by StableHLO element type ("bf16", "f32", "f8E4M3FN" ...).
    """

    name: str
    peak_flops_per_s: dict[str, Quantity]
    memory_bytes: Quantity
    memory_bandwidth_bytes_per_s: Quantity
    gpu: Gpu | None = None
    systolic: Systolic | None = None


class NetworkKind(StrEnum):
    """How the members of a tier are connected."""

    SWITCH = "switch"  #: every member at full bandwidth to every other
    RING = "ring"  #: two neighbours each
    MESH = "fully-connected"  #: a link to every other member
    TORUS = "torus"  #: a ring in each of several dimensions


class Network(_Model):
    """One tier of the network, per chip.

    `size` chips are in one domain of the tier (0: no limit). `bandwidth_bytes_per_s` is what one
    chip sends in one direction over all its links of the tier; of a torus it is that of one link,
    and each of `torus_dimensions` has two links. `latency_ns` is of one message between members.
    `oversubscription` divides the bandwidth when all chips of a domain send out of it.
    """

    name: str
    kind: NetworkKind
    size: int = Field(ge=0)
    bandwidth_bytes_per_s: Quantity
    latency_ns: Quantity
    links: int = Field(default=1, ge=1)
    torus_dimensions: int = Field(default=0, ge=0, le=3)
    torus_shape: tuple[int, ...] = ()
    oversubscription: float = Field(default=1.0, ge=1.0)
    in_network_reduction: bool = False
    #: Fitted constants of the collective model (`a0_ns`, `a1_ns`, `c`, `efficiency`, `nvls_...`).
    constants: dict[str, Quantity] = Field(default_factory=dict)


class Cluster(_Model):
    """Chips and the networks between them, inner tier first.

    `derate` multiplies the speed of every kernel: real steps run slower than back-to-back
    benchmarks. It is printed in each estimate; 1 means none.
    """

    name: str
    title: str
    chip: Chip
    network: tuple[Network, ...] = Field(min_length=1)
    derate: Quantity
    notes: str = ""
