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

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from pydantic import ValidationError

from flint.cluster.errors import help_of, said_of
from flint.cluster.load import SAME_CHIP, lent_source, preset_names
from flint.cluster.models import Chip, Cluster
from flint.cluster.named import load_cluster
from flint.cluster.tables import ChipFamily, Quantity, SourceKind
from flint.errors import FlintError
from flint.tools.explore.machine.paths import ClusterPart
from flint.tools.explore.machine.tiers import changed_tiers, lent_constants, lent_tier
from flint.tools.explore.machine.values import MachineChange, read_change
from flint.tools.explore.point import Pairs, Point

# A chip with changes, and what follows from them.

#: Types whose peak says what a unit of a chip calculates.
_MAIN_TYPES = ("bf16", "f16")


def changed_chip(chip: Chip, changes: Sequence[MachineChange]) -> Chip:
    """A chip with changes. Raises what pydantic finds, and FlintError FL868 for a factor of nothing."""
    now: dict[str, Any] = dict(chip.__dict__)
    for c in changes:
        if c.target.part is ClusterPart.CHIP:
            now[c.target.key] = c.quantity(now[c.target.key])
    family = chip.family
    units = {c.target.key: c for c in changes if c.target.part is ClusterPart.FAMILY}
    said = {name: c.quantity(getattr(family, name)) for name, c in units.items()}
    now["peak_flops_per_s"] = _peaks(chip, said, changes)
    is_another = _is_another(chip, now, said)
    if family is not None:
        factor = _unit_factor(chip, now, said) if is_another else None
        now[family.table] = _family(chip, family, said, changes, factor)
    if is_another:  # no step, and no kernel of exactly its shape, was measured on it
        now |= {"name": f"{chip.name} (changed)", "measured_kernels": None}
    return type(chip).model_validate(now)


def _peaks(
    chip: Chip, said: Mapping[str, Quantity], changes: Sequence[MachineChange]
) -> dict[str, Quantity]:
    """Peaks: those that are given, else they go with the units and their clock."""
    found = dict(chip.peak_flops_per_s)
    given = [c for c in changes if c.target.part is ClusterPart.PEAKS]
    ratio, family = 1.0, chip.family
    if family is not None and not given:
        keys = [key for key in family.peak_keys if key in said]
        ratio = math.prod(said[key].value / getattr(family, key).value for key in keys)
    if ratio != 1:
        reason = ", ".join(said[key].source for key in said)
        found = {
            name: Quantity(
                value=q.value * ratio, kind=SourceKind.ASSUMED, source=f"{reason}: {ratio:g} x"
            )
            for name, q in found.items()
        }
    return found | {c.target.key: c.quantity(found.get(c.target.key)) for c in given}


def _family(
    chip: Chip,
    family: ChipFamily,
    said: Mapping[str, Quantity],
    changes: Sequence[MachineChange],
    factor: float | None,
) -> ChipFamily:
    """The table of the family; constants are another chip's with a `factor` of times of a unit's work."""
    asked = [c for c in changes if c.target.part is ClusterPart.CHIP_CONSTANTS]
    update: dict[str, Any] = dict(said)
    if factor is not None:
        update |= _lent(chip, family, factor)
    if asked:
        update |= _with_constants({**family.__dict__, **update}, asked)
    if said or asked:
        return type(family).model_validate({**family.__dict__, **update})
    return family.model_copy(update=update)  # the same values under other sources


def _is_another(chip: Chip, now: Mapping[str, Any], said: Mapping[str, Quantity]) -> bool:
    """Whether constants that were fitted on a chip are another's, as `flint.cluster.load` says it."""
    before = chip.__dict__
    keys = [key for key, value in now.items() if isinstance(value, Quantity)]
    return (
        any(_value(now[key]) != _value(before[key]) for key in keys if key not in SAME_CHIP)
        or any(q.value != _value(getattr(chip.family, key)) for key, q in said.items())
        or _values(now["peak_flops_per_s"]) != _values(chip.peak_flops_per_s)
    )


def _lent(chip: Chip, family: ChipFamily, factor: float) -> dict[str, Any]:
    """Every table of constants as the other chip's, times of a unit's work scaled."""
    found: dict[str, Any] = {"constants": _scaled(chip, family, family.constants, factor)}
    tables: Mapping[str, dict[str, Quantity]] = getattr(family, "libraries", {})
    if tables:
        found["libraries"] = {n: _scaled(chip, family, t, factor) for n, t in tables.items()}
    return found


def _scaled(
    chip: Chip, family: ChipFamily, constants: Mapping[str, Quantity], factor: float
) -> dict[str, Quantity]:
    found = lent_constants(constants, chip.name)
    for name in family.unit_times & found.keys() if factor != 1 else ():
        q = found[name]
        found[name] = Quantity(
            value=q.value * factor,
            kind=q.kind,
            source=f"{q.source}; {factor:g} x, in proportion to the peak",
        )
    return found


def _unit_factor(chip: Chip, now: Mapping[str, Any], said: Mapping[str, Quantity]) -> float:
    """How much longer a unit's work takes than before."""
    family, peaks = chip.family, now["peak_flops_per_s"]
    assert family is not None
    units: float = math.prod(
        said[k].value / getattr(family, k).value for k in family.unit_keys if k in said
    )
    return _main(chip.peak_flops_per_s) / _main(peaks) * units


def _main(peaks: Mapping[str, Quantity]) -> float:
    found = [peaks[name].value for name in _MAIN_TYPES if name in peaks]
    return max(found or [q.value for q in peaks.values()])


def _with_constants(table: Mapping[str, Any], asked: Sequence[MachineChange]) -> dict[str, Any]:
    """Constants that are asked for, instead of those that libraries have of their classes."""
    own = dict(table["constants"])
    for c in asked:
        own[c.target.key] = c.quantity(own.get(c.target.key))
    found: dict[str, Any] = {"constants": own}
    classes = tuple({f"{c.target.key.partition('.')[0]}." for c in asked})
    if "libraries" in table:
        kept = {
            library: {n: q for n, q in constants.items() if not n.startswith(classes)}
            for library, constants in table["libraries"].items()
        }
        found["libraries"] = {library: t for library, t in kept.items() if t}
    return found


def _value(quantity: Any) -> Any:
    return quantity.value if isinstance(quantity, Quantity) else quantity


def _values(table: Mapping[str, Quantity]) -> dict[str, float]:
    return {name: q.value for name, q in table.items()}


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
