"""Cluster and Chip: what a step is estimated on, every number with its source; where a cluster comes from."""

from __future__ import annotations

import math
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationError,
    WithJsonSchema,
    model_validator,
)

from flint.cluster.kernel_times import KernelTable
from flint.cluster.load import PRESETS, document_of, find_cluster_file, preset_names
from flint.cluster.tables import (
    MOST,
    ChipFamily,
    KnownLibraries,
    MaybeLibrary,
    Model,
    NetworkConstants,
    NotNegative,
    Peaks,
    Positive,
    Quantity,
    Share,
    SourceKind,
    refuse_unusable,
    with_families,
    wrong,
)

__all__ = [  # Quantity and SourceKind too: models are made of them
    "Chip",
    "ChipFamily",
    "Cluster",
    "Network",
    "NetworkKind",
    "Quantity",
    "SourceKind",
]


def _is_table(value: Any) -> KernelTable:
    if not isinstance(value, KernelTable):
        raise wrong("should be the name of a file beside this one")
    return value


#: In a file it is a name; what is read from there stands in its place before anything is checked.
Table = Annotated[
    KernelTable,
    PlainValidator(_is_table),
    PlainSerializer(str, return_type=str, when_used="json"),
    WithJsonSchema({"type": "string"}),
]
#: The memory of a chip of which only ASTRA-sim's files are known: they have no size.
UNKNOWN_MEMORY_BYTES = 10**15
#: No network connects more chips.
MOST_CHIPS = 2**40


@with_families
class Chip(Model):
    """One accelerator, with the table of at most one family; without any, a roofline."""

    name: str = Field(min_length=1)
    """What it is called."""
    peak_flops_per_s: Peaks = Field(min_length=1)
    """Dense peak in FLOP/s by StableHLO element type ("bf16", "f32", "f8E4M3FN" ...).

    "f32" of a GPU is that of its CUDA cores, "tf32" that of its Tensor Cores on f32 operands.
    """
    memory_bytes: Positive
    """Memory of one chip, in bytes."""
    memory_bandwidth_bytes_per_s: Positive
    """Bandwidth of that memory, in bytes/s."""
    host_link_bytes_per_s: Positive | None = None
    """How fast one chip copies to or from the memory of its host, in bytes/s.

    In one direction, while the other is busy too. Without it such copies have no price.
    """
    variation: NotNegative | None = None
    """How much chips of this kind differ in speed: a standard deviation, as a share of the mean.

    Steps of many devices wait for the slowest (see docs/estimates.md). Without it all are alike.
    """
    power_w: Positive | None = None
    """The power that it may take, in W: that of its datasheet, or the limit that it is set to."""
    measured_kernels: Table | None = None
    """A CSV beside the file with times of kernels that were measured in exactly their shape."""

    @property
    def family(self) -> ChipFamily | None:
        """What its file says of the family that it is of."""
        return next(iter(self._tables().values()), None)

    def _tables(self) -> dict[str, ChipFamily]:
        """The tables of families that are there; files have one at most."""
        found = ((name, getattr(self, name)) for name in type(self).model_fields)
        return {name: value for name, value in found if isinstance(value, ChipFamily)}

    @model_validator(mode="before")
    @classmethod
    def _usable_families(cls, table: object) -> object:
        if isinstance(table, dict):
            refuse_unusable(table)
        return table

    @model_validator(mode="after")
    def _one_family(self) -> Self:
        tables = list(self._tables())
        if len(tables) > 1:
            both = " and a ".join(tables[:2])
            raise ValueError(f"has both a {both} table, but a chip is only one of them")
        return self


class NetworkKind(StrEnum):
    """How the members of a tier are connected."""

    SWITCH = "switch"  #: every member at full bandwidth to every other
    RING = "ring"  #: two neighbors each
    MESH = "fully-connected"  #: a link to every other member
    TORUS = "torus"  #: a ring in each of several dimensions


def _can_be_mapped(name: str) -> str:
    if name != name.strip() or "," in name or "=" in name:
        raise ValueError("should have no comma, equals sign or space around it: --map names it")
    return name


class Network(Model):
    """One tier of the network, per chip."""

    name: Annotated[str, AfterValidator(_can_be_mapped)] = Field(min_length=1)
    """What it is called, as in --map."""
    kind: NetworkKind
    """How its members are connected."""
    size: int = Field(ge=0, le=MOST_CHIPS, strict=True)
    """Chips in one domain of the tier (0: no limit)."""
    bandwidth_bytes_per_s: Positive
    """What one chip sends in one direction over all its links of the tier, in bytes/s.

    Of a torus it is that of one link, and each of `torus_dimensions` has two links.
    """
    latency_ns: NotNegative
    """Of one message between members, in ns."""
    links: int = Field(default=1, ge=1, strict=True)
    """Links of one chip in the tier."""
    torus_dimensions: int = Field(default=0, ge=0, le=3, strict=True)
    """Dimensions of a torus; 0 for every other kind."""
    torus_shape: tuple[Annotated[int, Field(ge=1, strict=True)], ...] = ()
    """That of a whole pod."""
    torus_wrap_multiple: int = Field(default=1, ge=1, strict=True)
    """A slice has a ring in dimensions whose size is a multiple of it, and a line in the others."""
    torus_wraps_together: bool = Field(default=False, strict=True)
    """Whether a slice has rings only if all its dimensions are multiples."""
    oversubscription: float = Field(default=1.0, ge=1.0, le=MOST, strict=True, allow_inf_nan=False)
    """Divides the bandwidth when all chips of a domain send out of it."""
    in_network_reduction: bool = Field(default=False, strict=True)
    """Whether switches reduce."""
    measured_members: int = Field(default=0, ge=0, strict=True)
    """The largest group whose measured collectives the constants stand for.

    1: they are of no measurement; 0: nothing is said.
    """
    constants: NetworkConstants = Field(default_factory=dict)
    """Fitted constants of the collective model (`a0_ns`, `a1_ns`, `c`, `efficiency`, `nvls_...`)."""
    libraries: Annotated[dict[str, NetworkConstants], KnownLibraries] = Field(default_factory=dict)
    """Constants of versions of a library of collectives, by name: they stand before `constants` where one runs."""
    library: MaybeLibrary = ""
    """The version that runs, unless a stack names another: that of `constants` where `libraries` has none of it."""

    @property
    def constants_in_use(self) -> dict[str, Quantity]:
        """The constants with those of the library that runs."""
        return self.constants | self.libraries.get(self.library, {})

    @model_validator(mode="after")
    def _torus_has_a_shape(self) -> Self:
        if self.kind is not NetworkKind.TORUS:
            if self.torus_dimensions or self.torus_shape:
                raise ValueError(
                    f"is a {self.kind}, but torus_dimensions and torus_shape are for a torus"
                )
        elif len(self.torus_shape) != self.torus_dimensions or not self.torus_shape:
            raise ValueError("is a torus: torus_shape needs one size for each of torus_dimensions")
        return self


class Cluster(Model):
    """Chips and the networks between them."""

    name: str = Field(min_length=1)
    """What it is called, as in --cluster."""
    title: str
    """What it is."""
    aliases: tuple[str, ...] = ()
    """Other names of it."""
    base: str = ""
    """The cluster that the file of this one is a change of."""
    chip: Chip
    """Its accelerators: all are alike."""
    network: tuple[Network, ...] = Field(min_length=1)
    """Tiers of the network, the innermost first."""
    derate: Share
    """Multiplies the speed of every kernel: real steps run slower than back-to-back benchmarks.

    It is printed in each estimate; 1 means none.
    """
    price_per_hour: Positive | None = None
    """What one chip costs for an hour, with its share of hosts and network, in US dollars."""
    host_launch_ns: NotNegative | None = None
    """How often a host launches a kernel where no graph does; without it a host is never late."""
    notes: str = ""
    """What else is to be known of it."""

    @model_validator(mode="after")
    def _tiers_are_named_and_nested(self) -> Self:
        names = [n.name for n in self.network]
        for i, network in enumerate(self.network):
            if said := self._wrong_in(i, network, names[:i]):
                raise wrong(said, "network", i)
        return self

    def _wrong_in(self, at: int, network: Network, before: list[str]) -> str:
        """What is wrong with a tier beside those inside it; "" if nothing is."""
        if network.name in before:
            return f"has the name of another network, '{network.name}'"
        if network.size == 0 and at + 1 < len(self.network):
            return f"is without limit (size 0): '{network.name}' is not the outermost network"
        inside = self._inside(network)
        members = network.size // inside
        if network.size and members * inside != network.size:
            return f"has a size of {network.size}, which is not a multiple of the {inside} chips inside it"
        if network.torus_shape and math.prod(network.torus_shape) != members:
            shape = "x".join(map(str, network.torus_shape))
            if not network.size:
                return f"has a torus_shape of {shape}, but is without limit (size 0)"
            beside = f"{network.size} chips" if inside == 1 else f"{members} domains of {inside}"
            return f"has a torus_shape of {shape}, which does not match its size of {beside}"
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

        A file may name another as its `base` (see `flint.cluster.load`). Raises FlintError FL701 for a
        file with an unknown or missing key or an impossible value and FL702 for an unknown name. A
        cluster is returned as it is.
        """
        if isinstance(name_or_path, Cluster):
            return name_or_path
        path = find_cluster_file(name_or_path)
        return (_preset if path.parent == PRESETS else _read)(path)

    @classmethod
    def _check(cls, document: dict[str, Any], path: Path, text: str) -> None:
        try:
            cls.model_validate(document)
        except ValidationError as error:
            from flint.cluster.errors import cluster_error

            raise cluster_error(error, cls, path, text, document) from error

    def checked(self) -> Cluster:
        """This cluster. Raises FlintError FL701 for a copy (`model_copy`) that cannot be."""
        document = self.model_dump(warnings=False)
        table = getattr(self.chip, "measured_kernels", None)
        if isinstance(table, KernelTable):  # which is dumped as a mapping, and no file has one
            document["chip"]["measured_kernels"] = table
        try:
            type(self).model_validate(document)
        except ValidationError as error:
            from flint.cluster.errors import changed_error

            raise changed_error(error, type(self), str(self.name)) from error
        return self

    @classmethod
    def names(cls) -> list[str]:
        """Names of the clusters that come with Flint, sorted."""
        return preset_names()

    def tier(self, name: str) -> int:
        """Index into `network` of the tier called `name`; -1 if there is none."""
        return next((i for i, n in enumerate(self.network) if n.name == name), -1)


def _read(path: Path) -> Cluster:
    return Cluster.model_validate(document_of(path, Cluster._check))


_preset = cache(_read)  # studies and tests ask thousands of times
