"""Steps of a profile: where one begins on the host, and which activities it launched.

Annotations say it where there are some; else what repeats does; else all of it is one step. The host
runs ahead of the device, so a step holds what was launched in it, whenever that ran.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from flint.errors import FlintError
from flint.tools.measure.profiles.profile import Profile

#: PyTorch's own annotation of a step, with its number, and what Flint calls those of JAX.
_STEP = re.compile(r"(?:ProfilerStep|^step)#(\d{1,18})")
_OPTIMIZER = re.compile(r"Optimizer\.step#")
#: Annotations by which serving engines and loops mark a step, in the order in which they are tried.
_FRAMEWORK = (
    re.compile(r"execute_(model|context|\d+_context)"),
    re.compile(r"^step\[|(?i:^(train(ing)?_?step|iteration|iter|step) ?[#:_]? ?\d+$)"),
    re.compile(r"(?i)^(train_?step|train_batch|model_step|forward_step|step)$"),
)
#: Names that repeat with a period are steps if so much of the profile is of that period.
_REPEATED = 0.8
_LEAST_REPEATS = 3
#: A step of fewer activities than this is none: kernels that an optimizer repeats are no steps.
_LEAST_ACTIVITIES = 16
#: Periods are looked for among so many activities.
_MOST_COMPARED = 1 << 17


@dataclass(frozen=True, slots=True)
class ProfiledStep:
    """One step: its number, the host's time that it begins and ends at, and its activities' rows.

    `start_ns` is -inf where nothing of the host says when it begins.
    """

    number: int
    start_ns: float
    end_ns: float
    activities: NDArray[np.int64]

    def span_ns(self, profile: Profile) -> float:
        """From the start of its first activity to the end of its last."""
        a = profile.activities
        if not len(self.activities):
            return 0.0
        ends = a.start_ns[self.activities] + a.duration_ns[self.activities]
        return float(ends.max() - a.start_ns[self.activities].min())


class StepRule(IntEnum):
    """What says where steps begin and end, in the order in which it is believed."""

    ANNOTATIONS = 0
    OPTIMIZERS = 1
    REPETITION = 2
    NOTHING = 3


@dataclass(frozen=True, slots=True)
class ProfiledSteps:
    """The steps of a profile in order of time, and the sentence that says how they were found."""

    found: tuple[ProfiledStep, ...]
    how: str
    rule: StepRule = StepRule.NOTHING

    @property
    def annotated(self) -> bool:
        """Whether the program itself marked them."""
        return self.rule is StepRule.ANNOTATIONS

    def numbered(self, number: int) -> ProfiledStep:
        """The step with a number. Raises FlintError FL811 if there is none."""
        for step in self.found:
            if step.number == number:
                return step
        raise FlintError(
            "FL811",
            f"the profile has no step {number}",
            help=f"it has {_listed([s.number for s in self.found])}",
        )


def _listed(numbers: Sequence[int]) -> str:
    if len(numbers) > 8:
        return f"{len(numbers)} steps from {numbers[0]} to {numbers[-1]}"
    return f"step{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"


def steps_of(profile: Profile) -> ProfiledSteps:
    """The steps of a profile, at least one. Raises FlintError FL804 if nothing ran on the device."""
    if not len(profile.activities.start_ns):
        raise FlintError(
            "FL804",
            "the profile has no kernels: nothing was recorded on the device",
            help="record with the activities of its accelerator, see docs/measured.md",
        )
    for rule in StepRule:
        if (found := found_by(rule, profile)) is not None:
            return found
    raise AssertionError("the whole profile is one step")


def found_by(rule: StepRule, profile: Profile) -> ProfiledSteps | None:
    """The steps that one rule finds, None if it says nothing of this profile."""
    match rule:
        case StepRule.ANNOTATIONS:
            return _profiler_steps(profile) or _framework_steps(profile)
        case StepRule.OPTIMIZERS:
            return _optimizer_steps(profile)
        case StepRule.REPETITION:
            return _repeated(profile)
        case StepRule.NOTHING:
            everything = np.arange(len(profile.activities.start_ns))
            return ProfiledSteps(
                (ProfiledStep(0, -np.inf, np.inf, everything),),
                "the profile does not say what a step is: the whole profile is one",
            )


def launched_at(profile: Profile) -> NDArray[np.float64]:
    """When the host launched each activity; NaN where no call says it."""
    call = profile.activities.call
    found = np.full(len(call), np.nan)
    known = call >= 0
    found[known] = profile.calls.start_ns[call[known]]
    return found


def issued_at(profile: Profile) -> NDArray[np.float64]:
    """When each activity was launched at the latest; NaN of what was launched before the recording.

    Recorders lose calls. What has none was launched before the next activity of its stream whose call
    is known, as streams are in order, and after the last of those counts as launched with that. What
    runs before the first of those was launched when nobody recorded: it is of a step before.
    """
    found, a = launched_at(profile), profile.activities
    lost = np.isnan(found)
    for stream in np.unique(a.stream[lost]).tolist():
        rows = np.flatnonzero(a.stream == stream)
        known = np.flatnonzero(~lost[rows])
        if len(known):
            latest = np.where(lost[rows], np.inf, found[rows])
            latest[known[-1] + 1 :] = latest[known[-1]]
            latest = np.minimum.accumulate(latest[::-1])[::-1]
            latest[: known[0]] = np.nan
            found[rows] = np.where(lost[rows], latest, found[rows])
    return found


def _profiler_steps(profile: Profile) -> ProfiledSteps | None:
    named = any(s.startswith("ProfilerStep#") for s in profile.strings)
    what = "those of ProfilerStep annotations" if named else "numbered in the profile"
    return _marked(profile, _STEP.match, lambda m, i: int(m[1]), f"steps are {what}")


def _framework_steps(profile: Profile) -> ProfiledSteps | None:
    for pattern in _FRAMEWORK:
        found = _marked(profile, pattern.search, lambda m, i: i, "steps are those of annotations")
        if found is not None:
            return found
    return None


def _marked(
    profile: Profile,
    matches: Callable[[str], re.Match[str] | None],
    number: Callable[[re.Match[str], int], int],
    how: str,
) -> ProfiledSteps | None:
    """A step for each annotation of the host that matches and launched something."""
    marks = profile.marks
    named = {i: m for i, s in enumerate(profile.strings) if (m := matches(s))}
    if not named:
        return None
    found: list[ProfiledStep] = []
    matching = np.isin(marks.name, list(named))
    for on_device in (False, True):
        times = profile.activities.start_ns if on_device else issued_at(profile)
        between = _Between(times)
        for row in np.flatnonzero(matching & (marks.on_device == on_device)).tolist():
            start = float(marks.start_ns[row])
            end = start + float(marks.duration_ns[row])
            inside = between.rows(start, end)
            if len(inside):
                name = named[int(marks.name[row])]
                begin = -np.inf if on_device else start
                found.append(ProfiledStep(number(name, len(found)), begin, end, inside))
        if found:
            break
    return ProfiledSteps(_told_apart(found), how, StepRule.ANNOTATIONS) if found else None


def _told_apart(steps: list[ProfiledStep]) -> tuple[ProfiledStep, ...]:
    """Steps whose numbers differ: where two have one number all are counted from 0."""
    if len({s.number for s in steps}) == len(steps):
        return tuple(steps)
    return tuple(replace(s, number=i) for i, s in enumerate(steps))


class _Between:
    """Rows of activities by time; those whose time is not known are nowhere."""

    def __init__(self, times: NDArray[np.float64]) -> None:
        self._order = np.argsort(times, kind="stable")
        self._times = times[self._order]

    def rows(self, start: float, end: float) -> NDArray[np.int64]:
        first, last = np.searchsorted(self._times, [start, end])
        return np.sort(self._order[first:last])


def _optimizer_steps(profile: Profile) -> ProfiledSteps | None:
    """From the end of one optimizer's step to the end of the next; several that follow are one."""
    ends = _optimizer_ends(profile)
    if len(ends) < 2:
        return None
    between = _Between(issued_at(profile))
    found = []
    for number, (begin, end) in enumerate(pairwise(ends)):
        inside = between.rows(begin, end)
        if len(inside):
            found.append(ProfiledStep(number, begin, end, inside))
    how = "steps end with those of optimizers"
    return ProfiledSteps(tuple(found), how, StepRule.OPTIMIZERS) if found else None


def _optimizer_ends(profile: Profile) -> list[float]:
    named = [i for i, s in enumerate(profile.strings) if _OPTIMIZER.match(s)]
    marks = profile.marks
    rows = np.flatnonzero(np.isin(marks.name, named) & ~marks.on_device)
    launched = np.sort(launched_at(profile))
    ends: list[float] = []
    for row in rows.tolist():
        start = float(marks.start_ns[row])
        between = np.searchsorted(launched, [ends[-1], start]) if ends else None
        if between is not None and between[0] == between[1]:
            ends.pop()  # nothing ran between two optimizers: they are one
        ends.append(start + float(marks.duration_ns[row]))
    return ends


def _repeated(profile: Profile) -> ProfiledSteps | None:
    """The period of the names of activities in the order of their launch, if there is one."""
    a = profile.activities
    launched = launched_at(profile)
    order = np.lexsort((a.start_ns, np.where(np.isnan(launched), a.start_ns, launched)))
    names = a.name[order][:_MOST_COMPARED]
    period, first = _period(names)
    if not period:
        return None
    found = []
    for number, at in enumerate(range(first, len(order) - period + 1, period)):
        rows = np.sort(order[at : at + period])
        starts = launched[rows]
        begin = float(np.nanmin(starts)) if np.isfinite(starts).any() else -np.inf
        found.append(ProfiledStep(number, begin, np.inf, rows))
    return ProfiledSteps(
        tuple(found),
        f"no annotation says what a step is: the same {period} activities repeat",
        StepRule.REPETITION,
    )


def _period(names: NDArray[np.int32]) -> tuple[int, int]:
    """Length of what repeats and where it begins first; (0, 0) if nothing does often enough.

    The most frequent distance between equal names that are rare is tried, and its multiples are not.
    """
    if len(names) < _LEAST_REPEATS * _LEAST_ACTIVITIES:
        return 0, 0
    for period in _distances(names):
        if not _LEAST_ACTIVITIES <= period <= len(names) // _LEAST_REPEATS:
            continue
        same = names[period:] == names[:-period]
        if same.mean() >= _REPEATED:
            return period, int(np.argmax(same))
    return 0, 0


def _distances(names: NDArray[np.int32]) -> list[int]:
    """Distances between occurrences of the names that occur least (but three times), the best first."""
    values, counts = np.unique(names, return_counts=True)
    often = counts >= _LEAST_REPEATS
    found: dict[int, int] = {}
    for value in values[often][np.argsort(counts[often])][:8]:
        for distance in np.diff(np.flatnonzero(names == value)).tolist():
            found[distance] = found.get(distance, 0) + 1
    return sorted(found, key=lambda d: (-found[d], d))[:16]
