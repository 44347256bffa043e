"""Gathers that nobody asked for: a value made whole on every device, to be cut again or for one operation.

XLA calls the first an involuntary full rematerialization (jax#21562, openxla/xla#15207). What a sharding
asks for is none: weights that are gathered to be read (FSDP), or activations for a product.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from flint.ir.op_class import LAYOUT, OpClass
from flint.ir.program import Collective, Flag, Kind, Program
from flint.text import format_bytes, plural

#: Gathers of fewer bytes in a step are not told.
LEAST_BYTES = 1 << 20
_SHOWN = 5
#: Rows that hand elements on.
_MOVES = (LAYOUT | {OpClass.CONVERT, OpClass.UNPACK, OpClass.MOVE}) - {OpClass.BROADCAST}
#: Operations that are not split along what they work along.
_WHOLE = frozenset(
    {OpClass.SORT, OpClass.TOP_K, OpClass.FFT, OpClass.SOLVE, OpClass.SCAN, OpClass.CALL}
)


@dataclass(frozen=True)
class Regathered:
    """A gather that no sharding asked for; `row` is the last of its chain, over all `axes`.

    `cut` is the row that cuts the value again, -1 if none does; `reader` the operation that reads it
    whole, -1 if it is cut as it is. `num_bytes` are those that a device then holds, `times` how often.
    """

    row: int
    axes: tuple[str, ...]
    cut: int
    reader: int
    num_bytes: int
    times: int


def regathered(program: Program) -> list[Regathered]:
    """All of a partitioned program, those of most bytes in a step first."""
    search = _Search(program)
    gathers = np.flatnonzero(program.collective == Collective.ALL_GATHER).tolist()
    found = [f for row in gathers for f in search.of(row) if f.times]
    return sorted(found, key=lambda f: (-f.num_bytes * f.times, f.row))


def regathered_warnings(program: Program) -> tuple[str, ...]:
    """A sentence for each of the largest, of at least LEAST_BYTES in a step."""
    found = [f for f in regathered(program) if f.num_bytes * f.times >= LEAST_BYTES]
    said = [sentence(program, f) for f in found[:_SHOWN]]
    if len(found) > _SHOWN:
        said.append(f"{plural(len(found) - _SHOWN, 'smaller gather')} of this kind")
    return tuple(dict.fromkeys(said))


class _Search:
    """Who reads what, seen through rows that hand elements on."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._readers: dict[int, list[int]] = {}
        for read, reader in zip(program.deps.tolist(), program.dep_owner.tolist(), strict=True):
            self._readers.setdefault(read, []).append(reader)

    def of(self, row: int) -> Iterator[Regathered]:
        """What `row` is, if it is the last gather of its chain and not one that the user wrote."""
        ends = self._ends(row)
        if not ends or any(self._is_gather(end) for end in ends) or self._is_manual(row):
            return
        whole = {int(end) for end in ends if self._op(end) in _WHOLE}
        cuts = [end for end in ends if self._is_cut(end)]
        if len(cuts) == len(ends) and not self._goes_back(row, cuts[0]):
            yield self._found(row, cuts[0], -1)
        elif len(whole) == len(ends) and not self._is_given(row):
            reader = min(whole)
            again = [end for end in self._ends(reader) if self._is_cut(end)]
            if again or self._covers_the_mesh(row):
                yield self._found(row, next(iter(again), -1), reader)

    def _found(self, row: int, cut: int, reader: int) -> Regathered:
        program = self.program
        axes = tuple(dict.fromkeys(a for g in self._chain(row)[0] for a in self._axes(g)))
        size = int(program.result_bytes[row])
        return Regathered(row, axes, cut, reader, size, int(program.trips[row]))

    def _ends(self, row: int) -> list[int]:
        """The first rows that do more with a value than hand it on."""
        ends, seen, queue = [], {row}, [row]
        while queue:
            for reader in self._readers.get(queue.pop(), ()):
                if reader in seen:
                    continue
                seen.add(reader)
                if self._hands_on(reader):
                    queue.append(reader)
                else:
                    ends.append(reader)
        return sorted(ends)

    def _chain(self, row: int) -> tuple[list[int], int]:
        """The gathers that made a value whole, the last first, and the row that they begin with."""
        chain, at = [row], row
        while len(deps := self.program.dependencies(at)) == 1:
            at = int(deps[0])
            if self._is_gather(at):
                chain.append(at)
            elif not self._hands_on(at):
                break
        return chain, at

    def _is_given(self, row: int) -> bool:
        """Whether what is gathered is an argument as it is, whose sharding asks for the gather."""
        return bool(self.program.kind[self._chain(row)[1]] == Kind.PARAMETER)

    def _covers_the_mesh(self, row: int) -> bool:
        program, size = self.program, 1
        for gather in self._chain(row)[0]:
            size *= program.groups[program.group[gather]].size(program.mesh)
        return size == program.mesh.size

    def _goes_back(self, row: int, cut: int) -> bool:
        """Whether the cut undoes the gather: only a sharding that the user gave the value asks for that."""
        before = self.program.row(int(self.program.dependencies(row)[0]))
        return before.shape == self.program.row(cut).shape

    def _axes(self, gather: int) -> list[str]:
        program = self.program
        return [str(axis) for axis in program.groups[program.group[gather]].axes]

    def _is_manual(self, row: int) -> bool:
        """A gather of `shard_map`. Of a program that a whole compiler made, nothing says which these are."""
        flags = self.program.flags & Flag.PARTITIONED
        return bool(flags.any() and not flags[row])

    def _is_gather(self, row: int) -> bool:
        return bool(self.program.collective[row] == Collective.ALL_GATHER)

    def _is_cut(self, row: int) -> bool:
        """Whether each device keeps a part by its place: a slice where nothing but that says where."""
        if self._op(row) is not OpClass.DYNAMIC_SLICE:
            return self._op(row) is OpClass.ALL_SLICE
        starts = self.program.dependencies(row)[1:].tolist()
        return bool(starts) and all(self._is_of_place(start) for start in starts)

    def _is_of_place(self, row: int) -> bool:
        """Whether a value is made of constants and of the device's number."""
        seen: set[int] = set()
        queue = [row]
        while queue:
            at = queue.pop()
            deps = self.program.dependencies(at).tolist()
            made = self._op(at) in (OpClass.CONSTANT, OpClass.FILL)
            if not deps and not made or len(seen) > 32 or at in self._carried:
                return False
            queue += [dep for dep in deps if dep not in seen]
            seen.update(deps)
        return True

    @cached_property
    def _carried(self) -> set[int]:
        return {row for region in self.program.regions for row, _ in region.carries}

    def _hands_on(self, row: int) -> bool:
        if self.program.kind[row] == Kind.VALUE:
            return bool(self.program.op[row] not in (OpClass.RESULT, OpClass.CONSTANT))
        return self.program.kind[row] == Kind.COMPUTE and self._op(row) in _MOVES

    def _op(self, row: int) -> OpClass:
        return OpClass(int(self.program.op[row]))


def sentence(program: Program, f: Regathered) -> str:
    """What is gathered, and behind the last colon what to do."""
    gather, axes = program.row(f.row), " and ".join(f.axes)
    shape = f"{gather.dtype}[{','.join(map(str, gather.shape))}]"
    place = gather.location or gather.scope or "the step"
    size = f"{format_bytes(f.num_bytes)} on every device, {plural(f.times, 'time')} a step"
    begin = f"{place}: {shape} is gathered whole over {axes} ({size})"
    if f.reader < 0:
        return (
            f"{begin} and cut again, an involuntary full rematerialization: give it a sharding between the "
            f"two{_such_as(program, f)}"
        )
    reader = program.row(f.reader).opcode.rpartition(".")[2]
    then = ", whose result is cut again" if f.cut >= 0 else ""
    return (
        f"{begin} for {reader}{then}; no sharding asks for it, but partitioners do not split {reader}: call "
        f"it in jax.shard_map over {axes}, with the dimension whole that {reader} works along"
    )


def _such_as(program: Program, f: Regathered) -> str:
    """A sharding between that of the gathered value and that of the cut one: no device holds all.

    "" if all axes of the gather cut it again: none is left for the dimension that was gathered.
    """
    cut = program.row(f.cut)
    cut_axes = [str(a) for a in cut.group.axes] if cut.group is not None else []
    before, gathered = program.row(int(program.dependencies(f.row)[0])), program.row(f.row)
    whole = program.row(int(program.dependencies(f.cut)[0])).shape
    named = [_axes_of(program, a, b, cut_axes) for a, b in zip(whole, cut.shape, strict=True)]
    taken = {*cut_axes, *(axis for axes in named for axis in axes)}
    left = [axis for axis in f.axes if axis not in taken]
    if not left or None in taken:
        return ""
    if gathered.shape == whole and len(before.shape) == len(whole):
        parts = zip(named, whole, before.shape, strict=True)
        named = [n or _axes_of(program, a, b, left) for n, a, b in parts]
    spec = ", ".join(repr(n[0] if len(n) == 1 else n or None) for n in named)
    return f", such as jax.lax.with_sharding_constraint(x, P({spec}))"


def _axes_of(program: Program, whole: int, part: int, axes: list[str]) -> tuple[str | None, ...]:
    """The axes of a dimension of which a device has a part; (None,) if they are not known."""
    if whole == part:
        return ()
    sizes = program.mesh.shape
    of = [a for a in axes or list(sizes) if sizes.get(a) == -(-whole // part)]
    return tuple(of[:1] or axes) or (None,)
