"""Where whole parameters come from: gathered again by each pass, or once in a step.

A loop whose backward pass reads what its forward pass gathered keeps all of it: autodiff stacks it
like an activation. Parameters that are sharded at rest should not be whole between the passes, so
the backward pass gathers each layer's again, as it comes to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from flint.ir.columns import Mask
from flint.ir.edit import Editor
from flint.ir.op_class import OpClass
from flint.ir.program import Collective, Flag, Kind
from flint.passes.pipeline.split.classify import GATHER, RowClasses
from flint.passes.pipeline.split.parts import Key, OpenBody, Saved, alive
from flint.passes.pipeline.split.reach import common_region, dependent, producers, readers

#: What tells values apart: nested tuples of the rows that make them.
Signature = tuple[object, ...]
#: Columns of a collective that is none any more.
_SILENT: dict[str, Any] = {
    "opcode": "stablehlo.reshape",
    "op": OpClass.RESHAPE,
    "kind": int(Kind.VALUE),
    "flags": int(Flag.VIEW),
    "collective": int(Collective.NONE),
    "group": -1,
    "comm_bytes": 0,
    "operand_bytes": 0,
    "cause": "",
}


def shared_rows(body: OpenBody) -> Mask:
    """Rows that are the same for every microbatch."""
    return ~dependent(body.program, body.varying())


def regathered(body: OpenBody) -> OpenBody:
    """A body in which loops compute slices of shared stacks again rather than read them.

    Another loop wrote the stack, slice i in iteration i, from parameters alone. A row that slices
    it becomes a view of a copy of what was written.
    """
    shared = shared_rows(body)
    cones = _Cones(body, shared)
    edit = Editor(body.program)
    for write in cones.stacks():
        slices = cones.slices_of(write)
        if slices and all(cones.can_repeat(write, row) for row in slices):
            for row in slices:
                cones.repeat(edit, write, row)
    return alive(body.moved(edit))


def gathered_once(body: OpenBody) -> tuple[OpenBody, list[int]]:
    """A body in which one row gathers each parameter that is sharded at rest, and these rows."""
    cones = _Cones(body, shared_rows(body))
    edit = Editor(body.program)
    first: dict[Signature, int] = {}
    for row in cones.gathers():
        signature = cones.signature(row)
        if signature not in first:
            first[signature] = cones.hoist(edit, row)
        of = first[signature]
        if of != row:
            edit.change(row, deps=(of,), alias=of, **_SILENT)
    marks: dict[Key, int] = {Saved(row): row for row in first.values()}
    after = alive(body.moved(edit, {**body.results, **marks}))
    rows = sorted(after.results[mark] for mark in marks)
    return replace(after, results={k: r for k, r in after.results.items() if k not in marks}), rows


def with_gather(classes: RowClasses, rows: Iterable[int]) -> RowClasses:
    """The classes in which `rows` are of the part that runs first and once in a step."""
    part, shared = classes.part.copy(), classes.shared.copy()
    part[list(rows)] = GATHER
    shared[list(rows)] = False
    return replace(classes, part=part, shared=shared)


class _Cones:
    """What shared values are made of, inside their loops."""

    def __init__(self, body: OpenBody, shared: Mask) -> None:
        self.program, self.shared = body.program, shared
        self.produced = producers(body.program)
        self.readers = readers(body.program)
        self.signatures: dict[int, Signature] = {}

    # stacks -------------------------------------------------------------------------------------

    def stacks(self) -> list[int]:
        """Rows that write shared stacks, slice by slice."""
        p = self.program
        return sorted(
            row
            for value, row in self.produced.items()
            if self.shared[row]
            and p.op[row] == OpClass.UPDATE_SLICE
            and p.alias[row] == value
            and self.readers[value] == [row]
            and self._written(row) >= 0
        )

    def slices_of(self, write: int) -> list[int]:
        """Rows that slice a stack in other loops, or none if something else reads it."""
        p = self.program
        found = []
        pending = list(self.readers[write])
        while pending:
            row = pending.pop()
            if self.produced.get(row) == row:
                pending.extend(self.readers[row])
            elif p.op[row] == OpClass.DYNAMIC_SLICE and p.region[row] >= 0:
                found.append(row)
            else:
                return []
        return sorted(found)

    def can_repeat(self, write: int, row: int) -> bool:
        """Whether `row` can have a copy of what `write` writes in front of it."""
        p = self.program
        inside = self._cone(write)
        same_size = p.result_bytes[self._written(write)] == p.result_bytes[row]
        if inside is None or not same_size or p.region[row] == p.region[write]:
            return False
        reads = {self._outside(d) for r in inside for d in p.dependencies(r).tolist()}
        outer = [d for d in reads if d not in inside and not self._is_index(d)]
        return all(common_region(p, d, row) == p.region[d] for d in outer)

    def repeat(self, edit: Editor, write: int, row: int) -> None:
        """Compute a slice again: copy its rows in front of `row`, a view of the last of them."""
        p = self.program
        index = [d for d in p.dependencies(row).tolist() if p.shapes[p.shape[d]] == ()]
        place: dict[int, int] = {}
        for r in sorted(self._cone(write) or ()):
            deps: list[int] = []
            for d in p.dependencies(r).tolist():
                if d in place:
                    deps.append(place[d])
                else:
                    deps.extend(index if self._is_index(d) else [self._outside(d)])
            alias = self._outside(int(p.alias[r])) if p.alias[r] >= 0 else -1
            place[r] = edit.copy(r, row, int(p.region[row]), deps, alias=place.get(alias, alias))
        of = place[self._written(write)]
        edit.change(row, deps=(of,), alias=of, **_SILENT)

    def _written(self, write: int) -> int:
        """The row whose value a write puts into its stack, or -1."""
        p = self.program
        deps = p.dependencies(write).tolist()
        found = [d for d in deps if d != p.alias[write] and p.shapes[p.shape[d]] != ()]
        return found[0] if len(found) == 1 else -1

    def _cone(self, write: int) -> set[int] | None:
        """Rows in the loop of `write` that make a slice; None if one depends on the slice before."""
        p, loop = self.program, self.program.region[write]
        found: set[int] = set()
        pending = [self._written(write)]
        while pending:
            row = pending.pop()
            if row in found or self._is_index(row) or self._outside(row) != row:
                continue
            if p.region[row] != loop:
                if common_region(p, row, write) == loop:
                    return None  # in a loop inside this one
                continue
            if row in self.produced:
                return None
            found.add(row)
            pending.extend(p.dependencies(row).tolist())
        return found

    def _outside(self, row: int) -> int:
        """What a loop passes on as `row`, or the row itself."""
        while self.produced.get(row) == row:
            row = int(self.program.dependencies(row)[0])
        return row

    def _is_index(self, row: int) -> bool:
        """Whether a row is a scalar that differs between iterations."""
        p = self.program
        if p.shapes[p.shape[row]] != () or p.region[row] < 0:
            return False
        if row in self.produced:
            return self.produced[row] != row
        return any(self._is_index(d) for d in p.dependencies(row).tolist())

    # whole parameters ---------------------------------------------------------------------------

    def gathers(self) -> list[int]:
        p = self.program
        rows = np.flatnonzero((p.collective == Collective.ALL_GATHER) & self.shared).tolist()
        inner: set[int] = set()
        found = []
        for row in rows[::-1]:
            if row in inner:
                continue
            cone = self._expression(row)
            if cone is not None:
                inner |= cone
                found.append(row)
        return found[::-1]

    def signature(self, row: int) -> Signature:
        """Equal for rows that gather the same: of the same parameter, slice by slice."""
        row = self._outside(row)
        known = self.signatures.get(row)
        if known is None:
            p = self.program
            if p.kind[row] == Kind.PARAMETER:
                known = ("parameter", row)
            elif self._is_index(row):
                known = ("index",)
            elif p.flags[row] & Flag.VIEW:
                known = self.signature(int(p.alias[row]))
            else:
                of = p.row(row)
                scalars = [d for d in of.deps if p.shapes[p.shape[d]] == ()]
                indices = filter(self._is_index, scalars)
                tensors = (d for d in of.deps if d not in scalars)
                deps = map(self.signature, (*tensors, *indices))  # rows may be in another order
                shape = tuple(size for size in of.shape if size > 1)
                known = (of.opcode, of.dtype, shape, of.group, *dict.fromkeys(deps))
            self.signatures[row] = known
        return known

    def hoist(self, edit: Editor, row: int) -> int:
        """The row that gathers once: `row`, or a copy before the loops that it does not depend on."""
        p = self.program
        cone = self._expression(row) or set()
        reads = {d for r in cone for d in p.dependencies(r).tolist()}
        loop = int(p.region[row])
        if loop < 0 or any(self._is_index(r) for r in cone | reads):
            return row
        while p.regions[loop].parent >= 0:
            loop = p.regions[loop].parent
        place: dict[int, int] = {}
        for r in sorted(cone):
            deps = [self._outside(d) for d in p.dependencies(r).tolist()]
            alias = self._outside(int(p.alias[r])) if p.alias[r] >= 0 else -1
            place[r] = edit.copy(
                r,
                p.regions[loop].start,
                -1,
                [place.get(d, d) for d in deps],
                alias=place.get(alias, alias),
            )
        return place[row]

    def _expression(self, row: int) -> set[int] | None:
        """Rows that make a value of parameters and constants; None if loops change it."""
        p = self.program
        found: set[int] = set()
        pending = [row]
        while pending:
            at = self._outside(pending.pop())
            if at in found or self._is_index(at) or p.kind[at] == Kind.PARAMETER:
                continue
            if at in self.produced:
                return None
            found.add(at)
            pending.extend(p.dependencies(at).tolist())
        return found
