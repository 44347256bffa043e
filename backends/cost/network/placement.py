"""Where the ranks of a mesh are on a cluster: which tiers each mesh axis lies in."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from flint.backends.cost.collectives.algorithm import CollectiveCall
from flint.backends.cost.network.torus import (
    AxisPart,
    Line,
    Load,
    Span,
    assign,
    is_torus,
    joined,
    load_of,
    slice_shape,
    spread_parts,
    wraps,
)
from flint.cluster.models import Cluster, Network
from flint.errors import FlintError
from flint.ir.mesh import AxisRef, Group, Mesh, Route
from flint.ir.program import Collective, Program


class PlacementRow(NamedTuple):
    """One line of the printed table: an axis or a part of it, and the tier that it lies in."""

    axis: str
    size: str
    tier: str


class Written(Protocol):
    """Algorithms of collectives that somebody wrote, and sentences on what runs by them."""

    said: tuple[str, ...]

    def on(self, call: CollectiveCall, group: Group, placement: NetworkPlacement) -> CollectiveCall:
        """The call with the algorithm that there is for it, if there is one."""


@dataclass(frozen=True, eq=False)
class NetworkPlacement:
    """The tiers that the axes of `mesh` lie in on `cluster`, inner tier first.

    `mapping` gives the tier of some or all axes by name, as "model=nvlink" too. The other axes fill the domains of the
    tiers in mesh order, the last axis first: an axis lies in the inner tier while it fits into the
    domain beside the faster axes, an axis that does not fit is split, and all slower ones lie
    further out. Domains are used evenly: of an axis of 12, a domain of 8 holds 6. Raises
    FlintError FL703 for an unknown axis or tier, or what does not fit.

    `parts` are in mesh order, the fastest varying last. `shapes` holds, by tier, the sizes of the
    block of chips that is used of a torus, and nothing for other networks. `spread` has the parts of axes that
    no number divides well (see `spread_parts`), which groups over all of it span.
    """

    mesh: Mesh
    cluster: Cluster
    mapping: Mapping[str, str] | str | None = None
    written: Written | None = None
    parts: tuple[AxisPart, ...] = field(init=False)
    shapes: tuple[tuple[int, ...], ...] = field(init=False)
    spread: Mapping[str, tuple[AxisPart, AxisPart]] = field(init=False)

    def __post_init__(self) -> None:
        mapping: Mapping[str, str] = {}
        if self.mapping is not None:
            from flint.backends.cost.network.mapping import tiers_of_axes

            mapping = tiers_of_axes(self.mapping, self.mesh, self.cluster)
        parts = _placed(self.mesh, self.cluster, mapping)
        shapes, parts = _on_tori(self.cluster, parts)
        object.__setattr__(self, "parts", tuple(_strided(parts, shapes)))
        object.__setattr__(self, "shapes", shapes)
        object.__setattr__(self, "spread", spread_parts(self.parts, self.cluster, mapping))

    def spans(self, axes: Iterable[AxisRef]) -> tuple[Span, ...]:
        """The tiers that a group over `axes` crosses, inner first; sub-axes are fine."""
        canonical = self.mesh.canonical(axes)
        chosen = [
            p for ref in canonical for part in self._parts_of(ref) if (p := self._common(part, ref))
        ]
        if math.prod(p.size for p in chosen) != self.mesh.group_size(canonical):
            return self._most_spread(list(self.mesh.groups(canonical)))  # cuts across domains
        for name, parts in self.spread.items():
            if any(
                r.name == name and self.mesh.axis_size(r) == self.mesh.shape[name]
                for r in canonical
            ):
                chosen = [*parts, *(p for p in chosen if p.axis != name)]
        tiers = sorted({p.tier for p in chosen})
        return tuple(self._span(t, [p for p in chosen if p.tier == t]) for t in tiers)

    def spans_of_group(self, group: Group) -> tuple[Span, ...]:
        """The tiers that `group` crosses; of explicit groups, those of the most spread one.

        Groups over axes are alike. Listed ranks that are unevenly spread over domains count as
        evenly spread over more domains of fewer members.
        """
        if group not in self._known:
            self._known[group] = self._group_spans(group)
        return self._known[group]

    def spans_of_route(self, route: Route) -> tuple[Span, ...]:
        """The outermost tier that a message along `route` goes through; () if none is sent.

        On a torus `stride` is the largest number of hops, and `sharing` the messages on the fullest
        link when all of the route are sent at once, one dimension after the other (see `routing`).
        """
        if route not in self._known:
            self._known[route] = self._route_spans(route)
        return self._known[route]

    def table(self) -> list[PlacementRow]:
        """Axis, size and tier of each axis with more than one member, in mesh order."""
        rows = []
        for name in self.mesh.names:
            mine = [p for p in self.parts if p.axis == name and p.size > 1]
            if name in self.spread:
                outer, inner = (p.tier for p in self.spread[name])
                where = f"{self.cluster.network[inner].name}, {self.cluster.network[outer].name}"
                where += f" (in {self.spread[name][0].size} domains)"
                rows.append(PlacementRow(name, str(self.mesh.shape[name]), where))
                continue
            for tier in sorted({p.tier for p in mine}):
                parts = [p for p in mine if p.tier == tier]
                rows.append(self._row(name, tier, parts))
        return rows

    def _row(self, name: str, tier: int, parts: Sequence[AxisPart]) -> PlacementRow:
        size = math.prod(p.size for p in parts)
        (ref,) = self.mesh.canonical([AxisRef(name, parts[0].pre_size, size)])
        where = self.cluster.network[tier].name
        if self.shapes[tier]:
            lines = "x".join(str(p.size) for p in parts)
            where += f" ({lines} of {'x'.join(map(str, self.shapes[tier]))})"
        return PlacementRow(str(ref), str(size), where)

    def _group_spans(self, group: Group) -> tuple[Span, ...]:
        if not group.is_listed:
            return self.spans(group.axes)
        members = group.members(self.mesh)
        return self._most_spread(list(members if group.ranks else members[:1]))

    def _route_spans(self, route: Route) -> tuple[Span, ...]:
        targets = route.targets(self.mesh)
        source = np.flatnonzero((targets >= 0) & (targets != np.arange(self.mesh.size)))
        if not len(source):
            return ()
        target = targets[source]
        tier = int(self._tiers_between(source, target).max())
        if not is_torus(self.cluster.network[tier]):
            return (Span(tier, 2),)
        load = self._load(tier, source, target)
        return (Span(tier, 2, load.hops, load.messages, (2,), (load.hops,), (False,)),)

    def _parts_of(self, ref: AxisRef) -> list[AxisPart]:
        return [p for p in self.parts if p.axis == ref.name]

    def _common(self, part: AxisPart, ref: AxisRef) -> AxisPart | None:
        part_end, ref_end = part.pre_size * part.size, ref.pre_size * self.mesh.axis_size(ref)
        first, end = max(part.pre_size, ref.pre_size), min(part_end, ref_end)
        aligned = not (first % part.pre_size or first % ref.pre_size or part_end % end)
        if first >= end or end % first or not aligned:
            return None
        slower = part_end // end
        line = part.line and Line(part.line.dimension, end // first, part.line.stride * slower)
        return AxisPart(part.axis, first, end // first, part.tier, part.stride * slower, line)

    def _span(self, tier: int, parts: Sequence[AxisPart]) -> Span:
        size = math.prod(p.size for p in parts)
        stride = min(p.stride for p in parts)
        lines = joined([p.line for p in parts if p.line is not None])
        if not lines:
            return Span(tier, size, stride)
        return Span(
            tier,
            size,
            stride,
            1,
            tuple(line.size for line in lines),
            tuple(line.stride for line in lines),
            tuple(self._is_ring(tier, line) for line in lines),
        )

    def _is_ring(self, tier: int, line: Line) -> bool:
        """Whether the ends of `line` are joined: it goes once around a dimension that is a ring."""
        shape, d = self.shapes[tier], line.dimension
        return line.size * line.stride == shape[d] and self._wraps(tier, d)

    def _wraps(self, tier: int, dimension: int) -> bool:
        network, members = self.cluster.network[tier], self.cluster.members[tier]
        return wraps(network, members, self.shapes[tier], dimension)

    @cached_property
    def _known(self) -> dict[Group | Route, tuple[Span, ...]]:
        """Answers given before: programs ask about the same groups over and over."""
        return {}

    @cached_property
    def _digits(self) -> list[NDArray[np.int64]]:
        """For each part, the position of every rank in it."""
        ranks = np.arange(self.mesh.size, dtype=np.int64)
        coordinates = dict(
            zip(self.mesh.names, np.unravel_index(ranks, self.mesh.sizes), strict=True)
        )
        found = []
        for p in self.parts:
            faster = self.mesh.shape[p.axis] // (p.pre_size * p.size)
            found.append(np.asarray(coordinates[p.axis] // faster % p.size, dtype=np.int64))
        return found

    @cached_property
    def domains(self) -> list[NDArray[np.int64]]:
        """By tier: which domain of the tier every rank is in."""
        found = []
        for tier in range(len(self.cluster.network)):
            domain = np.zeros(self.mesh.size, dtype=np.int64)
            for part, digit in zip(self.parts, self._digits, strict=True):
                if part.tier > tier:
                    domain = domain * part.size + digit
            found.append(domain)
        return found

    def _tiers_between(self, a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.int64]:
        """For pairs of ranks, the innermost tier whose domain holds both."""
        tiers = np.zeros(len(a), dtype=np.int64)
        for domains in self.domains:
            tiers += domains[a] != domains[b]
        return tiers

    def _spans_of_ranks(self, ranks: NDArray[np.int64]) -> tuple[Span, ...]:
        """Spans of any set of ranks, by how many of them each domain holds."""
        spans, inside = [], 1
        for tier, domains in enumerate(self.domains):
            counts = np.unique(domains[ranks], return_counts=True)[1]
            even = int(np.gcd.reduce(counts))
            if even > inside:
                size = even // inside
                line = ((size,), (1,), (False,)) if is_torus(self.cluster.network[tier]) else ()
                spans.append(Span(tier, size, 1, 1, *line))
                inside = even
        return tuple(spans)

    def _most_spread(self, groups: Sequence[NDArray[np.int64]]) -> tuple[Span, ...]:
        """Of several sets of ranks, the spans of the one with most members furthest out."""
        kinds: list[NDArray[np.int64]] = []  # one of each way to be spread
        for size in {len(g) for g in groups}:
            table = np.stack([g for g in groups if len(g) == size])
            alone = np.zeros((len(table), 1), dtype=np.bool_)  # groups of one have no borders
            ordered = [np.sort(d[table], axis=1) for d in self.domains]
            borders = np.concatenate([alone, *(np.diff(d, axis=1) != 0 for d in ordered)], axis=1)
            _, first = np.unique(np.packbits(borders, axis=1), axis=0, return_index=True)
            kinds += [table[i] for i in first]
        found = [self._spans_of_ranks(ranks) for ranks in kinds]
        return max(found, key=lambda spans: [(s.tier, s.size) for s in reversed(spans)])

    def on_torus(self, tier: int) -> NDArray[np.int64]:
        """For each rank its place in each dimension of the torus of a tier."""
        place = np.zeros((self.mesh.size, len(self.shapes[tier])), dtype=np.int64)
        for part, digit in zip(self.parts, self._digits, strict=True):
            if part.tier == tier and part.line:
                place[:, part.line.dimension] += digit * part.line.stride
        return place

    def _load(self, tier: int, a: NDArray[np.int64], b: NDArray[np.int64]) -> Load:
        """What messages from ranks `a` to ranks `b` ask of the links of a torus, all at once."""
        shape = self.shapes[tier]
        place = self.on_torus(tier)
        torus = np.zeros(self.mesh.size, dtype=np.int64)
        for part, digit in zip(self.parts, self._digits, strict=True):
            if part.tier != tier:  # chips inside a member have links of their own
                torus = torus * part.size + digit
        inside = self._tiers_between(a, b) == tier
        a, b = a[inside], b[inside]
        rings = [self._wraps(tier, dimension) for dimension in range(len(shape))]
        return load_of(place[a], place[b], shape, rings, torus[a])


def _placed(mesh: Mesh, cluster: Cluster, mapping: Mapping[str, str]) -> list[AxisPart]:
    room = [_Room(n, limit) for n, limit in zip(cluster.network, cluster.members, strict=True)]
    mapped: dict[str, list[AxisPart]] = {}
    for name, tier_name in mapping.items():
        tier = cluster.tier(tier_name)
        room[tier].take(mesh.shape[name], name)
        mapped[name] = [AxisPart(name, 1, mesh.shape[name], tier)]
    first = 0
    for name in reversed(mesh.names):
        if name not in mapped:
            mapped[name], first = _fill(name, mesh.shape[name], room, first)
    return [part for name in mesh.names for part in mapped[name]]


@dataclass
class _Room:
    """What is left of the domains of a tier; `limit` of 0 is no limit."""

    network: Network
    limit: int
    used: int = 1

    def holds(self, size: int) -> bool:
        """Whether `size` times as many fit."""
        wanted = self.used * size
        if is_torus(self.network) and slice_shape(self.network, self.limit, wanted) is None:
            return False
        return not self.limit or wanted <= self.limit

    def _limits(self, size: int) -> str:
        """What does not hold `size` times as many."""
        if not self.limit or self.used * size <= self.limit:
            shape = "x".join(map(str, self.network.torus_shape))
            return f"{shape}, which has no block of {self.used * size}"
        return str(self.limit)

    def take(self, size: int, axis: str) -> None:
        """Use `size` times as many. Raises FlintError FL703 if they do not fit."""
        if not self.holds(size):
            beside = f" beside {self.used} of other axes" if self.used > 1 else ""
            raise FlintError(
                "FL703",
                f"axis '{axis}' ({size}) does not fit into tier '{self.network.name}' of "
                f"{self._limits(size)}{beside}",
                help="map it to an outer tier, or leave it unmapped to have it split",
            )
        self.used *= size


def _fill(name: str, size: int, room: list[_Room], first: int) -> tuple[list[AxisPart], int]:
    """Parts of an axis from tier `first` outwards, and the tier where the next axis goes on."""
    parts: list[AxisPart] = []
    left, tier = size, first
    while left > 1:
        if tier == len(room):
            outer = room[-1]
            taken = f", of which other axes take {outer.used}" if outer.used > 1 else ""
            raise FlintError(
                "FL703",
                f"axis '{name}' ({size}) does not fit on the cluster: tier "
                f"'{outer.network.name}' holds {outer.limit}{taken}",
                help="use a smaller mesh, or a cluster whose outer tier has no limit (size = 0)",
            )
        part = next(d for d in _divisors(left) if room[tier].holds(d))
        if part > 1:
            room[tier].take(part, name)
            left //= part
            parts.insert(0, AxisPart(name, left, part, tier))
        tier += left > 1
    return parts, tier


def _divisors(size: int) -> list[int]:
    return [d for d in range(size, 0, -1) if size % d == 0]


def _on_tori(
    cluster: Cluster, parts: Sequence[AxisPart]
) -> tuple[tuple[tuple[int, ...], ...], list[AxisPart]]:
    """By tier the block of chips that is used of a torus; and parts with their lines in it."""
    shapes: list[tuple[int, ...]] = []
    split = {part: [part] for part in parts}
    for tier, network in enumerate(cluster.network):
        mine = [p for p in reversed(parts) if p.tier == tier]
        chips, members = math.prod(p.size for p in mine), cluster.members[tier]
        shape = slice_shape(network, members, chips) if is_torus(network) else None
        shapes.append(shape or ())
        if shape:
            for part, lines in zip(mine, assign(shape, [p.size for p in mine]), strict=True):
                split[part] = _along(part, lines)
    return tuple(shapes), [p for part in parts for p in split[part]]


def _along(part: AxisPart, lines: Iterable[Line]) -> list[AxisPart]:
    """A part of an axis as one part for each line that it occupies, major first."""
    found, pre_size = [], part.pre_size
    for line in lines:
        found.append(replace(part, pre_size=pre_size, size=line.size, line=line))
        pre_size *= line.size
    return found or [part]


def _strided(parts: Sequence[AxisPart], shapes: Sequence[tuple[int, ...]]) -> list[AxisPart]:
    done = [1] * len(shapes)
    found: list[AxisPart] = []
    for part in reversed(parts):
        stride = done[part.tier]
        if part.line is not None:
            stride = part.line.stride * math.prod(shapes[part.tier][: part.line.dimension])
        found.append(replace(part, stride=stride))
        done[part.tier] *= part.size
    return found[::-1]


def call_of(program: Program, row: int, placement: NetworkPlacement) -> CollectiveCall:
    """What a communication row asks of the network.

    Members of an all-gather that spans leave out of an axis that is spread unevenly put their bytes to those of the others.
    """
    collective = Collective(int(program.collective[row]))
    spans = spans_of_row(program, row, placement)
    call = CollectiveCall(collective, int(program.comm_bytes[row]), spans)
    group = int(program.group[row])
    if placement.written is not None and group >= 0:
        call = placement.written.on(call, program.groups[group], placement)
    if collective is Collective.ALL_GATHER and placement.spread and group >= 0 and not call.written:
        size = program.groups[group].size(program.mesh)
        return replace(call, comm_bytes=call.comm_bytes * size // call.size)
    return call


def spans_of_row(program: Program, row: int, placement: NetworkPlacement) -> tuple[Span, ...]:
    """The tiers that a communication row crosses."""
    group, route = int(program.group[row]), int(program.route[row])
    if group >= 0:
        return placement.spans_of_group(program.groups[group])
    return placement.spans_of_route(program.routes[route])


def tier_of_row(program: Program, row: int, placement: NetworkPlacement) -> int:
    """The outermost tier that a communication row crosses; 0 for one that crosses none."""
    return max((s.tier for s in spans_of_row(program, row, placement)), default=0)
