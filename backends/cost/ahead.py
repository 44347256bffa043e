"""Memory of what is gathered ahead: parameters of the next layer are there while one runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from flint.backends.cost.layers import loop_of_rows, runs_of_rows
from flint.backends.cost.liveness import Buffers
from flint.backends.cost.preparing import preparation
from flint.program import Program


def gathered_ahead(program: Program, layout: Buffers) -> Buffers:
    """The buffers, with those of gathered parameters where `one_layer_ahead` issues the gathers.

    A loop gathers for its next iteration: what it gathers is there twice, for this iteration from
    where it begins, and for the next one all the while. Elsewhere a gather begins with the layer
    before its own, if there is one: without numbers in scopes everything is one layer.
    """
    gathers = np.flatnonzero(preparation(program).gathers)
    gathers = gathers[layout.first[layout.of_row[gathers]] == gathers]
    buffer, loops = layout.of_row[gathers], loop_of_rows(program)
    born, extra = layout.born.copy(), []
    layer = runs_of_rows(program, np.arange(len(program)))
    for row, number in zip(gathers.tolist(), buffer.tolist(), strict=True):
        loop = int(loops[row])
        if loop < 0:
            before = int(np.searchsorted(layer, layer[row] - 1))
            if layer[row] and loops[before] < 0:
                born[number] = min(born[number], 2 * before)
            continue
        region = program.regions[loop]
        born[number] = min(born[number], 2 * region.start)
        if region.trip_count > 1:
            extra.append((number, 2 * region.start, 2 * region.stop - 1))
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
    )
