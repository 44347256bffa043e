"""Layers of a program, what prepares their communication, and what is issued one layer ahead."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from flint.backends.chakra.writing.expand import Nodes
from flint.backends.cost.chips.kernel_table import kernels_of
from flint.backends.cost.chips.kernels import KernelKind
from flint.errors import FlintError
from flint.ir.arrays import Mask
from flint.ir.columns import consumers
from flint.ir.program import Collective, Int64s, Kind, Program, RegionKind
from flint.ir.workload import Workload
from flint.passes.profiles import nodes_of

# Kernels that only prepare communication: slices and casts of parameters before they are gathered.
#
# They wait for no computation, so a runtime that gathers parameters ahead runs them ahead too: PyTorch's
# FSDP on its copy-in stream, XLA where it pipelines the collectives of a loop. In the compute stream
# they would tie each gather to its place.

#: The stream of such kernels in traces.
PREPARATION = "preparation"
#: Bytes of the result of a kernel that counts a loop's iterations, at most.
_SCALAR_BYTES = 8


def _light(program: Program) -> Mask:
    """For each row whether it is no work, a copy, or element-wise."""
    kernels, rows = kernels_of(program)
    light = np.isin(kernels.kind, (KernelKind.COPY, KernelKind.ELEMENTWISE))
    found = np.asarray(program.kind <= Kind.VALUE)
    found[rows[light]] = True
    return found


def made_of_parameters(program: Program) -> Mask:
    """For each row whether copies and element-wise kernels make it of parameters and counters."""
    found = _light(program)
    owner, target = program.dep_owner.astype(np.int64), program.deps.astype(np.int64)
    pairs = [pair for region in program.regions for pair in region.carries]
    if pairs:
        value, produced = np.array(pairs, dtype=np.int64).T
        owner, target = np.append(owner, value), np.append(target, produced)
    while (wrong := found[owner] & ~found[target]).any():
        found[owner[wrong]] = False
    return found


@dataclass(frozen=True, eq=False)
class Preparation:
    """Kernels that count a loop's iterations, and what gathers parameters.

    `ahead` are the rows that copies and element-wise kernels make of parameters and counters.
    `feeds` has the kernels that only collectives read, each with the first of these.
    """

    ahead: Mask
    counts: Mask
    feeds: Mapping[int, int]
    gathers: Mask

    @property
    def is_early(self) -> Mask:
        """For each row whether a runtime that gathers ahead runs it ahead."""
        found = self.gathers.copy()
        if found.any():
            found |= self.counts
        found[list(self.feeds)] = True
        return found


def preparation(program: Program) -> Preparation:
    """What of a program prepares communication, and the communication that waits for nothing else."""
    ahead = made_of_parameters(program)
    scalar = (program.result_bytes <= _SCALAR_BYTES) & (program.operand_bytes <= 4 * _SCALAR_BYTES)
    counts = ahead & scalar & (program.kind == Kind.COMPUTE) & (program.region >= 0)
    gathers = (program.kind == Kind.COLLECTIVE) & _reads_only(program, ahead)
    return Preparation(ahead, counts, _feeds(program, ahead & ~counts, gathers), gathers)


def _reads_only(program: Program, rows: Mask) -> Mask:
    found = np.ones(len(program), dtype=np.bool_)
    found[program.dep_owner[~rows[program.deps]]] = False
    return found


def _feeds(program: Program, rows: Mask, gathers: Mask) -> dict[int, int]:
    """Of kernels in `rows` those that, through others, only `gathers` read: the first of these."""
    reached: dict[int, int] = {}
    start, readers = consumers(program)
    taken = {produced for region in program.regions for _, produced in region.carries}
    for row in np.flatnonzero(rows)[::-1].tolist():
        mine = readers[start[row] : start[row + 1]].tolist()
        ends = [r if gathers[r] else reached.get(r, -1) for r in mine]
        if ends and min(ends) >= 0 and row not in taken:
            reached[row] = min(ends)
    return {r: to for r, to in reached.items() if program.kind[r] == Kind.COMPUTE}


def prepared_apart(program: Program) -> Program:
    """The program with these kernels on a stream of their own, unless they have one already.

    So traces do not put them in order with other kernels, as the timeline does not.
    """
    early = preparation(program).is_early & (program.kind == Kind.COMPUTE) & (program.stream == 0)
    if not early.any():
        return program
    stream = np.where(early, len(program.streams), program.stream).astype(np.uint8)
    return program.with_rows(stream=stream, streams=(*program.streams, PREPARATION))


#: The first component of a scope that ends in a number: `layers/3/mlp`, `block_3/attention`.
_NUMBERED = re.compile(r"(?:^|/)([^/]*\d)(?=/|$)")


def layer_runs(program: Program, nodes: Nodes, preparation: Preparation) -> Int64s:
    """For each node how many layers have begun before its own, in node order.

    A layer begins where a loop with collectives in it begins an iteration or ends, and where the
    first numbered component of the scope changes. Nodes without a number, such as those that a
    frontend adds, belong to the layer that is being run. A layer also begins with a gather of
    parameters that is like one of the layer before it.
    """
    return runs_of_rows(program, nodes.row.astype(np.int64), preparation)


def runs_of_rows(program: Program, rows: Int64s, preparation: Preparation) -> Int64s:
    """The same for rows in the order in which they run."""
    if not len(rows):
        return rows
    begins = _turns_begin(program, rows)
    numbers = _carried_on(_scope_numbers(program)[rows])
    begins |= (numbers[1:] != numbers[:-1]) & (numbers[:-1] >= 0)
    begins |= _repeated_gathers(program, preparation)[rows[1:]]
    return np.append(0, np.cumsum(begins))


def turns_of_rows(program: Program, rows: Int64s) -> Int64s:
    """For rows in the order in which they run how many iterations of loops, and stretches of rows
    outside them, have begun before."""
    return np.append(0, np.cumsum(_turns_begin(program, rows))) if len(rows) else rows


def _turns_begin(program: Program, rows: Int64s) -> Mask:
    """For each row but the first whether an iteration of a loop begins there, or one has ended."""
    loops = loop_of_rows(program)[rows]
    again = (rows[1:] <= rows[:-1]) & (loops[1:] >= 0)
    return np.asarray(again | (loops[1:] != loops[:-1]))


def loop_of_rows(program: Program) -> Int64s:
    """For each row the innermost loop around it that has collectives, or -1."""
    collective = (program.kind == Kind.COLLECTIVE) & (program.collective != Collective.PERMUTE)
    found = np.full(len(program), -1, dtype=np.int64)
    for number, region in enumerate(program.regions):  # parents come before what is in them
        inside = slice(region.start, region.stop)
        if region.kind is RegionKind.LOOP and collective[inside].any():
            found[inside] = number
    return found


def follows_the_layers(program: Program, preparation: Preparation) -> Mask:
    """For each row whether it counts, slices, casts or gathers other parameters in each iteration.

    A loop with such gathers is one of layers: it gathers the part of stacked weights that its
    counter says. One that gathers the same weights in each iteration, as one over microbatches
    does, is not.
    """
    loops, changes = loop_of_rows(program), _changes_with(program, preparation)
    return np.asarray(preparation.counts | ((loops >= 0) & (changes == loops)))


def _changes_with(program: Program, preparation: Preparation) -> Int64s:
    """For each row the innermost loop around it with whose iterations its value changes, or -1.

    Only of what is made of parameters and counters alone; -1 for the rest.
    """
    found = np.full(len(program), -1, dtype=np.int64)
    around = _regions_around(program)
    carried = {
        row: number
        for number, region in enumerate(program.regions)
        for row, produced in region.carries
        if row != produced
    }
    inside = (program.region >= 0) & (preparation.ahead | preparation.gathers)
    for row in np.flatnonzero(inside).tolist():
        read = [*found[program.dependencies(row)].tolist(), carried.get(row, -1)]
        found[row] = max((n for n in read if n in around[int(program.region[row])]), default=-1)
    return found


def _regions_around(program: Program) -> list[frozenset[int]]:
    found: list[frozenset[int]] = []
    for number, region in enumerate(program.regions):  # parents come before what is in them
        outer = found[region.parent] if region.parent >= 0 else frozenset()
        found.append(outer | {number})
    return found


def _repeated_gathers(program: Program, preparation: Preparation) -> Mask:
    """For each row whether a layer begins there because it gathers what this layer did already.

    Gathers are alike if they have the same place in the source, shape and type; where scopes have
    numbers, which say more, if they read the same too. What a loop of layers gathers for each
    iteration makes no layers of its own.
    """
    found = np.zeros(len(program), dtype=np.bool_)
    rows = np.arange(len(program), dtype=np.int64)
    turn, number = turns_of_rows(program, rows), _carried_on(_scope_numbers(program))
    alone = preparation.gathers & ~follows_the_layers(program, preparation)
    columns = (program.location, program.shape, program.dtype, program.result_bytes, turn, number)
    seen: set[tuple[int, ...]] = set()
    for row in np.flatnonzero(alone).tolist():
        read = _origin(program, row) if number[row] >= 0 else -1
        key = (read, *(int(c[row]) for c in columns))
        if key in seen:
            found[row] = True
            seen.clear()
        seen.add(key)
    return found


def _origin(program: Program, row: int) -> int:
    """The parameter, or the first of what else, that a gather reads through casts and slices."""
    while (read := program.dependencies(row)).size and int(read[0]) < row:
        row = int(read[0])
    return row


def numbered_prefix(scope: str) -> str:
    """A scope up to its first component that ends with a number, which names a layer; "" without one."""
    match = _NUMBERED.search(scope)
    return scope[: match.end()] if match else ""


def _scope_numbers(program: Program) -> NDArray[np.int64]:
    """For each row the index of the first numbered component of its scope, or -1."""
    known: dict[str, int] = {}
    of_string = [-1] * len(program.strings)
    for at in np.unique(program.scope).tolist():
        prefix = numbered_prefix(program.strings[at])
        if prefix:
            of_string[at] = known.setdefault(prefix, len(known))
    return np.array(of_string, dtype=np.int64)[program.scope]


def _carried_on(numbers: Int64s) -> Int64s:
    """Each -1 replaced by the last other number before it."""
    last = np.maximum.accumulate(np.where(numbers >= 0, np.arange(len(numbers)), -1))
    return np.where(last >= 0, numbers[np.maximum(last, 0)], -1)


# The order in which communication is issued: parameters are gathered before the layer before theirs.
#
# On the stream of a tier collectives run in the order in which they are issued. A program gathers
# parameters where it needs them, which is after the gradients of the layer before have been reduced;
# runtimes that prefetch issue the gathers first, as PyTorch's FSDP does, and XLA where it pipelines
# the collectives of a loop.


@dataclass(frozen=True, eq=False)
class Issued:
    """Nodes in the order in which they are issued, and the layer of each (see `layer_runs`).

    None stands for the layers of nodes that are in the order of the program.
    """

    nodes: Nodes
    layer: Int64s | None = None


def one_layer_ahead(program: Program, nodes: Nodes, preparation: Preparation) -> Issued:
    """What gathers parameters is issued when the layer before theirs in the same loop begins.

    In the first layer of a loop it is issued when that begins. Only a loop of layers gathers for
    its next iteration (see `follows_the_layers`).
    """
    rows = nodes.row.astype(np.int64)
    layer = layer_runs(program, nodes, preparation)
    own, before = np.searchsorted(layer, layer), np.searchsorted(layer, layer - 1)
    turn, loops = turns_of_rows(program, rows), loop_of_rows(program)[rows]
    follows = follows_the_layers(program, preparation)[rows]
    ahead = (turn[before] == turn) | (follows & (loops[before] == loops)) if len(nodes) else follows
    first = np.where(ahead, before, own)
    key = np.arange(len(nodes))
    for node in np.flatnonzero(preparation.is_early[nodes.row]).tolist():
        waits = nodes.dependencies(node)
        key[node] = max(int(first[node]), int(key[waits].max()) if len(waits) else 0)
    order = np.lexsort((np.arange(len(nodes)), key))
    return Issued(_reordered(nodes, order), layer[order])


def _reordered(nodes: Nodes, order: Int64s) -> Nodes:
    """The nodes `order[0]`, `order[1]`, ...: each after all that it waits for."""
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    counts = np.diff(nodes.dep_start)
    owner = place[np.repeat(np.arange(len(order)), counts)]
    keys = np.sort(owner * max(len(order), 1) + place[nodes.deps])
    start = np.zeros(len(order) + 1, dtype=np.int64)
    np.cumsum(counts[order], out=start[1:])
    return replace(
        nodes,
        row=nodes.row[order],
        instance=nodes.instance[order],
        dep_start=start,
        deps=keys % max(len(order), 1),
    )


def untimed_nodes(workload: Workload, granularity: str, mapping: object = None) -> Workload:
    """What traces without durations are of. Raises FlintError FL406 (granularity), FL703 (a mapping)."""
    if mapping:
        raise FlintError(
            "FL703", "a mapping of mesh axes needs the tiers of a cluster", help="give a cluster"
        )
    nodes = nodes_of(workload, granularity)
    return replace(nodes, programs=tuple(map(prepared_apart, nodes.programs)))
