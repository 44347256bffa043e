"""Real profiles: sums of kernels by class of operator, as priced with the shipped presets.

    python -m benchmarks.trace_sums [FOLDER]

prices every operator of the profiles in data/kineto (or of another folder, files named as there by
what they were recorded on) from its shapes, with the preset of the machine and the stack that is
inferred from the program, and prints measured and priced sums, a roofline beside. Whole models hold
the classes that Flint prices; `covered` is their share of the time of kernels. "held out" counts of
each class only the kernels that no constant was fitted on.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.fits.bytes import PARTS, all_are_fitted
from benchmarks.tables import markdown
from benchmarks.trace_kernels import DATA, TraceKernels, files, kernels_on, of_class, read_trace
from flint.tools.measure.fitting.kernels import CLASSES, latencies, roofline_ns

WHOLE = "whole model"
_HEADINGS = (
    *("profile", "stack", "class", "kernels", "measured us", "priced us", "error %"),
    *("held out %", "roofline %", "covered %"),
)


@dataclass(frozen=True)
class ClassSum:
    """Sums over a profile in ns. `held_out` is the error of kernels that nothing was fitted on, of 1."""

    profile: str
    stack: str
    name: str
    count: int
    measured_ns: float
    priced_ns: float
    roofline_ns: float
    covered: float
    held_out: float | None = None

    @property
    def error(self) -> float:
        """Of the priced sum, as a share of the measured one."""
        return self.priced_ns / self.measured_ns - 1

    @property
    def roofline_error(self) -> float:
        """Of the roofline's sum."""
        return self.roofline_ns / self.measured_ns - 1


def sums(trace: TraceKernels, fitted: frozenset[int] = frozenset()) -> Iterator[ClassSum]:
    """Each class of a profile, and all of them. `fitted` are hashes of kernels that were fitted on."""
    data, chip = trace.kernels, trace.cluster.chip
    times = data.measured_ns * data.count
    priced = latencies(data, chip) * data.count
    bound = roofline_ns(data, chip) * data.count
    free = ~np.isin(data.hashes, list(fitted))
    for name in (*CLASSES, WHOLE):
        mine = np.ones(len(data), np.bool_) if name == WHOLE else of_class(data, name)
        if not mine.any():
            continue
        rest = mine & free
        held_out = _error(priced, times, rest) if fitted and rest.any() else None
        measured_ns = float(times[mine].sum())
        yield ClassSum(
            trace.name, trace.stack, name, int(data.count[mine].sum()), measured_ns,
            float(priced[mine].sum()), float(bound[mine].sum()), measured_ns / trace.total_ns, held_out,
        )  # fmt: skip


def _error(
    priced: NDArray[np.float64], measured: NDArray[np.float64], rows: NDArray[np.bool_]
) -> float:
    return float(priced[rows].sum() / measured[rows].sum() - 1)


def all_sums(folder: Path = DATA) -> Iterator[ClassSum]:
    """All profiles of a folder, by name."""
    for path, preset in files(folder):
        fitted = _fitted(preset) if folder == DATA else frozenset[int]()
        yield from sums(read_trace(path, preset), fitted)


def not_fitted(trace: TraceKernels, preset: str) -> NDArray[np.bool_]:
    """The kernels of a profile that no constant of its machine's preset was fitted on."""
    return ~np.isin(trace.kernels.hashes, list(_fitted(preset)))


@cache
def _fitted(preset: str) -> frozenset[int]:
    """Hashes of the kernels of a machine's profiles that constants were fitted on."""
    found, half = kernels_on(preset)
    used = half == 0
    for part in PARTS[preset]:
        if all_are_fitted(preset, part.name):
            used |= of_class(found, part.name)
    return frozenset(found.hashes[used].tolist())


def table(found: list[ClassSum]) -> str:
    """As it stands on the page of accuracy."""
    return markdown(_HEADINGS, [_cells(s) for s in found])


def _cells(s: ClassSum) -> tuple[str, ...]:
    held_out = "" if s.held_out is None else f"{100 * s.held_out:+.1f}"
    return (
        s.profile, s.stack, s.name, f"{s.count:,}", f"{s.measured_ns / 1e3:,.1f}",
        f"{s.priced_ns / 1e3:,.1f}", f"{100 * s.error:+.1f}", held_out,
        f"{100 * s.roofline_error:+.1f}", f"{100 * s.covered:.1f}",
    )  # fmt: skip


if __name__ == "__main__":
    print(table(list(all_sums(Path(sys.argv[1]) if len(sys.argv) > 1 else DATA))))
