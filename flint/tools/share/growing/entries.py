"""Variables of a workload as they are listed: sizes, role, axes, and how much of the step they are in."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from flint.ir.mesh import Mesh
from flint.tools.share.growing.known import Known
from flint.tools.share.growing.roles import Role
from flint.tools.share.growing.unrolled.repeat import unrolled_layers


@dataclass(frozen=True, slots=True)
class Entry:
    """A variable. `value` is its size on one device, `whole` that over the axes that split it.

    `roles` it has or is a factor of, and the same in words; `is_certain`: whether they are. `how` says what told the axes; empty for none.
    `rows` have it in their shape; `share` of the FLOPs are of rows that have it. `new_value` and `new_whole` are what it
    becomes. Layers that are rows of their own are a variable of no rows, named `layers`.
    """

    name: str
    value: int
    whole: int
    roles: tuple[str, ...]
    role: str
    is_certain: bool
    axes: tuple[str, ...]
    how: str
    rows: int
    share: float
    new_value: int
    new_whole: int


def entries_of(
    known: Known, values: Mapping[int, int], mesh: Mesh, layers: int | None
) -> tuple[Entry, ...]:
    """All variables, with new sizes on one device where `values` has them; and layers without a loop."""
    shares = known.shares()
    found = []
    for variable in known.sizes.variables:
        number = variable.number
        split = known.splits.of.get(number)
        roles = [r for r in known.roles.values() if number in r.variables]
        new = values.get(number, variable.value)
        found.append(
            Entry(
                f"d{number}",
                variable.value,
                known.whole(number),
                tuple(r.name for r in roles),
                ", ".join(map(_in_words, roles)),
                all(r.is_certain for r in roles),
                split.axes if split else (),
                str(split.how) if split else "",
                variable.uses,
                shares[number],
                new,
                new * math.prod(mesh.shape[a] for a in known.splits.axes(number)),
            )
        )
    if "layers" not in known.roles and (now := unrolled_layers(known.structure.program)) > 1:
        found.append(_of_layers(now, now if layers is None else layers))
    return tuple(found)


def _in_words(role: Role) -> str:
    """A role as it is of one of its variables: itself, a part of it, or a factor."""
    name = role.name.replace("_", " ")
    if len(role.variables) > 1 and not role.equal:
        return f"factor of {name}"
    return name if role.times == 1 else f"{name} / {role.times}"


def _of_layers(now: int, new: int) -> Entry:
    return Entry("layers", now, now, ("layers",), "layers", True, (), "", 0, 1.0, new, new)
