"""Where a captured step and what a whole compiler makes of it differ, and which to believe."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from flint.backends.cost.estimate import estimate
from flint.io.documents import IfAny, Thousandths
from flint.ir.made_by import CompiledBy
from flint.ir.program import Program
from flint.ir.workload import Workload
from flint.passes.compilers.sides import Side, relative, side
from flint.passes.profiles import rewrite
from flint.passes.work.totals import matmul_flops
from flint.requests.estimate import EstimateRequest
from flint.text import format_bytes, format_duration, format_flops, headings, text_table

if TYPE_CHECKING:
    from flint.backends.cost.estimate import Estimate
    from flint.backends.cost.memory.memory import MemoryUse
    from flint.cluster.models import Cluster

#: A difference of bytes over the wire that is a warning.
WARNED: Final = 0.10
#: Up to here both are as good as each other.
_ALIKE: Final = 0.01
#: Collectives that are shown: those that differ by most bytes.
_SHOWN: Final = 5
#: Where memory is laid out if no cluster is given.
_USUAL: Final = {"xla-gpu": "h100-dgx", "xla-tpu": "v5p"}
_COLUMNS = headings("cross-check | >captured | >compiled | >differs | believe, or source")


class Quantity(StrEnum):
    """What is compared."""

    WIRE = "wire_bytes"  #: bytes that a device sends if every collective is a ring
    COLLECTIVE = "collective_wire_bytes"  #: the same, of one kind of collective over the same axes
    PRODUCTS = "product_flops"
    MEMORY = "memory_bytes"  #: the peak of the rank class that needs most
    STEP = "step_ns"


#: What it is called, how it is written, and why the compiled program is right where the two differ.
_SAID: Final[dict[Quantity, tuple[str, Callable[[Any], str], str]]] = {
    Quantity.WIRE: ("bytes over the wire", format_bytes, "its partitioner is the one that runs"),
    Quantity.COLLECTIVE: ("", format_bytes, ""),
    Quantity.PRODUCTS: ("FLOPs of products", format_flops, "it counts what is padded or repeated"),
    Quantity.MEMORY: ("memory", format_bytes, "it is the assignment of its buffers"),
    Quantity.STEP: (
        *("step time", format_duration),
        "it runs these kernels, except for those that are chosen by trying",
    ),
}


@dataclass(frozen=True)
class CrossCheckRow:
    """One quantity of a step of one device, of both programs."""

    quantity: Quantity
    """wire_bytes, collective_wire_bytes, product_flops, memory_bytes or step_ns: what it is, and its unit."""
    captured: Thousandths  #: What the captured program has of it, after the rewrites of the compiler's profile.
    compiled: Thousandths  #: What the compiled program has.
    collective: str = ""  #: Kind, of collective_wire_bytes; else "".
    over: str = ""  #: Its mesh axes.
    captured_count: int = 0  #: Executions of it in the captured program.
    compiled_count: int = 0  #: Executions of it in the compiled program.
    source: str = ""
    """The line of the user's source that differs most; of memory, that of the compiled program's peak."""

    @property
    def difference(self) -> float:
        """How much more the capture has, as a share of the compiled program's."""
        return relative(self.captured, self.compiled)

    def cells(self) -> tuple[str, ...]:
        """The row as text."""
        (name, shown, why), said = _SAID[self.quantity], self.source
        if not self.collective and abs(self.difference) <= _ALIKE:
            said = "either"
        elif not self.collective:
            said = f"compiled: {why}" + (f" ({said})" if said else "")
        equal = self.captured == self.compiled
        return (
            f"  {self.collective} over {self.over}" if self.collective else name,
            shown(self.captured),
            shown(self.compiled),
            "equal" if equal else f"{100 * self.difference:+.1f} %",
            said,
        )


@dataclass(frozen=True)
class CrossCheck:
    """A captured step beside the same step from a whole compiler."""

    compiler: str  #: The compiler that was asked.
    rows: tuple[CrossCheckRow, ...] = ()
    """Totals, and the collectives that differ by most bytes, which follow the bytes over the wire."""
    compiled_by: IfAny[CompiledBy | None] = None  #: Who compiled it, where it was compiled.
    cluster: IfAny[str | None] = None  #: The cluster that step_ns is for, where one was given.
    not_checked: IfAny[str | None] = None  #: Why nothing was compiled, where that is so.

    @property
    def warning(self) -> str:
        """A sentence if bytes over the wire differ by more than WARNED, else ""."""
        if self.compiled_by is None or abs(self.rows[0].difference) <= WARNED:
            return ""
        _, captured, compiled, differs, _ = self.rows[0].cells()
        place = next((f", most of it at {r.source}" for r in self.rows[1:] if r.source), "")
        return (
            f"{self.compiled_by} sends {compiled} where this capture sends {captured} "
            f"({differs}{place}): believe --compiler {self.compiler}"
        )

    def to_text(self) -> str:
        """A table of about ten lines, or the reason why there is none."""
        if self.compiled_by is None:
            return f"cross-check  not done: {self.not_checked}"
        table = text_table(_COLUMNS, [row.cells() for row in self.rows])
        on = f"; step time on {self.cluster}" if self.cluster else ""
        return f"{table}\ncompiled by {self.compiled_by}{on}"


def cross_check(captured: Workload, compiled: Workload, cluster: Cluster | None) -> CrossCheck:
    """Compare a captured workload with what a compiler made of the same step.

    Without a cluster there is no step time. Raises what `estimate` raises.
    """
    by = compiled.compiled_by
    assert by is not None, "one side is a compiler's"
    sides = rewrite(captured, profile=by.profile), compiled
    on = _USUAL[by.profile] if cluster is None else cluster
    request = EstimateRequest(on, unpriced_is_zero=True)
    first, second = (estimate(workload, request) for workload in sides)
    mine, other = (side(*workload.programs) for workload in sides)
    products = _line(*(_products(workload) for workload in sides))
    most = [max((c.memory for c in e.classes), key=_peak) for e in (first, second)]
    rows = [
        CrossCheckRow(Quantity.WIRE, round(mine.ring_bytes), round(other.ring_bytes)),
        *_collectives(mine, other),
        CrossCheckRow(Quantity.PRODUCTS, mine.product_flops, other.product_flops, source=products),
    ]
    # parts of a pipeline are compiled apart: what they need together is not known
    if by.memory is not None:
        (mine_peak, its_peak), place = map(_peak, most), most[1].at.location
        rows.append(CrossCheckRow(Quantity.MEMORY, mine_peak, its_peak, source=place))
    if cluster is None:
        return CrossCheck(by.name, tuple(rows), by)
    busy = _line(_busy(first), _busy(second))
    times = CrossCheckRow(Quantity.STEP, first.step_time_ns, second.step_time_ns, source=busy)
    return CrossCheck(by.name, (*rows, times), by, cluster.name)


def _peak(memory: MemoryUse) -> int:
    return memory.peak_bytes


def _products(workload: Workload) -> Counter[str]:
    return _by_line((p, matmul_flops(p) * p.trips) for p in workload.programs)


def _busy(found: Estimate) -> Counter[str]:
    """Nanoseconds of kernels by line, of the rank class that ends last."""
    work = max(found.timeline.classes, key=lambda c: c.total_ns).work
    return _by_line([(work.program, work.duration_ns * work.program.trips)])


def _by_line(values: Iterable[tuple[Program, NDArray[np.number[Any]]]]) -> Counter[str]:
    """Sums of a column by the line of the user's source."""
    found: Counter[str] = Counter()
    for program, column in values:
        sums = np.bincount(program.location, weights=column.astype(np.float64))
        for place in np.flatnonzero(sums).tolist():
            found[program.strings[place]] += float(sums[place])  # type: ignore[assignment]
    return found


def _line(mine: Counter[str], other: Counter[str]) -> str:
    differ = Counter(mine)
    differ.subtract(other)
    return max(differ, key=lambda place: (abs(differ[place]), place), default="")


def _collectives(mine: Side, other: Side) -> list[CrossCheckRow]:
    """Those that differ by most bytes over the wire, first."""
    nothing: Counter[str] = Counter()
    found = []
    for key in {*mine.collectives, *other.collectives}:
        (count, size), (its_count, its_size) = (
            s.collectives.get(key, (0, 0)) for s in (mine, other)
        )
        if size == its_size:
            continue
        wires, its_wires = mine.wires.get(key, nothing), other.wires.get(key, nothing)
        row = CrossCheckRow(Quantity.COLLECTIVE, wires.total(), its_wires.total(), *key)
        place = _line(wires, its_wires)
        found.append(replace(row, captured_count=count, compiled_count=its_count, source=place))
    found.sort(key=lambda r: (-abs(r.captured - r.compiled), r.collective, r.over))
    return found[:_SHOWN]
