"""Program -> nodes: loops unrolled in trip order, rows without work routed through.

A node is one execution of one row that does something. A loop body is expanded once; its copies
are made by adding an offset, so the time is that of numpy on the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flint.ir.op_class import OpClass
from flint.ir.program import Flag, Int32s, Int64s, Kind, Program, RegionKind

#: What a value waits for: n >= 0 is a node of the block, ~r (negative) the value of row r, which
#: lies outside the block or is carried by the block's own loop.
Sources = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Nodes:
    """One rank class's work as a flat graph. Node i is the i-th thing that the class does.

    | column | meaning |
    |---|---|
    | row | row of the Program that node i executes |
    | instance | how many nodes of the same row come before it |
    | dep_start, deps | node i waits for `deps[dep_start[i]:dep_start[i + 1]]`: smaller, unique |
    """

    row: Int32s
    instance: Int32s
    dep_start: Int64s
    deps: Int64s

    def __len__(self) -> int:
        return len(self.row)

    def dependencies(self, node: int) -> Int64s:
        """Nodes that `node` waits for, ascending."""
        return self.deps[self.dep_start[node] : self.dep_start[node + 1]]


def works(program: Program) -> NDArray[np.bool_]:
    """For each row, whether executing it takes a kernel, a collective, a message or the host's time.

    Parameters, values, views, and computations that neither move bytes nor calculate do not, unless
    they were measured.
    """
    moves = (program.result_bytes + program.operand_bytes > 0) & ((program.flags & Flag.VIEW) == 0)
    takes = moves | (program.flops > 0) | (program.measured_ns > 0) | (program.op == OpClass.HOST)
    computes = (program.kind == Kind.COMPUTE) & takes
    return np.asarray(computes | (program.kind >= Kind.COLLECTIVE), dtype=np.bool_)


def expand(program: Program) -> Nodes:
    """Unroll `program` (see `flint.ir.program.Region` for what a dependency into a loop means).

    Node order is program order with loops run to their end; branches with trip count 0 vanish,
    and a dependency on a loop that never runs becomes one on the values it would have carried.
    """
    block = _Expander(program).body(-1)
    count = len(block.rows)
    keys = sorted_unique(block.owner * max(count, 1) + block.source)
    dep_start = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(np.bincount(keys // max(count, 1), minlength=count), out=dep_start[1:])
    rows = block.rows.astype(np.int32)
    return Nodes(rows, occurrences(rows), dep_start, keys % max(count, 1))


def sorted_unique(keys: Int64s) -> Int64s:
    """Different keys, ascending. For large arrays faster than `np.unique`, which hashes first."""
    ordered = np.sort(keys)
    first = np.ones(len(ordered), dtype=np.bool_)
    first[1:] = ordered[1:] != ordered[:-1]
    return ordered[first]


def occurrences(values: NDArray[np.integer]) -> Int32s:
    """For each entry, how many equal entries come before it."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    first = np.ones(len(values), dtype=np.bool_)
    first[1:] = ordered[1:] != ordered[:-1]
    position = np.arange(len(values))
    result = np.empty(len(values), dtype=np.int32)
    result[order] = position - np.maximum.accumulate(np.where(first, position, 0))
    return result


@dataclass(frozen=True, eq=False)
class _Block:
    """Expanded rows: `owner[e]` waits for `source[e]`; `values` says what each row stands for."""

    rows: Int64s
    owner: Int64s
    source: Int64s
    values: Mapping[int, Sources]


class _Parts:
    """Collects a block piece by piece."""

    def __init__(self) -> None:
        self.count = 0
        self.rows: list[Int64s] = []
        self.owner: list[Int64s] = []
        self.source: list[Int64s] = []
        self._open_rows: list[int] = []
        self._open_owner: list[int] = []
        self._open_source: list[int] = []

    def add_node(self, row: int, sources: Iterable[int]) -> int:
        node = self.count
        self.count += 1
        self._open_rows.append(row)
        for source in sources:
            self._open_owner.append(node)
            self._open_source.append(source)
        return node

    def add_rows(self, rows: Int64s) -> None:
        self._flush()
        self.rows.append(rows)
        self.count += len(rows)

    def add_pairs(self, owners: Int64s, sources: Int64s) -> None:
        self.owner.append(np.repeat(owners, len(sources)))
        self.source.append(np.tile(sources, len(owners)))

    def block(self, values: Mapping[int, Sources]) -> _Block:
        self._flush()
        return _Block(_join(self.rows), _join(self.owner), _join(self.source), values)

    def _flush(self) -> None:
        self.rows.append(_array(self._open_rows))
        self.owner.append(_array(self._open_owner))
        self.source.append(_array(self._open_source))
        self._open_rows, self._open_owner, self._open_source = [], [], []


class _Expander:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.works = works(program).tolist()
        start, deps = program.dep_start.tolist(), program.deps.tolist()
        self.deps = [deps[start[i] : start[i + 1]] for i in range(len(program))]
        self.children: dict[int, list[int]] = {}
        by_start = sorted(range(len(program.regions)), key=lambda i: program.regions[i].start)
        for index in by_start:
            self.children.setdefault(program.regions[index].parent, []).append(index)

    def body(self, region: int) -> _Block:
        """One iteration of `region` (-1: the whole program), nested regions unrolled."""
        where = self.program.regions[region] if region >= 0 else None
        row, stop = (where.start, where.stop) if where else (0, len(self.program))
        values: dict[int, Sources] = {c: (~c,) for c, _ in where.carries} if where else {}
        parts = _Parts()
        for child in self.children.get(region, []):
            nested = self.program.regions[child]
            self._add_rows(parts, values, row, nested.start)
            _splice(parts, values, self.unrolled(child))
            row = nested.stop
        self._add_rows(parts, values, row, stop)
        return parts.block(values)

    def _add_rows(self, parts: _Parts, values: dict[int, Sources], start: int, stop: int) -> None:
        for row in range(start, stop):
            if row in values:
                continue
            deps = self.deps[row]
            sources = _union(values.get(d, (~d,)) for d in deps)
            values[row] = (parts.add_node(row, sources),) if self.works[row] else sources

    def unrolled(self, region: int) -> _Block:
        where = self.program.regions[region]
        if where.trip_count == 0:
            return _Block(_array(()), _array(()), _array(()), self._values_never_run(region))
        body = self.body(region)
        if where.kind is RegionKind.BRANCH or (where.trip_count == 1 and not where.carries):
            return body
        return self._iterate(body, region)

    def _values_never_run(self, region: int) -> dict[int, Sources]:
        where = self.program.regions[region]
        values: dict[int, Sources] = dict.fromkeys(range(where.start, where.stop), ())
        initial = {carried: self._initial(carried) for carried, _ in where.carries}
        values.update(initial)
        for carried, produced in where.carries:
            values[produced] = _union((values[produced], initial[carried]))
        return values

    def _initial(self, carried: int) -> Sources:
        return tuple(~d for d in self.deps[carried])

    def _iterate(self, body: _Block, region: int) -> _Block:
        where = self.program.regions[region]
        trips, size = where.trip_count, len(body.rows)
        carried = _array([~c for c, _ in where.carries])
        varies = np.isin(body.source, carried)
        users = {
            ~int(port): body.owner[body.source == port] for port in np.unique(body.source[varies])
        }
        parts = _Parts()
        parts.add_rows(np.tile(body.rows, trips))
        _repeat(parts, body.owner[~varies], body.source[~varies], range(trips), size)
        state = {c: self._initial(c) for c, _ in where.carries}
        iteration = 0
        while True:
            for port, owners in users.items():
                parts.add_pairs(owners + iteration * size, _array(state[port]))
            if iteration == trips - 1:
                break
            after = {
                c: _substitute(body.values[p], iteration * size, state) for c, p in where.carries
            }
            if after == {c: _shift(v, size) for c, v in state.items()}:
                rest = range(1, trips - iteration)
                for port, owners in users.items():
                    sources = _array(state[port])
                    pairs = np.repeat(owners, len(sources)), np.tile(sources, len(owners))
                    _repeat(parts, pairs[0] + iteration * size, pairs[1], rest, size)
                state = {c: _shift(v, size * rest[-1]) for c, v in state.items()}
                break
            state, iteration = after, iteration + 1
        last = (trips - 1) * size
        return parts.block({row: _substitute(v, last, state) for row, v in body.values.items()})


def _splice(parts: _Parts, values: dict[int, Sources], child: _Block) -> None:
    """Put the nodes of an inner block at the end of the outer one."""
    base = parts.count
    parts.add_rows(child.rows)
    inside = child.source >= 0
    parts.owner.append(child.owner[inside] + base)
    parts.source.append(child.source[inside] + base)
    ports, owners = child.source[~inside], child.owner[~inside] + base
    order = np.argsort(ports, kind="stable")
    found, first = np.unique(ports[order], return_index=True)
    for port, group in zip(found.tolist(), np.split(owners[order], first[1:]), strict=False):
        parts.add_pairs(group, _array(values.get(~port, (port,))))
    for row, sources in child.values.items():
        values[row] = _substitute(sources, base, values)


def _repeat(parts: _Parts, owner: Int64s, source: Int64s, times: range, size: int) -> None:
    """Copy pairs once per entry of `times`, moved on by so many bodies of `size` nodes."""
    offset = np.arange(times.start, times.stop, dtype=np.int64)[:, None] * size
    parts.owner.append((owner[None, :] + offset).ravel())
    parts.source.append(np.where(source[None, :] < 0, source[None, :], source + offset).ravel())


def _substitute(sources: Sources, offset: int, ports: Mapping[int, Sources]) -> Sources:
    """Move nodes on by `offset` and replace rows that `ports` knows."""
    if len(sources) == 1 and sources[0] >= 0:
        return (sources[0] + offset,)
    return _union((s + offset,) if s >= 0 else ports.get(~s, (s,)) for s in sources)


def _shift(sources: Sources, offset: int) -> Sources:
    return tuple(s + offset if s >= 0 else s for s in sources)


def _union(parts: Iterable[Sources]) -> Sources:
    found: set[int] = set()
    for part in parts:
        found.update(part)
    return tuple(sorted(found))


def _array(values: Iterable[int]) -> Int64s:
    return np.array(list(values), dtype=np.int64)


def _join(parts: list[Int64s]) -> Int64s:
    return np.concatenate(parts) if parts else _array(())
