"""From what is asked for to a new size of every variable on one device.

A whole size is that of one device times the axes that split it. It stays where nothing is said, so that
devices have less of it when an axis grows; of the batch the size on one device stays, so that the whole
grows, unless the global batch is to be kept.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from flint.errors import FlintError, nearest
from flint.ir.mesh import Mesh
from flint.tools.share.growing.known import Known
from flint.tools.share.growing.roles import SizeRole
from flint.tools.share.growing.structure import rings_of

# New sizes as users write them: `8192`, or a factor, `2x`.

_FACTOR = re.compile(r"(\d+(?:\.\d+)?|\d+/\d+)x")


@dataclass(frozen=True, slots=True)
class Amount:
    """A size, or a factor of what it was."""

    value: Fraction
    is_factor: bool = False

    @classmethod
    def parse(cls, option: str, given: object) -> Amount:
        """Read `8192`, `2x`, `0.5x` or `1/2x`. Raises FlintError FL920 for anything else."""
        text = str(given).strip().replace("_", "").replace(",", "")
        if found := _FACTOR.fullmatch(text):
            factor = Fraction(found[1]) if "/0" not in found[1] else Fraction(0)
            if factor > 0:
                return cls(factor, is_factor=True)
        elif text.isdecimal() and int(text) > 0:
            return cls(Fraction(int(text)))
        raise FlintError(
            "FL920",
            f"{option} cannot be '{given}'",
            help="give a whole number (8192), or a factor of the present value (2x)",
        )

    def of(self, before: int, what: str) -> int:
        """The new size of what was `before`. Raises FlintError FL922 if it is not a whole number."""
        value = self.value * before if self.is_factor else self.value
        if value.denominator != 1 or value < 1:
            raise FlintError(
                "FL922",
                f"{what} of {before:,} cannot be {float(self.value):g} times as large",
                help="give a factor that yields a whole number",
            )
        return int(value)


#: Roles whose variables change last where a role is a product: heads before the size of a head.
_LAST = ("head_size", "kv_heads")


@dataclass(frozen=True)
class AskedSizes:
    """What is wanted: sizes by role, whole sizes of variables by number, and a mesh.

    `layers` are apart: they may be rows of their own.
    """

    mesh: Mesh
    roles: Mapping[str, Amount] = field(default_factory=dict)
    values: Mapping[int, Amount] = field(default_factory=dict)
    keep_global_batch: bool = False


@dataclass(frozen=True)
class Plan:
    """New sizes on one device by variable, those that change alone; and what was taken for granted.

    `ratios` say how many times as large the whole of a variable is.
    """

    values: Mapping[int, int]
    ratios: Mapping[int, Fraction]
    assumed: tuple[str, ...]


def plan(known: Known, asked: AskedSizes) -> Plan:
    """Raises FlintError FL921 to FL925."""
    planner = _Planner(known, asked)
    planner.require_axes()
    planner.set_values()
    planner.set_roles()
    planner.set_slots()
    planner.set_rings()
    values = planner.local()
    return Plan(values, planner.ratios(), tuple(planner.assumed))


class _Planner:
    def __init__(self, known: Known, asked: AskedSizes) -> None:
        self.known, self.asked = known, asked
        self.old, self.new = known.workload.mesh, asked.mesh
        self.whole: dict[int, int] = {}
        self.assumed: list[str] = []
        self.changed = frozenset(
            n for n, size in self.new.shape.items() if self.old.shape[n] != size
        )

    # axes -------------------------------------------------------------------------------------------

    def require_axes(self) -> None:
        """Axes that change are ones that the capture tells of."""
        for name in sorted(self.changed):
            before, after = self.old.shape[name], self.new.shape[name]
            if before == 1 or after == 1:
                raise FlintError(
                    "FL921",
                    f"axis '{name}' cannot go from {before} to {after}: a program that was "
                    "captured with one device along it has no collectives over it, but others "
                    "have",
                    help="capture it with two devices along that axis, or more",
                )
            if name in self.known.splits.unexplained:
                raise FlintError(
                    "FL921",
                    f"axis '{name}' cannot change: results are summed over it, and it splits a "
                    "dimension that is 1 on each device, so it is unknown which",
                    help="capture it with fewer devices along that axis",
                )
        for variables, axis in self.known.splits.undecided:
            if axis in self.changed:
                names = " or ".join(f"d{v}" for v in variables)
                raise FlintError(
                    "FL921",
                    f"axis '{axis}' splits {names}, and it is unknown which",
                    help=f"name it: --split d{variables[0]}={axis}",
                )
        for row, place, size, axes in self.known.splits.fixed:
            if not self.changed & set(axes):
                continue
            if size == 1 and self.known.is_batch(row, place):
                self._keep_one(axes)
                continue
            raise FlintError(
                "FL922",
                f"dimension {place} of {self.known.name(row)} has {size} on one device and is split over "
                f"{'+'.join(axes)}: it cannot follow another mesh",
                help="capture it with fewer devices along that axis, or with a larger size",
            )

    def _keep_one(self, axes: tuple[str, ...]) -> None:
        if self.asked.keep_global_batch:
            raise FlintError(
                "FL922",
                f"the global batch cannot be kept: one device has one sequence, split over {'+'.join(axes)}",
                help="capture it with more sequences on each device",
            )
        self._assume(
            f"each device still has 1 of the batch, so the global batch grows with {'+'.join(axes)}"
        )

    def _assume(self, text: str) -> None:
        if text not in self.assumed:
            self.assumed.append(text)

    # sizes ------------------------------------------------------------------------------------------

    def set_values(self) -> None:
        for number, amount in self.asked.values.items():
            self._set(number, amount.of(self._old_whole(number), f"d{number}"))

    def set_roles(self) -> None:
        """Roles of one variable first: those of several are made of what is left."""
        roles = self.known.roles
        for name in self.asked.roles:
            if name not in roles:
                raise _no_role(name, self.known)
        for name in self.asked.roles:
            if self.known.merged_with_weights(name):
                raise FlintError(
                    "FL922",
                    f"{name} cannot change alone: it is as long as a dimension of weights, and "
                    "rows do not distinguish them",
                    help=f"capture the model with another {name}",
                )
        order = sorted(self.asked.roles, key=lambda n: _is_product(roles[n]))
        for name in order:
            self._set_role(roles[name], self.asked.roles[name])

    def _set_role(self, role: SizeRole, amount: Amount) -> None:
        if not role.is_certain:
            names = ", ".join(f"d{v}" for v in role.variables)
            self._assume(
                f"{names} is assumed to be the {role.name.replace('_', ' ')}, which is not certain"
            )
        if not _is_product(role):
            for number in role.variables:
                self._set_one(role, number, amount)
            return
        target = amount.of(role.times * math.prod(map(self._old_whole, role.variables)), role.name)
        free = [v for v in role.variables if v not in self.whole]
        if not free:
            self._require_same(role, target)
            return
        chosen = min(free, key=self._rank)
        rest = role.times * math.prod(
            self.whole.get(v, self._kept(v)) for v in role.variables if v != chosen
        )
        if target % rest:
            raise FlintError(
                "FL922",
                f"{role.name} cannot be {target:,}: it is a multiple of {rest:,}",
                help="give a multiple, or set its factors: "
                + ", ".join(f"d{v}" for v in role.variables),
            )
        self._set(chosen, target // rest)

    def _rank(self, variable: int) -> tuple[int, int]:
        """Of a product, what changes first: what is in no other role."""
        last = [
            i
            for i, name in enumerate(reversed(_LAST))
            if (role := self.known.roles.get(name)) and variable in role.variables
        ]
        return (max(last, default=-1), variable)

    def _require_same(self, role: SizeRole, target: int) -> None:
        made = role.times * math.prod(self.whole[v] for v in role.variables)
        if made != target:
            raise FlintError(
                "FL922",
                f"{role.name} is {made:,} by its factors, and cannot be {target:,}",
                help="omit one of them",
            )

    def _set_one(self, role: SizeRole, number: int, amount: Amount) -> None:
        before = self._old_whole(number) * role.times
        if role.name == "batch" and amount.is_factor:
            before = self._kept(number)
        size = amount.of(before, role.name)
        if size % role.times:
            raise FlintError(
                "FL922",
                f"{role.name} cannot be {size:,}: the program has {role.times} halves or parts of it",
                help=f"give a multiple of {role.times}",
            )
        self._set(number, size // role.times)

    def _set(self, number: int, whole: int) -> None:
        if self.whole.setdefault(number, whole) != whole:
            raise FlintError(
                "FL922",
                f"d{number} cannot be {self.whole[number]:,} and {whole:,}",
                help="set it once",
            )

    def _old_whole(self, number: int) -> int:
        return self.known.whole(number)

    def _kept(self, number: int) -> int:
        """The whole size of a variable of which nothing is said."""
        if self._stays_local(number):
            return self.known.value[number] * self._devices(number, self.new)
        return self._old_whole(number)

    def _devices(self, number: int, mesh: Mesh) -> int:
        return math.prod(mesh.shape[a] for a in self.known.splits.axes(number))

    def _stays_local(self, number: int) -> bool:
        if number in self.known.variables_of("slots"):
            return True
        return number in self.known.variables_of("batch") and not self.asked.keep_global_batch

    # slots of experts -------------------------------------------------------------------------------

    def set_slots(self) -> None:
        """Slots of an expert follow tokens and experts, as their source computes them."""
        slots = [v for v in self.known.variables_of("slots") if v not in self.whole]
        if not slots or "experts" not in self.known.roles:
            return
        ratio = self._ratio("sequence") / self._ratio("experts")
        if not self.known.slots_are_of_sequences(slots[0]):
            ratio *= self._ratio("batch")
        if ratio == 1:
            return
        for number in slots:
            local = self.known.value[number]
            size = math.ceil(local * ratio)
            self.whole[number] = size * self._devices(number, self.new)
            self._assume(
                f"slots of an expert go from {local:,} to {size:,}, like the tokens for each expert"
            )

    def _ratio(self, name: str) -> Fraction:
        """How much more there is of a role: of experts in all, of others on one device."""
        found = Fraction(1)
        for number in self.known.variables_of(name)[: 1 if name == "experts" else None]:
            new = self.whole.get(number, self._kept(number))
            if name in ("experts", "sequence"):
                found *= Fraction(new, self._old_whole(number))
            else:
                local = Fraction(new, self._devices(number, self.new))
                found *= local / self.known.value[number]
        return found

    # rings ------------------------------------------------------------------------------------------

    def set_rings(self) -> None:
        """Loops that pass something around an axis run as often as it is long, or once less."""
        structure = self.known.structure
        trips = self.known.sizes.columns.trips
        for region, (axis, less) in rings_of(structure.program).items():
            if axis not in self.changed:
                continue
            for number in self.known.sizes.table.entries[trips[region]].variables:
                self._set(number, self.new.shape[axis] - less)
            self._assume(
                f"the loop around '{axis}' runs {self.new.shape[axis] - less:,} times, once for each device along it"
                + (" but the first" if less else "")
            )

    # the result -------------------------------------------------------------------------------------

    def local(self) -> dict[int, int]:
        """New sizes on one device. Raises FlintError FL922 for what axes do not divide."""
        found = {}
        for number, before in self.known.value.items():
            whole = self.whole.get(number, self._kept(number))
            devices = self._devices(number, self.new)
            if whole % devices:
                raise self._not_divided(number, whole)
            if whole // devices != before:
                found[number] = whole // devices
                if 1 in (before, whole // devices):
                    self._assume(
                        f"{self.known.label(number)} becomes 1 on each device: operations that "
                        "real programs omit for dimensions of 1, such as transposes, are still "
                        "there"
                    )
        self._tell_batch()
        self._tell_unsplit()
        self._tell_alike()
        return found

    def ratios(self) -> dict[int, Fraction]:
        """How many times as large the whole of each variable becomes."""
        return {
            v: Fraction(self.whole.get(v, self._kept(v)), self._old_whole(v))
            for v in self.known.value
        }

    def _not_divided(self, number: int, whole: int) -> FlintError:
        axes = self.known.splits.axes(number)
        sizes = " x ".join(f"{a}={self.new.shape[a]}" for a in axes)
        role = self.known.label(number)
        return FlintError(
            "FL922",
            f"{role} has {whole:,}, which {sizes} do not divide"
            if len(axes) > 1
            else f"{role} has {whole:,}, which {sizes} does not divide",
            help="partitioners pad or copy such a dimension in their own ways: give another size or mesh",
        )

    def _tell_batch(self) -> None:
        for number in self.known.variables_of("batch"):
            moved = self.changed & set(self.known.splits.axes(number))
            if not moved or number in self.whole:
                continue
            if self.asked.keep_global_batch:
                self._assume(f"the global batch stays {self._old_whole(number):,}")
            else:
                self._assume(
                    f"each device still has {self.known.value[number]:,} of the batch: in total "
                    f"it goes from {self._old_whole(number):,} to {self._kept(number):,}"
                )

    def _tell_alike(self) -> None:
        """Sizes without a role that were as long as one that changes: they may be the same to the source."""
        taken = {v for role in self.known.roles.values() for v in role.variables}
        for name in self.asked.roles:
            role = self.known.roles[name]
            lengths = (
                {self._old_whole(v) for v in role.variables} if not _is_product(role) else set()
            )
            alike = [
                v
                for v in self.known.value
                if v not in taken and v not in self.whole and self._old_whole(v) in lengths
            ]
            if alike:
                names = ", ".join(f"d{v}" for v in alike)
                self._assume(
                    f"{names} also had the length of {name}, and stays: rows do not tie them"
                )

    def _tell_unsplit(self) -> None:
        """Without shardings, nothing tells of some weights whether an axis splits them."""
        if not self.changed or self.known.has_shardings:
            return
        whole = [
            self.known.label(v)
            for v in self.known.weight_variables
            if not self.known.splits.axes(v)
        ]
        if whole:
            self._assume(f"assumed to be whole on each device: {', '.join(whole)}")


def _is_product(role: SizeRole) -> bool:
    return len(role.variables) > 1 and not role.equal


def _no_role(name: str, known: Known) -> FlintError:
    option = "--" + name.replace("_", "-")
    if name == "batch":
        return FlintError(
            "FL923",
            f"{option} has nothing to change: one device has one sequence, or none that Flint recognizes",
            help="capture it with two sequences on each device, or more",
        )
    why = {
        "experts": "no product with weights has experts",
        "layers": "no loop goes along stacked arrays, and no rows repeat as layers do",
    }.get(name, "nothing in the program has that role")
    return FlintError(
        "FL923",
        f"{option} has nothing to change: {why}",
        help="roles that were found: " + ", ".join(known.roles) + "; set others with --set dN=SIZE",
    )


def require_variables(numbers: Iterable[str], known: Known) -> dict[str, int]:
    """Numbers of variables by their names. Raises FlintError FL924."""
    names = {f"d{v}": v for v in known.value}
    found = {}
    for name in numbers:
        if name not in names:
            raise FlintError(
                "FL924",
                f"there is no variable '{name}'{nearest(name, list(names))}",
                help="flint grow IN lists them",
            )
        found[name] = names[name]
    return found
