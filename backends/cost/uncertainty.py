"""How sure a step time is: an interval that holds the measurement four times of five.

Errors of estimates multiply, so ln(estimate / measured) is taken to be normal. Its variance is the sum of
those of the parts, which are independent, and of the step as a whole:

    variance = sum over parts of (share * sqrt(common^2 + each^2 / kernels))^2 + step^2

with the deviations of `flint.cluster.residuals`: what prices missed on rows that nothing was fitted on. The
squares of steps of falling back are added to those of a part, by the share of its constants that took them.
The interval goes from estimate / f to estimate * f, f = exp(1.2816 * deviation): 80 % of a normal
distribution. It does not begin below the time that all products take at the chip's peak.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from flint.backends.cost.chips.kernel_table import kernels_of
from flint.backends.cost.chips.kernels import KernelKind, Kernels
from flint.backends.cost.chips.model import model_of
from flint.backends.cost.simulate.exposure import tiers_of
from flint.cluster.load import LENT, chips_with_constants
from flint.cluster.models import Cluster
from flint.cluster.residuals import Fallback, Part, residual, verified_stacks, widening
from flint.cluster.tables import SUSTAINED, ChipFamily, Quantity, SourceKind
from flint.io.documents import Millionths, Thousandths, Unpublished
from flint.ir.product_types import groups_of
from flint.ir.program import Int64s, Kind, Program

if TYPE_CHECKING:
    from flint.backends.cost.estimate_numbers import EstimateNumbers
    from flint.backends.cost.simulate.exposure import Share
    from flint.cluster.models import Chip
    from flint.ir.arrays import Float64s

T = TypeVar("T")
#: Standard deviations to each side that hold 80 % of a normal distribution.
WIDTH = 1.2816
PROBABILITY = 0.8
#: The part that kernels of each kind belong to; what is not here is among others.
KERNELS: Mapping[KernelKind, Part] = {
    KernelKind.GEMM: Part.PRODUCTS,
    KernelKind.CONVOLUTION: Part.CONVOLUTIONS,
    KernelKind.ATTENTION: Part.ATTENTION,
    KernelKind.ATTENTION_BACKWARD: Part.BACKWARD,
    KernelKind.SOFTMAX: Part.SOFTMAX,
    KernelKind.NORM: Part.NORMS,
    KernelKind.ELEMENTWISE: Part.ELEMENTWISE,
    KernelKind.OPTIMIZER: Part.ELEMENTWISE,
    KernelKind.RANDOM: Part.ELEMENTWISE,
    KernelKind.COPY: Part.COPIES,
    KernelKind.HOST_COPY: Part.COPIES,
    KernelKind.REDUCTION: Part.REDUCTIONS,
    KernelKind.GATHER: Part.LOOK_UPS,
    KernelKind.SCATTER: Part.LOOK_UPS,
}
#: The part of products, by whether they are grouped and of 8 or 4 bits.
_PRODUCTS: Mapping[tuple[bool, bool], Part] = {
    (False, False): Part.PRODUCTS,
    (False, True): Part.NARROW,
    (True, False): Part.GROUPED,
    (True, True): Part.NARROW_GROUPED,
}
#: Beginnings of the names of constants that price a part.
PREFIXES: Mapping[Part, tuple[str, ...]] = {
    Part.PRODUCTS: ("gemm.",),
    Part.CONVOLUTIONS: ("convolution.",),
    Part.NARROW: ("fp8.", "fp8-block.", "fp4."),
    Part.GROUPED: ("grouped.",),
    Part.NARROW_GROUPED: ("grouped-fp8.",),
    Part.ATTENTION: ("attention.",),
    Part.DECODING: ("decode.",),
    Part.BACKWARD: ("attention.backward_",),
    Part.SOFTMAX: ("softmax.",),
    Part.NORMS: ("norm.",),
    Part.ELEMENTWISE: ("elementwise.",),
    Part.COPIES: ("copy.",),
    Part.REDUCTIONS: ("reduction.",),
    Part.LOOK_UPS: ("gather.",),
}
#: Those that stand for a part which a chip has no constants of its own for, and which step that is.
INSTEAD: Mapping[Part, tuple[Part, Fallback]] = {
    Part.NARROW: (Part.PRODUCTS, Fallback.LIBRARY),
    Part.GROUPED: (Part.PRODUCTS, Fallback.LIBRARY),
    Part.NARROW_GROUPED: (Part.PRODUCTS, Fallback.LIBRARY),
    Part.CONVOLUTIONS: (Part.PRODUCTS, Fallback.PHYSICS),
    Part.COPIES: (Part.ELEMENTWISE, Fallback.LIBRARY),
    Part.REDUCTIONS: (Part.ELEMENTWISE, Fallback.LIBRARY),
    Part.LOOK_UPS: (Part.ELEMENTWISE, Fallback.LIBRARY),
}
#: Factors within which units of sisters do as much in a cycle, and are as many.
SAME_UNIT, SAME_COUNT = 1.2, 2.0
_MEASURED = (SourceKind.FITTED, SourceKind.MEASURED)
_NUMBER_OF = {part: number for number, part in enumerate(Part)}
#: By `KernelKind`, the number of its part.
_NUMBERS = np.array([_NUMBER_OF[KERNELS.get(kind, Part.OTHERS)] for kind in KernelKind])
#: What a cluster's numbers are said to be good for.
_SHOWN = (
    *(Part.PRODUCTS, Part.NARROW, Part.ATTENTION, Part.DECODING, Part.NORMS, Part.SOFTMAX),
    *(Part.ELEMENTWISE, Part.COPIES, Part.CONVOLUTIONS, Part.INSIDE),
)
_COMMUNICATION = (Part.INSIDE, Part.OUTSIDE, Part.MESSAGES)


@dataclass(frozen=True, slots=True)
class Spread:
    """What a part of a step adds to its uncertainty."""

    part: Part
    """products, attention, ..., network inside, network outside, host; step: the whole, what no
    part says."""
    trust: Literal["own", "borrowed"]
    """own: constants rest on measurements of the chip or network; borrowed: more than half of them
    took a step of falling back."""
    share: Millionths  #: Its share of the step time.
    deviation: Millionths  #: Standard deviation of ln(estimate / measured) of its own time.
    steps: tuple[Fallback, ...] = ()
    """The steps of falling back that some of its constants took, in the order in which lenders are
    looked for: sister chip, sister library, other class, physics, roofline."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Where the measured step time would lie."""

    probability: float  #: How often.
    low_ns: Thousandths  #: From, in ns.
    high_ns: Thousandths  #: To, in ns.
    parts: tuple[Spread, ...]  #: What it is made of, largest share first.
    deviation: Unpublished[float]  #: Standard deviation of ln(estimate / measured) of the step.


def interval_of(e: EstimateNumbers) -> Interval:
    """The interval of an estimate, and what it is made of."""
    measured, chip = _measured_share(e), e.cluster.chip
    spreads = [_spread(p, chip, 1 - measured) for p in parts_of(e)]
    if measured:
        known = residual(Part.MEASURED)
        spreads.append(Spread(Part.MEASURED, "own", measured, known.common))
    spreads.append(_spread(_whole(e), None, 1 - measured))
    deviation = math.sqrt(sum((s.share * s.deviation) ** 2 for s in spreads))
    factor = math.exp(WIDTH * deviation)
    fastest = min(e.hfu, 1.0)  # as a share of the step: all products at the chip's peak
    low, high = e.step_time_ns * max(1 / factor, fastest), e.step_time_ns * factor
    return Interval(PROBABILITY, low, high, tuple(spreads), deviation)


def deviation_of(
    part: Part,
    steps: Mapping[Fallback, float],
    chip: str = "",
    library: str = "",
    kernels: float = 1.0,
) -> float:
    """The standard deviation of ln(estimate / measured) of the time of a part.

    `steps` are shares of its constants that took a step of falling back, `library` is the one that
    priced it, if another than the chip's own, `kernels` how many different ones of equal time there are.
    """
    rests = [
        (1.0, residual(part, chip, library)),
        *((n, widening(part, s)) for s, n in steps.items()),
    ]
    return math.sqrt(sum(n * (r.common**2 + r.each**2 / max(kernels, 1.0)) for n, r in rests))


def _spread(p: StepPart, chip: Chip | None, modelled: float) -> Spread:
    whose = (chip.name, library_of(p.part, chip)) if chip else ("", "")
    deviation = deviation_of(p.part, p.steps, *whose, p.kernels)
    lent = max(p.steps.values(), default=0.0) > 0.5
    taken = tuple(step for step in Fallback if step in p.steps)
    return Spread(p.part, "borrowed" if lent else "own", p.share * modelled, deviation, taken)


def _whole(e: EstimateNumbers) -> StepPart:
    """The step as a whole: one of a single kernel has no order and no overlap."""
    known = verified_stacks().get(e.cluster.chip.name, ())
    steps = {} if e.stack.name in known else {Fallback.PHYSICS: 1.0}
    work = e.timeline.classes[int(np.argmax([c.end_ns for c in e.classes]))].work
    time_ns, trips = work.duration_ns, work.program.trips
    squares = float((time_ns**2 * trips).sum())
    launches = float((time_ns * trips).sum()) ** 2 / squares if squares else 1.0
    return StepPart(Part.STEP, steps, 1 - 1 / max(launches, 1.0), 1.0)


def _measured_share(e: EstimateNumbers) -> float:
    """How much of the time of kernels and communication was measured as it is."""
    rests = e.measured.rests if e.measured else ()
    whole = sum(r.time_ns for r in rests)
    return sum(r.time_ns for r in rests if r.basis == "measured") / whole if whole else 0.0


@dataclass(frozen=True, slots=True)
class StepPart:
    """A part of a step: its share of the time, of how many different kernels, and whose constants.

    `steps` are as in `steps_of`. `kernels` counts kernels of equal time; where some take most of the
    time they are fewer.
    """

    part: Part
    steps: Mapping[Fallback, float]
    share: float
    kernels: float


def parts_of(e: EstimateNumbers) -> list[StepPart]:
    """The parts of the class that ends last, largest first; what waits for others is in none."""
    number = int(np.argmax([c.end_ns for c in e.classes]))
    work = e.timeline.classes[number].work
    tiers = tiers_of(work.program, e.placement)
    time_ns, counts = _kernels(work.program, work.duration_ns)
    for share in e.classes[number].shares:
        part = _beside_kernels(share, tiers)
        if part is not None and share.exposed_ns > 0:
            time_ns[part] = time_ns.get(part, 0.0) + share.exposed_ns
    whole = sum(time_ns.values()) or 1.0
    counts |= dict.fromkeys(_COMMUNICATION, counts.get(Part.INSIDE, 1.0))
    found = [
        StepPart(p, steps_of(p, e.cluster), ns / whole, counts.get(p, 1.0))
        for p, ns in time_ns.items()
    ]
    return sorted(found, key=lambda p: (-p.share, p.part))


def _beside_kernels(share: Share, tiers: Mapping[str, int]) -> Part | None:
    """The part of what is no kernel; None for kernels, and for what waits."""
    if share.kind == "message":
        return Part.MESSAGES
    if share.over:
        return Part.OUTSIDE if tiers.get(share.over, 0) > 0 else Part.INSIDE
    return Part.HOST if share.kind == "host" else None


def kernel_parts(kernels: Kernels) -> NDArray[np.int64]:
    """The number of the part that each kernel belongs to, in the order of `Part`."""
    found = _NUMBERS[kernels.kind]
    products = kernels.kind == KernelKind.GEMM
    for number, name in enumerate(kernels.dtypes):
        its = (groups_of(name) is not None, name.startswith(("f8", "f6", "f4")))
        found[products & (kernels.dtype == number)] = _NUMBER_OF[_PRODUCTS[its]]
    alone = (kernels.kind == KernelKind.ATTENTION) & (kernels.dims[:, 1] == 1)
    found[alone] = _NUMBER_OF[Part.DECODING]
    return found


def _kernels(
    program: Program, duration_ns: Float64s
) -> tuple[dict[Part, float], dict[Part, float]]:
    """By part of kernels: their time, and how many different ones of equal time there are.

    The second is also of collectives, which are one part: (sum of times)^2 / sum of squares.
    """
    kernels, rows = kernels_of(program)
    whole_ns, parts = (duration_ns * program.trips), kernel_parts(kernels)
    sums = np.bincount(parts, weights=whole_ns[rows], minlength=len(Part))
    what = np.column_stack((parts, kernels.dims, kernels.moved_bytes))
    counts = dict(_effective(what, whole_ns[rows]))
    talks = np.flatnonzero(program.kind >= Kind.COLLECTIVE)
    inside = np.full(len(talks), _NUMBER_OF[Part.INSIDE])
    columns = (inside, program.collective[talks], program.group[talks], program.comm_bytes[talks])
    counts |= dict(_effective(np.column_stack(columns), whole_ns[talks]))
    return {part: float(ns) for part, ns in zip(Part, sums, strict=True) if ns > 0}, counts


def _effective(what: Int64s, time_ns: Float64s) -> Iterator[tuple[Part, float]]:
    """`what` has the number of its part in the first column, and what tells kernels apart in others."""
    if not len(what):
        return
    different, which = np.unique(what, axis=0, return_inverse=True)
    total = np.bincount(which.ravel(), weights=time_ns, minlength=len(different))
    for number in np.unique(different[:, 0]).tolist():
        mine = total[different[:, 0] == number]
        squares = float((mine**2).sum())
        if squares:
            yield list(Part)[int(number)], float(mine.sum()) ** 2 / squares


# Whose constants price a part: which steps of falling back they took. A constant's kind says whether it
# rests on rows, and its source whose it is ("as h100-dgx: ...", docs/decisions/0053).

#: In a source, each of those that lent it to the next.
_LENDERS = re.compile(rf"(?:^|: ){LENT.pattern}")


def steps_of(part: Part, cluster: Cluster) -> dict[Fallback, float]:
    """By step, the share of a part's constants that took it; {}: all rest on rows of their own.

    Constants that are assumed beside fitted ones were so in the fit, and took none.
    """
    if part in PREFIXES:
        if cluster.chip.family is None:
            return {Fallback.ROOFLINE: 1.0}
        taken = _of_chip(part, cluster.chip, cluster.chip.family)
    elif part in _COMMUNICATION:
        tier = min(part is not Part.INSIDE, len(cluster.network) - 1)
        constants = cluster.network[tier].constants_in_use.values()
        taken = [_steps(q, None) for q in constants]
    else:
        host = cluster.host_launch_ns if part is Part.HOST else None
        taken = [_steps(host, None)] if host else []
    known = [steps for steps in taken if steps != {Fallback.PHYSICS}]
    counts = Counter(step for steps in known for step in steps)
    return {s: n / len(known) for s, n in counts.items()} if known else {Fallback.PHYSICS: 1.0}


def _of_chip(part: Part, chip: Chip, family: ChipFamily) -> list[set[Fallback]]:
    """The steps of each constant that prices a part, those of libraries that run before the chip's own."""
    uses, tables = getattr(family, "uses", ()), getattr(family, "libraries", {})
    running = {
        name: q
        for library in uses
        if library != SUSTAINED
        for name, q in _of(part, tables.get(library, {})).items()
    }
    sustained = tables.get(SUSTAINED, {}) if SUSTAINED in uses else {}
    its = _of(part, {**family.constants, **sustained}) | running
    unmeasured = running and not any(q.kind in _MEASURED for q in running.values())
    if its:  # kernels of a library without rows are priced as the chip's own, of another one
        theirs = {Fallback.LIBRARY} if unmeasured else set[Fallback]()
        return [_steps(q, chip) | (set() if n in running else theirs) for n, q in its.items()]
    lender = model_of(chip).lender()
    if lender is not None and _of(part, model_of(chip).constants_in_use()):
        return [{_between(chip, lender)}]
    if part not in INSTEAD:
        return []
    instead, step = INSTEAD[part]
    return [steps | {step} for steps in _of_chip(instead, chip, family)]


def library_of(part: Part, chip: Chip) -> str:
    """The library whose constants price a part; "": they are the chip's own, or it has none."""
    if part not in PREFIXES:
        return ""
    uses, tables = (getattr(chip.family, key, ()) for key in ("uses", "libraries"))
    its = [name for name in uses if name != SUSTAINED and _of(part, dict(tables).get(name, {}))]
    return its[-1] if its else ""


def _of(part: Part, constants: Mapping[str, T]) -> dict[str, T]:
    return {name: c for name, c in constants.items() if name.startswith(PREFIXES[part])}


def _steps(quantity: Quantity, chip: Chip | None) -> set[Fallback]:
    """The steps that one constant took; `chip` is None for those of networks and hosts."""
    if quantity.kind in _MEASURED:
        return set()
    lenders = _LENDERS.findall(quantity.source)
    return {_step(lender, chip) for lender in lenders} or {Fallback.PHYSICS}


def _step(lender: str, chip: Chip | None) -> Fallback:
    if chip is None:
        return Fallback.CLASS
    known = _chip_called(lender, chip.family.table if chip.family else "")
    if known is not None:
        return _between(chip, known)
    in_words = " " in lender or "'" in lender  # "as PyTorch's", or a chip of the user's
    return Fallback.LIBRARY if in_words else Fallback.CLASS


@cache
def _chip_called(name: str, table: str) -> Chip | None:
    preset = chips_with_constants(table).get(name)
    return Cluster.load(preset).chip if preset else None


def _between(chip: Chip, lender: Chip) -> Fallback:
    return Fallback.SISTER if are_sisters(chip, lender) else Fallback.CLASS


def are_sisters(one: Chip, other: Chip) -> bool:
    """Whether two chips are of one class: of a family, with units that do as much in a cycle, about as many."""
    alike = type(one.family) is type(other.family) and one.family is not None
    pairs = zip(_units(one), _units(other), (SAME_UNIT, SAME_COUNT), strict=True)
    return alike and all(max(a / b, b / a) <= most for a, b, most in pairs)


def _units(chip: Chip) -> tuple[float, float]:
    """What a unit calculates in a cycle, and how many units there are; of a family without units, the peak."""
    family, peaks = chip.family, chip.peak_flops_per_s
    peak = peaks["bf16"].value if "bf16" in peaks else max(q.value for q in peaks.values())
    units = family.unit_keys if family else ()
    of_cycles = family.peak_keys if family and units else ()
    unit, count = (
        math.prod(getattr(family, key).value for key in keys) for keys in (of_cycles, units)
    )
    return peak / unit, count


def trust_in(cluster: Cluster) -> str:
    """In a line, how a cluster's numbers were obtained, and how far single kernels are to be trusted."""
    outside = (Part.OUTSIDE,) if len(cluster.network) > 1 else ()
    found: dict[str, list[str]] = {}
    for part in (*_SHOWN, *outside):
        steps = steps_of(part, cluster)
        whose_rows = cluster.chip.name, library_of(part, cluster.chip)
        away = math.exp(WIDTH * deviation_of(part, steps, *whose_rows)) - 1
        whose = " and ".join(s for s in Fallback if steps.get(s, 0.0) > 0.5) or "rows of its own"
        said = f"{100 * away:.0f} %" if away < 1 else f"a factor of {1 + away:,.1f}"
        found.setdefault(whose, []).append(f"{part} {said}")
    parts = "; ".join(f"{whose}: {', '.join(its)}" for whose, its in found.items())
    return f"80 % of single kernels are within this, by what their constants rest on: {parts}"
