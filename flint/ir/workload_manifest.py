"""manifest.json of a `.flint` file as types: what each table holds, checked before it is believed."""

from __future__ import annotations

import math
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, JsonValue, StrictBool, StrictStr, model_validator

from flint.io.records import Bytes, Count, Counts, Nanoseconds, OrNone, Positive, Texts, Whole
from flint.ir.mesh import AxisRef, Group, Mesh, Route
from flint.ir.program import Region, RegionKind
from flint.ir.rank_class import RankClass


class _ManifestEntry(BaseModel):
    """An object of the manifest: no other keys."""

    model_config = ConfigDict(extra="forbid")


class AxisEntry(_ManifestEntry):
    """An `AxisRef`."""

    name: StrictStr
    pre_size: Positive = 1
    size: Positive | None = None


class GroupEntry(_ManifestEntry):
    """A `Group`. Older files have neither `positions` nor `copy`."""

    axes: tuple[AxisEntry, ...]
    ranks: tuple[Counts, ...]
    positions: Counts = ()
    copy_: Count = Field(0, alias="copy")


class RouteEntry(_ManifestEntry):
    """A `Route`."""

    axes: tuple[AxisEntry, ...]
    offset: Whole
    wrap: StrictBool
    pairs: tuple[tuple[Count, Count], ...]


class RegionEntry(_ManifestEntry):
    """A `Region`. Older files have fewer keys."""

    kind: RegionKind
    start: Count
    stop: Count
    trip_count: Count
    parent: OrNone = -1
    name: StrictStr = ""
    location: StrictStr = ""
    carries: tuple[tuple[Count, Count], ...] = ()
    choice: OrNone = -1
    barrier: StrictBool = False


class TablesEntry(_ManifestEntry):
    """The lookup tables of a `Program`. Older files have no `products`."""

    opcodes: Texts
    dtypes: Texts
    strings: Texts
    streams: Texts
    products: Texts = ("",)
    shapes: tuple[Counts, ...]
    groups: tuple[GroupEntry, ...]
    routes: tuple[RouteEntry, ...]
    regions: tuple[RegionEntry, ...]

    def tables(self) -> dict[str, Any]:
        """By name, the tables as a `Program` takes them."""
        return {
            "opcodes": self.opcodes,
            "dtypes": self.dtypes,
            "strings": self.strings,
            "streams": self.streams,
            "products": self.products,
            "shapes": self.shapes,
            "groups": tuple(
                Group(_axes(g.axes), g.ranks, g.positions, g.copy_) for g in self.groups
            ),
            "routes": tuple(Route(_axes(r.axes), r.offset, r.wrap, r.pairs) for r in self.routes),
            "regions": tuple(Region(**dict(r)) for r in self.regions),
        }


class ClassEntry(_ManifestEntry):
    """A `RankClass`."""

    name: StrictStr
    program: Count
    where: dict[StrictStr, Counts]
    ranks: Counts

    def rank_class(self) -> RankClass:
        """The class of ranks itself."""
        return RankClass(self.name, self.program, self.where, self.ranks)


class CompilerMemoryEntry(_ManifestEntry):
    """A `CompilerMemory`."""

    argument_bytes: Bytes
    output_bytes: Bytes
    alias_bytes: Bytes
    temp_bytes: Bytes
    code_bytes: Bytes


class CompiledByEntry(_ManifestEntry):
    """A `CompiledBy`."""

    name: StrictStr
    chip: StrictStr
    version: StrictStr
    topology: StrictStr
    memory: CompilerMemoryEntry | None = None


class MeasuredClassEntry(_ManifestEntry):
    """A `MeasuredClass`. Older files have no `peak_bytes` and no `period_ns`."""

    rank: Count
    span_ns: Nanoseconds
    steps: Positive
    peak_bytes: Bytes = 0
    period_ns: Nanoseconds = 0.0


class MeasuredByEntry(_ManifestEntry):
    """A `MeasuredBy`."""

    format: StrictStr
    device: StrictStr
    classes: tuple[MeasuredClassEntry, ...]


class StageEntry(BaseModel):
    """A stage of a pipeline, of what a position runs."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, JsonValue] = Field(init=False)

    label: StrictStr
    stage: Count = 0
    in_flight: Count = 0
    saved_bytes_per_microbatch: Bytes = 0


class PipelineEntry(BaseModel):
    """How a pipeline was put together: by position, the stages that it runs."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, JsonValue] = Field(init=False)

    axis: StrictStr = ""
    schedule: StrictStr = ""
    microbatches: Positive = 1
    chunks: Positive = 1
    positions: tuple[tuple[StageEntry, ...], ...] = ()


class PoolsEntry(_ManifestEntry):
    """Positions of the pools along their axis, and by result of prefill the argument of decode."""

    axis: StrictStr
    prefill: Counts
    decode: Counts
    caches: dict[StrictStr, StrictStr] = Field(default_factory=dict)


class Metadata(BaseModel):
    """What commands read of the metadata is typed; the rest is any JSON."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, JsonValue] = Field(init=False)

    name: StrictStr | None = None
    source: StrictStr | None = None
    partitioner: StrictStr | None = None
    profile: StrictStr | None = None
    granularity: StrictStr | None = None
    warnings: Texts = ()
    compiler: CompiledByEntry | None = None
    measured: MeasuredByEntry | None = None
    pipeline: PipelineEntry | None = None
    pools: PoolsEntry | None = None
    grown: tuple[dict[StrictStr, JsonValue], ...] = ()


class WorkloadManifest(_ManifestEntry):
    """The whole document."""

    schema_: StrictStr = Field(alias="schema")
    mesh: dict[StrictStr, Positive]
    classes: tuple[ClassEntry, ...]
    metadata: Metadata
    programs: tuple[TablesEntry, ...]

    def the_mesh(self) -> Mesh:
        """The mesh. Raises FlintError FL101 for one that cannot be."""
        return Mesh(tuple(self.mesh), tuple(self.mesh.values()))

    @model_validator(mode="after")
    def _metadata_are_of_this_mesh(self) -> WorkloadManifest:
        """What the metadata say of ranks and axes fits classes and the mesh."""
        ranks = math.prod(self.mesh.values())
        measured, pools, pipeline = (
            self.metadata.measured,
            self.metadata.pools,
            self.metadata.pipeline,
        )
        if measured and len(measured.classes) != len(self.classes):
            raise ValueError(
                f"{len(measured.classes)} of {len(self.classes)} rank classes were measured"
            )
        if measured and any(c.rank >= ranks for c in measured.classes):
            raise ValueError(f"a rank was measured that is not one of the {ranks}")
        if pools and any(
            set(c.where.get(pools.axis, ())) not in (set(pools.prefill), set(pools.decode))
            for c in self.classes
        ):
            raise ValueError(f"rank classes are not those of pools along axis '{pools.axis}'")
        if pipeline and pipeline.axis and pipeline.axis not in self.mesh:
            raise ValueError(f"a pipeline lies along axis '{pipeline.axis}', which does not exist")
        return self


def _axes(entries: tuple[AxisEntry, ...]) -> tuple[AxisRef, ...]:
    return tuple(AxisRef(a.name, a.pre_size, a.size) for a in entries)
