"""manifest.json of a `.flint` file as types: what each table holds, checked before it is believed."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    StrictBool,
    StrictInt,
    StrictStr,
    ValidationError,
)

from flint.ir.mesh import AxisRef, Group, Mesh, Route
from flint.ir.program import MOST_INT64, Region, RegionKind
from flint.ir.workload import RankClass

Count = Annotated[StrictInt, Field(ge=0, le=MOST_INT64)]
Positive = Annotated[StrictInt, Field(ge=1, le=MOST_INT64)]
OrNone = Annotated[StrictInt, Field(ge=-1, le=MOST_INT64)]  # -1 stands for none
Whole = Annotated[StrictInt, Field(ge=-MOST_INT64, le=MOST_INT64)]
Texts = tuple[StrictStr, ...]
Counts = tuple[Count, ...]


class _ManifestEntry(BaseModel):
    """An object of the manifest: no other keys."""

    model_config = ConfigDict(extra="forbid")


class AxisEntry(_ManifestEntry):
    """An `AxisRef`."""

    name: StrictStr
    pre_size: Positive = 1
    size: Positive | None = None


class GroupEntry(_ManifestEntry):
    """A `Group`. Older files have no `positions`."""

    axes: tuple[AxisEntry, ...]
    ranks: tuple[Counts, ...]
    positions: Counts = ()


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
            "groups": tuple(Group(_axes(g.axes), g.ranks, g.positions) for g in self.groups),
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


class CompilerMemoryEntry(_ManifestEntry):
    """A `CompilerMemory`."""

    argument_bytes: Count
    output_bytes: Count
    alias_bytes: Count
    temp_bytes: Count
    code_bytes: Count


class CompiledByEntry(_ManifestEntry):
    """A `CompiledBy`."""

    name: StrictStr
    chip: StrictStr
    version: StrictStr
    topology: StrictStr
    memory: CompilerMemoryEntry | None = None


class Metadata(BaseModel):
    """What commands read of the metadata is typed; the rest is any JSON."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, JsonValue] = Field(init=False)

    name: StrictStr | None = None
    source: StrictStr | None = None
    warnings: Texts = ()
    compiler: CompiledByEntry | None = None


def first_error(error: ValidationError) -> str:
    """`programs[0].shapes[3][1]: should be greater than or equal to 0, it is -4`."""
    found = error.errors(include_url=False)[0]
    place = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in found["loc"])
    reason = found["msg"].removeprefix("Value error, ").removeprefix("Input ")
    value = found["input"]
    shown = f", it is {repr(value)[:40]}" if isinstance(value, str | int | float) else ""
    return f"{place.removeprefix('.')}: {reason}{shown}"


def _axes(entries: tuple[AxisEntry, ...]) -> tuple[AxisRef, ...]:
    return tuple(AxisRef(a.name, a.pre_size, a.size) for a in entries)
