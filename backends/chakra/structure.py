"""The dependency graph of one rank: unique ids, known dependencies, no cycle.

Ranks of one class have one structure, so it is built and examined once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flint.backends.chakra.records import Record
from flint.program import Int64s


@dataclass(frozen=True, eq=False)
class Structure:
    """Nodes by ascending id: the order in which the simulator issues what is ready.

    `order[p]` is the place in the file of the node at position p; `waits[p]` counts what it waits
    for, `children[p]` are the positions that wait for it. `problems` are (code, id, sentence).
    """

    order: Int64s
    waits: list[int]
    children: list[list[int]]
    problems: tuple[tuple[str, int, str], ...]


def build_structure(records: Sequence[Record]) -> Structure:
    """Examine the nodes of one file."""
    problems: list[tuple[str, int, str]] = []
    place = sorted(range(len(records)), key=lambda i: records[i].id)
    position: dict[int, int] = {}
    for p, i in enumerate(place):
        if records[i].id in position:
            problems.append(("duplicate-id", records[i].id, f"two nodes have id {records[i].id}"))
        position[records[i].id] = p
    waits = [0] * len(place)
    children: list[list[int]] = [[] for _ in place]
    forward = True
    for p, i in enumerate(place):
        for dep in records[i].deps:
            source = position.get(dep)
            if source is None:
                sentence = f"it waits for node {dep}, which the file does not have"
                problems.append(("unknown-dependency", records[i].id, sentence))
                continue
            forward = forward and source < p
            waits[p] += 1
            children[source].append(p)
    if not forward:
        _find_cycle([records[i] for i in place], waits, children, problems)
    return Structure(np.array(place, dtype=np.int64), waits, children, tuple(problems))


def _find_cycle(
    nodes: list[Record],
    waits: list[int],
    children: list[list[int]],
    problems: list[tuple[str, int, str]],
) -> None:
    """Note one cycle if there is any: what remains after taking out all that can run."""
    left = list(waits)
    ready = [p for p, count in enumerate(left) if not count]
    while ready:
        for child in children[ready.pop()]:
            left[child] -= 1
            if not left[child]:
                ready.append(child)
    stuck = {p for p, count in enumerate(left) if count}
    if not stuck:
        return
    parent = {child: p for p in sorted(stuck) for child in children[p] if child in stuck}
    at, step = min(stuck), dict[int, int]()
    while at not in step:
        step[at] = len(step)
        at = parent[at]
    cycle = [p for p, number in step.items() if number >= step[at]]
    ids = [nodes[p].id for p in reversed(cycle)]
    text = " -> ".join(map(str, [*ids[:8], "..."] if len(ids) > 8 else [*ids, ids[0]]))
    problems.append(("dependency-cycle", min(ids), f"nodes wait for each other: {text}"))
