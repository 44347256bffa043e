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
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flint.backends.cost.uncertainty.parts import StepPart, parts_of
from flint.cluster.residuals import Part, Trust, residual, verified_stacks
from flint.io.documents import Millionths, Thousandths, Unpublished

if TYPE_CHECKING:
    from flint.backends.cost.estimate_numbers import EstimateNumbers

#: Standard deviations to each side that hold 80 % of a normal distribution.
WIDTH = 1.2816
PROBABILITY = 0.8


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
