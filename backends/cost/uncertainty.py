"""How sure a step time is: an interval that holds the measurement four times of five.

Errors of estimates multiply, so ln(estimate / measured) is taken to be normal. Its variance is the sum of
those of the parts, which are independent, and of the step as a whole:

    variance = sum over parts of (share * sqrt(common^2 + each^2 / kernels))^2 + step^2

with the deviations of `flint.cluster.residuals`: what prices missed on rows that nothing was fitted on.
The interval goes from estimate / f to estimate * f, f = exp(1.2816 * deviation): 80 % of a normal
distribution.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from flint.backends.cost.chips.kernel_table import kernels_of
from flint.backends.cost.chips.kernels import KernelKind
from flint.backends.cost.simulate.exposure import tiers_of
from flint.cluster.residuals import Part, Trust, residual, verified_stacks
from flint.cluster.tables import Quantity, SourceKind
from flint.io.documents import Millionths, Thousandths, Unpublished
from flint.ir.program import Int64s, Kind, Program

if TYPE_CHECKING:
    from flint.backends.cost.estimate_numbers import EstimateNumbers
    from flint.backends.cost.simulate.exposure import Share
    from flint.cluster.models import Chip, Cluster, Network
    from flint.ir.arrays import Float64s

#: Standard deviations to each side that hold 80 % of a normal distribution.
WIDTH = 1.2816
PROBABILITY = 0.8
#: The part that kernels of each kind belong to; what is not here is among others.
KERNELS: Mapping[KernelKind, Part] = {
    KernelKind.GEMM: Part.PRODUCTS,
    KernelKind.CONVOLUTION: Part.CONVOLUTIONS,
    KernelKind.ATTENTION: Part.ATTENTION,
    KernelKind.ATTENTION_BACKWARD: Part.ATTENTION,
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
#: Beginnings of the names of constants that price a part.
PREFIXES: Mapping[Part, tuple[str, ...]] = {
    Part.PRODUCTS: ("gemm.",),
    Part.CONVOLUTIONS: ("convolution.",),
    Part.ATTENTION: ("attention.", "decode."),
    Part.SOFTMAX: ("softmax.",),
    Part.NORMS: ("norm.",),
    Part.ELEMENTWISE: ("elementwise.",),
    Part.COPIES: ("copy.",),
    Part.REDUCTIONS: ("reduction.",),
    Part.LOOK_UPS: ("gather.",),
}
#: Those that stand for a part which a chip has no constants of its own for.
_INSTEAD = ("elementwise.",)
_BY_NAME = {kind.name.lower(): part for kind, part in KERNELS.items()}
_MEASURED = (SourceKind.FITTED, SourceKind.MEASURED)
#: By `KernelKind`, the number of its part.
_NUMBERS = np.array([list(Part).index(KERNELS.get(kind, Part.OTHERS)) for kind in KernelKind])
_COMMUNICATION = (Part.INSIDE, Part.OUTSIDE, Part.MESSAGES)


@dataclass(frozen=True, slots=True)
class Spread:
    """What a part of a step adds to its uncertainty."""

    part: Part
    """products, attention, ..., network inside, network outside, host; step: the whole, what no
    part says."""
    trust: Trust
    """own: constants rest on measurements of the chip or network; borrowed: of another one, or
    assumed."""
    share: Millionths  #: Its share of the step time.
    deviation: Millionths  #: Standard deviation of ln(estimate / measured) of its own time.


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
    measured = _measured_share(e)
    spreads = [_spread(p, 1 - measured) for p in parts_of(e)]
    if measured:
        known = residual(Part.MEASURED, Trust.OWN)
        spreads.append(Spread(Part.MEASURED, Trust.OWN, measured, known.common))
    spreads.append(_of_the_step(e, 1 - measured))
    deviation = math.sqrt(sum((s.share * s.deviation) ** 2 for s in spreads))
    factor = math.exp(WIDTH * deviation)
    low, high = e.step_time_ns / factor, e.step_time_ns * factor
    return Interval(PROBABILITY, low, high, tuple(spreads), deviation)


def _spread(p: StepPart, modelled: float) -> Spread:
    known = residual(p.part, p.trust)
    deviation = math.sqrt(known.common**2 + known.each**2 / max(p.kernels, 1.0))
    return Spread(p.part, p.trust, p.share * modelled, deviation)


def _of_the_step(e: EstimateNumbers, modelled: float) -> Spread:
    known = verified_stacks().get(e.cluster.chip.name, ())
    trust = Trust.OWN if e.stack.name in known else Trust.BORROWED
    return Spread(Part.STEP, trust, modelled, residual(Part.STEP, trust).common)


def _measured_share(e: EstimateNumbers) -> float:
    """How much of the time of kernels and communication was measured as it is."""
    rests = e.measured.rests if e.measured else ()
    whole = sum(r.time_ns for r in rests)
    return sum(r.time_ns for r in rests if r.basis == "measured") / whole if whole else 0.0


@dataclass(frozen=True, slots=True)
class StepPart:
    """A part of a step: its share of the time, of how many different kernels, and whose constants.

    `kernels` counts kernels of equal time; where some take most of the time they are fewer.
    """

    part: Part
    trust: Trust
    share: float
    kernels: float


def parts_of(e: EstimateNumbers) -> list[StepPart]:
    """The parts of the class that ends last, largest first; what waits for others is in none."""
    number = int(np.argmax([c.end_ns for c in e.classes]))
    work = e.timeline.classes[number].work
    tiers = tiers_of(work.program, e.placement)
    time_ns: dict[Part, float] = {}
    for share in e.classes[number].shares:
        part = _part_of(share, tiers)
        if part is not None and share.exposed_ns > 0:
            time_ns[part] = time_ns.get(part, 0.0) + share.exposed_ns
    counts = _counts(work.program, work.duration_ns)
    whole = sum(time_ns.values()) or 1.0
    found = [
        StepPart(p, trust_of(p, e.cluster), ns / whole, counts.get(_counted(p), 1.0))
        for p, ns in time_ns.items()
    ]
    return sorted(found, key=lambda p: (-p.share, p.part))


def _part_of(share: Share, tiers: Mapping[str, int]) -> Part | None:
    if share.kind == "message":
        return Part.MESSAGES
    if share.over:
        return Part.OUTSIDE if tiers.get(share.over, 0) > 0 else Part.INSIDE
    if share.kind == "wait":
        return None
    return Part.HOST if share.kind == "host" else _BY_NAME.get(share.kind, Part.OTHERS)


def _counted(part: Part) -> Part:
    return Part.INSIDE if part in _COMMUNICATION else part


def _counts(program: Program, duration_ns: Float64s) -> dict[Part, float]:
    """By part: (sum of times)^2 / sum of squares over different kernels; collectives are one part."""
    kernels, rows = kernels_of(program)
    what = np.column_stack((_NUMBERS[kernels.kind], kernels.dims, kernels.moved_bytes))
    found = dict(_effective(what, (duration_ns * program.trips)[rows]))
    talks = np.flatnonzero(program.kind >= Kind.COLLECTIVE)
    inside = np.full(len(talks), list(Part).index(Part.INSIDE))
    columns = (inside, program.collective[talks], program.group[talks], program.comm_bytes[talks])
    found |= dict(_effective(np.column_stack(columns), (duration_ns * program.trips)[talks]))
    return found


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


def trust_of(part: Part, cluster: Cluster) -> Trust:
    """Whose measurements the constants of a part rest on: own where most of them are measured there."""
    if part in PREFIXES:
        constants = _of_chip(cluster.chip, PREFIXES[part]) or _of_chip(cluster.chip, _INSTEAD)
    elif part in _COMMUNICATION:
        constants = _of_network(
            cluster.network[min(part is not Part.INSIDE, len(cluster.network) - 1)]
        )
    else:
        return (
            Trust.OWN
            if part is Part.HOST and _is_measured(cluster.host_launch_ns)
            else Trust.BORROWED
        )
    measured = sum(q.kind in _MEASURED for q in constants)
    return Trust.OWN if constants and 2 * measured > len(constants) else Trust.BORROWED


def _is_measured(quantity: Quantity | None) -> bool:
    return quantity is not None and quantity.kind in _MEASURED


def _of_chip(chip: Chip, prefixes: tuple[str, ...]) -> list[Quantity]:
    """The constants that price a part, those of libraries that run before the chip's own."""
    family = chip.family
    found: dict[str, Quantity] = dict(family.constants) if family else {}
    for library in getattr(family, "uses", ()):
        found |= getattr(family, "libraries", {}).get(library, {})
    return [q for name, q in found.items() if name.startswith(prefixes)]


def _of_network(network: Network) -> list[Quantity]:
    return list(network.constants_in_use.values())
