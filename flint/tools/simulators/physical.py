"""Links and switches of a cluster, as simulators of packets want them: which cable joins what.

A cluster says what a chip sends in each tier. This builds a network that gives each chip that much:
inner tiers as they are (a switch, links between all, a torus), outer ones as one of `Cabling`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import combinations

from flint.backends.cost.network.placement import NetworkPlacement
from flint.backends.cost.network.torus import is_torus, wraps
from flint.cluster.models import Network, NetworkKind
from flint.errors import FlintError
from flint.tools.simulators.backends import Cabling

#: Chips on one leaf: half of the 64 ports of 400 Gb/s of NVIDIA's Quantum-2 and Spectrum-4 switches,
#: so that as many ports lead up.
LEAF_PORTS = 32
#: Latency of a link between switches, in ns: 130 of a switch (NVIDIA's datasheet of the QM8700) and 10 m
#: of fiber. The rest of a tier's latency is that of its chips' ends.
SPINE_NS = 180.0
#: More than that no simulator of packets has run; links would be many millions.
MOST_DEVICES = 16_384


@dataclass(frozen=True, slots=True)
class Link:
    """A cable between two devices or switches, equally fast in both directions."""

    one: int
    other: int
    bytes_per_s: float
    latency_ns: float


@dataclass(frozen=True)
class PhysicalNetwork:
    """Devices are numbered as ranks, switches after them."""

    devices: int
    switches: int
    links: tuple[Link, ...]


def physical_network(placement: NetworkPlacement, topology: Cabling) -> PhysicalNetwork:
    """The network of a mesh that is placed on a cluster.

    Raises FlintError FL733 for more devices than a simulator of packets can run, and for clusters
    with more tiers than this can build.
    """
    size = placement.mesh.size
    if size > MOST_DEVICES:
        raise FlintError(
            "FL733",
            f"{size:,} devices are too many for a simulator of packets",
            help=f"it runs up to {MOST_DEVICES:,}; use the congestion-unaware simulator",
        )
    builder = _Builder(placement, topology)
    builder.build()
    return PhysicalNetwork(size, builder.switches, tuple(builder.links))


class _Builder:
    def __init__(self, placement: NetworkPlacement, topology: Cabling) -> None:
        self.placement = placement
        self.topology = topology
        self.tiers = placement.cluster.network
        self.domains = [d.tolist() for d in placement.domains]
        self.links: list[Link] = []
        self.switches = 0

    def build(self) -> None:
        used = sorted({p.tier for p in self.placement.parts if p.size > 1}) or [0]
        outer = [t for t in used if t > 0]
        if len(outer) > 2 or any(self.tiers[t].kind is not NetworkKind.SWITCH for t in outer):
            raise FlintError(
                "FL733",
                f"Flint cannot build the cables of {self.placement.cluster.name}: "
                "outer tiers must be one or two of switches",
                help="use the congestion-unaware simulator, which takes a link for each tier",
            )
        if used[0] == 0:
            for domain in self._domains(0):
                self._inner(self.tiers[0], domain)
        if outer:
            self._outer(outer)

    def _switch(self) -> int:
        """The number of one more switch: they come after the devices."""
        self.switches += 1
        return self.placement.mesh.size + self.switches - 1

    def _domains(self, tier: int) -> list[list[int]]:
        """The ranks of each domain of a tier."""
        return _grouped(range(self.placement.mesh.size), self.domains[tier])

    def _inner(self, network: Network, ranks: Sequence[int]) -> None:
        speed, latency = network.bandwidth_bytes_per_s.value, network.latency_ns.value
        if is_torus(network):
            self._torus(network, ranks)
        elif network.kind is NetworkKind.MESH:
            others = max(1, self.placement.cluster.members[0] - 1)
            for pair in combinations(ranks, 2):
                self.links.append(Link(*pair, speed / others, latency))
        else:
            self._join(self._switch(), ranks, speed, latency / 2)

    def _join(self, switch: int, ends: Sequence[int], speed: float, latency_ns: float) -> None:
        self.links += [Link(end, switch, speed, latency_ns) for end in ends]

    def _torus(self, network: Network, ranks: Sequence[int]) -> None:
        shape = self.placement.shapes[0]
        places = self.placement.on_torus(0).tolist()
        at = {tuple(places[r]): r for r in ranks}
        rings = 2 if network.kind is NetworkKind.RING else 1
        speed = network.bandwidth_bytes_per_s.value / rings
        for place, rank in at.items():
            for d, size in enumerate(shape):
                ends = wraps(network, self.placement.cluster.members[0], shape, d)
                if size < 2 or (place[d] + 1 == size and (size == 2 or not ends)):
                    continue
                beside = at[(*place[:d], (place[d] + 1) % size, *place[d + 1 :])]
                self.links.append(Link(rank, beside, speed, network.latency_ns.value))

    def _outer(self, tiers: Sequence[int]) -> None:
        """Leaves (or routers) of the first of `tiers`, and what joins those of the last."""
        first, last = self.tiers[tiers[0]], self.tiers[tiers[-1]]
        speed, latency = first.bandwidth_bytes_per_s.value, first.latency_ns.value
        for domain in self._domains(tiers[-1]):
            leaves: list[tuple[int, int]] = []
            for ranks in self._leaves(domain, tiers[0]):
                leaves.append((self._switch(), len(ranks)))
                self._join(leaves[-1][0], ranks, speed, latency / 2)
            if len(leaves) > 1:
                self._above(leaves, last)

    def _leaves(self, ranks: Sequence[int], tier: int) -> list[list[int]]:
        """The ranks on each leaf: at most `LEAF_PORTS`, all of one domain of the tier."""
        inner = self.domains[tier - 1]
        rail = {r: i for ranks in self._domains(tier - 1) for i, r in enumerate(ranks)}
        ranks = sorted(ranks, key=lambda rank: (inner[rank], rank))  # node by node
        is_rail = self.topology is Cabling.RAIL
        apart = [(self.domains[tier][r], rail[r] if is_rail else 0) for r in ranks]
        found: list[list[int]] = []
        for group in _grouped(ranks, apart):
            found += [group[i : i + LEAF_PORTS] for i in range(0, len(group), LEAF_PORTS)]
        return found

    def _above(self, leaves: Sequence[tuple[int, int]], network: Network) -> None:
        """Links between leaves that carry what their chips send, by the tier's oversubscription."""
        speed = network.bandwidth_bytes_per_s.value / network.oversubscription
        if self.topology is Cabling.DRAGONFLY:
            for (one, here), (other, there) in combinations(leaves, 2):
                share = min(here, there) * speed / (len(leaves) - 1)
                self.links.append(Link(one, other, share, SPINE_NS))
            return
        spines = [self._switch() for _ in range(max(n for _, n in leaves))]
        for spine in spines:
            for leaf, chips in leaves:
                self._join(spine, [leaf], chips * speed / len(spines), SPINE_NS)


def _grouped(ranks: Sequence[int], keys: Sequence[Hashable]) -> list[list[int]]:
    found: dict[Hashable, list[int]] = defaultdict(list)
    for rank, key in zip(ranks, keys, strict=True):
        found[key].append(rank)
    return list(found.values())
