"""When nodes run that say how long they take and what they wait for, but not when.

Each stream of the device and each thread of the host runs one node at a time, whichever was ready
first, the lower number of two. That is what a simulator without a network would do.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from flint.tools.measure.profiles.execution_trace.build import PAUSE
from flint.tools.measure.profiles.execution_trace.nodes import Node


def scheduled(nodes: Sequence[Node], waits: Callable[[Node], Iterable[int]]) -> list[Node]:
    """Nodes with starts, in order of them; `waits` gives what a node waits for.

    Those that wait for themselves in the end are omitted.
    """
    by_number = {n.number: n for n in nodes}
    waiting: dict[int, set[int]] = {}
    followers: dict[int, list[int]] = defaultdict(list)
    for node in nodes:
        deps = {d for d in waits(node) if d in by_number and d != node.number}
        waiting[node.number] = deps
        for d in deps:
            followers[d].append(node.number)
    ready = [(0.0, number) for number, deps in waiting.items() if not deps]
    heapq.heapify(ready)
    reached: dict[int, float] = defaultdict(float)
    free: dict[tuple[str, int], float] = defaultdict(float)
    found = []
    while ready:
        at, number = heapq.heappop(ready)
        node = by_number[number]
        lane = _lane(node)
        start = max(at, free[lane])
        free[lane] = end = start + (node.duration_us or 0.0)
        found.append(replace(node, start_us=start))
        for follower in followers[number]:
            reached[follower] = max(reached[follower], end)
            waiting[follower].discard(number)
            if not waiting[follower]:
                heapq.heappush(ready, (reached[follower], follower))
    return found


def _lane(node: Node) -> tuple[str, int]:
    """What a node takes while it runs: a stream, a thread, or, of a pause, nothing."""
    if node.on_device:
        return "stream", node.stream
    if node.name.startswith(PAUSE):
        return "pause", node.number
    return "thread", node.integer("tid", 0)
