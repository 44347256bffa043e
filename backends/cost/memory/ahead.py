"""Memory of what is gathered ahead: parameters of the next layer are there while one runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from flint.backends.cost.memory.liveness import Buffers
from flint.backends.cost.simulate.layers import (
    Preparation,
    follows_the_layers,
    loop_of_rows,
    preparation,
    runs_of_rows,
    turns_of_rows,
)
from flint.ir.opcodes import opcode_mask
from flint.ir.program import Program, RegionKind
from flint.passes.work.host_copies import LOAD


def gathered_ahead(program: Program, layout: Buffers) -> Buffers:
    """The buffers, with those of gathered parameters where `one_layer_ahead` issues the gathers.

    A loop of layers gathers for its next iteration: what it gathers is there twice, for this
    iteration from where it begins, and for the next one all the while. Elsewhere a gather begins
    with the layer before its own, or with its own where that is the first of an iteration. What a
    loop brings from the host is there twice too.
    """
    early = preparation(program)
    gathers = np.flatnonzero(early.gathers)
    gathers = gathers[layout.first[layout.of_row[gathers]] == gathers]
    born, extra = layout.born.copy(), []
    follows, loops = follows_the_layers(program, early), loop_of_rows(program)
    begins = _begins(program, early)
    for row, number in zip(gathers.tolist(), layout.of_row[gathers].tolist(), strict=True):
        if not follows[row]:
            born[number] = min(born[number], 2 * begins[row])
            continue
        region = program.regions[loops[row]]
        born[number] = min(born[number], 2 * region.start)
        if region.trip_count > 1:
            extra.append((number, 2 * region.start, 2 * region.stop - 1))
    for row in _loads(program):
        region = program.regions[program.region[row]]
        if region.trip_count > 1:
            extra.append((int(layout.of_row[row]), 2 * region.start, 2 * region.stop - 1))
    found = replace(layout, born=born)
    if not extra:
        return found
    numbers, starts, ends = np.array(extra, dtype=np.int64).T
    return replace(
        found,
        first=np.append(found.first, found.first[numbers]),
        num_bytes=np.append(found.num_bytes, found.num_bytes[numbers]),
        born=np.append(found.born, starts),
        dies=np.append(found.dies, ends),
        on_host=np.append(found.on_host, found.on_host[numbers]),
    )


def _loads(program: Program) -> list[int]:
    """Copies from the host in loops, which bring what the next iteration needs."""
    rows = opcode_mask(program, frozenset({LOAD})) & (program.region >= 0)
    loops = np.array([r.kind is RegionKind.LOOP for r in program.regions] or [False])
    return np.flatnonzero(rows & loops[program.region]).tolist()


def _begins(program: Program, early: Preparation) -> list[int]:
    """For each row where the layer before its own begins, or its own if the one before is of
    another loop."""
    rows = np.arange(len(program), dtype=np.int64)
    layer, turn = runs_of_rows(program, rows, early), turns_of_rows(program, rows)
    own, before = np.searchsorted(layer, layer), np.searchsorted(layer, layer - 1)
    return np.where(turn[before] == turn, before, own).tolist()  # type: ignore[no-any-return]
