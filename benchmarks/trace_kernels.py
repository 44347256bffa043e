"""The kernels of the real profiles in data/kineto, by chip, as `MeasuredKernels` with halves."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.kernel_rows import Row, read
from flint.backends.cost.chips.kernels import KernelKind
from flint.backends.cost.software import stack_of, with_stack
from flint.cluster.models import Cluster
from flint.ir.workload import Workload
from flint.tools.measure.fitting.fit import halves
from flint.tools.measure.fitting.kernels import CLASSES, MeasuredKernels, measured_kernels
from flint.tools.measure.fitting.traces import CLASS_OF, TraceRows, trace_rows
from flint.tools.measure.measurements.rows import KernelTime
from flint.tools.measure.profiles.build import workload_of
from flint.tools.measure.profiles.formats import read_profiles

DATA = Path(__file__).resolve().parent / "data" / "kineto"
#: Beginnings of the files' names, and the presets of the machines that they were recorded on.
PRESETS = {"h100_": "h100-dgx", "mi300x_": "mi300x", "b200_": "b200-dgx"}
#: The variable of a process that names the profile which is left out of everything there.
WITHOUT = "FLINT_BENCHMARKS_WITHOUT"


@dataclass(frozen=True, eq=False)
class TraceKernels:
    """One profile. `cluster` is its preset with the stack that is inferred from it."""

    name: str
    cluster: Cluster
    stack: str
    rows: TraceRows
    kernels: MeasuredKernels

    @property
    def total_ns(self) -> float:
        """Time of all kernels on the device, without communication."""
        return self.rows.known_ns + self.rows.unknown_ns


def files(folder: Path = DATA) -> list[tuple[Path, str]]:
    """Profiles of PyTorch with the presets of their machines, by name."""
    found = []
    for path in sorted(folder.glob("*.json.gz")):
        preset = next((p for start, p in PRESETS.items() if path.name.startswith(start)), "")
        if preset and path.name != os.environ.get(WITHOUT):
            found.append((path, preset))
    return found


@cache
def read_trace(path: Path, preset: str) -> TraceKernels:
    """A profile's kernels; those of one kind and shape are one, with their mean time."""
    workload: Workload = workload_of(read_profiles(path))
    cluster = Cluster.load(preset)
    stack = stack_of(workload, cluster, None)
    cluster = with_stack(cluster, stack)
    rows = trace_rows(workload, cluster.chip)
    name = path.name.removesuffix(".json.gz")
    return TraceKernels(name, cluster, stack.name, rows, measured_kernels(rows.kernels))


def traces(preset: str = "", folder: Path = DATA) -> Iterator[TraceKernels]:
    """Those of one machine, or all."""
    for path, of in files(folder):
        if preset in ("", of):
            yield read_trace(path, of)


@cache
def kernels_on(preset: str) -> tuple[MeasuredKernels, NDArray[np.int64]]:
    """The kernels of all profiles of a machine, and the half of each: 0 is fitted on."""
    found = measured_kernels([k for t in traces(preset) for k in t.rows.kernels])
    return found, halves(found.hashes.tolist())


#: Classes of which a list says all: how arrays lie makes no difference.
LISTED = ("convolutions", "attention")


@cache
def class_on(preset: str, name: str) -> MeasuredKernels:
    """A class of the kernels of all profiles of a machine, and of those of which only a list is public."""
    listed = _listed_on(preset) if name in LISTED else ()
    found = measured_kernels([*(k for t in traces(preset) for k in t.rows.kernels), *listed])
    return found.select(of_class(found, name))


def _listed_on(preset: str) -> Iterator[KernelTime]:
    """Kernels of data/tracelens_kernels. It does not say how arrays lie, as other classes need."""
    for path in sorted((DATA.parent / "tracelens_kernels").glob("*.csv.gz")):
        if PRESETS[path.name.partition("_")[0] + "_"] == preset:
            yield from map(_listed, read(f"tracelens_kernels/{path.name}"))


def _listed(row: Row) -> KernelTime:
    numbers = ("flops", "read_bytes", "written_bytes", "elements", "count")
    said = {name: int(row[name]) for name in numbers}
    dims = (int(row["d0"]), int(row["d1"]), int(row["d2"]), int(row["d3"]))
    op = CLASS_OF[KernelKind[row["kind"]]]
    return KernelTime(op, dims, row["dtype"], float(row["mean_us"]) * 1e3, arrays=3, **said)


def of_class(found: MeasuredKernels, name: str) -> NDArray[np.bool_]:
    """The kernels of one of `fitting.kernels.CLASSES`."""
    kinds, _ = CLASSES[name]
    return np.isin(found.kernels.kind, list(kinds))
