"""Ranks that are not like the others: slow ones, slow links, and positions with another chip.

Ranks of one program that wait for different ranks take different times, so rank classes are split: first
by what is changed, then until ranks of one class meet as many ranks of each class in every collective
and message. One rank then stands for its class exactly, and the timeline finds who waits for whom. A
permutation is waited for like a collective over the axes of its route: the ranks along them begin it
together, although each needs one message only.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from flint.backends.cost.network.placement import NetworkPlacement, tier_of_row
from flint.backends.cost.replay.changes import (
    BANDWIDTH,
    COMPUTE,
    UNCHANGED,
    Changes,
    Scale,
    on_device,
    share_of_quantity,
)
from flint.backends.cost.row_prices import Pricing, RowPrices, Times
from flint.cluster.models import Cluster
from flint.cluster.named import load_cluster
from flint.errors import FlintError, nearest
from flint.ir.arrays import Float64s, Mask
from flint.ir.mesh import Mesh, Route
from flint.ir.program import Collective, Int64s, Kind, Program
from flint.ir.rank_class import RankClass
from flint.ir.workload import Workload
from flint.requests.estimate import EstimateRequest
from flint.text import number_in, plural

if TYPE_CHECKING:
    from flint.backends.cost.replay.table import MeasuredTable

#: A rank that is slower by more is down, and a share below its inverse a link that failed.
_MOST = 1e6
#: Classes in which ranks that wait for different ranks may end: each is followed in time.
_MOST_CLASSES = 512
_WHERE = re.compile(r"(?P<of>[^:@=]+):(?P<first>\d{1,9})(?:-(?P<last>\d{1,9}))?")
_STAGE = re.compile(r"stage(?P<first>\d{1,9})")
#: Axes of pipelines, by which "stage3" is a position.
_PIPES = ("pipe", "pp", "stage", "stages")


@dataclass(frozen=True, eq=False)
class Unlike:
    """What differs, by rank: `slow` is how many times longer its kernels take, `left` by tier the share
    of its links' bandwidth that is left, `chip` an index into `clusters`, -1 for the usual chip. `said`
    are sentences, `unsplit` are the kernels with all ranks alike.
    """

    slow: Float64s
    left: Mapping[str, Float64s]
    chip: Int64s
    clusters: tuple[Cluster, ...]
    said: tuple[str, ...]
    unsplit: Workload

    def chip_of(self, ranks: RankClass) -> Cluster | None:
        """The cluster whose chip a class of ranks has; None for the usual one."""
        at = int(self.chip[ranks.mask(self.unsplit.mesh)][0])
        return self.clusters[at] if at >= 0 else None

    def with_classes_of(self, split: Workload, workload: Workload) -> Workload:
        """The `workload` with the rank classes of the `split` one, what was recorded of each included."""
        owner, mesh = workload.class_of_ranks(), workload.mesh
        metadata = dict(workload.metadata)
        if measured := metadata.get("measured"):
            before = [int(owner[c.mask(mesh)][0]) for c in split.classes]
            of = measured["classes"]
            metadata["measured"] = {**measured, "classes": [of[n] for n in before]}
        return replace(workload, classes=split.classes, metadata=metadata)

    def times(
        self,
        kernels: Workload,
        pricing: Pricing,
        timing: str = "",
        changes: Changes = UNCHANGED,
        table: MeasuredTable | None = None,
    ) -> ClassTimes:
        """The times of each class of the split `kernels`; the rest is as in `times_of`."""
        from flint.backends.cost.replay.times import times_of

        on = [changes.also(COMPUTE, c) for c in self.clusters]
        of_chip = [times_of(self.unsplit, pricing, timing, each, table) for each in on]
        return ClassTimes(self, kernels, pricing, tuple(of_chip))

    def split(self) -> Workload:
        """The kernels with a rank class for all ranks that behave alike.

        Raises FlintError FL944 for more classes than can be followed.
        """
        workload = self.unsplit
        owner = workload.class_of_ranks().astype(np.int64)
        columns = [owner, self.slow, *self.left.values(), self.chip]
        colours = _number(np.stack(columns, axis=1))
        links = list(_links(workload))
        while True:
            signed = _number(np.stack([colours, *(link(colours) for link in links)], axis=1))
            if signed.max() == colours.max():
                classes = tuple(self._classes(workload, owner, colours))
                return self.with_classes_of(replace(workload, classes=classes), workload)
            if signed.max() >= _MOST_CLASSES:
                raise FlintError(
                    "FL944",
                    f"ranks behave in more than {_MOST_CLASSES} different ways with these options",
                    help="name fewer ranks, or whole hosts or positions of an axis",
                )
            colours = signed

    def _classes(self, workload: Workload, owner: Int64s, colours: Int64s) -> Iterator[RankClass]:
        _, first, counts = np.unique(colours, return_index=True, return_counts=True)
        for at in np.argsort(first).tolist():
            rank = int(first[at])
            old = workload.classes[int(owner[rank])]
            if counts[at] == (owner == owner[rank]).sum():
                yield old
                continue
            ranks = np.flatnonzero(colours == at).tolist()
            named = f"rank {rank}" if len(ranks) == 1 else f"{len(ranks)} ranks as {rank}"
            name = named if len(workload.classes) == 1 else f"{old.name}: {named}"
            yield replace(old, name=name, where={}, ranks=tuple(ranks))


def _number(rows: Float64s | Int64s) -> Int64s:
    """For each row the number of its kind: equal for equal rows."""
    return np.unique(rows, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)


#: From a colour of each rank a number of each rank, that of those whom it meets.
_Link = Callable[[Int64s], Int64s]


def _links(workload: Workload) -> Iterator[_Link]:
    """How ranks meet: in groups, and as ends of messages."""
    mesh = workload.mesh
    own = np.arange(mesh.size, dtype=np.int64)
    for program in workload.programs:
        collective = program.kind == Kind.COLLECTIVE
        for number in np.unique(program.group[collective & (program.group >= 0)]).tolist():
            members, place = program.groups[number].members(mesh), own + mesh.size
            for at, ranks in enumerate(members):
                place[ranks] = at
            yield _together(place)
        for number in np.unique(program.route[program.route >= 0]).tolist():
            route = program.routes[number]
            if (collective & (program.route == number)).any():
                yield _together(_linked(route, mesh))
                continue
            for ends in (route.sources(mesh), route.targets(mesh)):
                yield _at_end(ends)


def _linked(route: Route, mesh: Mesh) -> Int64s:
    """For each rank the number of those that a permutation makes wait: all along the axes of its route."""
    found = np.zeros(mesh.size, dtype=np.int64)
    if route.axes:
        for number, ranks in enumerate(mesh.groups(route.axes)):
            found[ranks] = number
    return found


def _together(place: Int64s) -> _Link:
    number = np.unique(place, return_inverse=True)[1].reshape(-1)

    def signature(colours: Int64s) -> Int64s:
        # The sum of random numbers of colours tells sets apart, each colour counted.
        draw = np.random.default_rng(0).integers(1 << 62, size=int(colours.max()) + 1)
        sums = np.zeros(int(number.max()) + 1, dtype=np.int64)
        with np.errstate(over="ignore"):
            np.add.at(sums, number, draw[colours])
        return np.asarray(sums[number])

    return signature


def _at_end(ends: Int64s) -> _Link:
    return lambda colours: np.where(ends >= 0, colours[np.maximum(ends, 0)], -1)


@dataclass(frozen=True, eq=False)
class ClassTimes:
    """The prices of each rank class of a split workload.

    `of_chip` is what changes the models' prices on each of the other chips.
    """

    unlike: Unlike
    workload: Workload
    pricing: Pricing
    of_chip: tuple[Times, ...]

    def chip_of(self, number: int) -> int:
        """Which of the other chips a rank class has, -1 for the usual one."""
        return int(self.unlike.chip[self._rank(number)])

    def _rank(self, number: int) -> int:
        mask = self.workload.classes[number].mask(self.workload.mesh)
        return int(np.flatnonzero(mask)[0])

    def meetings(
        self, number: int, peers: dict[int, int], together: dict[int, tuple[int, ...]]
    ) -> tuple[dict[int, int], dict[int, tuple[int, ...]]]:
        """Whom a class receives from and meets, those that a permutation links with it too."""
        program = self.workload.programs[self.workload.classes[number].program]
        permutes = (program.kind == Kind.COLLECTIVE) & (program.collective == Collective.PERMUTE)
        owner, found = self.workload.class_of_ranks(), dict(together)
        for route in np.unique(program.route[permutes]).tolist():
            linked = _linked(program.routes[route], self.workload.mesh)
            met = np.unique(owner[linked == linked[self._rank(number)]]).tolist()
            if len(met) > 1:
                rows = np.flatnonzero(permutes & (program.route == route)).tolist()
                found |= dict.fromkeys(rows, tuple(met))
        return peers, found

    def changed(
        self, number: int, prices: RowPrices, together: Mapping[int, tuple[int, ...]]
    ) -> RowPrices:
        """The prices of a class with its kernels slower, and its links, and those of whom it meets."""
        program = self.workload.programs[self.workload.classes[number].program]
        rank, waits = self._rank(number), prices.waiting_ns
        factor = np.where(on_device(program), self.unlike.slow[rank], 1.0)
        for name, left in self.unlike.left.items():
            rows = np.flatnonzero(program.kind >= Kind.COLLECTIVE).tolist()
            tier = self.pricing.cluster.tier(name)
            mine = [r for r in rows if tier_of_row(program, r, self.pricing.placement) == tier]
            least = {r: self._least(program, r, rank, left, together.get(r)) for r in mine}
            for share in set(least.values()) - {1.0}:
                at = np.zeros(len(program), dtype=np.bool_)
                at[[r for r, found in least.items() if found == share]] = True
                scale = Scale(name, BANDWIDTH, share)
                part = share_of_quantity(program, at, scale, self.pricing)
                factor = np.where(at, factor * (1 - part + part / share), factor)
        ns = waits + (prices.ns - waits) * factor
        return replace(prices, ns=ns, wire_ns=prices.wire_ns * factor).on_grid()

    def _least(
        self, program: Program, row: int, rank: int, left: Float64s, met: Sequence[int] | None
    ) -> float:
        """The least bandwidth of all links that a row of communication needs."""
        if met is not None:
            return min(float(left[self._rank(c)]) for c in met)
        if program.kind[row] != Kind.SEND:
            return float(left[rank])
        target = int(program.routes[program.route[row]].targets(self.workload.mesh)[rank])
        return min(float(left[rank]), float(left[target]) if target >= 0 else 1.0)


def unlike_of(
    request: EstimateRequest, kernels: Workload, placement: NetworkPlacement
) -> Unlike | None:
    """What `--slow` and `--chip-map` say; None where no rank is changed.

    Raises FlintError FL940 (a value that cannot be read), FL941 (ranks that are not there), FL942 (a
    link that failed), FL943 (chips of another family), and those of clusters.
    """
    from flint.backends.cost.replay.times import same_chip

    size = kernels.mesh.size
    slow, left = np.ones(size), dict[str, Float64s]()
    chip, clusters, said = np.full(size, -1, dtype=np.int64), list[Cluster](), list[str]()
    for text in request.slow:
        where, _, value = (w.strip() for w in text.partition("="))
        tier, _, ranks = where.rpartition("@")
        mask = ranks_of("--slow", text, ranks, placement)
        count = f"{plural(int(mask.sum()), 'rank')} of {size}"
        if tier:
            share = _share(text, tier, value, placement.cluster)
            left.setdefault(tier, np.ones(size))[mask] *= share
            said.append(f"--slow {text}: {count} with {share:.3g} of their bandwidth on {tier}")
        else:
            factor = _factor(text, value)
            slow[mask] *= factor
            said.append(f"--slow {text}: kernels of {count} take {factor:g} times as long")
    for text in request.chip_map:
        where, _, name = (w.strip() for w in text.partition("="))
        mask = ranks_of("--chip-map", text, where, placement)
        clusters.append(_same_family(text, load_cluster(name), placement.cluster))
        usual = same_chip(clusters[-1].chip, placement.cluster.chip)
        chip[mask] = -1 if usual else len(clusters) - 1
        count = f"{plural(int(mask.sum()), 'rank')} of {size}"
        said.append(f"--chip-map {text}: kernels of {count} on {clusters[-1].chip.name}")
    if not said:
        return None
    return Unlike(slow, left, chip, tuple(clusters), tuple(said), kernels)


def ranks_of(option: str, text: str, where: str, placement: NetworkPlacement) -> Mask:
    """Ranks that `rank:17`, `rank:0-7`, `host:3`, an axis' `pipe:2` or `stage2` name.

    A host is a domain of the innermost tier. Raises FlintError FL940 and FL941.
    """
    mesh, found = placement.mesh, _WHERE.fullmatch(where)
    pipe = next((a for a in _PIPES if a in mesh.names), "")
    stage = _STAGE.fullmatch(where) if pipe else None
    known = ["rank", "host", *mesh.names]
    of = pipe if stage else found["of"].strip() if found else ""
    if of not in known:
        raise FlintError(
            "FL940",
            f"{option} {text}: '{where}' names no ranks{nearest(of, known)}",
            help=f"write one of {', '.join(f'{k}:N' for k in known)}, or N-M for several",
        )
    if of == "rank":
        number = np.arange(mesh.size)
    elif of == "host":
        number = placement.domains[0]
    else:
        number = np.unravel_index(np.arange(mesh.size), mesh.sizes)[mesh.names.index(of)]
    match = stage or found
    assert match is not None
    first = int(match["first"])
    last = int(match.groupdict().get("last") or first)
    if last < first or last > number.max():
        raise FlintError(
            "FL941",
            f"{option} {text}: {of} goes from 0 to {int(number.max())}",
            help="name one of them",
        )
    return np.asarray((number >= first) & (number <= last))


def _factor(text: str, value: str) -> float:
    number = number_in(value.removesuffix("x"))
    if not 1 / _MOST <= number <= _MOST:
        raise FlintError(
            "FL940",
            f"--slow {text} has no factor",
            help="write WHERE=FACTOR, as in rank:17=1.15: kernels take 15 % longer",
        )
    return number


def _share(text: str, tier: str, value: str, cluster: Cluster) -> float:
    tiers = [n.name for n in cluster.network]
    if tier not in tiers:
        raise FlintError(
            "FL940",
            f"--slow {text}: no tier is called '{tier}'{nearest(tier, tiers)}",
            help=f"tiers of {cluster.name} are {', '.join(tiers)}",
        )
    percent = number_in(value.removesuffix("%")) if value.endswith("%") else math.nan
    if percent == 0:
        raise FlintError(
            "FL942",
            f"--slow {text}: without a link these ranks reach nobody over {tier}, and the step never ends",
            help="of several links of a chip name what is left, as in 87.5% of eight",
        )
    if not 100 / _MOST <= percent <= 100:
        raise FlintError(
            "FL940",
            f"--slow {text} has no share of a bandwidth",
            help="write TIER@WHERE=PERCENT, as in ib@rank:17=50%: half of its bandwidth is left",
        )
    return percent / 100


def _same_family(text: str, other: Cluster, cluster: Cluster) -> Cluster:
    """`other`, whose chip runs the same kernels as that of `cluster`."""
    if type(other.chip.family) is not type(cluster.chip.family):
        raise FlintError(
            "FL943",
            f"--chip-map {text}: {other.chip.name} runs other kernels than {cluster.chip.name}",
            help="name a chip of the same family, or capture pools that run apart",
        )
    return other
