"""Constants of a chip's kernel models from measured kernels, whichever family the chip is of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flint.backends.cost.chips.kernel_table import KINDS
from flint.backends.cost.chips.kernels import KernelKind, Kernels
from flint.backends.cost.chips.model import Roofline, latency_ns, model_of
from flint.cluster.models import Chip
from flint.cluster.tables import Constant, Quantity, SourceKind, constant_of
from flint.errors import FlintError
from flint.ir.arrays import Float64s, Int64s
from flint.tools.measure.fitting.fit import Bounds, hash_of
from flint.tools.measure.measurements.rows import KernelTime

_FIT = SourceKind.FITTED
#: Classes of kernels that are fitted together: their kinds, and beginnings of their constants' names.
CLASSES: Mapping[str, tuple[frozenset[KernelKind], tuple[str, ...]]] = {
    "products": (frozenset({KernelKind.GEMM}), ("gemm.",)),
    "convolutions": (frozenset({KernelKind.CONVOLUTION}), ("convolution.",)),
    "attention": (
        frozenset({KernelKind.ATTENTION, KernelKind.ATTENTION_BACKWARD}),
        ("attention.", "decode."),
    ),
    "softmax": (frozenset({KernelKind.SOFTMAX}), ("softmax.",)),
    "norms": (frozenset({KernelKind.NORM}), ("norm.",)),
    "element-wise": (
        frozenset({KernelKind.ELEMENTWISE, KernelKind.OPTIMIZER, KernelKind.RANDOM}),
        ("elementwise.",),
    ),
    "copies": (frozenset({KernelKind.COPY}), ("copy.",)),
    "reductions": (frozenset({KernelKind.REDUCTION}), ("reduction.",)),
    "look-ups": (frozenset({KernelKind.GATHER, KernelKind.SCATTER}), ("gather.",)),
    "others": (
        frozenset({KernelKind.SORT, KernelKind.TOP_K, KernelKind.FFT, KernelKind.DECLARED}),
        (),
    ),
}
#: A constant without a limit of its own is looked for up to so many times its value, and down to.
RANGE = 12.0


@dataclass(frozen=True, eq=False)
class MeasuredKernels:
    """Kernels that differ, how long each ran on average, how often, and a hash of what it is.

    `weight` is how much a row counts in a fit.
    """

    kernels: Kernels
    measured_ns: Float64s
    count: Int64s
    weight: Float64s
    hashes: Int64s

    def __len__(self) -> int:
        return len(self.measured_ns)

    def select(self, rows: NDArray[np.bool_] | Int64s) -> MeasuredKernels:
        """Some of the rows."""
        return MeasuredKernels(
            self.kernels.select(rows),
            self.measured_ns[rows],
            self.count[rows],
            self.weight[rows],
            self.hashes[rows],
        )

    @property
    def total_ns(self) -> float:
        """Time of all runs."""
        return float((self.measured_ns * self.count).sum())


def measured_kernels(rows: Sequence[KernelTime]) -> MeasuredKernels:
    """Rows as columns; those of the same kernel become one, with their mean time.

    Rows that say how often they ran (of traces) count half alike and half by their share of the time;
    others count alike.
    """
    merged: dict[KernelTime, tuple[float, int]] = {}
    for row in rows:
        key = replace(row, measured_ns=0.0, count=0)
        total, count = merged.get(key, (0.0, 0))
        merged[key] = (total + row.measured_ns * row.count, count + row.count)
    keys = list(merged)
    runs = np.array([merged[k][1] for k in keys], np.int64)
    times = np.array([merged[k][0] for k in keys], np.float64)
    weight = np.ones(len(keys))
    if len(keys) and runs.max() > 1:
        weight = 0.5 + 0.5 * len(keys) * times / times.sum()
    dtypes = tuple(sorted({k.dtype for k in keys}))
    mean = times / np.maximum(runs, 1)
    return MeasuredKernels(_columns(keys, dtypes), mean, runs, weight, _hashes(keys))


def _columns(keys: Sequence[KernelTime], dtypes: tuple[str, ...]) -> Kernels:
    def column(name: str, dtype: type = np.int64) -> Any:
        return np.array([getattr(k, name) for k in keys], dtype)

    return Kernels(
        kind=np.array([KINDS.get(k.op, KernelKind.UNPRICED) for k in keys], np.uint8),
        dtype=np.array([dtypes.index(k.dtype) for k in keys], np.uint8),
        dims=np.array([k.dims for k in keys], np.int64).reshape(-1, 4),
        flops=column("flops"),
        read_bytes=column("read_bytes"),
        written_bytes=column("written_bytes"),
        elements=column("elements"),
        arrays=column("arrays"),
        causal=column("causal", np.bool_),
        indexed=column("indexed", np.bool_),
        dtypes=dtypes,
    )


def _hashes(keys: Sequence[KernelTime]) -> Int64s:
    return np.array(
        [
            hash_of(int(KINDS.get(k.op, 0)), k.dtype, *k.dims, k.read_bytes, k.written_bytes)
            for k in keys
        ],
        np.int64,
    )


def values_of(chip: Chip) -> dict[str, float]:
    """The constants that a chip's kernels are priced with, its own and borrowed ones.

    Raises FlintError FL853 for a chip without a model that has any.
    """
    found = dict(model_of(chip).constants_in_use())
    if not found:
        raise FlintError(
            "FL853",
            f"{chip.name} has no model with constants to fit",
            help="give a base whose chip has a table [chip.gpu] or [chip.systolic]",
        )
    return found


def with_constants(chip: Chip, values: Mapping[str, float]) -> Chip:
    """The chip with other values of some constants; the rest are its own."""
    family = chip.family
    assert family is not None
    own = dict(family.constants)
    own |= {n: Quantity.model_construct(value=v, kind=_FIT, source="-") for n, v in values.items()}
    return chip.model_copy(update={family.table: family.model_copy(update={"constants": own})})


def settled(chip: Chip) -> Chip:
    """The chip with all constants in use as its own, and no libraries that stand before them."""
    found = with_constants(chip, values_of(chip))
    family = found.family
    assert family is not None
    if not hasattr(family, "uses"):
        return found
    bare = family.model_copy(update={"uses": (), "libraries": {}})
    return found.model_copy(update={family.table: bare})


def latencies(data: MeasuredKernels, chip: Chip, *, exact: bool = False) -> Float64s:
    """Prices of the kernels by a chip's model, in ns, at least a nanosecond each.

    With `exact` those that its table of exact shapes has are as measured, as in estimates.
    """
    found = latency_ns(data.kernels, chip) if exact else model_of(chip).latency_ns(data.kernels)
    return np.maximum(found, 1.0)


def roofline_ns(data: MeasuredKernels, chip: Chip) -> Float64s:
    """max(flops / peak, bytes / bandwidth); flops count where matrices are multiplied."""
    multiplies = data.kernels.kind <= KernelKind.ATTENTION_BACKWARD
    bound = replace(data.kernels, flops=np.where(multiplies, data.kernels.flops, 0))
    return np.maximum(Roofline(chip).latency_ns(bound), 1e-3)


def bounds_of(chip: Chip, prefixes: Sequence[str], data: MeasuredKernels) -> Bounds:
    """What each constant of a class may be, with its value now. Constants that are 0 stay so."""
    family = chip.family
    assert family is not None
    values = values_of(chip)
    for name in _head_sizes(values, data):
        values.setdefault(name, _between(values, name))
    found: Bounds = {}
    for name, value in values.items():
        known = constant_of(family.known, name)
        if known is not None and value > 0 and name.startswith(tuple(prefixes)):
            found[name] = _range_of(known, value)
    return found


def _range_of(known: Constant, value: float) -> tuple[float, float, float]:
    low = max(known.least, value / RANGE)
    high = min(known.most, value * RANGE)
    return low, max(high, low * 1.01), value


def _head_sizes(values: Mapping[str, float], data: MeasuredKernels) -> list[str]:
    """Names of numbered constants (`attention.efficiency.D`) of the sizes that were measured."""
    heads = sorted({n.rpartition(".")[0] for n in values if n.rpartition(".")[2].isdigit()})
    attends = np.isin(data.kernels.kind, [KernelKind.ATTENTION, KernelKind.ATTENTION_BACKWARD])
    sizes = sorted({int(s) for s in data.kernels.dims[attends, 3] if s > 0})
    return [f"{head}.{size}" for head in heads for size in sizes]


def _between(values: Mapping[str, float], name: str) -> float:
    """What a numbered constant is by those that there are: between the nearest of them."""
    head, _, size = name.rpartition(".")
    known = sorted(
        (int(n.rpartition(".")[2]), v) for n, v in values.items() if n.startswith(f"{head}.")
    )
    sizes, given = zip(*known, strict=True)
    return float(np.interp(np.log2(int(size)), np.log2(sizes), given))
