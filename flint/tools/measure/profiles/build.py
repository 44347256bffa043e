"""Profiles of the ranks of a job -> a Workload of one step, with measured times."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flint.errors import FlintError
from flint.frontends.torch_world.program.groups import Channels
from flint.ir.made_by import MeasuredBy, MeasuredClass
from flint.ir.mesh import Mesh
from flint.ir.program import Collective
from flint.ir.rank_class import RankClass
from flint.ir.workload import Workload
from flint.tools.measure.profiles.comms import (
    collective_of,
    described,
    input_bytes,
    known_groups,
    mesh_of_groups,
    world_of,
)
from flint.tools.measure.profiles.contradictions import Checked, refuse, told
from flint.tools.measure.profiles.execution_trace import paired
from flint.tools.measure.profiles.profile import Profile, unexplained
from flint.tools.measure.profiles.ranks import (
    Aligned,
    Key,
    Recorded,
    align,
    by_rank,
    communication_of,
)
from flint.tools.measure.profiles.rows import ProgramOfProfile, Shared
from flint.tools.measure.profiles.steps import (
    ProfiledStep,
    ProfiledSteps,
    StepRule,
    found_by,
    steps_of,
)
from flint.tools.measure.profiles.streams import main_stream

# How long the steps of a profile take: the period between their ends, or from launch to last kernel.
#
# Where the device runs behind the host, the time from a step's first launch to its last kernel holds
# parts of the steps before: it is a latency, and no step time. The ends of steps on the stream that
# computes follow each other in the time of a step, however far the device is behind.

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


_Chosen = tuple[StepTimes, ProfiledStep]


def workload_of(profiles: Sequence[Profile], *, step: int | None = None) -> Workload:
    """The workload of one step that profiles of one or several ranks recorded.

    `step` is the number of a step (`ProfilerStep#N`), None the one of median duration. Programs have
    measured times, see `Program.measured_ns`, and what recorded them is `Workload.measured_by`.

    Execution traces of the host are joined with the profiles of the same run.

    Raises FlintError FL804 (nothing ran on a device), FL811 (no such step), FL812 (two profiles of one
    rank), FL813 (profiles that are not of one job), FL820, FL822 (execution traces without their
    profile, or with another's), FL833 to FL835 (a profile that contradicts itself).
    """
    warnings: list[str] = []
    ranks = by_rank(paired(profiles), warnings)
    world = world_of(list(ranks.values()))
    refuse(ranks, world)
    chosen = _chosen(ranks, step, warnings)
    recorded = [Recorded(rank, ranks[rank], taken) for rank, (_, taken) in chosen.items()]
    groups = known_groups(ranks, world)
    mesh = mesh_of_groups(world, groups)
    aligned = align(recorded, world, warnings)
    begins = {
        rank: times.begin_ns(taken) + aligned.shift_ns[rank]
        for rank, (times, taken) in chosen.items()
    }
    _begin_together(begins, chosen, aligned)
    origin = min(begins.values())
    shared = Shared(mesh, world, tuple(groups), Channels(), Counter())
    programs, measured = [], []
    for r in recorded:
        made = ProgramOfProfile(r, shared, aligned, origin_ns=origin, begin_ns=begins[r.rank])
        programs.append(made.build())
        times = chosen[r.rank][0]
        count, period = len(times.steps.found), times.period_ns if step is None else 0.0
        measured.append(MeasuredClass(r.rank, made.span_ns, count, r.profile.peak_bytes, period))
    warnings += [f"{sentence}: {n}" for sentence, n in shared.problems.items()]
    warnings += _once([s for r in recorded for s in _lacking(r.profile)], len(recorded))
    checked = [Checked(r.rank, world, r.profile, r.step.activities) for r in recorded]
    warnings += _once([s for c in checked for s in told(c)], len(recorded))
    warnings += told_of_job(recorded, world)
    beside = [s for times, taken in chosen.values() for s in _beside(times, taken)]
    warnings += _once(beside, len(recorded))
    warnings += _once([w for r in recorded for w in r.profile.warnings], len(recorded))
    classes = _classes(mesh, [r.rank for r in recorded], warnings)
    device = next((r.profile.device for r in recorded if r.profile.device), "")
    by = MeasuredBy(recorded[0].profile.format, device, tuple(measured))
    return Workload(mesh, tuple(programs), classes, _metadata(by, warnings))


def _metadata(by: MeasuredBy, warnings: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "producer": "flint", "name": "profile", "source": by.format, "partitioner": "none",
        "measured": by.to_json(),
    }  # fmt: skip
    if warnings:
        found["warnings"] = list(warnings)
    return found


def _begin_together(
    begins: dict[int, float], chosen: Mapping[int, tuple[StepTimes, ProfiledStep]], aligned: Aligned
) -> None:
    """No rank begins before the job has ended the step before, but where it works already.

    Ranks of a pipeline end at different moments: a step from the first end to the last one would
    count what lies between in two steps.
    """
    ends = [
        times.ends_ns[taken.number - 1] + aligned.shift_ns[rank]
        for rank, (times, taken) in chosen.items()
        if taken.number in times.periods_ns
    ]
    if len(ends) < len(chosen):
        return
    for rank, (times, taken) in chosen.items():
        first = float(times.profile.activities.start_ns[taken.activities].min())
        begins[rank] = max(begins[rank], min(first + aligned.shift_ns[rank], max(ends)))


def _chosen(
    ranks: dict[int, Profile], number: int | None, warnings: list[str]
) -> dict[int, _Chosen]:
    """The same step of every rank. Raises FlintError FL811, FL813."""
    found = {rank: StepTimes.of(p, steps_of(p)) for rank, p in ranks.items()}
    first = next(iter(found.values()))
    common = set.intersection(*({s.number for s in t.steps.found} for t in found.values()))
    is_named = number is not None
    if number is None:
        if not common:
            raise FlintError(
                "FL813",
                "the profiles have no step in common",
                help="import the ranks of one recording together, or name a step with --step",
            )
        number = first.typical(common)
    chosen = {rank: (times, times.steps.numbered(number)) for rank, times in found.items()}
    _say_taken(first, chosen[next(iter(found))][1], warnings, is_named=is_named)
    for times, taken in chosen.values():
        _say_left_out(times.profile, times.steps, warnings)
        if lag := times.lag_ns(taken):
            warnings.append(
                f"the first kernel ran {lag / 1e6:.3f} ms after its launch, although nothing "
                "recorded kept it waiting: the step is assumed to begin with it"
            )
    return chosen


def _say_taken(
    times: StepTimes, taken: ProfiledStep, warnings: list[str], *, is_named: bool
) -> None:
    """How steps were found, which one is taken, and what says something else.

    A step that the user names has its own time, and not the median of all.
    """
    steps = times.steps
    several = len(steps.found) > 1
    said = f": step {taken.number} is used, one of {len(steps.found)}" if several else ""
    if several and times.periods_ns and not is_named:
        said += "; a step's time is the median period between their ends"
        own = times.span_ns(taken)
        if abs(own - times.period_ns) > 0.02 * times.period_ns:
            shortest, longest = min(times.periods_ns.values()), max(times.periods_ns.values())
            said += (
                f", {times.period_ns / 1e6:.3f} ms (periods are {shortest / 1e6:.3f} to "
                f"{longest / 1e6:.3f} ms, and the chosen step plays back in {own / 1e6:.3f} ms)"
            )
    if several or not steps.annotated:
        warnings.append(f"{steps.how}{said}")
    warnings += disagreements(times)


def _say_left_out(profile: Profile, steps: ProfiledSteps, warnings: list[str]) -> None:
    """Activities of no step: mostly the end of the step before, launched before the recording."""
    a = profile.activities
    left = np.ones(len(a.start_ns), dtype=np.bool_)
    for step in steps.found:
        left[step.activities] = False
    if left.any():
        milliseconds = float(a.duration_ns[left].sum()) / 1e6
        warnings.append(
            f"{int(left.sum())} kernels ({milliseconds:.3f} ms) were launched outside the steps and are omitted"
        )


def _lacking(profile: Profile) -> list[str]:
    """What was not recorded, and what Flint does not know without it."""
    signatures = profile.operators.signature
    is_compiled = (profile.activities.compiled >= 0).any()  # a compiler's program says it
    if len(signatures) and (signatures < 0).all() and not is_compiled:
        if profile.format in ("xplane", "xla chrome trace"):
            return [
                "the profile does not contain its programs: the operands of kernels are unknown"
            ]
        return ["no operator has shapes (record_shapes=True): the operands of kernels are unknown"]
    return []


def _beside(times: StepTimes, taken: ProfiledStep) -> list[str]:
    """What runs on streams beside the one that computes, and says nothing of what it is."""
    profile, rows = times.profile, taken.activities
    shared = rows[(profile.communicates & ~profile.says_communication)[rows]]
    said = unexplained(profile, rows, times.main)
    if len(shared):
        took = float(profile.activities.duration_ns[shared].sum()) / 1e6
        said.append(
            f"{len(shared)} kernels of no class ({took:.3f} ms) run on a stream of "
            "communication: they are assumed to communicate"
        )
    return said


def _once(sentences: Sequence[str], ranks: int) -> list[str]:
    """Each sentence once, with how many of several ranks say it."""
    counts = Counter(sentences)
    return [f"{s} ({n} ranks)" if ranks > 1 and n > 1 else s for s, n in counts.items()]


def _classes(mesh: Mesh, ranks: Sequence[int], warnings: list[str]) -> tuple[RankClass, ...]:
    """One class a profiled rank; others are in that of the nearest coordinates, the lowest of equals.

    An axis counts more the more ranks lie between its neighbors: first axes are of pipelines.
    """
    if len(ranks) == 1:
        if mesh.size > 1:
            warnings.append(
                f"1 of {mesh.size} ranks has a profile (rank {ranks[0]}): the others are assumed to do the same"
            )
        return (RankClass(f"rank {ranks[0]}", 0),)
    coordinates = np.stack(np.unravel_index(np.arange(mesh.size), mesh.sizes), axis=1)
    profiled = coordinates[list(ranks)]
    weights = 2 ** np.arange(len(mesh.sizes))[::-1]
    owner = np.argmin(
        ((coordinates[:, None, :] != profiled[None, :, :]) * weights).sum(axis=2), axis=1
    )
    owner[list(ranks)] = np.arange(len(ranks))
    if len(ranks) < mesh.size:
        warnings.append(
            f"{len(ranks)} of {mesh.size} ranks have a profile: each other rank is assumed to "
            "do the same as the profiled rank with the nearest coordinates"
        )
    members = [np.flatnonzero(owner == i).tolist() for i in range(len(ranks))]
    return tuple(
        RankClass(f"rank {rank}", i, ranks=tuple(members[i])) for i, rank in enumerate(ranks)
    )


#: Collectives whose members all put in as much.
_EQUAL = (Collective.ALL_REDUCE, Collective.BROADCAST, Collective.NONE)


def told_of_job(recorded: Sequence[Recorded], world: int) -> list[str]:
    """Collectives and messages of which two ranks say different kinds or sizes."""
    said: dict[Key, set[tuple[Collective, int]]] = defaultdict(set)
    for one in recorded:
        for key, row in communication_of(one, world).items():
            comm = described(one.profile, row, world)
            assert comm is not None, "what has a key is described"
            kind, sent = collective_of(comm.name), input_bytes(comm)
            said[key].add((kind, sent if kind in _EQUAL else 0))
    differ = Counter(len(key[0]) for key, each in said.items() if len(each) > 1)
    if not differ:
        return []
    said_of = f"for {sum(differ.values()):,} collectives or messages two ranks state"
    hangs = "a cluster would hang there, or the profiles are not from one step"
    return [f"contradiction: {said_of} different kinds or sizes: {hangs}"]
