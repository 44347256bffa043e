"""Compute again: cheap rows vanish into each of their readers, as compilers do."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flint.ir.columns import Mask, carried, consumers, edges, is_any, read_at_home, rewired
from flint.ir.edit import kept, passed_over
from flint.ir.op_class import OpClass
from flint.ir.program import Flag, Int64s, Kind, Program
from flint.passes.fusion.diamonds import Diamonds
from flint.passes.fusion.naming import softmax_rows
from flint.passes.fusion.orders import with_copies, with_turns
from flint.passes.fusion.roles import (
    TAKING,
    Roles,
    RowRole,
    compiled_apart,
    few_blocks,
    named_kernels,
    roles_of,
    stored_pads,
    written_by_index,
)
from flint.passes.fusion.xla_gpu.prologues import prologues

#: flops of an element up to which a value made from nothing is made again.
_CHEAP_FLOPS = 4
#: Elements for which XLA lets a root be calculated again rather than launch a kernel (found by compiling).
_MOST_SPREAD = 2**24
#: Elements from which XLA stores what a reduction along rows leaves if several rows read it (as above:
#: 21 of 24 gradients of softmaxes, 2**15 to 2**24 elements, are as this says).
_LEAST_STORED = 2**20
_ALONG_ROWS = (RowRole.ROWS, RowRole.ELEMENT)
#: Functions that take many instructions.
_COSTLY = frozenset({OpClass.EXPONENTIAL, OpClass.LOGARITHM, OpClass.POWER, OpClass.TRIGONOMETRIC})
#: Of an array whose part they take or write they move little.
_DYNAMIC = frozenset({OpClass.DYNAMIC_SLICE, OpClass.UPDATE_SLICE})


@dataclass(frozen=True, eq=False)
class Inlined:
    """A program in which cheap rows vanished into their readers.

    `roles` are those that rows had before: a reduction is still one along rows. `changed` are rows
    that compute what vanished, `busy` those for which that takes flops, `along` those that compute
    a reduction along rows, `softmax` those that are, or compute, an exponential or the gradient of
    a softmax; `whole` the reductions along rows that can share a kernel with their readers, and
    `ends` these readers.
    """

    program: Program
    roles: Roles
    changed: Mask
    busy: Mask
    along: Mask
    softmax: Mask
    whole: frozenset[int]
    ends: frozenset[int]


def compute_again(
    program: Program,
    *,
    elements: bool,
    operators: bool,
    slices: bool,
    blocks: str,
    named: bool = False,
    compiled: bool = False,
    sinks: bool = True,
    orders: bool = False,
    products: bool = False,
    scatters: bool = False,
) -> Inlined:
    """Let the readers of a row compute it themselves, where that moves fewer bytes.

    * `layout_again`: a change of layout or type, or a value made from nothing, that only
      element-wise rows, reductions and updates read: its operand is no larger than its result.
    * `made_again`: what is made from iotas, constants and scalar arguments alone (a causal mask) is
      never stored, unless a function makes it costly; also if a loop's body reads it, as the body
      of the program makes it itself. What a loop hands on unchanged counts as made with `sinks`;
      else it is an array that was stored before the loop (XLA: it is an operand of the loop).
    * `elements_again` (with `elements`): an element-wise row, if n kernels that each read what it
      reads move no more than if one stored it for them: (n - 1) x read <= n x stored, and none
      computes an element twice. XLA's fusion does this for all readers of a row or for none, and for none
      if one of its own phase reduces columns in `few_blocks` (with `orders`). What a kernel along rows makes
      is computed again with its reduction (an exponential less the largest of its row), by kernels along rows.

    flops count once, at the last reader. PyTorch's operators take part with `operators`,
    slices of stacks with `slices`; `blocks` says which reductions along rows share a kernel with
    their readers (see `Diamonds`). With `named`, what a kernel with a name computes only its own
    rows compute again, and it computes nothing of others; layouts and types all kernels change.
    With `compiled`, nothing but rows of compiled calls vanishes, and into rows of its own call alone.
    With `orders`, values that several products lead to are turned where XLA does it. With `products`,
    these compute their `prologues` themselves, and with `scatters` so do writes by index.
    """
    which = {"slices": slices, "scatters": scatters, "compiled": compiled}
    roles = roles_of(program, operators=operators, **which)
    program = _made_again(program, roles, compiled_apart(program, compiled), sinks=sinks)
    roles = roles_of(program, operators=operators, **which)
    if orders:
        roles = with_turns(program, with_copies(program, roles))
    diamonds = Diamonds(program, roles, blocks=blocks)
    if not orders:
        diamonds.ends.clear()
    by_hand = named_kernels(program, named).tolist()
    calls = compiled_apart(program, compiled).tolist()
    inside = prologues(program, roles) if products else None
    few = few_blocks(program, roles) & orders
    gone = _Again(program, roles, diamonds, elements, by_hand, calls, inside, few).gone()
    return _without(program, roles, gone, diamonds)


def _without(program: Program, roles: Roles, gone: Mask, diamonds: Diamonds) -> Inlined:
    owner, target = edges(program)
    reduced = gone & (roles.role == RowRole.ROWS)
    handed_on = (gone & (program.flops > 0), reduced, softmax_rows(program, roles))
    changed = np.zeros(len(program), dtype=np.bool_)
    changed[owner[gone[target]]] = True
    found = _inlined(program, gone) if gone.any() else program
    place = np.where(gone, -1, np.cumsum(~gone) - 1)
    busy, along, softmax = (_handed_on(program, rows, gone)[~gone] for rows in handed_on)
    sets = (diamonds.whole, diamonds.ends)
    whole, ends = (frozenset(place[sorted(rows)].tolist()) - {-1} for rows in sets)
    kept_roles = roles.select(~gone)
    return Inlined(found, kept_roles, changed[~gone], busy, along, softmax, whole, ends)


def _handed_on(program: Program, rows: Mask, gone: Mask) -> Mask:
    """`rows`, and what computes one of them because it vanished, through others that did."""
    found = rows.tolist()
    start, readers = (column.tolist() for column in consumers(program))
    for row in np.flatnonzero(gone).tolist():
        if found[row]:
            for reader in readers[start[row] : start[row + 1]]:
                found[reader] = True
    return np.array(found, dtype=np.bool_)


class _Again:
    """The decision for each row, readers first."""

    def __init__(
        self,
        program: Program,
        roles: Roles,
        diamonds: Diamonds,
        elements: bool,
        named: list[int],
        calls: list[int],
        inside: Mask | None,
        few: Mask,
    ) -> None:
        self._program = program
        self._roles = roles
        self._between = diamonds.between
        self._read, self._inputs = _bytes_to_compute(program, roles)
        self._takes = _takes(program, roles).tolist()
        self._layouts = _layouts_again(program, roles).tolist()
        stays = ((program.flags & Flag.IN_PLACE) != 0) | is_any(program, OpClass.GATHER)
        self._ends, self._whole = diamonds.ends, diamonds.whole
        self._cheap = (elements & (roles.role == RowRole.ELEMENT) & ~stays).tolist()
        self._elements, self._role = roles.elements.tolist(), roles.role.tolist()
        self._stored = program.result_bytes.tolist()
        self._named, self._calls = named, calls
        self._view = (roles.role == RowRole.VIEW).tolist()
        self._few, self._phase = few.tolist(), program.phase.tolist()
        self._kernels: dict[int, set[int]] = {}
        self._inside = [] if inside is None else inside.tolist()
        # products that compute what they read, and rows that one of them computes
        self._multiplies = ((roles.role == RowRole.MATMUL) & (inside is not None)).tolist()

    def gone(self) -> Mask:
        """Rows that vanish."""
        program = self._program
        start, rows = (column.tolist() for column in consumers(program))
        gone = [False] * len(program)
        may = np.isin(self._roles.role, (RowRole.ELEMENT, RowRole.VIEW))
        may[sorted(self._whole)] = bool(self._ends)
        may &= read_at_home(program) & ~written_by_index(program, self._roles)
        for row in np.flatnonzero(may).tolist()[::-1]:
            readers = rows[start[row] : start[row + 1]]
            if readers and self._together(row, readers, gone):
                kernels = self._readers(readers, gone)
                gone[row] = self._along_again(row, readers, kernels, gone)
                if not gone[row] and row not in self._whole:
                    gone[row] = self._layouts[row] or self._again(row, readers, kernels)
                if gone[row]:
                    self._kernels[row] = kernels
                    self._multiplies[row] = any(self._multiplies[r] for r in readers)
        return np.array(gone, dtype=np.bool_)

    def _together(self, row: int, readers: list[int], gone: list[bool]) -> bool:
        """Whether all readers can take a row: only of their own kernel, if that has a name."""
        number, layout, call = self._named[row], self._layouts[row], self._calls[row]
        if not self._view[row] and any(self._calls[r] != call for r in readers):
            return False
        return all(
            (self._inside[row] or self._view[row])
            if self._multiplies[r]
            else (self._takes[r] or gone[r]) and (layout or self._named[r] == number)
            for r in readers
        )

    def _readers(self, readers: list[int], gone: list[bool]) -> set[int]:
        """Kernels that read a row, as far as they are known."""
        found: set[int] = set()
        for reader in readers:
            if gone[reader]:
                found |= self._kernels[reader]
            else:
                found.add(reader)
        return found

    def _again(self, row: int, readers: list[int], kernels: set[int]) -> bool:
        if self._spread_again(row, readers):
            return True
        multiplied = any(self._multiplies[r] for r in readers)
        if row in self._ends and any(self._role[k] not in _ALONG_ROWS for k in kernels):
            return False
        if not self._cheap[row] or (len(kernels) < 2 and not multiplied):
            return False
        same = (k for k in kernels if self._phase[k] == self._phase[row])
        if len(kernels) > 1 and any(self._few[k] for k in same):
            return False
        widest = max((self._elements[r] for r in readers if not self._multiplies[r]), default=0)
        if widest > self._elements[row]:
            return False
        if multiplied and sum(not self._multiplies[k] for k in kernels) < 2:
            return True
        return bool((len(kernels) - 1) * self._inputs[row] <= len(kernels) * self._stored[row])

    def _along_again(
        self, row: int, readers: list[int], kernels: set[int], gone: list[bool]
    ) -> bool:
        """Whether kernels along rows compute a reduction again, or a value of one element a row.

        What they reduce they read anyway.
        """
        if row in self._whole:
            if len(readers) > 1 and self._elements[row] >= _LEAST_STORED:
                return False
            if all(gone[r] for r in (*readers, *self._whole[row])):
                return True
        elif row not in self._between:
            return False
        others = kernels - self._ends - self._between
        several = bool(self._ends) and len(kernels) > 1
        return several and all(self._role[k] == RowRole.ROWS for k in others)

    def _spread_again(self, row: int, readers: list[int]) -> bool:
        """Whether wider rows calculate a value of one element a row again for each of their elements.

        XLA weighs that against the launch of a kernel.
        """
        if not self._inside or not self._cheap[row] or row in self._between:
            return False
        wider = all(self._elements[r] > self._elements[row] for r in readers)
        again = sum(self._elements[r] for r in readers)
        return wider and again <= _MOST_SPREAD and self._inputs[row] <= 4 * self._stored[row]


def _layouts_again(program: Program, roles: Roles) -> Mask:
    """Rule `layout_again`, except for the readers of a row."""
    moves = (roles.moves | roles.converts) & (program.flops == 0) & (roles.role != RowRole.VIEW)
    few = (np.diff(program.dep_start) <= 1) | stored_pads(program, roles)
    dynamic = is_any(program, _DYNAMIC)
    grows = (program.operand_bytes <= program.result_bytes) & ~roles.turns
    again = moves & grows & (few | dynamic)
    return np.asarray(again | _whole_views(program, roles), dtype=np.bool_)


def _whole_views(program: Program, roles: Roles) -> Mask:
    """Views of all of what they read; a view of a part says how much of it its readers read."""
    views: Mask = roles.role == RowRole.VIEW
    rows = np.flatnonzero(views)
    read = program.deps[program.dep_start[rows]]
    views[rows] = program.result_bytes[rows] >= program.result_bytes[read]
    return views


def _takes(program: Program, roles: Roles) -> Mask:
    """Rows that can compute what they read."""
    takes = np.isin(roles.role, list(TAKING))
    return np.asarray(takes & (program.kind == Kind.COMPUTE), dtype=np.bool_)


def made_from_nothing(program: Program, roles: Roles, *, sinks: bool = True) -> Mask:
    """Rows computed cheaply from iotas and scalars alone, also through a loop that hands them on if `sinks`."""
    start, deps = program.dep_start.tolist(), program.deps.tolist()
    element = (roles.role == RowRole.ELEMENT) & (program.kind == Kind.COMPUTE)
    known = _known_scalars(program, roles)
    same = _never_changes(program) & sinks
    cheap = (
        element
        & (roles.moves | (np.diff(program.dep_start) > 0))
        & (program.flops <= roles.elements * _CHEAP_FLOPS)
    )
    cheap &= ~is_any(program, _COSTLY)
    passes = ((roles.role == RowRole.VIEW) & (roles.elements > 1)) | same
    made, views = cheap.tolist(), passes.tolist()
    for row in range(len(program)):
        if made[row] or views[row]:
            inner = deps[start[row] : start[row + 1]]
            made[row] = all(made[d] or known[d] for d in inner)
            made[row] &= not views[row] or any(made[d] for d in inner)
    return np.array(made, dtype=np.bool_)


def _known_scalars(program: Program, roles: Roles) -> list[bool]:
    """Constants and scalar arguments, what follows from them, and what is only waited for."""
    constant = is_any(program, OpClass.CONSTANT).tolist()
    scalar = (program.kind == Kind.VALUE) & ~carried(program) & (roles.elements <= 1)
    known = scalar.tolist()
    for row in np.flatnonzero(scalar).tolist():
        reads = program.dependencies(row).tolist()
        known[row] = constant[row] or all(known[d] for d in reads)
    waits = ((program.kind == Kind.VALUE) & (program.result_bytes == 0)).tolist()
    return [one or other for one, other in zip(known, waits, strict=True)]


def _never_changes(program: Program) -> Mask:
    """Values that loops carry, each with an initial value, and hand on as they are."""
    found = np.zeros(len(program), dtype=np.bool_)
    carries = (pair for region in program.regions for pair in region.carries)
    found[[value for value, produced in carries if value == produced]] = True
    return found & (np.diff(program.dep_start) > 0)


def _made_again(program: Program, roles: Roles, calls: Int64s, *, sinks: bool) -> Program:
    """Rule `made_again`: readers that can make a value do not read it.

    What nothing reads then goes, unless its flops would count more often in its last reader.
    """
    made = made_from_nothing(program, roles, sinks=sinks)
    takes = _takes(program, roles) | made
    owner, target = edges(program)
    cut = takes[owner] & made[target] & (calls[owner] == calls[target])
    cut &= ~written_by_index(program, roles)[target]
    if not cut.any():
        return program
    operand, flops = program.operand_bytes.copy(), program.flops.copy()
    np.subtract.at(operand, owner[cut], program.result_bytes[target[cut]])
    last = np.full(len(program), -1, dtype=np.int64)
    np.maximum.at(last, target, owner)
    gone = _unread(program, made, cut, last)
    idle = program.kind == Kind.VALUE
    for row in np.flatnonzero(gone).tolist():
        reader = int(last[row])
        while idle[reader] and not gone[reader] and last[reader] >= 0:
            reader = int(last[reader])  # a view does no work: what reads it does
        flops[reader] += 0 if idle[reader] and not gone[reader] else flops[row]
    adjusted = rewired(program, (owner[~cut], target[~cut])).with_rows(
        operand_bytes=np.maximum(operand, 0), flops=flops
    )
    return kept(adjusted, ~gone)


def _unread(program: Program, made: Mask, cut: Mask, last: Int64s) -> Mask:
    """Rows that are made again and that nothing left reads, if their flops count as often there."""
    owner, target = edges(program)
    taken = np.zeros(len(program), dtype=np.bool_)
    taken[[p for region in program.regions for v, p in region.carries if v != p]] = True
    often = (program.trips[last] == program.trips) | (program.flops == 0)
    gone: Mask = made & ~taken & (last >= 0) & often
    order = np.argsort(-target[~cut], kind="stable")
    for reader, read in zip(owner[~cut][order].tolist(), target[~cut][order].tolist(), strict=True):
        gone[read] &= gone[reader] or reader == read
    return gone


def _bytes_to_compute(program: Program, roles: Roles) -> tuple[list[int], list[int]]:
    """For each row, the bytes that a kernel reads to have it, and those of its operands."""
    result = program.result_bytes.tolist()
    operand = program.operand_bytes.tolist()
    role = roles.role.tolist()
    start, deps = program.dep_start.tolist(), program.deps.tolist()
    read, inputs = list(result), list(operand)
    for row in range(len(program)):
        if role[row] == RowRole.ELEMENT:
            inputs[row] = min(operand[row], sum(read[d] for d in deps[start[row] : start[row + 1]]))
            read[row] = min(result[row], inputs[row])
        elif role[row] == RowRole.VIEW:
            read[row] = inputs[row] = read[deps[start[row]]]
    return read, inputs


def _inlined(program: Program, gone: Mask) -> Program:
    """The program in which readers of `gone` rows read what those rows read."""
    operand = program.operand_bytes.tolist()
    flops = program.flops.tolist()
    result = program.result_bytes.tolist()
    start, deps = program.dep_start.tolist(), program.deps.tolist()
    idle = (program.kind == Kind.VALUE).tolist()
    last = np.full(len(program), -1, dtype=np.int64)
    owner, target = edges(program)
    np.maximum.at(last, target, owner)
    vanishes = gone.tolist()
    changed = np.zeros(len(program), dtype=np.bool_)
    for row in range(len(program)):
        inner = [d for d in deps[start[row] : start[row + 1]] if vanishes[d]]
        if idle[row]:
            operand[row] = operand[inner[0]] if inner else result[row]
        elif inner:
            saved = sum(min(operand[row], result[d]) - min(operand[row], operand[d]) for d in inner)
            operand[row] = max(0, operand[row] - saved)
        changed[row] = bool(inner)
        if vanishes[row]:
            flops[int(last[row])] += flops[row]
    values = np.where(idle, program.operand_bytes, np.array(operand, dtype=np.int64))
    alias = _past_views(program, gone)
    first_gone = (alias >= 0) & gone[alias]  # its storage was shared with the row
    without = program.flags & ~Flag.IN_PLACE & 0xFFFF
    flags = np.where(changed & first_gone, without, program.flags)
    columns = {"alias": alias, "operand_bytes": values, "flops": np.array(flops, dtype=np.int64)}
    return passed_over(program.with_rows(flags=flags.astype(np.uint16), **columns), gone)


def _past_views(program: Program, gone: Mask) -> Int64s:
    """For each row, the row whose storage it shares, past views that go."""
    found = program.alias.astype(np.int64)
    for row in np.flatnonzero((found >= 0) & gone[found] & (program.kind[found] == Kind.VALUE)):
        found[row] = found[found[row]] if found[found[row]] >= 0 else found[row]
    return found
