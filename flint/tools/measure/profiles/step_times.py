"""How long the steps of a profile take: the period between their ends, or from launch to last kernel.

Where the device runs behind the host, the time from a step's first launch to its last kernel holds
parts of the steps before: it is a latency, and no step time. The ends of steps on the stream that
computes follow each other in the time of a step, however far the device is behind.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from flint.tools.measure.profiles.profile import Profile
from flint.tools.measure.profiles.steps import ProfiledStep, ProfiledSteps, StepRule, found_by
from flint.tools.measure.profiles.streams import main_stream

#: A kernel that starts so long after its launch, on an idle device, waited for what was not recorded.
_LAG_NS = 1e6
#: Step times that differ by more than this part disagree.
_DISAGREE = 0.05
#: Annotations that cover less than this part of the time leave much of it out.
_COVERED = 0.8


@dataclass(frozen=True)
class StepTimes:
    """Times of the steps of one profile; `of` reads them.

    By number of a step, `ends_ns` are those of its last kernel on `main`, the stream that computes, and
    `periods_ns` go from the end of the step before to its own, of steps that follow one.
    """

    profile: Profile
    steps: ProfiledSteps
    main: int
    ends_ns: dict[int, float]
    periods_ns: dict[int, float]

    @classmethod
    def of(cls, profile: Profile, steps: ProfiledSteps) -> StepTimes:
        """Ends and periods of all steps."""
        main = main_stream(profile, np.concatenate([s.activities for s in steps.found]))
        a = profile.activities
        ends = {s.number: float(a.end_ns[_on(profile, s, main)].max()) for s in steps.found}
        periods = {n: end - ends[n - 1] for n, end in ends.items() if end > ends.get(n - 1, end)}
        return cls(profile, steps, main, ends, periods)

    @property
    def period_ns(self) -> float:
        """The median period between ends of steps, 0 if no step follows another."""
        return float(np.median(list(self.periods_ns.values()))) if self.periods_ns else 0.0

    def typical(self, numbers: Collection[int]) -> int:
        """Of some steps that of median period; else of median span, the first omitted: it warms up."""
        known = {n: p for n, p in self.periods_ns.items() if n in numbers}
        if not known:
            kept = [s for s in self.steps.found if s.number in numbers]
            known = {s.number: s.span_ns(self.profile) for s in kept[1:] or kept}
        order = sorted(known, key=lambda n: (known[n], n))
        return order[len(order) // 2]

    def begin_ns(self, step: ProfiledStep) -> float:
        """When a step begins: at the end of the one before, if it follows one.

        Else at its first moment on the host, but not before the device is done with what was launched
        earlier, and with what was not recorded.
        """
        own = _on(self.profile, step, self.main)
        a = self.profile.activities
        first = float(a.start_ns[own].min())
        if step.number in self.periods_ns:
            return min(first, self.ends_ns[step.number - 1])
        host = step.start_ns
        if not np.isfinite(host):
            host = _first_moment(self.profile, step)
        others = np.ones(len(a.start_ns), dtype=np.bool_)
        others[step.activities] = False
        earlier = others & (a.start_ns < first) & (a.stream == self.main)
        busy = float(a.end_ns[earlier].max()) if earlier.any() else -np.inf
        return min(first, max(host, busy, first if self.lag_ns(step) else -np.inf))

    def span_ns(self, step: ProfiledStep) -> float:
        """From a step's begin to the end of its last activity on any stream."""
        return float(self.profile.activities.end_ns[step.activities].max()) - self.begin_ns(step)

    def lag_ns(self, step: ProfiledStep) -> float:
        """How long the first kernel that computes waited for nothing that was recorded, else 0."""
        a, calls = self.profile.activities, self.profile.calls
        own = _on(self.profile, step, self.main)
        first = int(own[np.argmin(a.start_ns[own])])
        call, start = int(a.call[first]), float(a.start_ns[first])
        if call < 0 or step.number in self.periods_ns:
            return 0.0
        earlier = a.start_ns < start
        quiet = float(calls.start_ns[call] + calls.duration_ns[call])
        quiet = max(quiet, float(a.end_ns[earlier].max())) if earlier.any() else quiet
        return start - quiet if start - quiet > _LAG_NS else 0.0


def _on(
    profile: Profile, step: ProfiledStep, stream: int
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """A step's activities on a stream; all of them if none is there."""
    there = step.activities[profile.activities.stream[step.activities] == stream]
    return there if len(there) else step.activities


def _first_moment(profile: Profile, step: ProfiledStep) -> float:
    a = profile.activities
    calls = a.call[step.activities]
    launched = profile.calls.start_ns[calls[calls >= 0]]
    return float(min([*launched, a.start_ns[step.activities].min()]))


def disagreements(times: StepTimes) -> list[str]:
    """What else says how long a step is, and says something else: sentences with both times."""
    period = times.period_ns
    said: list[str] = []
    if not period:
        return said
    for rule in StepRule:
        if rule is times.steps.rule or rule.value < times.steps.rule.value:
            continue
        other = found_by(rule, times.profile)
        if other is None:
            continue
        theirs = StepTimes.of(times.profile, other).period_ns
        # what repeats within a step is a layer or a microbatch, and says nothing of steps
        apart = abs(theirs - period) if rule is not StepRule.REPETITION else theirs - period
        if theirs and apart > _DISAGREE * period:
            said.append(
                f"{other.how}, if those are used: {_ms(theirs)} a step, instead of {_ms(period)}"
            )
    return said + _uncovered(times.steps.found, period)


def _uncovered(steps: Sequence[ProfiledStep], period: float) -> list[str]:
    lengths = [s.end_ns - s.start_ns for s in steps if np.isfinite([s.start_ns, s.end_ns]).all()]
    if not lengths or np.median(lengths) >= _COVERED * period:
        return []
    lasts = _ms(float(np.median(lengths)))
    return [
        f"a step lasts {lasts} on the host and ends every {_ms(period)}: the time between counts"
    ]


def _ms(ns: float) -> str:
    return f"{ns / 1e6:.3f} ms"
