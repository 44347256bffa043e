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


# Kernels from their sizes: bytes and flops that follow from dimensions and a type.

#: StableHLO's names of types, by those that tables have (in lower case).
DTYPES = {
    "bf16": "bf16", "bfloat16": "bf16", "f16": "f16", "fp16": "f16", "float16": "f16",
    "half": "f16", "f32": "f32", "fp32": "f32", "float32": "f32", "float": "f32", "tf32": "tf32",
    "f64": "f64", "fp64": "f64", "float64": "f64", "double": "f64", "i8": "i8", "int8": "i8",
    "fp8": "f8E4M3FN", "fp8_e4m3": "f8E4M3FN", "float8_e4m3fn": "f8E4M3FN", "e4m3": "f8E4M3FN",
    "float8_e4m3fnuz": "f8E4M3FNUZ", "fp8_e5m2": "f8E5M2", "float8_e5m2": "f8E5M2",
    "float8_e5m2fnuz": "f8E5M2FNUZ", "f8e4m3fn": "f8E4M3FN", "f8e5m2": "f8E5M2",
    "f8e4m3fnuz": "f8E4M3FNUZ", "f8e5m2fnuz": "f8E5M2FNUZ",
}  # fmt: skip
_BYTES = {"f64": 8, "f32": 4, "tf32": 4, "bf16": 2, "f16": 2}


def bytes_of(dtype: str) -> int:
    """Bytes of an element of a type of `DTYPES`."""
    return _BYTES.get(dtype, 1)


def product(m: int, n: int, k: int, dtype: str, measured_ns: float, batch: int = 1) -> KernelTime:
    """(m, k) times (k, n), `batch` times; results of products of 8-bit types have 2 bytes."""
    size = bytes_of(dtype)
    return KernelTime(
        OpClass.MATMUL,
        (batch, m, n, k),
        dtype,
        measured_ns,
        flops=2 * batch * m * n * k,
        read_bytes=batch * size * (m * k + k * n),
        written_bytes=batch * max(size, 2) * m * n,
        elements=batch * m * n,
        arrays=3,
    )


def attention(
    sequences: int,
    heads: int,
    key_heads: int,
    queries: int,
    keys: int,
    head_size: int,
    dtype: str,
    measured_ns: float,
    *,
    causal: bool,
    backward: bool = False,
    writes_cache: bool = False,
) -> KernelTime:
    """Fused attention of `sequences`; `key_heads` of 0 are as many as heads.

    With `writes_cache` the new keys and values are read and written to a cache beside it. Of causal
    attention the half of the flops is counted, as in a program.
    """
    size, key_heads = bytes_of(dtype), key_heads or heads
    result = sequences * heads * queries * head_size
    cached = 2 * sequences * key_heads * queries * head_size if writes_cache else 0
    kept = 2 * sequences * key_heads * keys * head_size
    flops = 4 * result * keys // (2 if causal else 1)
    passes = 2 if backward else 1
    return KernelTime(
        OpClass.ATTENTION_BACKWARD if backward else OpClass.ATTENTION,
        (sequences * heads, queries, keys, head_size),
        dtype,
        measured_ns,
        flops=flops * 5 // 2 if backward else flops,
        read_bytes=size * (result * passes + kept + cached),
        written_bytes=size * ((result + kept) if backward else (result + cached)),
        elements=result,
        arrays=4,
        causal=causal,
    )


def by_rows(op: OpClass, rows: int, columns: int, dtype: str, measured_ns: float) -> KernelTime:
    """A softmax, norm or reduction over rows."""
    size, elements = bytes_of(dtype), rows * columns
    result = rows if op is OpClass.REDUCE else elements
    return KernelTime(
        op,
        (1, rows, 1, columns),
        dtype,
        measured_ns,
        flops=elements,
        read_bytes=size * elements,
        written_bytes=size * result,
        elements=result,
        arrays=2,
    )


def by_elements(
    op: OpClass, elements: int, reads: int, dtype: str, measured_ns: float
) -> KernelTime:
    """An element-wise kernel, or a copy, that reads `reads` arrays and writes one."""
    size = bytes_of(dtype)
    return KernelTime(
        op,
        (0, 0, 0, 0),
        dtype,
        measured_ns,
        flops=0 if op is OpClass.COPY else elements,
        read_bytes=size * elements * reads,
        written_bytes=size * elements,
        elements=elements,
        arrays=reads + 1,
    )
