"""SCALE-Sim, where it is installed, on the products of a step, beside Flint's closed form.

SCALE-Sim follows an array cycle by cycle in Python: a product of today's models takes it hours. So
products are given to it from the cheapest on, as many as the limit of time is thought to hold.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from flint.backends.cost.chips.families.systolic.constants import systolic_of
from flint.backends.cost.chips.families.systolic.scalesim import cycles
from flint.backends.cost.chips.kernel_table import kernels_of
from flint.backends.cost.chips.kernels import KernelKind
from flint.cluster.models import Chip
from flint.errors import FlintError
from flint.io.scratch import scratch_folder
from flint.ir.workload import Workload
from flint.text import format_seconds, headings, plural, text_table
from flint.tools.simulators import scale_sim_runner as runner
from flint.tools.simulators.outcome import failure_json
from flint.tools.simulators.process import Ended, Limits, run_program

if TYPE_CHECKING:
    from flint.tools.simulators.documents import ScaleSimDocument

# The distinct products of matrices of a step, and what they take on one systolic array.


@dataclass(frozen=True, slots=True)
class Array:
    """One systolic array, as SCALE-Sim describes it. `sram_kib` is that of each operand."""

    rows: int
    columns: int
    dataflow: str
    sram_kib: int


@dataclass(frozen=True, slots=True)
class SimulatedProduct:
    """m x k times k x n, how often all ranks do it in a step, and the cycles of one by Flint's model."""

    m: int
    n: int
    k: int
    count: int
    cycles: int


def array_of(chip: Chip) -> Array:
    """An array of a chip. Raises FlintError FL705 for a chip without arrays."""
    found = systolic_of(chip)
    sram = max(1, int(found.vmem_bytes.value / 3) >> 10)
    return Array(int(found.rows.value), int(found.columns.value), found.dataflow, sram)


def products_of(kernels: Workload, array: Array) -> tuple[SimulatedProduct, ...]:
    """The distinct products of a workload, the one with most cycles in all first.

    Convolutions are the products that they are as matrices; what attention multiplies within its
    own kernels is not there. A batch counts as so many products.
    """
    sizes = np.bincount(kernels.class_of_ranks(), minlength=len(kernels.classes)).tolist()
    counts: dict[tuple[int, int, int], int] = {}
    for rank_class, ranks in zip(kernels.classes, sizes, strict=True):
        program = kernels.programs[rank_class.program]
        table, rows = kernels_of(program)
        chosen = np.flatnonzero(table.kind <= KernelKind.CONVOLUTION)
        dims, trips = table.dims[chosen], program.trips[rows[chosen]]
        for (batch, m, n, k), times in zip(dims.tolist(), trips.tolist(), strict=True):
            key = max(m, 1), max(n, 1), max(k, 1)
            counts[key] = counts.get(key, 0) + max(batch, 1) * times * ranks
    shape = array.rows, array.columns, array.dataflow
    found = [
        SimulatedProduct(*key, count, int(cycles(*key, *shape))) for key, count in counts.items()
    ]
    return tuple(sorted(found, key=lambda p: (-p.count * p.cycles, p.m, p.n, p.k)))


#: Version of the JSON form.
SCHEMA: Final = "flint.scalesim/1"
#: Seconds for a cycle of an array, for each of its rows and columns: 1.3e-6 (512 x 512 x 512 on
#: 128 x 128), 1.4e-6 (12 products of Llama 3), 2.7e-6 (1024 x 1024 x 1024), measured with 3.0.0.
SECONDS_PER_CYCLE: Final = 2e-6
#: To start an interpreter with pandas and numba.
_START_SECONDS = 5.0
_SHOWN = 20
_LAYER = re.compile(r"Running Layer (\d{1,6})\b")
_CYCLES = re.compile(r"Compute cycles: (\d{1,18})\b")
_HELP = "pip install scalesim 'numpy<2.4' in a separate environment, and --binary ITS/bin/python"
#: Called with the products that are done, and all.
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class ScaleSimulation:
    """Products of a step on an array: Flint's cycles, and SCALE-Sim's where it was run.

    `simulated` has its cycles by the place of the product; `notes` says why others are not there.
    """

    name: str
    chip: str
    array: Array
    products: tuple[SimulatedProduct, ...]
    simulated: dict[int, int]
    failure: FlintError | None
    notes: tuple[str, ...]
    warnings: tuple[str, ...] = ()

    @property
    def failures(self) -> tuple[FlintError, ...]:
        """What went wrong, if something did."""
        return () if self.failure is None else (self.failure,)

    @property
    def differing(self) -> tuple[int, ...]:
        """Places of products for which SCALE-Sim says other cycles."""
        return tuple(i for i, c in self.simulated.items() if c != self.products[i].cycles)

    @property
    def total_cycles(self) -> int:
        """Cycles of all products of all ranks, by Flint's model."""
        return sum(p.count * p.cycles for p in self.products)

    @property
    def difference_cycles(self) -> int:
        """SCALE-Sim's cycles less Flint's, of what it was run for, as often as that is done."""
        return sum(
            (c - self.products[i].cycles) * self.products[i].count
            for i, c in self.simulated.items()
        )

    @property
    def compared_cycles(self) -> int:
        """Flint's cycles of what SCALE-Sim was run for, as often as that is done."""
        return sum(self.products[i].cycles * self.products[i].count for i in self.simulated)

    def to_json(self) -> ScaleSimDocument:
        """Exact numbers, JSON-able."""
        return {
            "schema": SCHEMA,
            "simulator": "scalesim",
            "chip": self.chip,
            "rows": self.array.rows,
            "columns": self.array.columns,
            "dataflow": self.array.dataflow,
            "products": [
                {
                    "m": p.m,
                    "n": p.n,
                    "k": p.k,
                    "count": p.count,
                    "cycles": p.cycles,
                    "simulated_cycles": self.simulated.get(i),
                }
                for i, p in enumerate(self.products)
            ],
            "total_cycles": self.total_cycles,
            "compared_cycles": self.compared_cycles,
            "difference_cycles": self.difference_cycles,
            "failure": failure_json(self.failure),
            "notes": list(self.notes),
        }

    def to_text(self, *, verbose: bool = False) -> str:
        """For people; `verbose` prints all products."""
        a = self.array
        head = f"products   {self.name}: {plural(len(self.products), 'distinct product')}"
        shape = f"array      {a.rows} x {a.columns}, {a.dataflow}, of {self.chip}"
        kept = self.products if verbose else self.products[:_SHOWN]
        rows = [self._row(i, p) for i, p in enumerate(kept)]
        if len(kept) < len(self.products):
            rows.append((f"... {len(self.products) - len(kept)} more (-v)", *[""] * 6))
        titles = headings(">m | >n | >k | >executions | >cycles of one | >SCALE-Sim | >differ")
        table = text_table(titles, rows)
        return "\n".join(
            [head, shape, "", table, "", *self._sums(), *(f"note: {n}" for n in self.notes)]
        )

    def _row(self, place: int, p: SimulatedProduct) -> tuple[str, ...]:
        found = self.simulated.get(place)
        told = ("-", "-") if found is None else (f"{found:,}", f"{found - p.cycles:+,}")
        return (*(f"{x:,}" for x in (p.m, p.n, p.k, p.count, p.cycles)), *told)

    def _sums(self) -> list[str]:
        lines = [f"all        {self.total_cycles:,} cycles of one array, all ranks"]
        if self.simulated:
            share = self.compared_cycles / self.total_cycles if self.total_cycles else 0.0
            lines.append(
                f"compared   {plural(len(self.simulated), 'product')}, {share:.1%} of these cycles: "
                f"SCALE-Sim says {self.difference_cycles:+,} cycles"
            )
        return lines


def find_interpreter(given: str | None) -> Path | None:
    """The Python that has SCALE-Sim: as given, else this one if it does; None if it does not.

    Raises FlintError FL710 for one that is not there.
    """
    if given is not None:
        found = shutil.which(given)
        if found is None:
            raise FlintError("FL710", f"there is no interpreter {given}", help=_HELP)
        return Path(found).absolute()  # a link in an environment is what makes it that one
    return Path(sys.executable) if importlib.util.find_spec("scalesim") else None


@dataclass(frozen=True)
class ScaleSim:
    """An interpreter with SCALE-Sim (None: only Flint's cycles are said), and its limits."""

    interpreter: Path | None
    limits: Limits

    def simulate(
        self,
        name: str,
        chip: str,
        array: Array,
        products: Sequence[SimulatedProduct],
        progress: Progress | None = None,
    ) -> ScaleSimulation:
        """Run SCALE-Sim on what the limit holds of products. What goes wrong is the `failure`."""
        chosen = [] if self.interpreter is None else self._chosen(products, array)
        heard, failure = _Listener(len(chosen), progress), None
        notes = self._notes(products, chosen, array)
        if chosen:
            ended = self._run(array, [products[i] for i in chosen], heard)
            failure = self._failure(ended, heard)
            if ended.given_up and failure is None:
                notes.append(f"SCALE-Sim {ended.given_up}: {_left(len(chosen) - len(heard.found))}")
        simulated = {chosen[at]: cycles for at, cycles in sorted(heard.found.items())}
        found = tuple(products)
        result = ScaleSimulation(name, chip, array, found, simulated, failure, tuple(notes))
        if result.differing and failure is None:
            return _with_difference(result)
        return result

    def _chosen(self, products: Sequence[SimulatedProduct], array: Array) -> list[int]:
        """Places of the products that the limit is thought to hold, the cheapest first."""
        left = self.limits.patience.total_seconds - _START_SECONDS
        chosen: list[int] = []
        for place in sorted(range(len(products)), key=lambda i: products[i].cycles):
            left -= _seconds(products[place], array)
            if left < 0:
                break
            chosen.append(place)
        return chosen

    def _notes(
        self, products: Sequence[SimulatedProduct], chosen: Sequence[int], array: Array
    ) -> list[str]:
        if self.interpreter is None:
            return [f"SCALE-Sim is not installed here, so the cycles are Flint's: {_HELP}"]
        left = [p for i, p in enumerate(products) if i not in set(chosen)]
        if not left:
            return []
        each = [_seconds(p, array) for p in left]
        least, most = format_seconds(min(each)), format_seconds(max(each))
        took = f"SCALE-Sim would take about {least} to {most} for each (--limit SECONDS)"
        return [f"{_left(len(left))}: {took}"]

    def _run(self, array: Array, products: Sequence[SimulatedProduct], heard: _Listener) -> Ended:
        with scratch_folder() as scratch:
            folder = scratch / "run"
            folder.mkdir()
            (folder / runner.CONFIG).write_text(_config(array))
            table = "".join(f"p{i},{p.m},{p.n},{p.k},\n" for i, p in enumerate(products))
            (folder / runner.TOPOLOGY).write_text(f"layer,m,n,k,\n{table}")
            (folder / runner.LAYOUT).write_text(f"layer,m,n,k,\n{table}")
            command = [str(self.interpreter), "-u", runner.__file__]
            return run_program(command, folder, self.limits, heard)

    def _failure(self, ended: Ended, heard: _Listener) -> FlintError | None:
        """What kept it from an answer; the end of its time does not."""
        words = f"it said: {ended.last_words[-1]}" if ended.last_words else None
        if ended.refused or ended.status == runner.ABSENT:
            raise FlintError(
                "FL710", f"{self.interpreter} has no SCALE-Sim", place=words, help=_HELP
            )
        after = f"after {len(heard.found)} of {plural(heard.expected, 'product')}"
        if ended.lacked_memory:
            more = "--memory-limit GIB allows more, a smaller --limit selects smaller products"
            return FlintError(
                "FL715", f"SCALE-Sim ran out of memory {after}", place=words, help=more
            )
        if ended.status and not ended.given_up:
            return FlintError(
                "FL714",
                f"SCALE-Sim crashed (status {ended.status}) {after}",
                place=words,
                help=f"it needs numpy below 2.4: {_HELP}",
            )
        if not ended.status and len(heard.found) < heard.expected:
            return FlintError(
                "FL712",
                f"SCALE-Sim ended after cycles for {len(heard.found)} of {plural(heard.expected, 'product')}",
                place=words,
                help="Flint reads the output of SCALE-Sim 3",
            )
        return None


@dataclass(eq=False)
class _Listener:
    """Hears the cycles of one product after the other."""

    expected: int
    progress: Progress | None
    found: dict[int, int] = field(default_factory=dict)
    _at: int = -1

    def __call__(self, line: str) -> None:
        if layer := _LAYER.search(line):
            self._at = int(layer[1])
        elif (told := _CYCLES.search(line)) and 0 <= self._at < self.expected:
            self.found[self._at] = int(told[1])
            if self.progress is not None:
                self.progress(len(self.found), self.expected)


def _with_difference(found: ScaleSimulation) -> ScaleSimulation:
    """The same with an error that names a product on which the two disagree."""
    from dataclasses import replace

    p = found.products[found.differing[0]]
    failure = FlintError(
        "FL717",
        f"SCALE-Sim and Flint's closed form differ for "
        f"{plural(len(found.differing), 'product')}, such as {p.m} x {p.k} times {p.k} x {p.n}: "
        f"{found.simulated[found.differing[0]]:,} cycles and {p.cycles:,}",
        help="the closed form follows SCALE-Sim 3.0.0",
    )
    return replace(found, failure=failure)


def _seconds(product: SimulatedProduct, array: Array) -> float:
    return product.cycles * (array.rows + array.columns) * SECONDS_PER_CYCLE


def _left(count: int) -> str:
    return f"{plural(count, 'product')} {'was' if count == 1 else 'were'} not simulated"


def _config(array: Array) -> str:
    """SCALE-Sim's configuration: one array, bandwidth as much as it asks for."""
    return f"""[general]
run_name = flint
[run_presets]
InterfaceBandwidth = CALC
UseRamulatorTrace = False
[architecture_presets]
ArrayHeight = {array.rows}
ArrayWidth = {array.columns}
IfmapSramSzkB = {array.sram_kib}
FilterSramSzkB = {array.sram_kib}
OfmapSramSzkB = {array.sram_kib}
IfmapOffset = 0
FilterOffset = 1000000000
OfmapOffset = 2000000000
Dataflow = {array.dataflow}
ReadRequestBuffer = 32
WriteRequestBuffer = 32
[layout]
IfmapCustomLayout = False
IfmapSRAMBankBandwidth = 10
IfmapSRAMBankNum = 10
IfmapSRAMBankPort = 2
FilterCustomLayout = False
FilterSRAMBankBandwidth = 10
FilterSRAMBankNum = 10
FilterSRAMBankPort = 2
[sparsity]
SparsitySupport = false
"""
