"""Cluster and Chip: what a step is estimated on, read from TOML, every number with its source."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from flint.cluster_base import document_of
from flint.cluster_error import cluster_error, unknown, wrong
from flint.cluster_file import chips_with_constants, find_cluster_file, preset_names
from flint.cluster_names import ELEMENT_TYPES, GPU, NETWORK, SYSTOLIC, Limit, limit_of, names_of
from flint.errors import nearest


class SourceKind(StrEnum):
    """Where a number comes from."""

    DATASHEET = "datasheet"
    MEASURED = "measured"
    FITTED = "fitted"
    ASSUMED = "assumed"


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _of_a_machine(value: float) -> float:
    if value and not _LEAST <= abs(value) <= _MOST:
        raise ValueError(f"should be 0 or between {_LEAST:g} and {_MOST:g}, it is {value:g}")
    return value


#: Beyond these nothing is a quantity of hardware, and times overflow.
_LEAST, _MOST = 1e-30, 1e30
#: No network connects more.
_MOST_CHIPS = 2**40


class Quantity(_Model):
    """A number, how it is known, and from where."""

    value: Annotated[float, AfterValidator(_of_a_machine)] = Field(strict=True, allow_inf_nan=False)
    kind: SourceKind
    source: str = Field(min_length=1)


def _positive(quantity: Quantity) -> Quantity:
    if quantity.value <= 0:
        raise ValueError(f"should be greater than 0, it is {quantity.value:g}")
    return quantity


def _not_negative(quantity: Quantity) -> Quantity:
    if quantity.value < 0:
        raise ValueError(f"should not be negative, it is {quantity.value:g}")
    return quantity


def _whole(quantity: Quantity) -> Quantity:
    if quantity.value < 1 or quantity.value != int(quantity.value):
        raise ValueError(f"should be a whole number of at least 1, it is {quantity.value:g}")
    return quantity


def _share(quantity: Quantity) -> Quantity:
    if not 0 < quantity.value <= 1:
        raise ValueError(f"should be greater than 0 and at most 1, it is {quantity.value:g}")
    return quantity


Positive = Annotated[Quantity, AfterValidator(_positive)]
NotNegative = Annotated[Quantity, AfterValidator(_not_negative)]
Count = Annotated[Quantity, AfterValidator(_whole)]
Share = Annotated[Quantity, AfterValidator(_share)]


def _named(known: Mapping[str, Limit]) -> BeforeValidator:
    """Refuse constants that the table `known` does not have."""

    def check(table: Any) -> Any:
        for name in table if isinstance(table, dict) else ():
            if limit_of(known, name) is None:
                raise unknown(name, names_of(known), table[name])
        return table

    return BeforeValidator(check)


def _limited(known: Mapping[str, Limit]) -> AfterValidator:
    """Refuse constants with values that the table `known` does not allow."""

    def check(table: dict[str, Quantity]) -> dict[str, Quantity]:
        for name, quantity in table.items():
            limit = limit_of(known, name)
            if limit is not None and not limit.allows(quantity.value):
                raise wrong(f"should be {limit}, it is {quantity.value:g}", name)
        return table

    return AfterValidator(check)


def _typed(table: Any) -> Any:
    """Refuse peaks of types that are none."""
    for name in table if isinstance(table, dict) else ():
        if name not in ELEMENT_TYPES:
            raise unknown(name, list(ELEMENT_TYPES), table[name])
    return table


def _has_constants(name: str) -> str:
    """Refuse a chip to be `like` that has no constants."""
    known = chips_with_constants() if name else {}
    if name and name not in known:
        said = f"is '{name}', which is no chip with constants{nearest(name, list(known))}"
        raise wrong(said, help=f"one of {', '.join(known)}")
    return name


GpuConstants = Annotated[dict[str, Quantity], _named(GPU), _limited(GPU)]
SystolicConstants = Annotated[dict[str, Quantity], _named(SYSTOLIC), _limited(SYSTOLIC)]
NetworkConstants = Annotated[dict[str, Quantity], _named(NETWORK), _limited(NETWORK)]
Peaks = Annotated[dict[str, Positive], BeforeValidator(_typed)]
Like = Annotated[str, AfterValidator(_has_constants)]


class Gpu(_Model):
    """What a GPU's latency model needs beside peak and memory."""

    sms: Count
    clock_hz: Positive
    l2_bytes: Positive
    l2_bandwidth_bytes_per_s: Positive | None = None
    #: Fitted constants of the kernel models by "model.constant" (`gemm.efficiency`), see
    #: backends/cost/gpu. Missing ones are scaled from the chip named `like`.
    constants: GpuConstants = Field(default_factory=dict)
    like: Like = ""


class Systolic(_Model):
    """Systolic arrays: `cores` cores, each with `arrays` arrays of `rows` x `columns`.

    `vmem_bytes` is of one core. Arrays, size and clock give the peak: one multiplication and one
    addition per cell and cycle.
    """

    cores: Count
    arrays: Count
    rows: Count
    columns: Count
    clock_hz: Positive
    vmem_bytes: Positive
    #: "tpu" (pipelined folds, the default) or "scalesim" (SCALE-Sim's cycles, exactly).
    mode: Literal["tpu", "scalesim"] = "tpu"
    dataflow: Literal["ws", "os", "is"] = "ws"
    constants: SystolicConstants = Field(default_factory=dict)


class Chip(_Model):
    """One accelerator. At most one of `gpu` and `systolic` is given; without either, a roofline.

    `peak_flops_per_s` is dense, by StableHLO element type ("bf16", "f32", "f8E4M3FN" ...); "f32"
    of a GPU is that of its CUDA cores, "tf32" that of its Tensor Cores on f32 operands.
    """

    name: str = Field(min_length=1)
    peak_flops_per_s: Peaks = Field(min_length=1)
    memory_bytes: Positive
    memory_bandwidth_bytes_per_s: Positive
    gpu: Gpu | None = None
    systolic: Systolic | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if self.gpu and self.systolic:
            raise ValueError("has both a gpu and a systolic table: a chip is one of them")
        return self


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

    `torus_shape` is that of a whole pod. A slice of it has a ring in those dimensions whose size
    is a multiple of `torus_wrap_multiple`, and a line in the others; with `torus_wraps_together`
    it has rings only if all its dimensions are multiples.
    """

    name: str = Field(min_length=1)
    kind: NetworkKind
    size: int = Field(ge=0, le=_MOST_CHIPS, strict=True)
    bandwidth_bytes_per_s: Positive
    latency_ns: NotNegative
    links: int = Field(default=1, ge=1, strict=True)
    torus_dimensions: int = Field(default=0, ge=0, le=3, strict=True)
    torus_shape: tuple[Annotated[int, Field(ge=1, strict=True)], ...] = ()
    torus_wrap_multiple: int = Field(default=1, ge=1, strict=True)
    torus_wraps_together: bool = Field(default=False, strict=True)
    oversubscription: float = Field(default=1.0, ge=1.0, le=_MOST, strict=True, allow_inf_nan=False)
    in_network_reduction: bool = Field(default=False, strict=True)
    #: Fitted constants of the collective model (`a0_ns`, `a1_ns`, `c`, `efficiency`, `nvls_...`).
    constants: NetworkConstants = Field(default_factory=dict)

    @model_validator(mode="after")
    def _torus_has_a_shape(self) -> Self:
        if self.kind is not NetworkKind.TORUS:
            if self.torus_dimensions or self.torus_shape:
                raise ValueError(
                    f"is a {self.kind}: torus_dimensions and torus_shape are a torus's"
                )
        elif len(self.torus_shape) != self.torus_dimensions or not self.torus_shape:
            raise ValueError("is a torus: torus_shape needs one size for each of torus_dimensions")
        return self


class Cluster(_Model):
    """Chips and the networks between them, inner tier first.

    `derate` multiplies the speed of every kernel: real steps run slower than back-to-back
    benchmarks. It is printed in each estimate; 1 means none. `host_launch_ns` is how often a host
    launches a kernel where no graph does; without it a host is never late.
    """

    name: str = Field(min_length=1)
    title: str
    aliases: tuple[str, ...] = ()
    base: str = ""  #: the cluster that the file of this one is a change of
    chip: Chip
    network: tuple[Network, ...] = Field(min_length=1)
    derate: Share
    host_launch_ns: NotNegative | None = None
    notes: str = ""

    @model_validator(mode="after")
    def _tiers_are_named_and_nested(self) -> Self:
        names = [n.name for n in self.network]
        for i, network in enumerate(self.network):
            if said := self._wrong_in(i, network, names[:i]):
                raise wrong(said, "network", i)
        return self

    def _wrong_in(self, at: int, network: Network, before: list[str]) -> str:
        """What is wrong with a tier beside those inside of it; "" if nothing is."""
        if network.name in before:
            return f"has the name of another network, '{network.name}'"
        if network.size == 0 and at + 1 < len(self.network):
            return f"is without limit (size 0): '{network.name}' is not the outermost network"
        inside = self._inside(network)
        members = network.size // inside
        if network.size and members * inside != network.size:
            return f"has a size of {network.size}, no multiple of the {inside} chips inside of it"
        if network.torus_shape and math.prod(network.torus_shape) != members:
            shape = "x".join(map(str, network.torus_shape))
            if not network.size:
                return f"has a torus_shape of {shape}, but is without limit (size 0)"
            beside = f"{network.size} chips" if inside == 1 else f"{members} domains of {inside}"
            return f"has a torus_shape of {shape}, that is not its size of {beside}"
        return ""

    @property
    def members(self) -> tuple[int, ...]:
        """By tier: how many chips, or domains of the tier inside, a domain connects; 0: any."""
        return tuple(n.size // self._inside(n) for n in self.network)

    def _inside(self, network: Network) -> int:
        """Chips in one member of a tier."""
        at = self.network.index(network)
        return self.network[at - 1].size if at else 1

    @classmethod
    def load(cls, name_or_path: str | Path | Cluster) -> Cluster:
        """The cluster of a preset's name ("h100-dgx", "v5p") or of a TOML file.

        A file may name another as its `base` (see `cluster_base`). Raises FlintError FL701 for a
        file with an unknown or missing key or an impossible value and FL702 for an unknown name. A
        cluster is returned as it is.
        """
        if isinstance(name_or_path, Cluster):
            return name_or_path
        return cls.model_validate(document_of(find_cluster_file(name_or_path), cls._check))

    @classmethod
    def _check(cls, document: dict[str, Any], path: Path, text: str) -> None:
        try:
            cls.model_validate(document)
        except ValidationError as error:
            raise cluster_error(error, cls, path, text, document) from error

    @classmethod
    def names(cls) -> list[str]:
        """Names of the clusters that come with Flint, sorted."""
        return preset_names()

    def tier(self, name: str) -> int:
        """Index into `network` of the tier called `name`; -1 if there is none."""
        return next((i for i, n in enumerate(self.network) if n.name == name), -1)
