"""What every reader of measurements makes: times of kernels and of collectives, typed."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from flint.errors import FlintError, Malformed
from flint.ir.dims import DimsRow
from flint.ir.op_class import Collective, OpClass

#: Rows of one file. A sweep of all products of a model has some ten thousand.
MOST_ROWS = 1_000_000
#: No measurement is shorter, in ns, or longer: a day.
LEAST_NS, MOST_NS = 1.0, 86_400e9
#: Dimensions and bytes are below this: products of four of them still fit an int64 as a float.
MOST_SIZE = 2**48
#: No number of a row is as large.
MOST_NUMBER = 1e30
_NUMBER = re.compile(r"[-+]?(?:\d{1,40}(?:\.\d{0,40})?|\.\d{1,40})(?:[eE][-+]?\d{1,3})?", re.ASCII)


def number_of(row: Mapping[str, object], name: str) -> float:
    """A number of a row, also one written as text. Raises Malformed for what is none, or not finite."""
    value = row.get(name)
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Malformed(f"{name} is not a number")
    if not abs(value) < MOST_NUMBER:
        raise Malformed(f"{name} is too large")
    return float(value)


def size_of(row: Mapping[str, object], name: str) -> int:
    """The same as a whole number, cut."""
    return int(number_of(row, name))


@dataclass(frozen=True, slots=True)
class KernelTime:
    """One kernel, and how long it ran.

    `op` says what it does and what `dims` are (`flint.ir.dims`), `dtype` is StableHLO's name of what
    it calculates with. `read_bytes` and `written_bytes` cross its edge, `elements` is the size of
    its result, `arrays` how many it reads and writes. `count` runs have this time on average.
    `indexed` is whether the kernel finds the place of each element (`Flag.INDEXED`).
    """

    op: OpClass
    dims: DimsRow
    dtype: str
    measured_ns: float
    flops: int
    read_bytes: int
    written_bytes: int
    elements: int
    arrays: int
    causal: bool = False
    count: int = 1
    indexed: bool = False


@dataclass(frozen=True, slots=True)
class CollectiveTime:
    """One collective, and how long it took, from its start on all members to its end.

    `comm_bytes` is the input of each rank (of an all-gather its shard). `nodes` is 0 where nothing
    says how many hosts the ranks were on. `collective` NONE is a message between two ranks.
    `members` are the numbers of the ranks in their job, where they are known.
    """

    collective: Collective
    comm_bytes: int
    ranks: int
    nodes: int
    dtype: str
    measured_ns: float
    members: tuple[int, ...] = ()


@dataclass(frozen=True)
class Measurements:
    """What one file holds.

    `name` is the file's, without folders. `left_out` counts rows that cannot be used, by reason;
    `notes` are sentences on how the file was understood.
    """

    name: str
    format: str
    kernels: tuple[KernelTime, ...] = ()
    collectives: tuple[CollectiveTime, ...] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.kernels) + len(self.collectives)


@dataclass
class CollectedRows:
    """Rows of a file as a reader finds them."""

    name: str
    format: str
    kernels: list[KernelTime] = field(default_factory=list)
    collectives: list[CollectiveTime] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    def leave_out(self, reason: str, count: int = 1) -> None:
        """Count rows that cannot be used."""
        self.left_out[reason] += count

    def add(self, row: KernelTime | CollectiveTime) -> None:
        """Take a row, unless its time or its sizes are none. Raises FlintError FL850 for too many."""
        said = _wrong(row)
        if said:
            self.leave_out(said)
            return
        if len(self.kernels) + len(self.collectives) >= MOST_ROWS:
            raise FlintError(
                "FL850",
                f"{self.name} has more than {MOST_ROWS:,} rows",
                help="give a part of them: more rows do not improve constants",
            )
        if isinstance(row, KernelTime):
            self.kernels.append(row)
        else:
            self.collectives.append(row)

    def done(self) -> Measurements:
        """What was collected. Raises FlintError FL848 where not one row can be used."""
        if not self.kernels and not self.collectives:
            why = ", ".join(f"{n:,} {reason}" for reason, n in sorted(self.left_out.items()))
            raise FlintError(
                "FL848",
                f"{self.name} has no usable row" + (f": {why}" if why else ""),
                help="docs/calibrate.md says what each format must contain",
            )
        return Measurements(
            self.name,
            self.format,
            tuple(self.kernels),
            tuple(self.collectives),
            dict(sorted(self.left_out.items())),
            tuple(dict.fromkeys(self.notes)),
        )


def _wrong(row: KernelTime | CollectiveTime) -> str:
    """Why a row cannot be used; "" if it can."""
    time = row.measured_ns
    if not math.isfinite(time):
        return "without a number for the time"
    if time <= 0:
        return "with a time of 0"
    if not LEAST_NS <= time <= MOST_NS:
        return "with a time below 1 ns or above a day"
    if isinstance(row, CollectiveTime):
        if row.comm_bytes <= 0:
            return "of no bytes"
        return "of one rank" if row.ranks < 2 else _too_large(row.comm_bytes, row.ranks)
    sizes = (row.flops, row.read_bytes, row.written_bytes, row.elements, *row.dims)
    if any(row.dims) and not all(row.dims):
        return "with a size of 0"
    if min(sizes) < 0 or row.read_bytes + row.written_bytes <= 0:
        return "of no bytes"
    return _too_large(*row.dims, row.read_bytes + row.written_bytes, row.elements)


def _too_large(*sizes: int) -> str:
    return "of sizes that no machine has" if max(sizes) > MOST_SIZE else ""
