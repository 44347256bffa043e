"""Whose times kernels have: Flint's models, or the cycles that their compiler estimated for them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from flint.backends.cost.chips.kernel_table import kernels_of
from flint.backends.cost.chips.kernels import KernelKind
from flint.backends.cost.chips.model import model_of
from flint.cluster.models import Chip
from flint.errors import FlintError, nearest
from flint.io.documents import Thousandths
from flint.ir.program import Program
from flint.ir.workload import Workload
from flint.text import format_duration, headings, plural, text_table

if TYPE_CHECKING:
    from flint.backends.cost.price import Priced
    from flint.ir.arrays import Float64s

#: Flint's models of the chip price every kernel.
MODEL: Final = "model"
#: Kernels take the cycles that the compiler estimated for them, the others Flint's times.
COMPILER: Final = "compiler"
#: Kernels and communication take the times that a profiler recorded, or those made of them.
MEASURED: Final = "measured"
TIMINGS: Final = (MODEL, COMPILER, MEASURED)
WITH_CYCLES: Final = "xla-tpu-cycles"
_HELP = "flint capture ... --compiler xla-tpu-cycles --chip {chip} captures them"
_COLUMNS = headings("kernels | >count | >by compiler | >by Flint | >Flint / compiler")


@dataclass(frozen=True, slots=True)
class KindTimes:
    """Executed kernels of one kind in a step of the rank class that ends last."""

    kind: str  #: Of kernel: gemm, elementwise, ...
    by_cycles: bool  #: Whether the compiler estimated their cycles.
    count: int  #: How often a step runs them.
    compiler_ns: Thousandths
    """Their cycles in ns, of all together; where `by_cycles` is false, `model_ns`."""
    model_ns: Thousandths  #: The same by Flint's models, in ns.


@dataclass(frozen=True)
class KernelTimes:
    """The compiler's times of kernels beside Flint's."""

    clock_hz: float  #: The clock that the compiler's cycles were counted with, in Hz.
    model_step_time_ns: Thousandths  #: The step time with Flint's times of all kernels, in ns.
    kinds: tuple[KindTimes, ...]  #: Kernels by kind, those that take most time first.

    def note(self, step_ns: float) -> str:
        """How many kernels, and how much of their time, have which source; both step times."""
        told = [k for k in self.kinds if k.by_cycles]
        count, all_of_them = (sum(k.count for k in kinds) for kinds in (told, self.kinds))
        time_ns = sum(k.compiler_ns for k in self.kinds)
        share = sum(k.compiler_ns for k in told) / time_ns if time_ns else 0.0
        return (
            f"{count:,} of {plural(all_of_them, 'kernel')} ({share:.1%} of their time) use the "
            f"cycles that the compiler estimated, at {self.clock_hz / 1e9:g} GHz; others, and "
            "communication, use Flint's times. With Flint's times alone the step takes "
            f"{format_duration(self.model_step_time_ns)}, not {format_duration(step_ns)}"
        )

    def table(self) -> str:
        """Kinds of kernels, those of most time first."""
        return text_table(_COLUMNS, [_cells(k) for k in self.kinds])


def _cells(k: KindTimes) -> tuple[str, ...]:
    model = format_duration(k.model_ns)
    if not k.by_cycles:
        return f"{k.kind}, no cycles", f"{k.count:,}", "-", model, "-"
    ratio = f"{k.model_ns / k.compiler_ns:.2f}" if k.compiler_ns else "-"
    return k.kind, f"{k.count:,}", format_duration(k.compiler_ns), model, ratio


def find_timing(name: str | None) -> str:
    """A name of TIMINGS; None is MODEL. Raises FlintError FL703 for another."""
    found = MODEL if name is None else name
    if found not in TIMINGS:
        raise FlintError(
            "FL703",
            f"unknown timing {name!r}{nearest(str(name), TIMINGS)}",
            help="kernels have the times of " + " or ".join(TIMINGS),
        )
    return found


def cycles_per_ns(workload: Workload, chip: Chip, timing: str) -> float:
    """The clock that cycles of the workload's kernels are counted in; 0 where models have the word.

    Raises FlintError FL719 where no kernel has cycles, or they are of another chip.
    """
    if timing != COMPILER:
        return 0.0
    by = workload.compiled_by
    clock = model_of(chip).cycles_per_ns
    if not clock:
        raise FlintError(
            "FL719",
            f"{chip.name} has no cores whose cycles a compiler estimates",
            help=_HELP.format(chip="v5p") + ", and -c v5p prices them",
        )
    if not any(p.cycles.any() for p in workload.programs):
        made = f"{by.name} made it" if by else "no compiler for TPUs made it"
        asked = by is not None and by.name == WITH_CYCLES
        help_ = "the compiler gave no cycles for any kernel: omit --timing"
        raise FlintError(
            "FL719",
            f"the program has no cycles of its kernels: {made}",
            help=help_ if asked else _HELP.format(chip=by.chip if by else "v5p"),
        )
    if by and not _is_of(by.chip, chip.name):
        raise FlintError(
            "FL719",
            f"the cycles of the kernels are for {by.chip}, not for {chip.name}",
            help=f"estimate on -c {by.chip}, or capture for the chip of the cluster",
        )
    return clock


def _is_of(compiled_for: str, chip: str) -> bool:
    from flint.passes.compilers.target import find_target

    try:
        return find_target("xla-tpu", chip).name == compiled_for
    except FlintError:
        return False


def kernel_times(
    compiled: Priced, modelled: Priced, number: int, step_ns: float, clock: float
) -> KernelTimes:
    """The times of rank class `number`, priced in both ways; `step_ns` is that of the models."""
    one, other = compiled.works[number], modelled.works[number]
    kinds = list(_kinds_of(one.program, one.duration_ns, other.duration_ns))
    kinds.sort(key=lambda k: (-k.compiler_ns, k.kind))
    return KernelTimes(clock * 1e9, step_ns, tuple(kinds))


def _kinds_of(
    program: Program, compiled_ns: Float64s, modelled_ns: Float64s
) -> Iterator[KindTimes]:
    kernels, rows = kernels_of(program)
    runs, told = program.trips[rows], program.cycles[rows] > 0
    for kind in np.unique(kernels.kind).tolist():
        for by_cycles in (True, False):
            here = (kernels.kind == kind) & (told == by_cycles)
            if runs[here].any():
                at, times = rows[here], runs[here]
                yield KindTimes(
                    KernelKind(kind).name.lower(),
                    by_cycles,
                    int(times.sum()),
                    float((compiled_ns[at] * times).sum()),
                    float((modelled_ns[at] * times).sum()),
                )
