"""The tiers of a graph: which accelerators its links connect, step by step, and how fast.

Links are taken class by class (those of one name between the same kinds of places): first those of the
accelerators' own, then the buses of hosts, then what lies beyond hosts. The next class is the one that makes
the smallest domains, the fastest of several. A class that joins domains is a tier; others widen the way.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import networkx

from flint.cluster.models import NetworkKind
from flint.tools.interop.infragraph.document import Document

#: Components that links of accelerators reach which are not the host's.
_OWN_PARTS = ("xpu", "switch", "port")
#: A kind that a tier may be of, with the shape of a torus.
Form = tuple[NetworkKind, tuple[int, ...]]


class Tier(NamedTuple):
    """What a graph says of one tier; None where it says nothing."""

    name: str
    forms: tuple[Form, ...]
    size: int
    bandwidth: float | None
    oversubscription: float
    latency: float | None
    links: int
    is_inside: bool
    """Whether they do not pass the adapters of hosts."""


class _Link(NamedTuple):
    """An edge between two places: accelerators, their switches, hosts, devices beyond them."""

    ends: tuple[str, str]
    nodes: tuple[str, str]
    bandwidth: float | None


#: Accelerators' own links, buses, what lies beyond hosts; how many links away; the name of the links.
_Class = tuple[int, int, str]


def tiers_of(document: Document) -> list[Tier]:
    """The tiers of a graph, the innermost first.

    Raises FlintError FL513 for no accelerators, or one that no link reaches, FL514 for domains that differ,
    FL517 for links of accelerators that form no network which Flint knows.
    """
    return _Reader(document).tiers()


class _Reader:
    def __init__(self, document: Document) -> None:
        self.document, self.graph = document, document.graph
        of_kind = self.graph.nodes(data="type")
        self.chips = [node for node, kind in of_kind if kind == "xpu"]
        ranks = [self.graph.nodes[c].get("rank") for c in self.chips]
        self.is_ranked = bool(ranks) and None not in ranks
        if self.is_ranked:
            self.chips = [c for _, c in sorted(zip(map(int, ranks), self.chips, strict=True))]
        if len(self.chips) < 2:
            self._unreached(f"the graph has {len(self.chips) or 'no'} accelerator(s) (choice: xpu)")
        self.hosts = {self.graph.nodes[c]["inside"] for c in self.chips}
        self.domain: dict[str, str] = {}
        self.settled: dict[str, str] = {}  # domains before the links that joined none
        self.pending: list[_Link] = []
        self.used: set[_Class] = set()
        self.is_first = True  # tier of a phase
        self.speed: float | None = None  # of one accelerator into the network that is looked at
        self.least: float | None = None  # what switches leave of it

    def tiers(self) -> list[Tier]:
        found: list[Tier] = []
        for phase in range(3):
            self.used, self.pending, self.is_first = set(), [], True
            self.settled = dict(self.domain)
            left = {key: links for key, links in self.classes.items() if key[0] == phase}
            while left and (chosen := self._next(left)):
                if tier := self._step(chosen, left.pop(chosen)):
                    same = sum(t.name.partition("#")[0] == tier.name for t in found)
                    found.append(tier._replace(name=f"{tier.name}#{same + 1}") if same else tier)
        if len(by_domain := Counter(map(self._root, self.chips))) > 1:
            alone = next(c for c in self.chips if self._root(c) == by_domain.most_common()[-1][0])
            self._unreached(f"no link leads from accelerator '{alone}' to '{self.chips[0]}'")
        return found

    def _unreached(self, said: str) -> None:
        self.document.refuse("FL513", said, "add components with choice: xpu, and edges to them")

    # Places, and the links between them.

    def _host(self, node: str) -> str:
        """The host that a component is in; the device itself where no accelerator is."""
        own: str = self.graph.nodes[node]["inside"]
        outer = own
        while outer and outer not in self.hosts:
            outer = outer.rpartition(".")[0]
        return outer or own

    @cached_property
    def _buses(self) -> set[str]:
        """Names of links inside hosts that reach what is not the accelerators' own."""
        kinds = self.graph.nodes(data="type")
        inside = (
            (a, b, n) for a, b, n in self.graph.edges(data="link") if self._host(a) == self._host(b)
        )
        return {
            name
            for a, b, name in inside
            if {kinds[a], kinds[b]}.difference(_OWN_PARTS) and self._host(a) in self.hosts
        }

    @cached_property
    def _places(self) -> dict[str, str]:
        places = {node: self._host(node) for node in self.graph}
        places.update({chip: chip for chip in self.chips})
        for a, b, name in self.graph.edges(data="link"):
            if self._host(a) == self._host(b) in self.hosts and name not in self._buses:
                places.update({a: a, b: b})
        return places

    @cached_property
    def classes(self) -> dict[_Class, list[_Link]]:
        """Links between places by class."""
        found: dict[_Class, list[_Link]] = defaultdict(list)
        own = {n for n, place in self._places.items() if n == place}
        direct = {
            name
            for a, b, name in self.graph.edges(data="link")
            if own & {a, b} and not (self._host(a) == self._host(b) and name in self._buses)
        }
        away = self._away
        for a, b, data in self.graph.edges(data=True):
            ends, name = (self._places[a], self._places[b]), data["link"]
            if ends[0] == ends[1]:
                continue
            is_bus = self._host(a) == self._host(b) and name in self._buses
            distance = max(away.get(end, 0) for end in ends)
            key = (1 if is_bus else 0 if name in direct else 2, distance, name)
            found[key].append(_Link(ends, (a, b), data["bandwidth"]))
        return found

    @property
    def _away(self) -> dict[str, int]:
        """How many links every place is from the nearest host."""
        ways = networkx.Graph((self._places[a], self._places[b]) for a, b in self.graph.edges)
        ways.add_nodes_from(self.hosts)
        own = {*self.hosts, *(p for n, p in self._places.items() if self._host(n) in self.hosts)}
        return dict(networkx.multi_source_dijkstra_path_length(ways, own, weight=None))

    # Domains, class by class.

    def _root(self, place: str) -> str:
        while (above := self.domain.get(place, place)) != place:
            self.domain[place] = self.domain.get(above, above)
            place = above
        return place

    def _joined(self, links: list[_Link]) -> None:
        for link in links:
            a, b = map(self._root, link.ends)
            self.domain[a] = b

    def _next(self, left: Mapping[_Class, list[_Link]]) -> _Class | None:
        """The class that joins the fewest accelerators of those that reach any; the fastest of equals."""
        here = Counter(map(self._root, self.chips))
        best: tuple[Any, ...] = ()
        for key, links in left.items():
            if any(self._root(end) in here for link in links for end in link.ends):
                before = dict(self.domain)
                speed = self._least_out(links, here) or 0.0
                self._joined(links)
                size = max(Counter(map(self._root, self.chips)).values())
                self.domain = before
                best = min(filter(None, (best, (size, -speed, key))))
        return best[-1] if best else None

    def _step(self, key: _Class, links: list[_Link]) -> Tier | None:
        """Join domains by a class of links; the tier that it is, if it joins accelerators."""
        before = {chip: self._root(chip) for chip in self.chips}
        here = Counter(before.values())
        pairs = [tuple(map(self._root, link.ends)) for link in links]
        cut = self._flow([*self.pending, *links]) if self.pending else self._least_out(links, here)
        is_beyond = not {end for pair in pairs for end in pair} <= set(here)
        touches = any(end in before for link in links for end in link.ends)
        self.pending += links
        self.used.add(key)
        self._joined(links)
        after = Counter(map(self._root, self.chips))
        if len(after) == len(here):
            return None
        self._require_alike(key[2], after)
        forms: tuple[Form, ...] = ((NetworkKind.SWITCH, ()),)
        if not is_beyond:
            forms = self._forms(list(dict.fromkeys(before.values())), pairs)
        if not forms:
            forms = ((NetworkKind.SWITCH, ()),)
            cut = self._through_others(key, links, pairs, cut)
        found = self._tier(key, forms, cut, is_fresh=self.is_first or touches, before=before)
        self.pending, self.settled, self.is_first = [], dict(self.domain), False
        degree = Counter(end for pair in set(pairs) for end in pair)
        return found._replace(links=1 if is_beyond else max(degree.values()))

    def _tier(
        self,
        key: _Class,
        forms: tuple[Form, ...],
        cut: float | None,
        *,
        is_fresh: bool,
        before: Mapping[str, str],
    ) -> Tier:
        self.least = _least(cut, None if is_fresh else self.least)
        if is_fresh:
            self.least = self.speed = _least(self.least, self._bus if key[0] == 2 else None)
        is_switch = forms[0][0] is NetworkKind.SWITCH
        thinner = self.speed / self.least if self.speed and self.least else 1.0
        return Tier(
            name=key[2],
            forms=forms,
            size=max(Counter(map(self._root, self.chips)).values()),
            bandwidth=self.speed if is_switch else self.least,
            oversubscription=max(1.0, thinner) if is_switch else 1.0,
            latency=self._latency(key[0], before),
            links=1,
            is_inside=key[0] < 2,
        )

    def _require_alike(self, name: str, after: Counter[str]) -> None:
        """Domains have the same number of accelerators, and ranks that are written lie in one after the other."""
        if len(sizes := set(after.values())) > 1:
            said = " and ".join(map(str, sorted(sizes)))
            self.document.refuse(
                "FL514",
                f"links '{name}' connect domains of {said} accelerators",
                "every domain of a tier has as many: leave out what is not in use, or add its links",
                name,
            )
        turns = sum(self._root(a) != self._root(b) for a, b in pairwise(self.chips))
        if self.is_ranked and turns >= len(after):
            self.document.refuse(
                "FL514",
                f"ranks that follow each other lie in different domains of '{name}'",
                "number the ranks of a domain one after the other (annotation 'rank')",
                name,
            )

    # How fast.

    def _least_out(self, links: list[_Link], here: Mapping[str, int]) -> float | None:
        """What one accelerator sends out of its domain over some links, where that is least."""
        sums: dict[str, float] = defaultdict(float)
        for link in links:
            a, b = map(self._root, link.ends)
            if a != b:
                if link.bandwidth is None:
                    return None
                sums[a] += link.bandwidth
                sums[b] += link.bandwidth
        return min((sums[d] / here[d] for d in here if d in sums), default=None)

    def _flow(self, links: list[_Link]) -> float | None:
        """What one accelerator sends to other domains through devices that join none of them alone."""
        joined, self.domain = self.domain, dict(self.settled)
        here = Counter(map(self._root, self.chips))
        source = self._root(self.chips[0])
        ways = networkx.DiGraph()
        for link in links:
            a, b = (
                "others" if r in here and r != source else r for r in map(self._root, link.ends)
            )
            if link.bandwidth is None:
                ways.clear()
                break
            for way in ((a, b), (b, a)):
                before = ways.edges[way]["capacity"] if ways.has_edge(*way) else 0.0
                ways.add_edge(*way, capacity=before + link.bandwidth)
        self.domain = joined
        if "others" not in ways or source not in ways:
            return None
        return float(networkx.maximum_flow_value(ways, source, "others")) / here[source]

    def _through_others(
        self, key: _Class, links: list[_Link], pairs: list[tuple[str, ...]], cut: float | None
    ) -> float | None:
        """What one accelerator sends where messages pass other domains: all links, by the mean of hops."""
        if key[0] == 0:
            self.document.refuse(
                "FL517",
                f"links '{key[2]}' between accelerators are no ring, no torus, and do not connect each with each",
                "give them a switch, or the links of one of these",
                key[2],
            )
        if cut is None:
            return None
        part = networkx.Graph(pair for pair in pairs if pair[0] != pair[1])
        part = part.subgraph(max(networkx.connected_components(part), key=len))
        inside = [x for x, pair in zip(links, pairs, strict=True) if part.has_edge(*pair)]
        chips = max(Counter(map(self._root, self.chips)).values())
        moved = 2 * sum(link.bandwidth or 0.0 for link in inside) / chips
        hops: float = networkx.average_shortest_path_length(part)
        return min(cut, moved / hops)

    @cached_property
    def _bus(self) -> float | None:
        """What one accelerator sends to its host, if its links say so."""
        sums: dict[str, float] = defaultdict(float)
        for key, links in self.classes.items():
            for link in links if key[0] == 1 else ():
                for end in link.ends:
                    sums[end] += math.nan if link.bandwidth is None else link.bandwidth
        least = min((sums[chip] for chip in self.chips if chip in sums), default=math.nan)
        return None if math.isnan(least) else least

    def _latency(self, phase: int, before: Mapping[str, str]) -> float | None:
        """Of the links between two accelerators that only this tier connects; None if none says it."""
        ways = networkx.Graph(
            (a, b) for a, b in self.graph.edges if self._places[a] == self._places[b]
        )
        for key, links in self.classes.items():
            if key in self.used or (phase == 2 and key[0] == 1):
                ways.add_edges_from(link.nodes for link in links)
        first = self.chips[0]
        other = next(
            c
            for c in self.chips
            if before[c] != before[first] and self._root(c) == self._root(first)
        )
        path = networkx.shortest_path(ways, first, other)
        said = [self.graph.edges[pair]["latency"] for pair in pairwise(path)]
        return sum(x for x in said if x is not None) if set(said) - {None} else None

    # Of which kind.

    def _forms(self, members: list[str], pairs: list[tuple[str, ...]]) -> tuple[Form, ...]:
        """The kinds that links between domains may be of, the same in every domain that they make."""
        beside: dict[str, set[str]] = defaultdict(set)
        for a, b in pairs:
            if a != b:
                beside[a].add(b)
                beside[b].add(a)
        parts: dict[str, list[str]] = defaultdict(list)
        for member in members:
            parts[self._root(member)].append(member)
        found: list[Form] | None = None
        for part in parts.values():
            at = {member: i for i, member in enumerate(part)}
            forms = list(_forms_of([{at[n] for n in beside[member]} for member in part]))
            found = [f for f in forms if found is None or f in found]
        return tuple(found or ())


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
