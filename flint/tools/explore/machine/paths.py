"""Paths of what may be changed of a cluster: `ib.bandwidth`, `chip.peak.bf16`, `chip.gpu.sms`.

A path is that of a key in a cluster's file with a tier by its name (`network.ib.bandwidth_bytes_per_s`), or a
short form of it: without `network.`, and without the unit, which its value then has.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any

from flint.cluster.models import Chip, Cluster, Network
from flint.cluster.tables import (
    ELEMENT_TYPES,
    NETWORK,
    ChipFamily,
    Constants,
    Quantity,
    constant_of,
    families,
    names_of,
)
from flint.errors import FlintError, nearest
from flint.tools.explore.machine.quantities import KeyUnit, unit_of


class ClusterPart(StrEnum):
    """Which table of a cluster's file a path leads into."""

    CLUSTER = "cluster"
    CHIP = "chip"
    PEAKS = "peaks"
    FAMILY = "family"
    CHIP_CONSTANTS = "constants of the chip"
    TIER = "tier"
    TIER_CONSTANTS = "constants of a tier"
    WHOLE_CHIP = "whole chip"
    WHOLE_NETWORK = "whole network"


class ValueForm(StrEnum):
    """What is written as the value of a path."""

    QUANTITY = "a number"
    WHOLE = "a whole number"
    PLAIN = "a plain number"
    FLAG = "true or false"
    KIND = "a kind of network"
    SHAPE = "sizes as 4x4x8"
    CLUSTER = "a cluster"


@dataclass(frozen=True, slots=True)
class PathTarget:
    """Where a path leads: a key of a part, and of a tier the tier's name."""

    part: ClusterPart
    key: str
    tier: str = ""
    form: ValueForm = ValueForm.QUANTITY
    #: Whether the path omits the unit of its key, so that a value has to say it.
    is_short: bool = False

    @property
    def unit(self) -> KeyUnit:
        """The unit of its values."""
        return unit_of(self.key) if self.part is not ClusterPart.PEAKS else KeyUnit.FLOPS_PER_S

    @property
    def where(self) -> tuple[ClusterPart, str, str]:
        """What it changes, however that is written."""
        return self.part, self.tier, self.key


#: Keys of a tier that are no quantities.
_PLAIN: Mapping[str, ValueForm] = {
    "kind": ValueForm.KIND,
    "size": ValueForm.WHOLE,
    "links": ValueForm.WHOLE,
    "torus_shape": ValueForm.SHAPE,
    "torus_wrap_multiple": ValueForm.WHOLE,
    "torus_wraps_together": ValueForm.FLAG,
    "oversubscription": ValueForm.PLAIN,
    "in_network_reduction": ValueForm.FLAG,
}
_PEAKS = ("peak", "peak_flops_per_s")


def target_of(cluster: Cluster, path: str) -> PathTarget:
    """What a path means in a cluster. Raises FlintError FL868 for one that leads nowhere."""
    family = cluster.chip.family
    tiers = tuple(n.name for n in cluster.network)
    known = _targets(tiers, family.table if family else "")
    found = known.get(path) or _numbered(path, known)
    if found is None:
        raise FlintError(
            "FL868",
            f"cluster '{cluster.name}' has nothing to change at '{path}'{nearest(path, list(known))}",
            help=_help(tiers, family),
        )
    return found


def _help(tiers: tuple[str, ...], family: ChipFamily | None) -> str:
    table = f", chip.{family.table}.KEY" if family else ""
    return (
        "paths are TIER.bandwidth, TIER.latency, TIER.size, TIER.kind ... of "
        f"{', '.join(tiers)}; chip.memory, chip.memory_bandwidth, chip.peak.bf16{table}; "
        "derate, host_launch, price_per_hour; network and chip (from another cluster)"
    )


@cache
def _targets(tiers: tuple[str, ...], table: str) -> Mapping[str, PathTarget]:
    """Every path but numbered constants, by how it may be written; the chip before tiers of its name."""
    found: dict[str, PathTarget] = {}
    for tier in tiers:
        own = dict(_of_tier(tier))
        found |= {f"{tier}.{name}": target for name, target in own.items()}
        found |= {f"network.{tier}.{name}": target for name, target in own.items()}
    found |= {f"chip.{name}": target for name, target in _of_chip(table)}
    found |= dict(_quantities(Cluster, ClusterPart.CLUSTER))
    found["chip"] = PathTarget(ClusterPart.WHOLE_CHIP, "chip", form=ValueForm.CLUSTER)
    found["network"] = PathTarget(ClusterPart.WHOLE_NETWORK, "network", form=ValueForm.CLUSTER)
    return found


def _of_tier(tier: str) -> Iterator[tuple[str, PathTarget]]:
    yield from _quantities(Network, ClusterPart.TIER, tier)
    yield from (
        (key, PathTarget(ClusterPart.TIER, key, tier, form)) for key, form in _PLAIN.items()
    )
    for name in NETWORK:
        yield f"constants.{name}", PathTarget(ClusterPart.TIER_CONSTANTS, name, tier)


def _of_chip(table: str) -> Iterator[tuple[str, PathTarget]]:
    yield from _quantities(Chip, ClusterPart.CHIP)
    for written in _PEAKS:
        short = written == _PEAKS[0]
        for dtype in ELEMENT_TYPES:
            yield f"{written}.{dtype}", PathTarget(ClusterPart.PEAKS, dtype, is_short=short)
    if table in families():
        for name, target in _quantities(families()[table].table, ClusterPart.FAMILY):
            yield f"{table}.{name}", target
        for name in names_of(_known(table)):
            yield f"{table}.constants.{name}", PathTarget(ClusterPart.CHIP_CONSTANTS, name)


def _quantities(model: Any, part: ClusterPart, tier: str = "") -> Iterator[tuple[str, PathTarget]]:
    """The quantities of a model, by their keys and by those without the unit."""
    for key, field in model.model_fields.items():
        if not _is_quantity(field.annotation):
            continue
        yield key, PathTarget(part, key, tier)
        if unit := unit_of(key):
            yield key.removesuffix(f"_{unit}"), PathTarget(part, key, tier, is_short=True)


def _is_quantity(annotation: Any) -> bool:
    """Whether an annotation is `Quantity`, with or without None; tables of them are not."""
    if typing.get_origin(annotation) in (dict, tuple):
        return False
    return annotation is Quantity or any(map(_is_quantity, typing.get_args(annotation)))


def _known(table: str) -> Constants:
    return families()[table].table.known


def _numbered(path: str, known: Mapping[str, PathTarget]) -> PathTarget | None:
    """A constant whose name ends in a number that the list of names does not hold."""
    head, _, name = path.partition(".constants.")
    table = head.removeprefix("chip.")
    if not name or f"chip.{table}.constants.{_first(table)}" not in known:
        return None
    return (
        PathTarget(ClusterPart.CHIP_CONSTANTS, name) if constant_of(_known(table), name) else None
    )


def _first(table: str) -> str:
    return names_of(_known(table))[0] if table in families() and _known(table) else ""
