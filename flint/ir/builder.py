"""ProgramBuilder: rows go in one at a time, a frozen Program comes out."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, NoReturn, TypeVar

import numpy as np

from flint.errors import FlintError
from flint.ir.dims import NO_DIMS, DimsRow
from flint.ir.mesh import Group, Mesh, Route
from flint.ir.op_class import OpClass
from flint.ir.program import (
    COLUMN_TYPES,
    COLUMNS,
    MOST_INT64,
    MOST_NESTED_REGIONS,
    Collective,
    Flag,
    Kind,
    Phase,
    Program,
    Region,
    RegionKind,
)

T = TypeVar("T", bound=Hashable)
#: Columns with one entry for each row, in the order of the tuple that `add` appends.
_ROW_COLUMNS = tuple(c for c in COLUMNS if c not in ("dep_start", "deps"))
_OPCODE, _DTYPE, _SHAPE, _RESULT_BYTES, _OPERAND_BYTES, _FLOPS, _DIMS = map(
    _ROW_COLUMNS.index,
    ("opcode", "dtype", "shape", "result_bytes", "operand_bytes", "flops", "dims"),
)
_COMM_BYTES, _NAME, _SCOPE, _LOCATION, _REGION, _ALIAS = map(
    _ROW_COLUMNS.index, ("comm_bytes", "name", "scope", "location", "region", "alias")
)
_KIND, _FLAGS = _ROW_COLUMNS.index("kind"), _ROW_COLUMNS.index("flags")
_QUANTITIES = (
    (_RESULT_BYTES, "result_bytes"),
    (_OPERAND_BYTES, "operand_bytes"),
    (_FLOPS, "flops"),
    (_COMM_BYTES, "comm_bytes"),
)
#: The class of a row whose class nothing says.
_UNSAID = {
    Kind.PARAMETER: OpClass.VALUE,
    Kind.VALUE: OpClass.VALUE,
    Kind.COMPUTE: OpClass.UNKNOWN,
    Kind.COLLECTIVE: OpClass.MOVE,
    Kind.SEND: OpClass.MOVE,
    Kind.RECV: OpClass.MOVE,
}
#: More rows than this are a program whose calls multiply: they take a gigabyte.
MOST_ROWS = 1 << 21


class Table(dict[T, int]):
    """Values in order of first use; `table.index(value)` gives their number."""

    def index(self, value: T) -> int:
        """Number of `value`, appended if it is new."""
        found = self.get(value)
        if found is None:
            found = self[value] = len(self)
        return found


@dataclass
class _OpenRegion:
    index: int
    kind: RegionKind
    start: int
    trip_count: int
    parent: int
    name: str
    location: str
    choice: int
    barrier: bool
    carries: list[tuple[int, int]] = field(default_factory=list)


def _of(name: str, value: int) -> str:
    return f"has {name.replace('_', ' ')} of {float(value):.3g}"


class ProgramBuilder:
    """Collects rows in program order and interns the tables of a Program."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self._rows: list[tuple[Any, ...]] = []
        self._deps: list[int] = []
        self._dep_start: list[int] = [0]
        self._opcodes: Table[str] = Table()
        self._dtypes: Table[str] = Table()
        self._shapes: Table[tuple[int, ...]] = Table()
        self._groups: Table[Group] = Table()
        self._routes: Table[Route] = Table()
        self._strings: Table[str] = Table({"": 0})
        self._streams: Table[str] = Table({"compute": 0})
        self._products: Table[str] = Table({"": 0})
        self._regions: list[_OpenRegion | Region] = []
        self._open: list[_OpenRegion] = []
        self._sums: dict[int, int] = {at: 0 for at, _ in _QUANTITIES}
        #: By identity of a program (kept alive here): the columns of rows that `copy` interned.
        self._copied: dict[int, tuple[Program, dict[int, tuple[Any, ...]]]] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def add(
        self,
        opcode: str,
        kind: Kind = Kind.COMPUTE,
        *,
        op: OpClass | None = None,
        deps: Iterable[int] = (),
        dtype: str = "",
        shape: tuple[int, ...] = (),
        result_bytes: int = 0,
        operand_bytes: int = 0,
        flops: int = 0,
        dims: DimsRow = NO_DIMS,
        product: str = "",
        mask: int = 0,
        collective: Collective = Collective.NONE,
        group: Group | None = None,
        comm_bytes: int = 0,
        route: Route | None = None,
        channel: int = -1,
        stream: str = "compute",
        name: str = "",
        scope: str = "",
        location: str = "",
        cause: str = "",
        phase: Phase = Phase.UNKNOWN,
        flags: Flag | int = 0,
        compiled: int = 0,
        cycles: int = 0,
        measured_ns: int = 0,
        launcher: int = 0,
        alias: int = -1,
    ) -> int:
        """Append one row (see the columns of `Program`) and return its index.

        `deps` may repeat and come in any order; negative entries are dropped. Without an `op` a row
        that computes is UNKNOWN, one that communicates a MOVE, and any other a VALUE.
        """
        text = self._strings.index
        self._append(
            (
                *(self._opcodes.index(opcode), int(_UNSAID[kind] if op is None else op), int(kind)),
                *(self._dtypes.index(dtype), self._shapes.index(shape)),
                *(result_bytes, operand_bytes, flops, dims, self._products.index(product), mask),
                *(int(collective), -1 if group is None else self._groups.index(group), comm_bytes),
                *(-1 if route is None else self._routes.index(route), channel),
                *(
                    self._streams.index(stream),
                    text(name),
                    text(scope),
                    text(location),
                    text(cause),
                ),
                *(int(phase), int(flags), compiled, cycles, measured_ns, launcher),
                *(self._open[-1].index if self._open else -1, alias),
            )
        )
        self._deps.extend(sorted({d for d in deps if d >= 0}))
        self._dep_start.append(len(self._deps))
        return len(self._rows) - 1

    def copy(self, program: Program, number: int, deps: Iterable[int], alias: int) -> int:
        """Append row `number` of `program` with other dependencies; returns its index.

        What the row says is interned once: a part of a pipeline is copied for every microbatch.
        """
        known = self._copied.setdefault(id(program), (program, {}))[1]
        found = known.get(number)
        if found is None:
            said = program.row(number)._asdict()
            for place in ("number", "region", "alias", "deps"):
                del said[place]
            index = self.add(**said, deps=deps, alias=alias)
            known[number] = self._rows[index][:_REGION]
            return index
        self._append((*found, self._open[-1].index if self._open else -1, alias))
        self._deps.extend(sorted({d for d in deps if d >= 0}))
        self._dep_start.append(len(self._deps))
        return len(self._rows) - 1

    def _append(self, row: tuple[Any, ...]) -> None:
        """Append a row. Raises FlintError FL407 with it where the program becomes too large."""
        self._rows.append(row)
        sums = self._sums
        for at, name in _QUANTITIES:
            if not row[at]:
                continue
            sums[at] += row[at]
            if sums[at] > MOST_INT64:
                self._too_large(
                    f"{_of(name, row[at])}; {name.replace('_', ' ')} of all operations together "
                    f"must be below 2^63 ({MOST_INT64:.2g})"
                )
        if max(row[_DIMS]) > MOST_INT64:
            self._too_large(_of("dims", max(row[_DIMS])))
        if len(self._rows) > MOST_ROWS:
            self._too_large(f"comes after {MOST_ROWS:,} others, with every call written out")

    def _too_large(self, what: str) -> NoReturn:
        row = self._rows[-1]
        shape = ",".join(map(str, list(self._shapes)[row[_SHAPE]]))
        strings = list(self._strings)
        location = strings[row[_LOCATION]] or strings[row[_NAME]]
        dtype = list(self._dtypes)[row[_DTYPE]]
        typed = f"{dtype}[{shape}]" if dtype else ""
        raise FlintError(
            "FL407",
            f"{list(self._opcodes)[row[_OPCODE]]} {what}",
            place=f"{location}  {typed}".strip(),
            help="is a size wrong by orders of magnitude?",
        )

    def begin_region(
        self,
        kind: RegionKind,
        trip_count: int,
        *,
        name: str = "",
        location: str = "",
        choice: int = -1,
        barrier: bool = False,
    ) -> int:
        """Open a region: rows added until `end_region` belong to it. Returns its index.

        Raises FlintError FL407 for loops nested too deeply, or whose rows run too often.
        """
        times = math.prod(r.trip_count for r in self._open) * trip_count
        if times > MOST_INT64 or len(self._open) >= MOST_NESTED_REGIONS:
            wrong = f"would run {times:.2g} times in a step"
            if times <= MOST_INT64:
                wrong = f"is inside {len(self._open)} other loops and branches"
            raise FlintError("FL407", f"loop '{name}' {wrong}", place=location or None)
        index = len(self._regions)
        parent = self._open[-1].index if self._open else -1
        opened = _OpenRegion(
            index, kind, len(self), trip_count, parent, name, location, choice, barrier
        )
        self._regions.append(opened)
        self._open.append(opened)
        return index

    def end_region(self, carries: Sequence[tuple[int, int]] = ()) -> None:
        """Close the innermost region. `carries` are (carried row, produced row) pairs."""
        r = self._open.pop()
        self._regions[r.index] = Region(
            r.kind,
            r.start,
            len(self),
            r.trip_count,
            r.parent,
            r.name,
            r.location,
            tuple(carries),
            r.choice,
            r.barrier,
        )

    def take_heaviest(self, branches: Sequence[int]) -> None:
        """Of these regions, closed and alternative, the one with most flops runs, then most bytes; others run 0 times."""
        heaviest = max(branches, key=self._weight)
        for number in branches:
            region = self._regions[number]
            if number != heaviest and isinstance(region, Region):
                self._regions[number] = replace(region, trip_count=0)

    def _weight(self, branch: int) -> tuple[int, int]:
        """Flops and bytes of one run of a closed region. What is unpriced counts a flop for each byte of its result."""
        times = {branch: 1}
        for number, region in enumerate(self._regions[branch + 1 :], branch + 1):
            times[number] = times.get(region.parent, 0) * region.trip_count
        closed, flops, moved = self._regions[branch], 0, 0
        for row in self._rows[closed.start :]:
            if row[_REGION] not in times or row[_KIND] in (Kind.PARAMETER, Kind.VALUE):
                continue
            unpriced = row[_RESULT_BYTES] if row[_FLAGS] & Flag.UNPRICED else 0
            flops += times[row[_REGION]] * (row[_FLOPS] + unpriced)
            size = row[_RESULT_BYTES] + row[_OPERAND_BYTES] + row[_COMM_BYTES]
            moved += times[row[_REGION]] * size
        return flops, moved

    def barrier(self) -> None:
        """Note that the innermost region has an optimization barrier; outside all, nothing."""
        if self._open:
            self._open[-1].barrier = True

    def build(self) -> Program:
        """Return the Program. Regions must be closed; the result is not verified here."""
        assert not self._open, "a region is still open"
        values = list(zip(*self._rows, strict=True)) or [() for _ in _ROW_COLUMNS]
        tables = dict(zip(_ROW_COLUMNS, values, strict=True))
        dims = list(chain.from_iterable(tables.pop("dims")))
        columns = {name: np.array(v, dtype=COLUMN_TYPES[name]) for name, v in tables.items()}
        columns["dims"] = np.array(dims, dtype=COLUMN_TYPES["dims"]).reshape(len(self._rows), 4)
        columns["dep_start"] = np.array(self._dep_start, dtype=np.int64)
        columns["deps"] = np.array(self._deps, dtype=np.int32)
        return Program(
            mesh=self.mesh,
            **columns,
            opcodes=tuple(self._opcodes),
            dtypes=tuple(self._dtypes),
            shapes=tuple(self._shapes),
            groups=tuple(self._groups),
            routes=tuple(self._routes),
            strings=tuple(self._strings),
            streams=tuple(self._streams),
            products=tuple(self._products),
            regions=tuple(r for r in self._regions if isinstance(r, Region)),
        )
