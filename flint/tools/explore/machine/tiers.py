"""Tiers of a network with changes, and what follows from them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from flint.cluster.load import FABRIC, lent_source
from flint.cluster.models import Cluster, Network, NetworkKind
from flint.cluster.tables import Quantity, SourceKind
from flint.errors import FlintError
from flint.tools.explore.machine.paths import ClusterPart
from flint.tools.explore.machine.quantities import AmountOrFactor
from flint.tools.explore.machine.values import MachineChange, Topology

#: Constants whose assumed values differ among kinds.
_OF_KINDS = ("a0_ns", "c", "efficiency", "own_part")
_BANDWIDTH, _LATENCY, _STEP = "bandwidth_bytes_per_s", "latency_ns", "a1_ns"


def changed_tiers(cluster: Cluster, changes: Sequence[MachineChange]) -> tuple[Network, ...]:
    """The tiers of a cluster with changes, inner ones first: sizes of tori count them.

    Raises FlintError FL868 for a torus without a shape or a shape of none, and what pydantic finds.
    """
    found: list[Network] = []
    for at, tier in enumerate(cluster.network):
        mine = [c for c in changes if c.target.tier == tier.name]
        inside = found[-1].size if found else 1
        if any(isinstance(c.value, Topology) and c.value.kind is not tier.kind for c in mine):
            tier = tier.model_copy(update={"constants": _all_constants(cluster, at)})
        found.append(_changed(tier, mine, inside, cluster.name) if mine else tier)
    return tuple(found)


def _all_constants(cluster: Cluster, at: int) -> dict[str, Quantity]:
    """A tier's constants with those that are assumed of its kind where the file has none.

    Otherwise a change of the kind would compare two kinds' assumptions, not two topologies.
    """
    from flint.backends.cost.collectives.choose import speeds_of

    tier, speed = cluster.network[at], speeds_of(cluster)[at]
    source = f"as {tier.name} of {cluster.name}: what is assumed of a {tier.kind}"
    assumed = {
        name: Quantity(value=getattr(speed, name), kind=SourceKind.ASSUMED, source=source)
        for name in _OF_KINDS
    }
    return assumed | tier.constants


def lent_tier(tier: Network, of: str) -> Network:
    """A tier whose constants were measured elsewhere: on that of the cluster `of`."""
    return tier.model_copy(update=_lent(tier, of))


def lent_constants(constants: Mapping[str, Quantity], of: str) -> dict[str, Quantity]:
    """Constants as those of `of`, assumed here."""
    return {name: _lent_quantity(q.value, q.source, of) for name, q in constants.items()}


@lru_cache(maxsize=8192)
def _lent_quantity(value: float, source: str, of: str) -> Quantity:
    """One of them: a chip has 140, and there are thousands of changes of it."""
    return Quantity(value=value, kind=SourceKind.ASSUMED, source=lent_source(source, of))


def _lent(tier: Network, of: str) -> dict[str, Any]:
    whose = f"{tier.name} of {of}"
    return {
        "constants": lent_constants(tier.constants, whose),
        "libraries": {n: lent_constants(t, whose) for n, t in tier.libraries.items()},
        "measured_members": 1 if tier.measured_members else 0,
    }


def _changed(tier: Network, changes: Sequence[MachineChange], inside: int, of: str) -> Network:
    own = {c.target.key: c for c in changes if c.target.part is ClusterPart.TIER}
    now: dict[str, Any] = {**tier.__dict__, **_geometry(tier, own, inside)}
    now |= {
        k: c.value for k, c in own.items() if not isinstance(c.value, AmountOrFactor | Topology)
    }
    now[_BANDWIDTH] = _bandwidth(tier, now, own)
    if _LATENCY in own:
        now[_LATENCY] = own[_LATENCY].quantity(tier.latency_ns)
    if any(_plain(now[key]) != _plain(tier.__dict__[key]) for key in FABRIC):
        now |= _lent(tier, of)
    now["constants"] = _constants(tier, now, changes, of)
    return Network.model_validate(now)


def _geometry(tier: Network, own: Mapping[str, MachineChange], inside: int) -> dict[str, Any]:
    """What a kind and a shape say of dimensions, size and links."""
    kind, shape, said = _topology(tier, own)
    if kind is not NetworkKind.TORUS:
        if said:
            raise _no_torus(tier, said)
        flat = {"kind": kind, "torus_shape": (), "torus_dimensions": 0}
        return {**flat, "links": 1} if tier.kind is NetworkKind.TORUS else flat
    if not shape:
        raise FlintError(
            "FL868",
            f"{own['kind'].said}: a torus needs a shape",
            help=f"write {tier.name}.kind=torus:4x4x8, one size for each dimension",
        )
    found: dict[str, Any] = {"kind": kind, "torus_shape": shape, "torus_dimensions": len(shape)}
    if said:
        found |= {"size": math.prod(shape) * inside, "links": 2 * len(shape)}
    return found


def _topology(
    tier: Network, own: Mapping[str, MachineChange]
) -> tuple[NetworkKind, tuple[int, ...], MachineChange | None]:
    """The kind of a changed tier, the shape of a torus, and the change that says the shape."""
    kind, shape = own.get("kind"), own.get("torus_shape")
    topology = kind.value if kind else Topology(tier.kind)
    assert isinstance(topology, Topology)
    if not topology.shape:
        found = shape.value if shape else tier.torus_shape
        assert isinstance(found, tuple) and not isinstance(found, AmountOrFactor | Topology)
        return topology.kind, found, shape
    if kind and shape:
        raise FlintError(
            "FL868", f"{kind.said} and {shape.said} give two shapes", help="omit one of them"
        )
    return topology.kind, topology.shape, kind


def _no_torus(tier: Network, change: MachineChange) -> FlintError:
    return FlintError(
        "FL868",
        f"{change.said}: '{tier.name}' is a {tier.kind}, which has no shape",
        help=f"write {tier.name}.kind=torus:4x4",
    )


def _bandwidth(tier: Network, now: Mapping[str, Any], own: Mapping[str, MachineChange]) -> Quantity:
    """The bandwidth of a changed tier: that of a torus is of one link, of others of a whole chip."""
    before, change = tier.bandwidth_bytes_per_s, own.get(_BANDWIDTH)
    was, links = _links(tier.torus_shape), _links(now["torus_shape"])
    if was != links:
        value = before.value * was / links
        said = " and ".join(own[k].said for k in ("kind", "torus_shape") if k in own)
        source = f"explore: {said}: as much per chip as before, over {links} instead of {was} links"
        before = Quantity(value=value, kind=SourceKind.ASSUMED, source=source)
    return change.quantity(before) if change else before


def _links(torus_shape: Sequence[int]) -> int:
    return 2 * len(torus_shape) or 1


def _constants(
    tier: Network, now: Mapping[str, Any], changes: Sequence[MachineChange], of: str
) -> dict[str, Quantity]:
    """The constants of a changed tier: steps with the difference of the latency, then those asked for."""
    found = dict(now["constants"])
    if _STEP in found and now[_LATENCY].value != tier.latency_ns.value:
        found[_STEP] = _step(tier, now[_LATENCY].value, f"{tier.name} of {of}")
    for c in changes:
        if c.target.part is ClusterPart.TIER_CONSTANTS:
            found[c.target.key] = c.quantity(found.get(c.target.key))
    return found


def _step(tier: Network, latency_ns: float, of: str) -> Quantity:
    """What a step takes with another latency; in proportion where it was less than the latency."""
    step, before = tier.constants[_STEP], tier.latency_ns.value
    longer = step.value + latency_ns - before
    value = longer if step.value >= before else step.value * latency_ns / before
    said = f"{step.source}; with a latency of {latency_ns:g} ns instead of {before:g}"
    return Quantity(value=value, kind=SourceKind.ASSUMED, source=lent_source(said, of))


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Quantity) else value
