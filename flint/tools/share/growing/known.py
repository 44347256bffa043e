"""All that is known of a workload before it is grown: variables, splits, roles."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from flint.io.documents import Unpublished
from flint.ir.mesh import Mesh
from flint.ir.workload import Workload
from flint.tools.share.growing.repeat import unrolled_layers
from flint.tools.share.growing.roles import SizeRole, roles_of
from flint.tools.share.growing.splits import Splits, splits_of
from flint.tools.share.growing.structure import ProgramStructure, variables_of
from flint.tools.share.sizes import Sizes


@dataclass(frozen=True)
class Known:
    """A workload with its variables. Sizes are whole or of one device as names say."""

    workload: Workload
    sizes: Sizes
    structure: ProgramStructure
    splits: Splits
    roles: Mapping[str, SizeRole]

    @classmethod
    def of(cls, workload: Workload, said: Mapping[str, tuple[str, ...]] | None = None) -> Known:
        """Read a workload. `said` are splits that the user gives, by name of a variable."""
        sizes = Sizes.of(workload)
        structure = ProgramStructure(workload, sizes)
        numbers = {f"d{v.number}": v.number for v in sizes.variables}
        given = {numbers[name]: axes for name, axes in (said or {}).items() if name in numbers}
        roles = roles_of(structure)
        heads = roles.get("kv_heads") or roles.get("heads")
        sequence = roles.get("sequence")
        splits = splits_of(
            structure,
            given,
            heads.variables if heads else (),
            sequence.variables if sequence else (),
        )
        found = cls(workload, sizes, structure, splits, roles)
        if "vocabulary" in roles and not found.has_shardings:
            splits = splits.with_equal(roles["vocabulary"].variables)
            found = replace(found, splits=splits)
        return replace(found, roles=found._with_all_experts())

    def _with_all_experts(self) -> Mapping[str, SizeRole]:
        """Roles in which the experts are also what is as long and is nothing else.

        A router's result and counts of tokens by expert are made equal to experts by no row.
        """
        if "experts" not in self.roles:
            return self.roles
        experts = self.roles["experts"]
        length = self.whole(experts.variables[0])
        taken = {v for role in self.roles.values() for v in role.variables}
        others = [v for v in self.value if v not in taken and self.whole(v) == length]
        variables = (*experts.variables, *others)
        return {**self.roles, "experts": replace(experts, variables=variables, equal=True)}

    @cached_property
    def value(self) -> Mapping[int, int]:
        """Sizes on one device, by variable."""
        return {v.number: v.value for v in self.sizes.variables}

    def whole(self, number: int) -> int:
        """The size over all devices."""
        mesh = self.workload.mesh
        return self.value[number] * math.prod(mesh.shape[a] for a in self.splits.axes(number))

    def merged_with_weights(self, role: str) -> bool:
        """Whether a length of activations is the same variable as a dimension of weights: they were as long by chance.

        A table of positions has the sequence too; so it is many weights, of those that products read.
        """
        variables = set(self.variables_of(role))
        if role not in ("sequence", "batch") or not self.structure.inputs:
            return False
        rows = [r for r in self.structure.parameters if not self.structure.is_whole(r)]
        dims = [self.structure.dims(r) for r in rows]
        long = [d for d in dims if len(d) > 1]
        has = [d for d in long if any(variables & e.variables for e in d)]
        return 4 * len(has) > len(long)

    def variables_of(self, role: str) -> tuple[int, ...]:
        """Variables of a role; none if there is no such role."""
        found = self.roles.get(role)
        return found.variables if found else ()

    def label(self, number: int) -> str:
        """A variable by its role and number."""
        names = [n.replace("_", " ") for n, r in self.roles.items() if number in r.variables]
        return f"d{number} ({', '.join(names)})" if names else f"d{number}"

    def shape(self, row: int) -> tuple[int, ...]:
        """The shape of a row on one device."""
        p = self.structure.program
        return p.shapes[int(p.shape[row])]

    def name(self, row: int) -> str:
        """An argument by its name."""
        p = self.structure.program
        return p.strings[int(p.name[row])] or f"argument {row}"

    def is_batch(self, row: int, place: int) -> bool:
        """Whether the first dimension of an argument is the batch: of tokens, or split as theirs."""
        if place != 0:
            return False
        if row in self.structure.inputs:
            return True
        sharding, inputs = self.structure.sharding, self.structure.inputs
        of_inputs = {found[0] for r in inputs if (found := sharding(r))}
        own = sharding(row)
        return bool(own and (not inputs or own[0] in of_inputs))

    @cached_property
    def has_shardings(self) -> bool:
        """Whether arguments say their shardings."""
        return any(map(self.structure.sharding, self.structure.parameters))

    @cached_property
    def weight_variables(self) -> tuple[int, ...]:
        """Variables of arguments of floating point numbers, without numbers of layers."""
        found: set[int] = set()
        for row in self.structure.weights:
            found |= variables_of(self.structure.powers(row) or {})  # type: ignore[arg-type]
        return tuple(sorted(found - {v.number for v in self.sizes.variables if v.layers}))

    def slots_are_of_sequences(self, slots: int) -> bool:
        """Whether each sequence has slots of its own: products of experts have the batch beside them."""
        batch = set(self.variables_of("batch"))
        with_slots = [s for s in self.structure.sums if s.is_product and slots in s.result]
        return any(batch & variables_of(s.result) for s in with_slots)

    def shares(self) -> dict[int, float]:
        """The share of FLOPs of rows that have a variable, in their result or what they read."""
        p = self.structure.program
        times = p.flops.astype(np.float64) * p.trips
        whole = float(times.sum()) or 1.0
        found = dict.fromkeys(self.value, 0.0)
        own = [
            frozenset(v for e in self.structure.dims(r) for v in e.variables) for r in range(len(p))
        ]
        for row in np.flatnonzero(times).tolist():
            variables = own[row].union(*(own[d] for d in p.dependencies(row).tolist()))
            for variable in variables:
                found[variable] += float(times[row]) / whole
        return found


# Variables of a workload as they are listed: sizes, role, axes, and how much of the step they are in.


@dataclass(frozen=True, slots=True)
class SizeEntry:
    """A size that dimensions of the workload are made of."""

    name: str
    """What `--set` calls it: "d7". Layers that are rows of their own are called "layers"."""
    value: int  #: Its size on one device.
    whole: int  #: Its size over the axes that split it.
    roles: tuple[str, ...]  #: What it is to the model, or a factor of: "width", "heads", ...
    role: Unpublished[str]  #: The same in words.
    certain: bool  #: Whether the roles are.
    axes: tuple[str, ...]  #: Axes of the mesh that split it.
    how: str  #: What told these axes; empty without any.
    rows: int  #: Rows that have it in their shape.
    flops_share: float  #: The share of the FLOPs that rows which have it do, from 0 to 1.
    new_value: int  #: Its size on one device in the grown workload.
    new_whole: int  #: Its whole size there.


def entries_of(
    known: Known, values: Mapping[int, int], mesh: Mesh, layers: int | None
) -> tuple[SizeEntry, ...]:
    """All variables, with new sizes on one device where `values` has them; and layers without a loop."""
    shares = known.shares()
    found = []
    for variable in known.sizes.variables:
        number = variable.number
        split = known.splits.of.get(number)
        roles = [r for r in known.roles.values() if number in r.variables]
        new = values.get(number, variable.value)
        found.append(
            SizeEntry(
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
        new = now if layers is None else layers
        found.append(
            SizeEntry("layers", now, now, ("layers",), "layers", True, (), "", 0, 1.0, new, new)
        )
    return tuple(found)


def _in_words(role: SizeRole) -> str:
    """A role as it is of one of its variables: itself, a part of it, or a factor."""
    name = role.name.replace("_", " ")
    if len(role.variables) > 1 and not role.equal:
        return f"factor of {name}"
    return name if role.times == 1 else f"{name} / {role.times}"
