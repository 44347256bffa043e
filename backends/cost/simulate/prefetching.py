"""The order in which communication is issued: parameters are gathered before the layer before theirs.

On the stream of a tier collectives run in the order in which they are issued. A program gathers
parameters where it needs them, which is after the gradients of the layer before have been reduced;
runtimes that prefetch issue the gathers first, as PyTorch's FSDP does, and XLA where it pipelines
the collectives of a loop.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from flint.backends.chakra.writing.expand import Nodes
from flint.backends.cost.simulate.layers import (
    follows_the_layers,
    layer_runs,
    loop_of_rows,
    turns_of_rows,
)
from flint.backends.cost.simulate.preparing import Preparation
from flint.ir.program import Int64s, Program


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
