"""What an estimate omits: shared tiers, groups larger than measured, unrecognized attention."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from statistics import NormalDist
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from flint.backends.cost.chips.kernel_table import kernels_of
from flint.backends.cost.chips.kernels import KernelKind, measured_ns
from flint.backends.cost.chips.model import model_of
from flint.backends.cost.network.placement import NetworkPlacement, spans_of_row
from flint.backends.cost.network.torus import Span
from flint.backends.cost.simulate.exposure import labels_of
from flint.backends.cost.simulate.timeline import ClassTimeline, Timeline
from flint.cluster.load import lenders
from flint.cluster.models import Chip, Cluster, Network
from flint.cluster.tables import SUSTAINED
from flint.ir.arrays import Float64s
from flint.ir.program import Collective, Kind, Phase, Program
from flint.ir.workload import Workload
from flint.passes.fusion.attention import FuseAttention, attention_turns, fused_turns
from flint.passes.partition.regathered import LEAST_BYTES, regathered
from flint.passes.profiles import profile as find_profile
from flint.text import format_duration, plural

#: Shares of the step below which nothing is said.
LEAST_SHARE = 0.01
#: The package whose exchanges of tokens are recorded as even ones.
_EVEN = "deep_ep"


@dataclass(frozen=True, slots=True)
class Congestion:
    """For `time_ns` of a step `one` and `other` both use the tier; each is priced as if alone."""

    tier: str
    one: str
    other: str
    time_ns: float


def compiler_notes(workload: Workload, chip: str) -> list[str]:
    """A note on kernels that were compiled for another chip than they are priced on."""
    by = workload.compiled_by
    if by is None or by.is_for(chip):
        return []
    return [f"kernels are those that {by.name} makes for {by.chip}, priced on {chip}"]


def regathered_notes(workload: Workload, timeline: Timeline) -> list[str]:
    """A note on what gathers take that no sharding asked for, of the rank class that ends last."""
    if workload.metadata.get("partitioner", "none") == "none":
        return []
    last = max(range(len(timeline.classes)), key=lambda n: timeline.classes[n].total_ns)
    program = workload.programs[workload.classes[last].program]
    found = [f for f in regathered(program) if f.num_bytes * f.times >= LEAST_BYTES]
    work = timeline.classes[last].work
    gathers = np.flatnonzero(work.program.collective == Collective.ALL_GATHER)
    notes = []
    for place in dict.fromkeys(program.row(f.row).location for f in found):
        rows = [r for r in gathers.tolist() if work.program.row(r).location == place]
        taken = float((work.duration_ns[rows] * work.program.trips[rows]).sum())
        notes.append(
            f"gathers at {place}, which no sharding asked for, take {format_duration(taken)}"
        )
    return notes


def stood_in_notes(workload: Workload, stack: str, *, routed: bool) -> list[str]:
    """Whose software a recorded program runs on, and how rows fall to experts without data.

    `routed` says that the estimate was asked for with a routing of experts.
    """
    found, notes = workload.stood_in, []
    if found.stack:
        whose = f"the program runs on {' and '.join(found.packages) or 'its software'}"
        other = found.stack != stack
        chosen = f"priced as {stack}, though" if other else f"priced as {stack} (--stack), because"
        notes.append(f"{chosen} {whose}" + (f", part of stack {found.stack}" if other else ""))
    if found.shares and not routed:
        places = ", ".join(found.shares[:3]) + (", ..." if len(found.shares) > 3 else "")
        notes.append(
            f"the rows of experts are made-up shares ({places}): with real data the busiest "
            "rank has 1.2 to 1.3 times as many; --routing prices it"
        )
    if _EVEN in found.packages and not found.shares:
        notes.append(
            f"{_EVEN} sent equally many tokens to each rank, because no data said otherwise: "
            "with real data the busiest rank has 1.2 to 1.3 times as many"
        )
    return notes


def congestion_notes(timeline: Timeline, placement: NetworkPlacement) -> list[str]:
    """A note for each pair of streams of the class that ends last that matters."""
    if not timeline.total_ns:
        return []
    slowest = max(timeline.classes, key=lambda c: c.total_ns)
    return [
        f"{c.tier} carries {c.one} and {c.other} at the same time for {format_duration(c.time_ns)} "
        f"({c.time_ns / timeline.total_ns:.1%} of the step); each is priced as if it were alone"
        for c in congestion(slowest, placement)
        if c.time_ns >= LEAST_SHARE * timeline.total_ns
    ]


def congestion(track: ClassTimeline, placement: NetworkPlacement) -> Iterator[Congestion]:
    """Every pair of streams of a class that are busy on one tier at the same time."""
    program, row = track.work.program, track.work.nodes.row
    labels = labels_of(program)
    for tier, users in _users(program, placement).items():
        here = np.isin(row, users)
        streams = np.unique(track.work.stream[row[here]]).tolist()  # of rows that run at all
        busy = {s: np.flatnonzero(here & (track.work.stream[row] == s)) for s in streams if s}
        for one, other in combinations(sorted(busy), 2):
            time_ns = _together(track, busy[one], busy[other])
            if time_ns > 0:
                names = [_longest(track, labels, busy[s]) for s in (one, other)]
                name = placement.cluster.network[tier].name
                yield Congestion(name, names[0], names[1], time_ns)


def _users(program: Program, placement: NetworkPlacement) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    sends = (program.kind == Kind.COLLECTIVE) | (program.kind == Kind.SEND)
    for row in np.flatnonzero(sends).tolist():
        for span in spans_of_row(program, row, placement):
            if span.size > 1:
                found.setdefault(span.tier, []).append(row)
    return found


def _together(track: ClassTimeline, one: NDArray[np.int64], other: NDArray[np.int64]) -> float:
    """How long nodes of both run. Nodes of each follow each other."""
    starts, ends = np.sort(track.start_ns[one]), np.sort(track.end_ns[one])
    edges = np.stack((starts, ends), axis=1).ravel()
    busy = np.concatenate(([0.0], np.cumsum(np.diff(edges) * (np.arange(len(edges) - 1) % 2 == 0))))
    until = np.interp(track.end_ns[other], edges, busy)
    return float((until - np.interp(track.start_ns[other], edges, busy)).sum())


def _longest(
    track: ClassTimeline, labels: list[tuple[str, str, str]], nodes: NDArray[np.int64]
) -> str:
    """The kind of communication that takes most of the time of some nodes."""
    total: dict[str, float] = {}
    for node in nodes.tolist():
        kind, over, _ = labels[int(track.work.nodes.row[node])]
        name = f"{kind} over {over}"
        total[name] = total.get(name, 0.0) + float(track.end_ns[node] - track.start_ns[node])
    return max(total, key=lambda name: total[name])


# Collectives over more members than a network's constants were measured with, and other lent constants.


def extrapolation_notes(programs: Iterable[Program], placement: NetworkPlacement) -> list[str]:
    """A note for each network with collectives over more members than was measured.

    It is of the group with most members there.
    """
    largest: dict[int, tuple[int, int]] = {}  # by tier: members in it, and in the whole group
    for spans in _groups(programs, placement):
        ranks = int(np.prod([s.size for s in spans], dtype=np.int64))
        for span in spans:
            largest[span.tier] = max(largest.get(span.tier, (0, 0)), (span.size, ranks))
    networks = placement.cluster.network
    return [
        _note(networks[tier], members, ranks)
        for tier, (members, ranks) in sorted(largest.items())
        if 0 < networks[tier].measured_members < members
    ]


def lent_notes(programs: Iterable[Program], placement: NetworkPlacement) -> list[str]:
    """A note for the chip, and for each network that something crosses, most of whose constants are another's.

    What a file lacks altogether, the models of its chip tell.
    """
    cluster, all_programs = placement.cluster, list(programs)
    crossed = chain(_groups(all_programs, placement), _routes(all_programs, placement))
    tiers = sorted({s.tier for spans in crossed for s in spans if s.size > 1})
    tables = [(cluster.network[t].name, cluster.network[t].constants_in_use) for t in tiers]
    family = cluster.chip.family
    if family is not None:
        tables.insert(0, (cluster.chip.name, family.constants))
    found = ((name, len(constants), lenders(constants)) for name, constants in tables)
    return [_lent_note(*table) for table in found if 2 * sum(table[2].values()) > table[1]]


def _lent_note(name: str, count: int, whose: Mapping[str, int]) -> str:
    """Of most of a table's constants, with those who lend at least a tenth of it."""
    whom = " and ".join(lender for lender, lent in whose.items() if 10 * lent >= count)
    return f"{name}: {sum(whose.values())} of {count} constants are assumed, taken from {whom}"


def _routes(programs: Iterable[Program], placement: NetworkPlacement) -> Iterable[tuple[Span, ...]]:
    for program in programs:
        used = program.route[(program.kind == Kind.SEND) & (program.route >= 0)]
        for number in np.unique(used).tolist():
            yield placement.spans_of_route(program.routes[number])


def _groups(programs: Iterable[Program], placement: NetworkPlacement) -> Iterable[tuple[Span, ...]]:
    for program in programs:
        used = program.group[(program.kind == Kind.COLLECTIVE) & (program.group >= 0)]
        for number in np.unique(used).tolist():
            yield placement.spans_of_group(program.groups[number])


def _note(network: Network, members: int, ranks: int) -> str:
    measured, inside = network.measured_members, f"{members:,} members of {network.name}"
    known = f"measured up to {measured}" if measured > 1 else "not measured"
    return f"collectives over {ranks:,} ranks are extrapolated: {inside}, {known}"


def attention_notes(workload: Workload, kernels: Workload, profile: str) -> tuple[str, ...]:
    """What of a workload's attention has no flash kernel in `kernels`, if the profile makes some.

    Counts are those of a step of the rank class that has most.
    """
    found = [p for p in find_profile(profile).kernels if isinstance(p, FuseAttention)]
    if not found:
        return ()
    named = found[0].named
    written = workload.kept.get(
        "attention", named, lambda: [attention_turns(p, named=named) for p in workload.programs]
    )
    notes = [
        note
        for count, kernel in zip(written, kernels.programs, strict=True)
        for note in _notes(count, kernel)
    ]
    return tuple(dict.fromkeys(notes))


def _notes(written: int, kernels: Program) -> list[str]:
    fused = fused_turns(kernels)
    trains = bool((kernels.phase == Phase.BACKWARD).any())
    notes = []
    if fused.forward < written:
        notes.append(
            f"{written - fused.forward:,} of {written:,} attentions are written in a form that "
            "Flint does not recognize: they have no flash kernel, and their scores are stored"
        )
    if trains and fused.backward < fused.first:
        notes.append(
            f"{fused.first - fused.backward:,} of {fused.first:,} attentions have no flash "
            "kernel in the backward pass, because Flint does not recognize its form: their "
            "scores are stored"
        )
    return notes


def rates_note(chip: Chip) -> str:
    """Which rates kernels have where power matters: those of bursts, if no others are known; else ""."""
    wanted = SUSTAINED in getattr(chip.family, "uses", ())
    if not wanted or SUSTAINED in model_of(chip).libraries():
        return ""
    return (
        f"kernels have burst rates: none of {chip.name} was measured in steps of minutes, where "
        "its power limit may lower the clock"
    )


def exact_shape_notes(
    program: Program, duration_ns: Float64s, chip: Chip, tf32: Collection[KernelKind]
) -> tuple[str, ...]:
    """A sentence on the kernels of a program whose times are those of a table; none without one.

    `duration_ns` are the times of the program's rows.
    """
    table = chip.measured_kernels
    if table is None:
        return ()
    kernels, rows = kernels_of(program, tf32=tf32)
    known = ~np.isnan(measured_ns(table, kernels))
    runs = program.trips[rows]
    times = duration_ns[rows] * runs
    total = float(times.sum())
    share = float(times[known].sum()) / total if total else 0.0
    count = f"{int(runs[known].sum()):,} of {plural(int(runs.sum()), 'kernel')}"
    said = f"{count} ({share:.1%} of their time) use the times in {table.name} for"
    return (f"{said} exactly their shapes",)


# How much longer a step takes because its devices wait for the slowest of them.
#
# Chips of one kind differ: silicon, cooling and the power that it gets. Between two collectives every
# device computes the same, and the next collective begins when the slowest is done. With speeds that
# differ by a standard deviation `variation` of their mean, normally distributed, the slowest of n takes
#
#     1 + variation * m(n),  m(n) the expected largest of n standard normal numbers
#
# times the mean (m: 0 for one, 1.42 for 8, 2.97 for 512, 4.2 for 100,000; Blom's approximation, G. Blom,
# "Statistical Estimates and Transformed Beta-Variables", 1958). The same chip is the slowest in every
# interval, so that intervals do not average it out.

T = TypeVar("T")

#: Blom's constant.
_BLOM = 0.375


def expected_largest(count: int) -> float:
    """The expected largest of `count` standard normal numbers, to 1 %; 0 for one."""
    if count <= 1:
        return 0.0
    return NormalDist().inv_cdf((count - _BLOM) / (count + 1 - 2 * _BLOM))


def slower_than_mean(workload: Workload, cluster: Cluster) -> float:
    """How many times longer a workload's kernels take than on the mean chip of a cluster.

    1 for one that was measured: its times are of devices that did wait.
    """
    variation = cluster.chip.variation
    if variation is None or workload.measured_by:
        return 1.0
    return 1.0 + variation.value * expected_largest(waiting_devices(workload))


def alike(cluster: Cluster) -> Cluster:
    """The cluster with chips that do not differ: for times that were measured on devices that did wait."""
    return cluster.model_copy(update={"chip": cluster.chip.model_copy(update={"variation": None})})


def waiting_devices(workload: Workload) -> int:
    """How many devices wait for each other in a step: all along the axes that anything is sent over."""
    return workload.kept.get("waiting devices", None, lambda: _waiting_devices(workload))


def _waiting_devices(workload: Workload) -> int:
    mesh, axes = workload.mesh, set[str]()
    for program in workload.programs:
        for group in _used(program, program.group, program.groups):
            if group.ranks:  # of no axes: it may be any of them
                return mesh.size
            axes |= {a.name for a in group.axes}
        for route in _used(program, program.route, program.routes):
            if not route.axes:  # between any ranks of the mesh
                return mesh.size
            axes |= {a.name for a in route.axes}
    sizes = (s for n, s in zip(mesh.names, mesh.sizes, strict=True) if n in axes)
    return math.prod(sizes)


def _used(program: Program, column: NDArray[Any], table: Sequence[T]) -> list[T]:
    used = column[(program.kind >= Kind.COLLECTIVE) & (column >= 0)]
    return [table[n] for n in np.unique(used).tolist()]


def slowest_notes(workload: Workload, cluster: Cluster) -> tuple[str, ...]:
    """What of a step is waiting for the slowest of its devices; empty if nothing."""
    slower, variation = slower_than_mean(workload, cluster), cluster.chip.variation
    if slower == 1 or variation is None:
        return ()
    count = waiting_devices(workload)
    note = (
        f"kernels take {slower - 1:.1%} longer than on a mean chip: {count:,} devices wait for "
        f"the slowest of them (chip.variation, {variation.value:.1%}, {variation.kind})"
    )
    return (note,)
