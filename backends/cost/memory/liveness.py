"""Which buffers a program needs on a device, and from when to when each is in use.

Rows run in program order; the body of a loop stands for each of its turns. A moment is twice the
number of a row: a result is there from moment 2i to that of its last reader. What a loop reads
from outside is there until the loop has ended, at moment 2 * stop - 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from flint.backends.cost.memory.storage import Storage
from flint.backends.cost.memory.values import Carry, RowValues, eager_updates, updates_apart, values
from flint.ir.columns import is_any, type_bytes
from flint.ir.op_class import ELEMENTWISE, MERGED, ON_HOST, OpClass
from flint.ir.program import Collective, Flag, Int64s, Kind, Phase, Program

#: Operations that may write over an operand of the same size that nothing reads after them.
OVERWRITING = ELEMENTWISE | {OpClass.FUSED, OpClass.FUSED_OPTIMIZER, OpClass.FUSED_LOOP}


@dataclass(frozen=True, eq=False)
class Buffers:
    """Memory of one rank class: buffer b takes `num_bytes[b]` from moment `born[b]` to `dies[b]`.

    `first[b]` is the row that it was made for. `of_row[i]` is the buffer that holds the value of
    row i: a view has that of what it views. `reads` says of each entry of `Program.deps` whether
    its row reads that value; others only say what comes first. `on_host` are the buffers in the
    memory of the host. `gap_bytes` are what their allocator holds between them, all step long.
    """

    first: Int64s
    num_bytes: Int64s
    born: Int64s
    dies: Int64s
    of_row: Int64s
    moments: int
    reads: NDArray[np.bool_]
    on_host: NDArray[np.bool_]
    gap_bytes: int = 0

    @cached_property
    def live_bytes(self) -> Int64s:
        """Bytes in use at each moment, with those between buffers."""
        change = np.zeros(self.moments + 1, dtype=np.int64)
        np.add.at(change, self.born, self.num_bytes)
        np.subtract.at(change, self.dies + 1, self.num_bytes)
        return np.cumsum(change[:-1]) + self.gap_bytes

    def of(self, chosen: NDArray[np.bool_]) -> Buffers:
        """The same with the other buffers empty, and nothing between them."""
        return replace(self, num_bytes=np.where(chosen, self.num_bytes, 0), gap_bytes=0)

    def at(self, moment: int) -> NDArray[np.int64]:
        """The buffers in use at a moment."""
        return np.flatnonzero((self.born <= moment) & (moment <= self.dies) & (self.num_bytes > 0))


def buffers(program: Program) -> Buffers:
    """Lay out the values of a program in buffers.

    Views have none of their own. An update in place, and an element-wise operation, writes over an
    operand of its size that it reads last. A loop makes the next value of what it carries where the
    last one was, if that is not read any more by then, and takes over an initial value that nobody
    else reads. Arguments are there all step long; donated ones are written over, by results of
    their shape and type too, others and constants never.
    """
    return _Layout(program).buffers()


def donated(program: Program) -> NDArray[np.bool_]:
    """Arguments whose memory the step may use for its results.

    A step of a pipeline that has an optimizer updates what it holds, without saying so.
    """
    arguments = program.kind == Kind.PARAMETER
    said = arguments & ((program.flags & Flag.DONATED) != 0)
    if not (program.op == OpClass.TURN).any() or not (program.phase == Phase.OPTIMIZER).any():
        return np.asarray(said)
    floats = np.array(["float" in dtype for dtype in program.dtypes], dtype=np.bool_)
    return np.asarray(said | (arguments & floats[program.dtype]))


def on_host(program: Program) -> NDArray[np.bool_]:
    """For each row whether what it makes lies in the memory of the host."""
    return is_any(program, ON_HOST)


def value_bytes(program: Program) -> Int64s:
    """Bytes of each row's value: of an update in place all of them, not those that change."""
    shares = (program.alias >= 0) | ((program.flags & Flag.IN_PLACE) != 0)
    whole = np.maximum(program.result_bytes, type_bytes(program))
    return np.where(program.trips > 0, np.where(shares, whole, program.result_bytes), 0)


def _updated_in_place(program: Program) -> dict[int, int]:
    """What each row that updates in place updates: its alias, or what it reads of its own type."""
    found = {}
    for row in np.flatnonzero((program.flags & Flag.IN_PLACE) != 0).tolist():
        reads = program.dependencies(row)
        alike = (program.shape[reads] == program.shape[row]) & (
            program.dtype[reads] == program.dtype[row]
        )
        if program.alias[row] >= 0:
            found[row] = int(program.alias[row])
        elif alike.any():
            found[row] = int(reads[alike][0])
    return found


class _Layout:
    """A layout on its way: who reads each value last, then what shares memory."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.count = len(program)
        self.region: list[int] = program.region.tolist()
        self.updated = _updated_in_place(program)
        self.values: RowValues = values(program)
        #: For each row itself, or of what it is one of several results.
        self.maker = list(range(self.count))
        parts = (program.op == OpClass.PART) & ~updates_apart(program)
        for row in np.flatnonzero(parts).tolist():
            self.maker[row] = self.values.of_row[program.alias[row]]
        self.eager = eager_updates(program, self.values, value_bytes(program))
        #: Values that the program lets go of, each with the row that does.
        self.freed: dict[int, int] = {}
        self.last, self.reader = self._readers()
        self.storage = self._storage()
        self.whole: list[int] = type_bytes(program).tolist()
        #: Of operators that change several tensors, the values that these were.
        self.held: dict[int, set[int]] = {}

    def buffers(self) -> Buffers:
        for carry in self.values.changing:
            self._carry(carry)
        for carry in self.values.changing:
            self._reduce_in_place(carry)
            self._add_when_made(carry)
        self._overwrite()
        self._return_in_donated()
        return self._collect()

    # who reads what ------------------------------------------------------------------------------

    def _readers(self) -> tuple[list[int], list[int]]:
        """For each value when it is read last, and the row that does."""
        program, values = self.program, self.values
        last = [2 * row for row in self.maker]
        last += [self._end(c) for c in values.changing]
        reader = [-1] * len(last)
        alive = (program.trips > 0).tolist()
        owners, targets = program.dep_owner.tolist(), program.deps.tolist()
        reads = self.eager.reads.tolist()
        frees = (program.op == OpClass.FREED).tolist()
        for row, target, used in zip(owners, targets, reads, strict=True):
            if not used or not alive[row] or values.of_row[row] != row or self.maker[row] != row:
                continue  # to see a value in another way, or a part of it, is no use of it
            value = values.read(target, self._reads_in(row))
            if frees[row]:
                self.freed[value] = row
                continue
            moment = self._last_moment(row, value)
            if moment >= last[value]:
                last[value], reader[value] = moment, row
        for value, row in self.freed.items():
            last[value], reader[value] = 2 * row, row
        for carry in values.changing:
            made = values.read(carry.produced, carry.region)
            if self._end(carry) > last[made]:
                last[made], reader[made] = self._end(carry), -1
        return last, reader

    def _reads_in(self, row: int) -> int:
        """The region from which a row reads. A carried value begins outside its loop."""
        if row in self.values.last_of:
            return self.program.regions[self.region[row]].parent
        return self.region[row]

    def _last_moment(self, row: int, value: int) -> int:
        inside = self._reads_in(row)
        return self.values.nesting.last_moment(row, inside, self.values.born_region(value))

    def _end(self, carry: Carry) -> int:
        return 2 * self.program.regions[carry.region].stop - 1

    def _storage(self) -> Storage:
        program, values = self.program, self.values
        own = np.array(values.of_row, dtype=np.int64) == np.arange(self.count)
        size = np.where(own, value_bytes(program), 0).tolist()
        for row, maker in enumerate(self.maker):
            size[maker] -= min(size[row], size[maker]) if maker != row else 0
        size += [size[c.row] for c in values.changing]
        born = [2 * row for row in self.maker] + [self._end(c) for c in values.changing]
        kept = (program.kind == Kind.PARAMETER) & ~donated(program)
        kept |= (program.op == OpClass.CONSTANT) & (program.kind == Kind.VALUE)
        fixed = kept.tolist() + [False] * len(values.changing)
        return Storage(size, list(zip(born, self.last, strict=True)), fixed)

    # what shares memory --------------------------------------------------------------------------

    def _carry(self, carry: Carry) -> None:
        """A loop makes what it carries where it was if that is free, else copies; decoding never does."""
        end = self._end(carry)
        made = self.values.read(carry.produced, carry.region)
        if self.program.phase[carry.row] == Phase.DECODE:
            self.storage.share(made, self.values.last_of[carry.row])
            return
        self.storage.share(carry.row, self.values.last_of[carry.row])
        born = self.storage.span(made)[0]
        inside = born >= 2 * self.program.regions[carry.region].start
        held = self.last[carry.row]
        if inside and (
            held < born or (held == born and self._takes_over(self._taker(made), carry.row))
        ):
            self.storage.share(carry.row, made)
        self.storage.reserve(carry.row, end)

    def _reduce_in_place(self, carry: Carry) -> None:
        """What a pipeline sums, replicas reduce where it lies, as frameworks do in their buffers.

        A loop over the layers takes a slice of all, reduces it, and writes it to an array of its own.
        """
        accumulated = self._reduced_slice(carry)
        if accumulated < 0 or self.last[accumulated] > self._end(carry):
            return
        if self.storage.size[self.storage.root(accumulated)] != self.storage.size[carry.row]:
            return
        ends_as, start = self.values.last_of[carry.row], self.program.regions[carry.region].start
        for value in (carry.row, ends_as, carry.initial):
            if value >= 0 and self.storage.span(value)[1] >= 2 * start:
                self.storage.join(accumulated, value)

    def _reduced_slice(self, carry: Carry) -> int:
        """The sum of a pipeline of which a reduced slice goes into a carried array, or -1."""
        program, row, reduced = self.program, carry.produced, False
        if program.op[row] != OpClass.UPDATE_SLICE or len(program.dependencies(row)) != 2:
            return -1
        row = int(program.dependencies(row)[1])
        while program.op[row] != OpClass.DYNAMIC_SLICE:
            reads = program.dependencies(row)
            if len(reads) != 1 or program.region[row] != carry.region:
                return -1
            reduced |= program.collective[row] == Collective.ALL_REDUCE
            row = int(reads[0])
        source = self.values.read(int(program.dependencies(row)[0]), carry.region)
        return source if reduced and self._is_accumulated(source) else -1

    def _is_accumulated(self, value: int) -> bool:
        """Whether a value is what a pipeline adds gradients of microbatches to."""
        while value in self.updated:
            value = self._before(value)
        return value < self.count and self.program.op[value] == OpClass.ACCUMULATOR

    def _add_when_made(self, carry: Carry) -> None:
        """Frameworks add each gradient to its sum when it is there: where a loop stacks those of all
        layers for one addition to what a pipeline sums, the stack takes no memory."""
        program, produced = self.program, carry.produced
        readers = program.dep_owner[program.deps == produced]
        outside = readers[
            (program.region[readers] != carry.region) & (program.op[readers] != OpClass.TURN)
        ].tolist()
        ends_as = self.values.last_of[carry.row]
        if program.op[produced] != OpClass.UPDATE_SLICE or len(outside) != 1:
            return
        if outside[0] not in self.updated or not self._is_accumulated(outside[0]):
            return
        shared = (carry.row, produced, ends_as, carry.initial)
        for root in {self.storage.root(v) for v in shared if v >= 0}:
            self.storage.size[root] = 0

    def _taker(self, value: int) -> int:
        """The row that makes a value, or that is the result of another."""
        is_part = value < self.count and self.maker[value] != value
        return value if is_part else self.storage.span(value)[0] // 2

    def _takes_over(self, row: int, value: int) -> bool:
        """Whether `row` may write over a value that it reads and that nothing reads after it."""
        maker = self.maker[row]
        if self.reader[value] != maker or self.last[value] != 2 * maker:
            return False
        if row in self.values.last_of or self.may_overwrite[maker]:
            return not self.alike[maker] or self._is_alike(row, value)
        return row in self.updated and self._before(row) == value

    def _before(self, row: int) -> int:
        """The value that `row` updates in place."""
        return self.values.read(self.updated[row], self.region[row])

    @cached_property
    def may_overwrite(self) -> list[bool]:
        """Rows whose result can take the place of any operand of equal size."""
        program = self.program
        rows = is_any(program, OVERWRITING) & (program.kind == Kind.COMPUTE)
        rows &= (program.flags & Flag.LAUNCHED) == 0
        recorded = ((program.flags & Flag.LAUNCHED) != 0).any()
        summed = (program.collective == Collective.ALL_REDUCE) & ~recorded
        several = np.array(self.several) & is_any(program, MERGED)
        return (rows | summed | several).tolist()  # type: ignore[no-any-return]

    @cached_property
    def alike(self) -> list[bool]:
        """Kernels that may write only over what has their shape and type."""
        return (self.program.op == OpClass.FUSED_LOOP).tolist()  # type: ignore[no-any-return]

    def _is_alike(self, row: int, value: int) -> bool:
        program = self.program
        made = value if value < self.count else self.values.changing[value - self.count].row
        same = program.shape[made] == program.shape[row]
        return bool(same and program.dtype[made] == program.dtype[row])

    @cached_property
    def several(self) -> list[bool]:
        """Kernels with more results than their first."""
        program = self.program
        kernels = is_any(program, MERGED | {OpClass.COMPILED})
        more = program.result_bytes > type_bytes(program)
        return (kernels & more).tolist()  # type: ignore[no-any-return]

    def _overwrite(self) -> None:
        """In row order: rows write over what they read last, loops over what they begin with."""
        values, storage = self.values, self.storage
        for row in range(self.count):
            if values.of_row[row] != row or self._changes(row):
                continue
            if row in self.updated and self._is_accumulated(row):
                storage.join(self._before(row), row)  # each microbatch adds to it
                continue
            given = [v for v in self._candidates(row) if self._takes_over(row, v)]
            if not any(storage.share(row, v, resize=row in self.updated) for v in given):
                self._absorb(row, given)

    def _changes(self, row: int) -> bool:
        """Whether an operator of PyTorch changes what another made: its memory, whoever reads it.

        An operator that changes several tensors stands for all of them from then on: they are
        there as long as its result. One with a result larger than what it changes makes that anew.
        """
        if row not in self.eager.changes:
            return False
        before, storage = self.eager.changes[row], self.storage
        if self.whole[row] > storage.size[storage.root(before)]:
            return False
        changed = self.held.get(before, set()) | {before}
        if self.program.result_bytes[row] > self.whole[row] and row not in self.tells_apart:
            changed |= self._changed_beside(row)
        for value in changed:
            storage.reserve(value, self.last[row])
        self.held[row] = changed
        storage.join(before, row)
        return True

    @cached_property
    def tells_apart(self) -> set[int]:
        """Rows that change several tensors of which all but the first have rows of their own behind them."""
        seen = np.flatnonzero(updates_apart(self.program)).tolist()
        return {int(self.program.dependencies(row).max()) for row in seen}

    def _changed_beside(self, row: int) -> set[int]:
        """What an operator on lists of tensors changes besides its first, among what it reads.

        `_foreach_add_(sums, gradients)` reads both lists: sums are older than what is added to them,
        and have the bytes that it writes. Where all that is there is not read, something of it is
        written over (`_foreach_copy_`), and nothing tells which.
        """
        values = sorted({self.values.read(d, self.region[row]) for d in self._reads(row)})
        sizes, counted = [0], set[int]()
        for value in values:
            roots = {self.storage.root(v) for v in {*self.held.get(value, ()), value}} - counted
            counted |= roots
            sizes.append(sum(self.storage.size[r] for r in roots))
        if sum(sizes) > int(self.program.operand_bytes[row]):
            return set(values)
        written = int(self.program.result_bytes[row])
        return {v for v, at in zip(values, np.cumsum(sizes[:-1]), strict=True) if at < written}

    def _reads(self, row: int) -> list[int]:
        """The dependencies of a row that are more than an order."""
        start, stop = self.program.dep_start[row : row + 2].tolist()
        read = self.program.deps[start:stop][self.eager.reads[start:stop]]
        return read.tolist()  # type: ignore[no-any-return]

    def _absorb(self, row: int, given: list[int]) -> None:
        """A kernel with several results writes some of them over operands."""
        if self.several[row]:
            for value in given:
                self.storage.absorb(row, value)

    def _candidates(self, row: int) -> list[int]:
        """Values that `row` might write over."""
        if row in self.values.last_of:
            initial = self.values.nesting.carries[row].initial
            return [] if initial < 0 else [self.values.read(initial, self._reads_in(row))]
        if row in self.updated:
            return [self._before(row)]
        if self.may_overwrite[self.maker[row]]:
            dependencies = self.program.dependencies(self.maker[row]).tolist()
            return [self.values.read(d, self.region[row]) for d in dependencies]
        return []

    def _return_in_donated(self) -> None:
        """What the step returns takes the place of donated arguments of its shape and type."""
        program, storage = self.program, self.storage
        free: dict[tuple[object, ...], list[int]] = {}
        away = [*on_host(program).tolist(), *(False for _ in self.values.changing)]
        arguments = np.flatnonzero(program.kind == Kind.PARAMETER).tolist()
        held = {storage.root(row) for row in arguments}
        returned = self._returned()
        compiled = is_any(program, OpClass.COMPILED)
        if compiled.any():  # others of its fusions have the classes of Flint's kernels
            compiled |= is_any(program, MERGED)
        taken = {storage.root(value) for value in returned}
        exact = not compiled.any()  # what a compiler made says which bytes it reuses

        def kind(value: int, row: int) -> tuple[object, ...]:
            shape = (program.dtypes[program.dtype[row]], program.shapes[program.shape[row]])
            return storage.size[storage.root(value)], away[value], shape if exact else ()

        for row in np.flatnonzero(donated(program)).tolist():
            if storage.root(row) not in taken:
                free.setdefault(kind(row, row), []).append(row)
        for value, row in returned.items():
            if storage.root(value) in held:
                continue
            places = free.get(kind(value, row), [])
            # a compiler says itself which results are written over arguments that its kernel reads
            inside = value < self.count and bool(compiled[value])
            place = next((r for r in places if storage.share(r, value, apart=not inside)), None)
            if place is not None:
                places.remove(place)
            elif inside:
                self._absorb(value, [row for rows in free.values() for row in rows])

    def _returned(self) -> dict[int, int]:
        """Values that the step returns, in the order in which they are made, and the row of each."""
        program = self.program
        results = np.flatnonzero((program.op == OpClass.RESULT) & (program.region == -1)).tolist()
        reads = [d for row in results for d in program.dependencies(row).tolist()]
        return dict(sorted((self.values.read(d, -1), d) for d in reads))

    def _collect(self) -> Buffers:
        program, storage = self.program, self.storage
        end = 2 * self.count - 1
        for row in np.flatnonzero(program.kind == Kind.PARAMETER).tolist():
            if row not in self.freed:
                storage.reserve(row, end)
        roots = sorted({storage.root(value) for value in range(len(self.values))})
        number = {root: b for b, root in enumerate(roots)}
        spans = [storage.span(root) for root in roots]
        return Buffers(
            first=np.array([born // 2 for born, _ in spans], dtype=np.int64),
            num_bytes=np.array([storage.size[root] for root in roots], dtype=np.int64),
            born=np.array([born for born, _ in spans], dtype=np.int64),
            dies=np.array([min(dies, end) for _, dies in spans], dtype=np.int64),
            of_row=np.array([number[storage.root(v)] for v in self.values.of_row], dtype=np.int64),
            moments=2 * self.count,
            reads=self.eager.reads,
            on_host=on_host(program)[[born // 2 for born, _ in spans]],
        )
