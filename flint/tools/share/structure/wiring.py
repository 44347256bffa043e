"""Who reads what: a program whose operands are exchanged one by one, legal at every moment."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy

from flint.tools.share.structure.facts import Facts, Sort
from flint.tools.share.structure.prices import Operation

#: A row and the number of one of its operands.
Slot = tuple[int, int]


class Wiring:
    """Operands of all rows, with the order in which rows run.

    Rows of the program keep their numbers whatever their place. Behind them come new rows that see a
    value in another shape (`views`), and before those the values that loops carry on (`yields`), as rows
    that read one value at the end of their loop.

    Every move leaves a program that captured ones could be: operands come earlier and have the type
    of the ones before, phases flow one way, what was read is read, nothing is read twice or beside
    what was written into it, and arrays are written in place after they have been read.
    """

    def __init__(self, facts: Facts) -> None:
        p = facts.program
        self.facts = facts
        self.reads: list[list[int]] = [p.dependencies(i).tolist() for i in range(len(p))]
        self.yields: list[tuple[int, int]] = []
        self.views: list[int] = []
        self.gone: set[int] = set()
        #: Rows that do another operation of their price.
        self.operations: dict[int, Operation] = {}
        self.type = list(facts.type)
        self.types = list(facts.types)
        self.region = list(facts.region)
        self.rank = list(facts.rank)
        self._alias = [
            r.index(a) if a >= 0 else -1 for r, a in zip(self.reads, p.alias.tolist(), strict=True)
        ]
        for number, region in enumerate(p.regions):
            for carry, produced in region.carries:
                if carry != produced:
                    self.yields.append((number, carry))
                    self._add([produced], self.type[carry], number, 0)
        self.readers: list[list[int]] = [[] for _ in self.reads]
        for row, reads in enumerate(self.reads):
            for value in reads:
                self.readers[value].append(row)
        self.order: list[int] = []
        self.place: list[int] = []
        self.begin: list[int] = []

    def copy(self) -> Wiring:
        """A wiring of its own, equal now."""
        found = copy(self)
        for name in ("reads", "readers"):
            setattr(found, name, [list(one) for one in getattr(self, name)])
        for name in (
            "views",
            "type",
            "types",
            "region",
            "rank",
            "_alias",
            "order",
            "place",
            "begin",
        ):
            setattr(found, name, list(getattr(self, name)))
        found.gone, found.operations = set(self.gone), dict(self.operations)
        return found

    def __len__(self) -> int:
        return len(self.reads)

    @property
    def first_yield(self) -> int:
        """The number of the first row that stands for a value that a loop carries on."""
        return len(self.facts.type)

    @property
    def first_view(self) -> int:
        """The number of the first new view."""
        return self.first_yield + len(self.yields)

    def is_yield(self, row: int) -> bool:
        """Whether a number stands for a value that a loop carries on."""
        return self.first_yield <= row < self.first_view

    def is_view(self, row: int) -> bool:
        """Whether a row is a new view."""
        return row >= self.first_view

    def seen(self, value: int) -> int:
        """What a value shows: that which new views are of."""
        while self.is_view(value):
            value = self.reads[value][0]
        return value

    def alias_of(self, row: int) -> int:
        """The value whose storage a row shares, or -1."""
        slot = self._alias[row]
        return self.reads[row][slot] if slot >= 0 else -1

    def slots(self) -> Iterator[Slot]:
        """All operands that may change."""
        held, known = self.facts.held, len(self.facts.type)
        for row, reads in enumerate(self.reads):
            if row >= known or not held[row]:
                for number in range(len(reads)):
                    yield row, number

    def is_there(self, slot: Slot) -> bool:
        """Whether a row has not gone, so that it has its operands."""
        return slot[0] not in self.gone

    def writes_into(self, slot: Slot) -> bool:
        """Whether a row writes its result into this operand."""
        row, number = slot
        return self._writes(row) and number == self._alias[row]

    # moves --------------------------------------------------------------------------------------------

    def exchange(self, one: Slot, other: Slot) -> bool:
        """Let two rows exchange an operand; whether that is legal, and done."""
        (a, i), (b, j) = one, other
        if a in self.gone or b in self.gone:
            return False
        v, w = self.reads[a][i], self.reads[b][j]
        if v == w or a == b or self.writes_into(one) != self.writes_into(other):
            return False
        if not (self._may_read(one, w, other) and self._may_read(other, v, one)):
            return False
        self._set(one, w)
        self._set(other, v)
        return True

    def redirect(self, slot: Slot, value: int) -> bool:
        """Let a row read another value of the type; whether that is legal, and done."""
        row, number = slot
        if row in self.gone:
            return False
        old = self.reads[row][number]
        if old == value or self.writes_into(slot) or not self._can_lose(old):
            return False
        if not self._may_read(slot, value, None):
            return False
        self._set(slot, value)
        self._drop(old)
        return True

    def see(self, slot: Slot, value: int) -> int | None:
        """Let a row read another value in the shape of its operand: the new view, None if not legal."""
        row, number = slot
        if row in self.gone:
            return None
        old = self.reads[row][number]
        if self.writes_into(slot) or not self._can_lose(old) or not self._may_see(row):
            return None
        if not self._is_whole(old) or not self._is_whole(value):
            return None
        if not self._may_read(slot, value, None):
            return None
        view = self._view(row, value, self.type[old])
        self._set(slot, view)
        self._drop(old)
        return view

    def detour(self, slot: Slot, shape: tuple[int, ...]) -> bool:
        """Let a row read its operand through two views, of another shape and back; whether that is done."""
        row, number = slot
        if row in self.gone or self.writes_into(slot) or not self._may_see(row):
            return False
        value = self.reads[row][number]
        sort = self.types[self.type[value]]
        if not self._is_whole(value) or self._is_written(value):
            return False
        away = self._view(row, value, self._type(sort._replace(shape=shape)))
        self._set(slot, self._view(row, away, self.type[value]))
        return True

    def _is_whole(self, value: int) -> bool:
        """Whether a value is the one result of its row, of a type that is known."""
        sort = self.types[self.type[value]]
        return not sort.more_bytes and sort.num_bytes > 0

    def _may_see(self, row: int) -> bool:
        """Whether a view may be put before a row: what is carried and returned stays as it is."""
        if row >= self.first_yield:
            return False
        return not (self.facts.is_carry[row] or self.facts.is_result[row])

    def _type(self, sort: Sort) -> int:
        if sort not in self.types:
            self.types.append(sort)
        return self.types.index(sort)

    def _view(self, row: int, value: int, type_: int) -> int:
        """A new view of a value, right before a row."""
        view = self._add([value], type_, self.region[row], self.rank[row])
        self.views.append(row if row < self.first_yield else self.views[row - self.first_view])
        self.readers.append([])
        self.readers[value].append(view)
        self.place.append(self.place[row])
        self.begin.append(self.place[row])
        return view

    def _is_written(self, value: int) -> bool:
        """Whether a row writes into the storage of a value."""
        return any(self._writes(r) and self.alias_of(r) == value for r in self.readers[value])

    def _can_lose(self, value: int) -> bool:
        """Whether a value has a reader to spare, or costs nothing and can go with the last one."""
        if len(self.readers[value]) > 1:
            return True
        is_free = value < len(self.facts.type) and self.facts.free[value]
        return is_free and all(len(self.readers[v]) > 1 for v in self.reads[value])

    def _drop(self, value: int) -> None:
        """Take out a value that nothing reads any more."""
        if not self.readers[value]:
            for read in self.reads[value]:
                self.readers[read].remove(value)
            self.reads[value] = []
            self._alias[value] = -1
            self.gone.add(value)

    # what is legal --------------------------------------------------------------------------------------

    def _may_read(self, slot: Slot, value: int, left: Slot | None) -> bool:
        """Whether a row may read a value for this operand; the row of `left` reads it no more."""
        row = slot[0]
        if self.place[value] >= self.begin[row] or value in self.reads[row] or value in self.gone:
            return False
        if not self._reaches(row, value) or not self._flows(row, value):
            return False
        if self._is_beside(row, slot[1], value):
            return False
        return self._is_in_time(slot, value, left[0] if left else -1)

    def _reaches(self, row: int, value: int) -> bool:
        """Whether the value is of a loop around the row, or one that leaves its loop."""
        facts, home = self.facts, self.region[value]
        if self.is_yield(row):
            return home == self.region[row] and self._can_go_on(value)
        if home in facts.around[self.region[row]]:
            return True
        return value < len(facts.type) and facts.exported[value]

    def _can_go_on(self, value: int) -> bool:
        known = value < len(self.facts.type)
        return known and not self.facts.is_carry[value]

    def _flows(self, row: int, value: int) -> bool:
        """No phase reads what a later one makes."""
        mine, other = self.rank[row], self.rank[value]
        return not mine or not other or other <= mine

    def _is_beside(self, row: int, number: int, value: int) -> bool:
        """Whether the row would read a value and what was written into it, or what was sent of it."""
        others = [r for i, r in enumerate(self.reads[row]) if i != number]
        mine = self._source(value)
        if any(o == mine or self._source(o) == value for o in others):
            return True
        if self._makes_beside(row):
            return any(value in self.reads[reader] for reader in self.readers[row])
        return False

    def _source(self, value: int) -> int:
        """What a value was written into or sent from; -2 if it is neither."""
        if value >= len(self.facts.type):
            return -2
        if self.facts.writes[value]:
            return self.alias_of(value)
        return self.reads[value][0] if self.facts.sends[value] and self.reads[value] else -2

    def _makes_beside(self, row: int) -> bool:
        return row < len(self.facts.type) and (self.facts.writes[row] or self.facts.sends[row])

    def _is_in_time(self, slot: Slot, value: int, left: int) -> bool:
        """Whether an array is read before it is written in place, and written by one row."""
        row, at = slot[0], self.place[slot[0]]
        if self.writes_into(slot):
            others = [r for r in self.readers[value] if r not in (row, left)]
            return all(self.place[r] < at and self._alias[r] < 0 for r in others)
        if self._alias[row] >= 0 and self._is_written(value):
            return False
        return not any(
            self.alias_of(r) == value and r not in (row, left) and self.place[r] <= at
            for r in self.readers[value]
            if self._writes(r)
        )

    def _writes(self, row: int) -> bool:
        return row < len(self.facts.type) and self.facts.writes[row]

    # changes --------------------------------------------------------------------------------------------

    def _set(self, slot: Slot, value: int) -> None:
        row, number = slot
        self.readers[self.reads[row][number]].remove(row)
        self.reads[row][number] = value
        self.readers[value].append(row)

    def _add(self, reads: list[int], type_: int, region: int, rank: int) -> int:
        self.reads.append(reads)
        self.type.append(type_)
        self.region.append(region)
        self.rank.append(rank)
        self._alias.append(0 if self.first_view <= len(self.reads) - 1 else -1)
        return len(self.reads) - 1
