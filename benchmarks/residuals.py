"""Make flint/cluster/residuals.toml: how far prices are from measurements that they were not fitted on.

    python -m benchmarks.residuals                  print what the page of accuracy shows of it
    python -m benchmarks.residuals --write          and write the file
    python -m benchmarks.residuals --steps FILE     with errors of steps from `python -m benchmarks.step_errors FILE`

"own" are rows that nothing was fitted on, priced with the shipped presets; profiles are priced with
constants that were made without them. A step of falling back is measured by taking it: rows are priced
as if the chip, the library or every measurement were not there, and what that adds to the errors is the
step's. One half of these rows makes the file, the other half says how many lie inside of 80 % intervals.
Of steps of training one half (`Case.half` 0) makes the deviation of the step as a whole. Parts without
rows of their own are assumed from those that are nearest, and say so.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from benchmarks import collective_rows, kernel_rows, tpu_rows
from benchmarks.accuracy_kernels import priced_kernels, with_libraries
from benchmarks.fits.attention import ENCODERS
from benchmarks.fits.bytes import A100, of_device
from benchmarks.kernel_rows import PRESETS, PRODUCTS, Measured
from benchmarks.simumax_rows import SYSTEMS
from benchmarks.simumax_rows import products as trained_products
from benchmarks.step_errors import StepError, read_steps
from benchmarks.tables import markdown
from benchmarks.trace_kernels import files, read_trace
from benchmarks.trace_sums import left_out
from flint.backends.cost.chips.families.gpu.constants import constants_of, nearness
from flint.backends.cost.chips.model import latency_ns
from flint.backends.cost.collectives import duration_ns
from flint.backends.cost.software import stack_for, with_stack
from flint.backends.cost.uncertainty import WIDTH, are_sisters, deviation_of, kernel_parts, steps_of
from flint.cluster.models import Chip, Cluster
from flint.cluster.residuals import (
    FILE,
    Fallback,
    Part,
    Residual,
    on_chip,
    residual,
    verified_stacks,
    widening,
)
from flint.ir.arrays import Float64s
from flint.tools.measure.fitting.kernels import MeasuredKernels, with_constants

#: Steps send no less between nodes, but for counters.
STEP_BYTES = 1 << 20
#: Kernels that run longer are not mostly launches.
LAUNCHED_NS = 10_000
#: A chip with so many rows of a part has deviations of its own, and a class is judged.
FEW = 30
#: What is asked of a class: the share of its rows inside of 80 % intervals.
BARS = (0.7, 0.9)
#: Whose rows judge the fall-backs of kernels, by part: GPUs, and rows.
LENT: Mapping[Part, tuple[Mapping[str, str], Callable[[str], Measured]]] = {
    Part.PRODUCTS: (PRODUCTS, kernel_rows.gemms),
    Part.ATTENTION: (PRESETS, kernel_rows.prefill),
    Part.DECODING: (PRESETS, kernel_rows.decode),
}
#: A part without rows -> the nearest one that has some: it is taken to be half as far off again.
NEAREST = {
    Part.NARROW: Part.PRODUCTS, Part.GROUPED: Part.PRODUCTS, Part.NARROW_GROUPED: Part.GROUPED, Part.CONVOLUTIONS: Part.PRODUCTS,
    Part.DECODING: Part.ATTENTION, Part.BACKWARD: Part.ATTENTION, Part.NORMS: Part.ELEMENTWISE,
    Part.SOFTMAX: Part.ELEMENTWISE, Part.COPIES: Part.ELEMENTWISE, Part.REDUCTIONS: Part.ELEMENTWISE,
    Part.LOOK_UPS: Part.ELEMENTWISE, Part.OTHERS: Part.ELEMENTWISE, Part.OUTSIDE: Part.INSIDE,
    Part.MESSAGES: Part.OUTSIDE, Part.ELEMENTWISE: Part.PRODUCTS, Part.ATTENTION: Part.PRODUCTS,
}  # fmt: skip
#: Of parts that nobody measured apart: of one's own, and without any.
ASSUMED = {
    Part.HOST: (0.15, 0.37, "assumed: hosts of one kind of machine; others differ by a factor of 1.5"),
    Part.MEASURED: (0.03, 0.0, "assumed: a step run again on the same machine"),
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Group:
    """ln(estimate / measured) of alike rows of one chip, and the step that their constants took."""

    part: Part
    chip: str
    data: str
    logs: Float64s
    step: Fallback | None = None
    library: str = ""

    @property
    def level(self) -> float:
        """The middle."""
        return float(np.median(self.logs))

    @property
    def variance(self) -> float:
        """Of a normal distribution whose middle 80 % are as wide."""
        low, high = np.quantile(self.logs, (0.1, 0.9))
        return float((high - low) / (2 * WIDTH)) ** 2


def group(
    part: Part, chip: str, data: str, priced_ns: Float64s, measured_ns: Float64s, step: Fallback | None = None
) -> Group:  # fmt: skip
    """Rows in the order of a hash of what they measured: every second one makes the file."""
    order = np.argsort([zlib.crc32(f"{ns:.6g}".encode()) for ns in measured_ns], kind="stable")
    return Group(part, chip, data, np.log(priced_ns / measured_ns)[order], step)


# --- constants of one's own ---------------------------------------------------------------------


@cache
def own() -> tuple[Group, ...]:
    """Rows that nothing was fitted on, as priced by whoever has the chip."""
    kernels = (*_of_gpus(), *_of_neusight(), *_of_v6e(), *_traced())
    return (*kernels, *_collectives())


def _of_gpus() -> Iterator[Group]:
    for p in priced_kernels():
        held = p.half == 1
        if p.part is not None and held.any():
            found = group(p.part, p.chip, p.data, p.priced_ns[held], p.measured_ns[held])
            yield replace(found, library=p.library)


def _of_neusight() -> Iterator[Group]:
    """NeuSight's kernels of an A100 of 40 GB, whose memory is as fast as SXM's, launched by PyTorch.

    They were timed from outside: what a call takes beside its kernel is left out.
    """
    cluster = Cluster.load("a100-40-dgx")
    chip = with_stack(cluster, stack_for("eager", cluster)).chip
    for name, part in (("elem", Part.ELEMENTWISE), ("softmax", Part.SOFTMAX), ("ln", Part.NORMS)):
        rows = kernel_rows.row_kernels(name, A100)
        held = rows.select(rows.half == 1)
        kernels_ns = held.measured_ns - of_device(name, A100)["call_ns"]
        yield group(part, chip.name, f"{part} f32", latency_ns(held.kernels, chip), kernels_ns)


def _of_v6e() -> Iterator[Group]:
    """LLMServingSim's."""
    chip = Cluster.load("v6e").chip
    for part, rows in tpu_rows.parts().items():
        held = [data.select(data.half == 1) for data in rows]
        priced_ns = np.concatenate([latency_ns(data.kernels, chip) for data in held])
        measured_ns = np.concatenate([data.measured_ns for data in held])
        yield group(part, chip.name, f"LLMServingSim, {part}", priced_ns, measured_ns)


def _traced() -> Iterator[Group]:
    """Kernels of profiles, priced with constants that were made without the profile.

    A class that no other profile of the machine has falls back there: the last step counts. With the
    machine's own constants the kernels of it that were not fitted on are priced, too.
    """
    for path, preset in files():
        cluster, shipped = left_out(path, preset), read_trace(path, preset).cluster
        for part, data in _by_part(path, preset):
            taken = [step for step, share in steps_of(part, cluster).items() if share > 0.5]
            step = max(taken, key=list(Fallback).index, default=None)
            yield _profiled(part, data, cluster.chip, "profiles, each left out", step)
            rest = data.select(data.hashes % 2 == 1)
            if step and len(rest) >= 5 and not steps_of(part, shipped):
                yield _profiled(part, rest, shipped.chip, "profiles, half of the kernels", None)


def _by_part(path: Path, preset: str) -> Iterator[tuple[Part, MeasuredKernels]]:
    """The kernels of a profile by part."""
    data = read_trace(path, preset).kernels
    parts = kernel_parts(data.kernels)
    for part in Part:
        mine = parts == list(Part).index(part)
        if mine.sum() >= 5 and part is not Part.OTHERS:
            yield part, data.select(mine)


def _profiled(
    part: Part, data: MeasuredKernels, chip: Chip, name: str, step: Fallback | None
) -> Group:
    priced_ns = np.maximum(latency_ns(data.kernels, chip), 1.0)
    return group(part, chip.name, name, priced_ns, data.measured_ns, step)


def _collectives() -> Iterator[Group]:
    for preset, gpu in PRESETS.items():
        yield _calls(Part.INSIDE, collective_rows.inside_a_node(gpu), Cluster.load(preset))
    for preset, rows in _between_nodes().items():
        yield _calls(Part.OUTSIDE, rows, Cluster.load(preset))


def _between_nodes() -> Mapping[str, list[collective_rows.Measured]]:
    rows = {
        "a100-80-efa": collective_rows.over_nodes(),
        "h100-dgx": collective_rows.public("nebius"),
    }
    return {p: [r for r in found if r.size_bytes >= STEP_BYTES] for p, found in rows.items()}


def _calls(
    part: Part,
    rows: Sequence[collective_rows.Measured],
    cluster: Cluster,
    step: Fallback | None = None,
) -> Group:
    without = collective_rows.without_reduction_in_switch(cluster)
    held = [r for r in rows if r.half == 1]
    priced = [duration_ns(r.call, without if r.cannot_reduce_in_switch else cluster) for r in held]
    measured_ns = np.array([r.measured_ns for r in held])
    return group(part, cluster.chip.name, f"NCCL, {part}", np.array(priced), measured_ns, step)


# --- steps of falling back ----------------------------------------------------------------------


@cache
def fallen() -> tuple[Group, ...]:
    """The same rows as if what they were fitted on were not there."""
    return (
        *_lent(),
        *_other_libraries(),
        *_without_any(),
        *_lent_networks(),
        *(g for g in own() if g.step),
    )


def borrowing(chip: Chip, other: str) -> Chip:
    """The chip with the constants of another preset."""
    assert chip.gpu is not None, chip.name
    gpu = chip.gpu.model_copy(update={"constants": {}, "libraries": {}, "like": other})
    return chip.model_copy(update={"gpu": gpu})


def _lent() -> Iterator[Group]:
    """Each chip left out, with the constants of each other one."""
    for part, (gpus, reader) in LENT.items():
        for preset, gpu in gpus.items():
            chip = Cluster.load(preset).chip
            for other in gpus:
                if other != preset:
                    step = (
                        Fallback.SISTER
                        if are_sisters(chip, Cluster.load(other).chip)
                        else Fallback.CLASS
                    )
                    yield _held(part, chip, other, reader(gpu), borrowing(chip, other), step)
    for path, preset in files():
        cluster = read_trace(path, preset).cluster
        for other in sorted({p for _, p in files()} - {preset}):
            for part, data in _by_part(path, preset):
                lent = borrowing(cluster.chip, other)
                yield _profiled(part, data, lent, f"profiles, as {other}", Fallback.CLASS)


def _middle(chip: Chip, presets: Iterable[str]) -> Chip:
    """The chip with the median of each constant over chips of other classes, scaled as lent ones are."""
    others = [p for p in presets if not are_sisters(chip, Cluster.load(p).chip)]
    found: dict[str, list[float]] = {}
    for other in others:
        for name, value in constants_of(borrowing(chip, other)).values.items():
            found.setdefault(name, []).append(value)
    return with_constants(
        borrowing(chip, others[0]), {n: float(np.median(v)) for n, v in found.items()}
    )


def _held(part: Part, chip: Chip, data: str, rows: Measured, on: Chip, step: Fallback) -> Group:
    held = rows.select(rows.half == 1)
    return group(part, chip.name, data, latency_ns(held.kernels, on), held.measured_ns, step)


def _other_libraries() -> Iterator[Group]:
    """Libraries left out: a chip's serving kernels stand for those of encoders, bursts for training."""
    for preset, (library, gpu) in ENCODERS.items():
        chip = Cluster.load(preset).chip
        bare = with_libraries(chip)
        yield _held(Part.ATTENTION, chip, library, kernel_rows.encoder(gpu), bare, Fallback.LIBRARY)
    for preset in SYSTEMS:
        chip = Cluster.load(preset).chip
        yield _held(
            Part.PRODUCTS, chip, "training", trained_products(preset), chip, Fallback.LIBRARY
        )


def _without_any() -> Iterator[Group]:
    """No measurement of any chip of the class: what others have in common; and a plain roofline."""
    for part, (gpus, reader) in LENT.items():
        for preset, gpu in gpus.items():
            chip, rows = Cluster.load(preset).chip, reader(gpu)
            yield _held(part, chip, "middle", rows, _middle(chip, gpus), Fallback.PHYSICS)
            bare = chip.model_copy(update={"gpu": None})
            yield _held(part, chip, "roofline", rows, bare, Fallback.ROOFLINE)
    for path, preset in files():
        chip = Cluster.load(preset).chip.model_copy(update={"gpu": None})
        for part, data in _by_part(path, preset):
            long = data.select(data.measured_ns > LAUNCHED_NS)  # shorter ones are launches
            if len(long) >= 5:
                yield _profiled(part, long, chip, "roofline", Fallback.ROOFLINE)


def _lent_networks() -> Iterator[Group]:
    """Each machine's tier with the constants of each other one's, and without any."""
    inside = {p: collective_rows.inside_a_node(gpu) for p, gpu in PRESETS.items()}
    for part, tier, rows in ((Part.INSIDE, 0, inside), (Part.OUTSIDE, 1, _between_nodes())):
        for preset, mine in rows.items():
            cluster = Cluster.load(preset)
            yield _calls(part, mine, collective_rows.unfitted(cluster), Fallback.PHYSICS)
            for other in rows:
                if other != preset:
                    theirs = Cluster.load(other).network[tier].constants
                    given = {n: q.model_dump() for n, q in theirs.items()}
                    lent = collective_rows.with_network(cluster, tier, constants=given)
                    yield _calls(part, mine, lent, Fallback.CLASS)


# --- the file -----------------------------------------------------------------------------------


def deviations(groups: Sequence[Group]) -> Residual:
    """Of rows of the half that makes the file: the spread inside of groups, and their levels.

    Both are scaled so that 80 % of these rows are inside of an interval of one kernel. A group counts by
    the root of its rows: grids are large, profiles are what users have.
    """
    half = [replace(g, logs=g.logs[::2]) for g in groups]
    roots = [math.sqrt(len(g.logs)) for g in half]
    each = math.sqrt(np.average([g.variance for g in half], weights=roots))
    common = float(np.quantile([abs(g.level) for g in half], 0.8)) / WIDTH
    away = np.abs(np.concatenate([g.logs for g in half]))
    weight = np.concatenate(
        [np.full(len(g.logs), 1 / root) for g, root in zip(half, roots, strict=True)]
    )
    scale = _quantile(away, weight, share_within(len(away))) / max(
        WIDTH * math.hypot(each, common), 1e-9
    )
    data = ", ".join(dict.fromkeys(g.data for g in groups if g.data not in PRODUCTS))
    return _known(scale * each, scale * common, len(away), data or "constants of each other chip")


def share_within(rows: int) -> float:
    """The quantile of so many rows within which 80 % of others like them lie on average (split conformal)."""
    return min(math.ceil(0.8 * (rows + 1)) / rows, 1.0)


def _quantile(values: Float64s, weight: Float64s, share: float) -> float:
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weight[order]) / weight.sum()
    return float(values[order][min(int(np.searchsorted(reached, share)), len(values) - 1)])


def _known(each: float, common: float, rows: int, source: str) -> Residual:
    return Residual(
        each=round(min(each, 4.0), 3), common=round(min(common, 4.0), 3), rows=rows, source=source
    )


def beyond(found: Residual, own_: Residual) -> Residual:
    """What a step adds to the deviations of rows with constants of their own."""
    each, common = (
        math.sqrt(max(a**2 - b**2, 0.0))
        for a, b in ((found.each, own_.each), (found.common, own_.common))
    )
    return _known(each, common, found.rows, found.source)


def wider(known: Residual, part: Part) -> Residual:
    """That of a part that has no rows: half as far off again as the nearest one."""
    said = f"assumed: half as far off again as {part}"
    return _known(1.5 * known.each, max(1.5 * known.common, 0.1), 0, said)


def owned() -> dict[Part, Residual]:
    """Deviations with constants of one's own, of all chips together."""
    found = {
        part: deviations(mine) for part in Part if (mine := [g for g in own() if g.part is part and not g.step])
    }  # fmt: skip
    for part, (each, _, why) in ASSUMED.items():
        found[part] = _known(0.0, each, 0, why)
    for part, nearest in NEAREST.items():
        if part not in found:
            found[part] = wider(found[nearest], nearest)
        elif found[part].rows < FEW:  # a few rows happen to be near
            found[part] = max(found[part], found[nearest], key=_width)
    return found


def _width(known: Residual) -> float:
    return math.hypot(known.each, known.common)


def on_chips() -> dict[str, dict[Part, Residual]]:
    """The same of each chip, and library on it, that has enough rows of a part.

    A chip's own are without those of libraries that have constants of their own, if that leaves enough.
    """
    found: dict[str, dict[Part, Residual]] = {}
    for chip, part in itertools.product(sorted({g.chip for g in own()}), Part):
        mine = [g for g in own() if (g.part, g.chip, g.step) == (part, chip, None)]
        for library in sorted({g.library for g in mine}):
            its = [g for g in mine if g.library == library]
            if _rows(its) >= FEW:
                found.setdefault(on_chip(chip, library), {})[part] = deviations(its)
        if _rows(mine) >= FEW and part not in found.get(chip, {}):
            found.setdefault(chip, {})[part] = deviations(mine)
    return found


def _rows(groups: Iterable[Group]) -> int:
    return sum(len(g.logs) for g in groups)


def steps_taken(known: Mapping[Part, Residual]) -> dict[Fallback, dict[Part, Residual]]:
    """What each step adds to each part; where no row tells, what it adds to the nearest part that has some."""
    found: dict[Fallback, dict[Part, Residual]] = {}
    for step in Fallback:
        its = found.setdefault(step, {})
        for part in known:
            mine = [g for g in fallen() if (g.part, g.step) == (part, step)]
            if mine:
                its[part] = beyond(deviations(mine), known[part])
        for part, (_, without, why) in ASSUMED.items():
            its[part] = _known(0.0, without, 0, why)
        for part, nearest in NEAREST.items():
            rests = [
                found[s][part]
                for s in Fallback
                if s in found and part in found[s] and s is not step
            ]
            rests += [its[p] for p in _chain(nearest) if p in its][:1]
            if part not in its and rests:
                widest = max(rests, key=_width)
                its[part] = _known(widest.each, widest.common, 0, f"assumed: as {widest.source}")
    return found


def _chain(part: Part) -> Iterator[Part]:
    yield part
    if part in NEAREST and NEAREST[part] is not part:
        yield from _chain(NEAREST[part])


# --- steps of training --------------------------------------------------------------------------


def of_steps(steps: Sequence[StepError]) -> tuple[Residual, Residual]:
    """The deviation of the step as a whole with which 80 % of one half lie inside, and of unknown stacks.

    Without steps it is what the file has.
    """
    if not steps:
        return residual(Part.STEP), widening(Part.STEP, Fallback.PHYSICS)
    fitted = [s for s in steps if s.half == 0]
    grid = [0.005 * i for i in range(100)]
    whole = next((g for g in grid if covered(fitted, g) >= 0.8), grid[-1])
    source = "measured training steps, one half of each data set"
    why = "assumed: machines and stacks that no measured step has verified"
    return _known(0.0, whole, len(fitted), source), _known(0.0, max(1.75 * whole, 0.145), 0, why)


def covered(steps: Sequence[StepError], whole: float) -> float:
    """The share of steps inside of their intervals: half by rows, half by data sets alike."""
    sets: dict[str, list[bool]] = {}
    for s in steps:
        inside = abs(s.error) <= WIDTH * math.hypot(s.parts, whole)
        sets.setdefault(s.data, []).append(inside)
    if not sets:
        return 0.0
    by_set = float(np.mean([np.mean(v) for v in sets.values()]))
    return (by_set + float(np.mean([i for v in sets.values() for i in v]))) / 2


def verified(steps: Sequence[StepError]) -> dict[str, list[str]]:
    """The stacks of each chip of which a step was measured; without steps, what the file has."""
    if not steps:
        return {chip: list(stacks) for chip, stacks in verified_stacks().items()}
    found: dict[str, set[str]] = {}
    for s in steps:
        found.setdefault(s.chip, set()).add(s.stack)
    return {chip: sorted(stacks) for chip, stacks in sorted(found.items())}


def as_toml(steps: Sequence[StepError]) -> str:
    """The file."""
    known, (whole, unknown) = owned(), of_steps(steps)
    taken = steps_taken(known)
    for step in Fallback:
        taken[step][Part.STEP] = unknown
    tables = {
        **{f'own."{part}"': r for part, r in {**known, Part.STEP: whole}.items()},
        **{f'on."{c}"."{part}"': r for c, parts in on_chips().items() for part, r in parts.items()},
        **{f'steps."{s}"."{part}"': r for s, parts in taken.items() for part, r in parts.items()},
    }
    lines = [
        "# Made by `python -m benchmarks.residuals --write`. Deviations of ln(estimate / measured).\n"
    ]
    for name, r in tables.items():
        values = {"each": r.each, "common": r.common, "rows": r.rows, "source": r.source}
        lines += [f"[{name}]", *(f"{k} = {json.dumps(v)}" for k, v in values.items()), ""]
    lines += [
        "[verified]",
        *(f"{json.dumps(c)} = {json.dumps(s)}" for c, s in verified(steps).items()),
    ]
    return "\n".join(lines) + "\n"


# --- the page of accuracy -----------------------------------------------------------------------


def coverage_table() -> str:
    """How many single kernels lie inside of 80 % intervals, of rows that made no number of the file."""
    lines = []
    for g in own():
        rest = g.logs[1::2]
        if len(g.logs) > FEW:
            steps = {g.step: 1.0} if g.step else {}
            width = WIDTH * deviation_of(g.part, steps, g.chip, g.library)
            share = float((np.abs(rest) <= width).mean())
            missed = "" if BARS[0] <= share <= BARS[1] else "missed"
            lines.append(
                (
                    g.data,
                    g.chip,
                    f"{len(rest):,}",
                    f"{share:.0%}",
                    f"{math.exp(width) - 1:+.0%}",
                    missed,
                )
            )
    return markdown(("data", "chip", "rows", "inside", "as wide as", "70 to 90 %"), lines)


def left_out_table() -> str:
    """Each chip left out: errors with its own constants, and with those of the next chip of each class."""
    lines = []
    for part, (gpus, _) in LENT.items():
        for preset in gpus:
            chip = Cluster.load(preset).chip
            mine = [
                g for g in fallen() if g.part is part and g.chip == chip.name and g.data in PRODUCTS
            ]
            named = {
                s: _nearest(chip, [g for g in mine if g.step is s])
                for s in (Fallback.SISTER, Fallback.CLASS)
            }
            base = [
                g
                for g in own()
                if g.part is part and g.chip == chip.name and g.data in _TITLES[part]
            ]
            rooflines = [
                g for g in fallen() if (g.part, g.chip, g.data) == (part, chip.name, "roofline")
            ]
            cells = (
                _cell(next(iter(base), None)),
                *(_cell(g) for g in named.values()),
                _cell(rooflines[0]),
            )
            lines.append((str(part), chip.name, *cells))
    headings = ("part", "chip", "own %", "of a sister chip %", "of another class %", "roofline %")
    return markdown(headings, lines)


#: The rows of own constants that are those of `LENT`.
_TITLES = {
    Part.PRODUCTS: ("GEMM bf16",),
    Part.ATTENTION: ("attention, prefill",),
    Part.DECODING: ("attention, decode",),
}


def _nearest(chip: Chip, groups: Sequence[Group]) -> Group | None:
    """That of the lender which a chip without constants would get."""
    return min(groups, key=lambda g: nearness(chip, Cluster.load(g.data).chip), default=None)


def _cell(g: Group | None) -> str:
    if g is None:
        return ""
    away = np.exp(g.logs) - 1
    whose = f" {g.data}" if g.data in PRODUCTS else ""
    return f"{100 * np.abs(away).mean():.1f} ({100 * away.mean():+.0f}){whose}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Residuals of prices.")
    parser.add_argument("--write", action="store_true", help="into flint/cluster/residuals.toml")
    parser.add_argument("--steps", type=Path, help="errors of steps, of benchmarks.step_errors")
    given = parser.parse_args()
    steps = read_steps(given.steps) if given.steps else []
    if given.write:
        FILE.write_text(as_toml(steps), "utf-8")
    else:
        print(coverage_table(), left_out_table(), sep="\n\n")
    for half in (0, 1):
        mine = [s for s in steps if s.half == half]
        print(
            f"# half {half}: {covered(mine, of_steps(steps)[0].common):.1%} of {len(mine)} steps inside"
        )


if __name__ == "__main__":
    main()
