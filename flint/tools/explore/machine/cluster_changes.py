"""A cluster with changes: what `--sweep cluster.ib.bandwidth=50..400GB/s` makes of it, point by point.

What a number means when it changes, and what follows it:

- Fitted constants stay, as those of another machine (see `flint.cluster.load`): their kind becomes `assumed`.
- A tier's steps (`a1_ns`) take the difference of its latency. Its `efficiency` is a share and goes along;
  rates in bytes per second of its constants do not.
- Peaks go with a chip's units and their clock where no peak is given, and times of a unit's work
  against the peak.
- A tier of another kind keeps what was assumed of its own, so that topologies are compared and not assumptions.
- A tier that becomes a torus, or was one, keeps what a chip sends over all its links where no bandwidth
  is given. A torus_shape says the size of its tier.
- A price holds for the machine that it was asked for: it is assumed for others, and gone with the chip or
  the network as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from pydantic import ValidationError

from flint.cluster.errors import help_of, said_of
from flint.cluster.load import lent_source, preset_names
from flint.cluster.models import Cluster
from flint.cluster.named import load_cluster
from flint.cluster.tables import Quantity, SourceKind
from flint.errors import FlintError
from flint.tools.explore.machine.chips import changed_chip
from flint.tools.explore.machine.paths import ClusterPart
from flint.tools.explore.machine.tiers import changed_tiers, lent_tier
from flint.tools.explore.machine.values import MachineChange, read_change
from flint.tools.explore.point import Pairs, Point

_OF_CHIP = (ClusterPart.CHIP, ClusterPart.PEAKS, ClusterPart.FAMILY, ClusterPart.CHIP_CONSTANTS)
_OF_TIERS = (ClusterPart.TIER, ClusterPart.TIER_CONSTANTS)
#: Paths of whole parts, which are changed before what is in them.
PARTS = ("chip", "network")


def changed(cluster: Cluster, changes: Pairs) -> Cluster:
    """The cluster with other numbers: ("ib.bandwidth", "100GB/s"), ("chip.memory", "2x") ...

    Each number that changed is `assumed`, with the change as its source; the name says what was changed,
    and `base` of what. Whole parts (`chip`, `network`) are changed before what is in them.

    Raises FlintError FL868 for a path that leads nowhere, a value that cannot be read, a machine that
    cannot be and two changes of one number, and FL701, FL702 for another cluster that cannot be used.
    """
    if not changes:
        return cluster
    read = _read(cluster, changes)
    try:
        return _with(cluster, read, _text(changes))
    except ValidationError as error:
        first = error.errors()[0]
        raise FlintError(
            "FL868",
            f"cluster '{cluster.name}' with {_text(changes)}: {said_of(first, Cluster)}",
            help=help_of(first, Cluster),
        ) from error


def machine_of(point: Point) -> Cluster:
    """The cluster of a point with its changes. Raises FlintError as `load_cluster` and `changed` do."""
    return changed(load_cluster(point.cluster), point.changes)


def _read(cluster: Cluster, changes: Pairs) -> list[MachineChange]:
    """The changes, each of another number."""
    there = _with_parts(cluster, [read_change(cluster, *c) for c in changes if c[0] in PARTS])
    read = [read_change(cluster if c[0] in PARTS else there, *c) for c in changes]
    seen: dict[object, MachineChange] = {}
    for change in read:
        other = seen.setdefault(change.target.where, change)
        if other is not change:
            raise FlintError(
                "FL868",
                f"{other.said} and {change.said} change the same number",
                help="omit one of them",
            )
    return read


def _with(cluster: Cluster, read: Sequence[MachineChange], text: str) -> Cluster:
    """The cluster with changes that were read. Raises what pydantic finds."""
    there = _with_parts(cluster, read)
    chip = [c for c in read if c.target.part in _OF_CHIP]
    tiers = [c for c in read if c.target.part in _OF_TIERS]
    now: dict[str, Any] = dict(there.__dict__)
    if chip:
        now["chip"] = changed_chip(there.chip, chip)
    if tiers:
        now["network"] = changed_tiers(there, tiers)
    if there.price_per_hour and (chip or tiers):
        now["price_per_hour"] = _price(there.price_per_hour, cluster.name)
    for c in read:
        if c.target.part is ClusterPart.CLUSTER:
            now[c.target.key] = c.quantity(now[c.target.key])
    now |= {"name": f"{cluster.name} ({text})", "base": cluster.name, "aliases": ()}
    return Cluster.model_validate(now)


def _with_parts(cluster: Cluster, read: Sequence[MachineChange]) -> Cluster:
    """The cluster with the chip or the network of another one; what those cost together nobody said."""
    update: dict[str, Any] = {}
    for change in read:
        if change.target.part is ClusterPart.WHOLE_CHIP:
            update["chip"] = _other(change.text).chip
        elif change.target.part is ClusterPart.WHOLE_NETWORK:
            other = _other(change.text)
            update["network"] = tuple(lent_tier(tier, other.name) for tier in other.network)
    if not update:
        return cluster
    return cluster.model_copy(update={**update, "price_per_hour": None})


def _other(name: str) -> Cluster:
    return _preset(name) if name in preset_names() else load_cluster(name)


@lru_cache(maxsize=32)
def _preset(name: str) -> Cluster:
    """A cluster that comes with Flint: its file does not change."""
    return Cluster.load(name)


def _price(price: Quantity, name: str) -> Quantity:
    source = lent_source(price.source, name)
    return Quantity(value=price.value, kind=SourceKind.ASSUMED, source=source)


def _text(changes: Pairs) -> str:
    return ", ".join(f"{path}={text}" for path, text in changes)
