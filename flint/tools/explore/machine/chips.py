"""A chip with changes, and what follows from them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from flint.cluster.load import SAME_CHIP
from flint.cluster.models import Chip
from flint.cluster.tables import ChipFamily, Quantity, SourceKind
from flint.tools.explore.machine.paths import ClusterPart
from flint.tools.explore.machine.tiers import lent_constants
from flint.tools.explore.machine.values import MachineChange

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
