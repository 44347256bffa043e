"""Columns of a Program: what one rank class does, as a graph.

Row i of every column is operation i. Rows are in program order and in topological order: each
dependency points to a smaller row. Loops stay loops (see `Region`), devices and groups stay
symbolic (see `flint.ir.mesh.Group`), and nothing is expanded before a backend writes a rank.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum, IntFlag
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flint.ir.arrays import Int32s as Int32s  # noqa: PLC0414 (a name of this module)
from flint.ir.arrays import Int64s as Int64s  # noqa: PLC0414 (a name of this module)
from flint.ir.dims import DimsRow
from flint.ir.mesh import Group, Mesh, Route
from flint.ir.op_class import Collective as Collective  # noqa: PLC0414 (a name of this module)
from flint.ir.op_class import OpClass

#: The largest number that a column of int64 holds.
MOST_INT64 = (1 << 63) - 1
#: Regions in regions at most: code that follows them calls itself for each.
MOST_NESTED_REGIONS = 100
#: A mask that omits the keys after each query (`Program.mask`).
CAUSAL = -1
#: The same, by several comparisons of positions: it may be a window, of unknown length.
PERHAPS_A_WINDOW = -2


class Kind(IntEnum):
    """What a row is to the machine that runs it."""

    PARAMETER = 0  #: an argument of the step: no work, but it holds memory
    VALUE = 1  #: no work: constants, reshapes, tuples, loop-carried values, branch joins
    COMPUTE = 2  #: one operation or kernel on the device
    COLLECTIVE = 3  #: a collective over `group`; PERMUTE goes along `route`
    SEND = 4  #: point-to-point along `route`
    RECV = 5  #: point-to-point against `route`


class Phase(IntEnum):
    """Which part of a training step a row belongs to, or of a generation of tokens."""

    UNKNOWN = 0
    FORWARD = 1
    BACKWARD = 2
    REMAT = 3
    OPTIMIZER = 4
    PREFILL = 5  #: up to the first token
    DECODE = 6  #: one token more


class Flag(IntFlag):
    """Facts about a row that are either true or not."""

    UNPRICED = 1  #: Flint knows shapes and bytes of this operation but not its work
    ASYNC = 2  #: the compiler said start/done: it overlaps whatever does not depend on it
    DONATED = 4  #: a parameter whose buffer the step may overwrite
    IN_PLACE = 8  #: the result is written into the storage of `alias`
    VIEW = 16  #: the result is `alias` seen differently: no bytes move
    COLUMNS = 32  #: a reduction of elements that do not lie side by side
    TURNED_FIRST = 64  #: a product whose first dependency is not as (batch, m, k) or (batch, k, n)
    TURNED_LAST = 128  #: a product whose last dependency is not
    LAUNCHED = 256  #: a framework launched it: a kernel by itself, unless a compiler is assumed
    PARTITIONED = 512  #: the partitioner made this collective: the program does not hold it
    REPLAYED = 1024  #: launched with others by the replay of a CUDA graph, not by itself
    TURNED_RESULT = 2048  #: a convolution whose result is not (batch, spatial, features), or so
    SEEN_FIRST = 4096  #: turned first, but only as m or k has several dimensions: (batch, k, m)
    SEEN_LAST = 8192  #: the same of the last dependency
    WAITS = 16384  #: a HOST row that launches nothing: the host waits, or a stream pauses
    INDEXED = 32768  #: arrays lie differently (broadcast, turned, widened); windows of an image


class RegionKind(IntEnum):
    """Why rows are nested."""

    LOOP = 0
    BRANCH = 1


@dataclass(frozen=True, slots=True)
class Region:
    """Rows `start:stop`, run `trip_count` times. Regions nest and never overlap otherwise.

    A LOOP carries values: its body starts with one VALUE row per carried value (`carries[k][0]`,
    depending on the initial value outside), and `carries[k][1]` is the row inside the region that
    produces the value for the next iteration. In iteration 0 the first row stands for the initial
    value, in iteration j for row `carries[k][1]` of iteration j - 1. A dependency from after the
    loop on a row inside means that row in the last iteration.

    A BRANCH runs once or never (`trip_count` 1 or 0): of the branches of one `case`, all with the
    same `choice`, one is taken.

    `barrier`: the program has an optimization barrier in it (JAX's checkpointing sets one before
    what it computes again). It is no work, but compilers do not fuse across it.
    """

    kind: RegionKind
    start: int
    stop: int
    trip_count: int
    parent: int = -1
    name: str = ""
    location: str = ""
    carries: tuple[tuple[int, int], ...] = ()
    choice: int = -1
    barrier: bool = False


class Row(NamedTuple):
    """One row, readable. Made when one is looked at and never kept."""

    number: int
    opcode: str
    op: OpClass
    kind: Kind
    dtype: str
    shape: tuple[int, ...]
    result_bytes: int
    operand_bytes: int
    flops: int
    dims: DimsRow
    product: str
    mask: int
    collective: Collective
    group: Group | None
    comm_bytes: int
    route: Route | None
    channel: int
    stream: str
    name: str
    scope: str
    location: str
    cause: str
    phase: Phase
    flags: Flag
    compiled: int
    cycles: int
    measured_ns: int
    launcher: int
    region: int
    alias: int
    deps: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class ProgramColumns:
    """The columns and tables of a Program, which says what each holds."""

    mesh: Mesh
    opcode: NDArray[np.uint16]
    op: NDArray[np.uint8]
    kind: NDArray[np.uint8]
    dtype: NDArray[np.uint8]
    shape: Int32s
    result_bytes: Int64s
    operand_bytes: Int64s
    flops: Int64s
    dims: Int64s
    product: NDArray[np.uint8]
    mask: Int32s
    collective: NDArray[np.uint8]
    group: Int32s
    comm_bytes: Int64s
    route: Int32s
    channel: Int32s
    stream: NDArray[np.uint8]
    name: Int32s
    scope: Int32s
    location: Int32s
    cause: Int32s
    phase: NDArray[np.uint8]
    flags: NDArray[np.uint16]
    compiled: Int32s
    cycles: Int64s
    measured_ns: Int64s
    launcher: Int32s
    region: Int32s
    alias: Int32s
    dep_start: Int64s
    deps: Int32s
    opcodes: tuple[str, ...]
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    groups: tuple[Group, ...]
    routes: tuple[Route, ...]
    strings: tuple[str, ...]
    streams: tuple[str, ...] = ("compute",)
    products: tuple[str, ...] = ("",)
    regions: tuple[Region, ...] = ()

    def __post_init__(self) -> None:
        for name in COLUMNS:
            getattr(self, name).setflags(write=False)

    def __len__(self) -> int:
        return len(self.opcode)

    def dependencies(self, index: int) -> Int32s:
        """Rows that row `index` reads."""
        return self.deps[self.dep_start[index] : self.dep_start[index + 1]]

    @cached_property
    def dep_owner(self) -> Int32s:
        """For each entry of `deps`, the row that has the dependency."""
        return np.repeat(np.arange(len(self), dtype=np.int32), np.diff(self.dep_start))

    @cached_property
    def region_trips(self) -> tuple[int, ...]:
        """For each region, how often its body runs in one step: the product up to the root."""
        trips: list[int] = []
        for region in self.regions:
            outer = trips[region.parent] if region.parent >= 0 else 1
            trips.append(outer * region.trip_count)
        return tuple(trips)

    @cached_property
    def trips(self) -> Int64s:
        """For each row, how often it runs in one step."""
        table = np.array([*self.region_trips, 1], dtype=np.int64)
        return table[self.region]


#: numpy type of each array column, in the order in which they are stored.
COLUMN_TYPES: dict[str, str] = {
    "opcode": "uint16",
    "op": "uint8",
    "kind": "uint8",
    "dtype": "uint8",
    "shape": "int32",
    "result_bytes": "int64",
    "operand_bytes": "int64",
    "flops": "int64",
    "dims": "int64",
    "product": "uint8",
    "mask": "int32",
    "collective": "uint8",
    "group": "int32",
    "comm_bytes": "int64",
    "route": "int32",
    "channel": "int32",
    "stream": "uint8",
    "name": "int32",
    "scope": "int32",
    "location": "int32",
    "cause": "int32",
    "phase": "uint8",
    "flags": "uint16",
    "compiled": "int32",
    "cycles": "int64",
    "measured_ns": "int64",
    "launcher": "int32",
    "region": "int32",
    "alias": "int32",
    "dep_start": "int64",
    "deps": "int32",
}
#: Columns that files leave out where they hold 0 alone: of programs that nobody recorded, whose
#: kernels no compiler priced, or that nobody measured.
MAY_BE_LEFT_OUT = frozenset({"compiled", "cycles", "measured_ns", "launcher"})
#: Names of the array columns, in the same order.
COLUMNS: tuple[str, ...] = tuple(COLUMN_TYPES)
#: Names of the lookup tables, in the order in which they are stored.
TABLES: tuple[str, ...] = tuple(
    f.name for f in fields(ProgramColumns) if f.name not in COLUMNS and f.name != "mesh"
)
