"""The tiers of a graph: which accelerators its links connect, step by step, and how fast.

Links are taken class by class: those of one name, as far from hosts. First those of the accelerators' own, then
what leaves hosts by their adapters; of those that reach an accelerator the fastest, then the one that joins
fewest. A class that joins domains is a tier. One that joins none, but leads on, may be narrower than the next.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import networkx

from flint.cluster.models import NetworkKind
from flint.tools.interop.infragraph.document import Document

#: Components that links of accelerators reach which are not the host's.
_OWN_PARTS = ("xpu", "switch", "port")
#: A kind that a tier may be of, with the shape of a torus.
Form = tuple[NetworkKind, tuple[int, ...]]
_SWITCH: Form = (NetworkKind.SWITCH, ())
#: Whether links pass adapters; how far from a host they are, -1 to its own parts; their name.
_Class = tuple[bool, int, str]


class Tier(NamedTuple):
    """What a graph says of one tier; None where it says nothing."""

    name: str
    forms: tuple[Form, ...]
    size: int
    bandwidth: float | None  #: of one accelerator, over all its links
    oversubscription: float
    latency: float | None
    is_inside: bool  #: hosts, or of the accelerators' own


class _Link(NamedTuple):
    """An edge between two places: accelerators, their switches, hosts, devices beyond them."""

    ends: tuple[str, str]
    nodes: tuple[str, str]
    bandwidth: float | None


def tiers_of(document: Document) -> list[Tier]:
    """The tiers of a graph, the innermost first.

    Raises FlintError FL513 for no accelerators, or one that no link reaches, FL514 for domains that differ,
    FL517 for links of accelerators that form no network which Flint knows.
    """
    return _Reader(document).tiers()


class _Reader:
    def __init__(self, document: Document) -> None:
        self.document, self.graph = document, document.graph
        self.chips = [node for node, kind in self.graph.nodes(data="type") if kind == "xpu"]
        if len(self.chips) < 2:
            self._unreached(f"accelerators (components with choice: xpu): {len(self.chips)}")
        ranks = [self.graph.nodes[c].get("rank") for c in self.chips]
        self.is_ranked = set(ranks) != {None}
        if self.is_ranked:
            if set(ranks) != set(map(str, range(len(ranks)))):
                said = f"annotations 'rank' of accelerators are not 0 to {len(ranks) - 1}"
                document.refuse("FL514", said, "number all of them, or none", "rank")
            self.chips.sort(key=lambda chip: int(self.graph.nodes[chip]["rank"]))
        self.hosts = {self.graph.nodes[c]["inside"] for c in self.chips}
        self.domain: dict[str, str] = {}
        self.is_chip = frozenset(self.chips)

    def tiers(self) -> list[Tier]:
        found: list[Tier] = []
        for outside in (False, True):
            self.speed: float | None = None  # of one accelerator into this network
            self.least: float | None = None  # what is left of it further out
            self.ways = networkx.Graph(
                pair for pair in self.graph.edges if len({self._places[n] for n in pair}) == 1
            )
            left = {key: links for key, links in self._classes.items() if key[0] == outside}
            while len(self._domains) > 1 and (chosen := self._next(left)):
                if tier := self._step(chosen, left.pop(chosen), left):
                    same = sum(t.name.partition("#")[0] == tier.name for t in found)
                    found.append(tier._replace(name=f"{tier.name}#{same + 1}") if same else tier)
        if len(domains := self._domains) > 1:
            fewest = domains.most_common()[-1][0]
            alone = next(c for c in self.chips if self._root(c) == fewest)
            self._unreached(f"no link leads from accelerator '{alone}' to all others")
        return found

    def _unreached(self, said: str) -> None:
        self.document.refuse("FL513", said, "give two or more of them, with edges that connect all")

    # Places, and the links between them.

    def _host(self, node: str) -> str:
        """The host that a component is in; the device itself where no accelerator is."""
        own: str = self.graph.nodes[node]["inside"]
        outer = own
        while outer and outer not in self.hosts:
            outer = outer.rpartition(".")[0]
        return outer or own

    @cached_property
    def _own(self) -> set[str]:
        """Names of links inside hosts that end at accelerators and their switches only: the others are its bus."""
        kinds = self.graph.nodes(data="type")
        ends: dict[str, set[str]] = defaultdict(set)
        for a, b, name in self.graph.edges(data="link"):
            if self._host(a) == self._host(b) in self.hosts:
                ends[name] |= {kinds[a], kinds[b]}
        return {name for name, there in ends.items() if there <= set(_OWN_PARTS)}

    @cached_property
    def _places(self) -> dict[str, str]:
        places = {n: n if n in self.is_chip else self._host(n) for n in self.graph}
        for a, b, name in self.graph.edges(data="link"):
            if self._host(a) == self._host(b) in self.hosts and name in self._own:
                places.update({a: a, b: b})
        return places

    @cached_property
    def _classes(self) -> dict[_Class, list[_Link]]:
        """Links between places by class."""
        found: dict[_Class, list[_Link]] = defaultdict(list)
        ways = networkx.Graph((self._places[a], self._places[b]) for a, b in self.graph.edges)
        near = {self._places[n] for n in self.graph if self._host(n) in self.hosts} & set(ways)
        away = networkx.multi_source_dijkstra_path_length(ways, near, weight=None) if near else {}
        bus = ""
        for a, b, data in self.graph.edges(data=True):
            ends, name = (self._places[a], self._places[b]), data["link"]
            inside = self._host(a) == self._host(b)
            if inside and name not in self._own:
                name = bus = bus or name  # one for all, and only of accelerators
            if ends[0] != ends[1] and (
                name != bus or not inside or self.is_chip.intersection(ends)
            ):
                direct = self._own if inside else self._direct
                key = (name not in direct, -1 if inside else max(away[e] for e in ends), name)
                found[key].append(_Link(ends, (a, b), data["bandwidth"]))
        return found

    @cached_property
    def _direct(self) -> set[str]:
        """Names of links between devices that end at accelerators, or at their own switches and ports."""
        return {
            name
            for a, b, name in self.graph.edges(data="link")
            if self._host(a) != self._host(b) and {a, b} & {self._places[a], self._places[b]}
        }

    # Domains, class by class.

    def _root(self, place: str) -> str:
        while (above := self.domain.get(place, place)) != place:
            self.domain[place] = self.domain.get(above, above)
            place = above
        return place

    @property
    def _domains(self) -> Counter[str]:
        """How many accelerators each domain has."""
        return Counter(map(self._root, self.chips))

    def _join(self, links: list[_Link]) -> None:
        for link in links:
            a, b = map(self._root, link.ends)
            self.domain[a] = b

    def _next(self, left: Mapping[_Class, list[_Link]]) -> _Class | None:
        """Of the classes that reach an accelerator's domain the fastest; of equals, the one that joins fewest."""
        here, found = self._domains, []
        for key, links in left.items():
            if any(self._root(end) in here for link in links for end in link.ends):
                before, speed = dict(self.domain), self._cut(links) or 0.0
                self._join(links)
                found.append((-speed, max(self._domains.values()), key))
                self.domain = before
        return min(found)[-1] if found else None

    def _step(
        self, key: _Class, links: list[_Link], left: Mapping[_Class, list[_Link]]
    ) -> Tier | None:
        """Join domains by a class of links; the tier that it is, if it joins accelerators."""
        before, here = {chip: self._root(chip) for chip in self.chips}, self._domains
        pairs = [tuple(map(self._root, link.ends)) for link in links]
        beyond = {end for pair in pairs for end in pair} - set(here)
        onward = {self._root(end) for others in left.values() for x in others for end in x.ends}
        cut = self._cut(links)
        self._join(links)
        if len(self._domains) == len(here) and not beyond & onward:
            return None  # leads nowhere
        if not key[0] and any(end in before for link in links for end in link.ends):
            self.speed = self.least = None  # another network of the accelerators' own
        self.ways.add_edges_from(link.nodes for link in links)
        if len(self._domains) == len(here):
            self.least = _least(self.least, cut)
            return None
        self._require_alike(key[2])
        forms = (_SWITCH,) if beyond else self._forms(list(dict.fromkeys(before.values())), pairs)
        if not forms:
            forms, cut = (_SWITCH,), self._through_others(key, links, pairs, cut)
        self.least = _least(self.least, cut)
        self.speed = self.speed or self.least
        is_switch = forms[0] == _SWITCH
        thinner = self.speed / self.least if is_switch and self.speed and self.least else 1.0
        speed = self.speed if is_switch else self.least
        return Tier(
            name=key[2],
            forms=forms,
            size=max(self._domains.values()),
            bandwidth=None if cut is None else speed,
            oversubscription=max(1.0, thinner),
            latency=self._latency(before),
            is_inside=not key[0] or key[1] < 0,
        )

    def _require_alike(self, name: str) -> None:
        """Domains have as many accelerators, and ranks that are written lie in one after the other."""
        wrong, domains = "", self._domains
        if len(sizes := sorted(set(domains.values()))) > 1:
            wrong = f"'{name}' connects {' or '.join(map(str, sizes))} accelerators"
        elif self.is_ranked:
            turns = sum(self._root(a) != self._root(b) for a, b in pairwise(self.chips))
            if turns >= len(domains):
                wrong = f"ranks of one domain of '{name}' do not follow each other"
        if wrong:
            help_ = "all domains of a tier have as many accelerators, numbered one after the other"
            self.document.refuse("FL514", wrong, help_, name)

    # How fast.

    def _cut(self, links: list[_Link]) -> float | None:
        """What one accelerator sends out of its domain over some links, where that is least."""
        sums: dict[str, float] = defaultdict(float)
        for link in links:
            ends = set(map(self._root, link.ends))
            for end in ends if len(ends) > 1 else ():
                if link.bandwidth is None:
                    return None
                sums[end] += link.bandwidth
        return min(
            (sums[d] / chips for d, chips in self._domains.items() if d in sums), default=None
        )

    def _through_others(
        self, key: _Class, links: list[_Link], pairs: list[tuple[str, ...]], cut: float | None
    ) -> float | None:
        """What one accelerator sends where messages pass other domains: all links, by the mean of hops."""
        if not key[0]:
            said = f"'{key[2]}' makes no ring, no torus, and does not connect each with each"
            self.document.refuse("FL517", said, "connect accelerators so, or by switches", key[2])
        if cut is None:
            return None
        domain = self._root(pairs[0][0])
        inside = [(x, p) for x, p in zip(links, pairs, strict=True) if self._root(p[0]) == domain]
        hops = networkx.average_shortest_path_length(
            networkx.Graph(p for _, p in inside if p[0] != p[1])
        )
        moved = 2 * sum(x.bandwidth or 0.0 for x, _ in inside) / self._domains[domain]
        return float(min(cut, moved / hops))

    def _latency(self, before: Mapping[str, str]) -> float | None:
        """Of the links between two accelerators that only this tier connects; None if none says it."""
        one, *others = self.chips
        other = next(
            c for c in others if before[c] != before[one] and self._root(c) == self._root(one)
        )
        path = networkx.shortest_path(self.ways, one, other)
        said = [self.graph.edges[pair]["latency"] for pair in pairwise(path)]
        return sum(x for x in said if x is not None) if set(said) - {None} else None

    # Of which kind.

    def _forms(self, members: list[str], pairs: list[tuple[str, ...]]) -> tuple[Form, ...]:
        """The kinds that links between domains may be of, the same in every domain that they make."""
        beside: dict[str, set[str]] = defaultdict(set)
        for a, b in [*pairs, *(pair[::-1] for pair in pairs)]:
            beside[a] |= {b} - {a}
        parts: dict[str, list[str]] = defaultdict(list)
        for member in members:
            parts[self._root(member)].append(member)
        found: list[tuple[Form, ...]] = []
        for part in parts.values():
            at = {member: i for i, member in enumerate(part)}
            found.append(tuple(_forms_of([{at[n] for n in beside[member]} for member in part])))
        return tuple(form for form in found[0] if all(form in others for others in found))


def _least(*speeds: float | None) -> float | None:
    return min((s for s in speeds if s is not None), default=None)


def _forms_of(beside: list[set[int]]) -> Iterator[Form]:
    """Kinds of a network in which each member has these neighbors."""
    count = len(beside)
    if all(len(others) == count - 1 for others in beside):
        yield NetworkKind.MESH, ()
    if count > 2 and all(len(others) == 2 for others in beside):
        yield NetworkKind.RING, ()
    for shape in _shapes(count, 3):
        if all(_on_torus(i, shape) == others for i, others in enumerate(beside)):
            yield NetworkKind.TORUS, shape


def _shapes(count: int, most: int) -> Iterator[tuple[int, ...]]:
    """Sizes, at most that many and none of them 1, whose product is `count`."""
    yield (count,)
    for size in range(2, count // 2 + 1 if most > 1 else 0):
        if count % size == 0:
            yield from ((size, *rest) for rest in _shapes(count // size, most - 1))


def _on_torus(at: int, shape: tuple[int, ...]) -> set[int]:
    """The neighbors of a member of a torus, whose last dimension is the fastest."""
    found, stride = set(), 1
    for size in reversed(shape):
        here = at // stride % size
        found |= {at + ((here + by) % size - here) * stride for by in (1, -1)}
        stride *= size
    return found - {at}
