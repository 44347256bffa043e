"""Real profiles: sums of kernels by class of operator, as priced with the shipped presets.

    python -m benchmarks.trace_sums [FOLDER]
    python -m benchmarks.trace_sums --gate      1 if one got worse than data/trace_errors.csv says
    python -m benchmarks.trace_sums --write     and into that file

prices every operator of the profiles in data/kineto (or of another folder, files named as there by
what they were recorded on) from its shapes, with the preset of the machine and the stack that is
inferred from the program, and prints measured and priced sums, a roofline beside. Whole models hold
the classes that Flint prices; `covered` is their share of the time of kernels. "left out" is with
constants that are fitted again without the profile; it judges, and the gate compares it.
"""

from __future__ import annotations

import argparse
import csv
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType

import numpy as np

from benchmarks import trace_kernels
from benchmarks.fits.fit import Constant, all_fits
from benchmarks.tables import markdown
from benchmarks.trace_kernels import DATA, WITHOUT, TraceKernels, files, of_class, read_trace
from flint.cluster.models import Chip, Cluster
from flint.tools.measure.fitting.kernels import CLASSES, latencies, roofline_ns

WHOLE = "whole model"
#: The errors that must not grow: profile, class, share of the whole, error, both in percent.
RECORDED = Path(__file__).resolve().parent / "data" / "trace_errors.csv"
#: Classes with a smaller share of a profile's priced kernels are not judged.
LEAST_SHARE = 0.05
#: What is to be reached, of wholes and of classes.
BARS = {True: 0.10, False: 0.20}
#: How much worse an error may be than the recorded one: other machines add up in another order.
SLACK = 0.002
_HEADINGS = (
    *("profile", "stack", "class", "kernels", "measured us", "priced us", "error %"),
    *("left out %", "roofline %", "covered %"),
)
#: Constants by table of a preset.
Tables = Mapping[str, Mapping[str, Constant | None]]


@dataclass(frozen=True)
class ClassSum:
    """Sums over a profile in ns; `left_out_ns` is priced with the profile left out of every fit.

    `share` is of the kernels that are priced, `covered` of all.
    """

    profile: str
    stack: str
    name: str
    count: int
    measured_ns: float
    priced_ns: float
    roofline_ns: float
    left_out_ns: float
    share: float
    covered: float

    def error(self, ns: float) -> float:
        """Of a sum, as a share of the measured one."""
        return ns / self.measured_ns - 1

    @property
    def left_out(self) -> float:
        """The error that judges."""
        return self.error(self.left_out_ns)

    @property
    def bar(self) -> float:
        """What it should be within."""
        return BARS[self.name == WHOLE]


def sums(trace: TraceKernels, without: Chip | None = None) -> Iterator[ClassSum]:
    """Each class of a profile, and all of them. `without` has constants made without the profile."""
    data, chip = trace.kernels, trace.cluster.chip
    times, priced, bound, left_out = (
        ns * data.count
        for ns in (
            data.measured_ns, latencies(data, chip), roofline_ns(data, chip), latencies(data, without or chip),
        )
    )  # fmt: skip
    for name in (*CLASSES, WHOLE):
        mine = np.ones(len(data), np.bool_) if name == WHOLE else of_class(data, name)
        if mine.any():
            whole = [float(ns[mine].sum()) for ns in (times, priced, bound, left_out)]
            yield ClassSum(
                trace.name, trace.stack, name, int(data.count[mine].sum()), *whole,
                whole[0] / float(times.sum()), whole[0] / trace.total_ns,
            )  # fmt: skip


def all_sums(folder: Path = DATA) -> Iterator[ClassSum]:
    """All profiles of a folder, by name."""
    for path, preset in files(folder):
        trace = read_trace(path, preset)
        yield from sums(trace, left_out(path, preset).chip if folder == DATA else None)


@cache
def left_out(path: Path, preset: str) -> Cluster:
    """The machine of a profile with its stack, and constants that are made without the profile.

    They are made in a process of their own, since fits keep what they found.
    """
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        made = pool.submit(_fitted, preset, path.name).result()
    cluster = read_trace(path, preset).cluster
    gpu = cluster.chip.gpu.model_dump()
    for table, constants in made.items():
        *_, library = table.split(".")
        there = (
            gpu["constants"] if library == "constants" else gpu["libraries"].setdefault(library, {})
        )
        for name, constant in constants.items():
            if constant is None:
                del there[name]
            else:
                there[name] = dict(zip(("value", "kind", "source"), constant, strict=True))
    found = cluster.chip.model_copy(update={"gpu": type(cluster.chip.gpu).model_validate(gpu)})
    return cluster.model_copy(update={"chip": found})


def _fitted(preset: str, without: str) -> Tables:
    """What fits on profiles make for a preset without one; None where no rows of a constant are left."""
    os.environ[WITHOUT] = without  # of this process, which ends with its answer
    found: dict[str, dict[str, Constant | None]] = {}
    for fit in all_fits(_reads_traces):
        if fit.preset == preset:
            made = fit.run() if fit.rows else dict.fromkeys(fit.names)
            found.setdefault(fit.table, {}).update(made)
    return found


def _reads_traces(module: ModuleType) -> bool:
    theirs = trace_kernels.__name__
    return any(
        v is trace_kernels or getattr(v, "__module__", "") == theirs for v in vars(module).values()
    )


def table(found: Sequence[ClassSum]) -> str:
    """As it stands on the page of accuracy."""
    return markdown(_HEADINGS, [_cells(s) for s in found])


def _cells(s: ClassSum) -> tuple[str, ...]:
    errors = (s.error(ns) for ns in (s.priced_ns, s.left_out_ns, s.roofline_ns))
    return (
        s.profile, s.stack, s.name, f"{s.count:,}", f"{s.measured_ns / 1e3:,.1f}",
        f"{s.priced_ns / 1e3:,.1f}", *(f"{100 * e:+.1f}" for e in errors), f"{100 * s.covered:.1f}",
    )  # fmt: skip


# --- the gate -----------------------------------------------------------------------------------


def judged(found: Sequence[ClassSum]) -> list[ClassSum]:
    """Whole profiles and their classes that take a share of the time worth judging."""
    return [s for s in found if s.share > LEAST_SHARE]


def recorded() -> dict[tuple[str, str], float]:
    """Errors by profile and class, of 1."""
    with RECORDED.open(encoding="utf-8") as file:
        rows = csv.DictReader(file)
        return {(r["profile"], r["class"]): float(r["error"]) / 100 for r in rows}


def worse(found: Sequence[ClassSum], known: Mapping[tuple[str, str], float]) -> list[str]:
    """A sentence for each sum that is further off than was recorded, that is new, or that is gone."""
    now = {(s.profile, s.name): s for s in judged(found)}
    said = [
        f"{s.profile}, {s.name}: {100 * s.left_out:+.1f} %, recorded {100 * known[key]:+.1f} %"
        for key, s in now.items()
        if key in known and abs(s.left_out) > abs(known[key]) + SLACK
    ]
    others = sorted(now.keys() ^ known.keys())
    return said + [f"{p}, {name}: not in both" for p, name in others]


def write(found: Sequence[ClassSum]) -> None:
    """Record the errors of now."""
    lines = ["profile,class,share,error"]
    for s in judged(found):
        lines.append(f"{s.profile},{s.name},{100 * s.share:.1f},{100 * s.left_out:+.1f}")
    RECORDED.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> int:
    """1 where the gate is closed."""
    parser = argparse.ArgumentParser(description="Sums of kernels of real profiles.")
    parser.add_argument("folder", nargs="?", type=Path, default=DATA)
    parser.add_argument("--gate", action="store_true", help="compare with the recorded errors")
    parser.add_argument("--write", action="store_true", help="record the errors of now")
    given = parser.parse_args()
    found = list(all_sums(given.folder))
    print(table(found))
    missed = [s for s in judged(found) if abs(s.left_out) > s.bar]
    print(f"{len(missed)} of {len(judged(found))} judged sums are over their bar")
    if given.write:
        write(found)
    said = worse(found, recorded()) if given.gate else []
    print(*said, sep="\n")
    return int(bool(said))


if __name__ == "__main__":
    raise SystemExit(main())
