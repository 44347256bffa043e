"""Messages in rounds: an edge coloring of a bipartite graph with as few colors as it has."""

from __future__ import annotations

from collections.abc import Iterable

Edge = tuple[int, int]


def color_edges(edges: Iterable[Edge]) -> list[list[Edge]]:
    """Edges (source, target) in lists in which each source and each target is at most once.

    There are as many lists as the node with most edges has (König's theorem). Edges of one shift
    (target - source) are taken first together, so that regular exchanges become shifts.
    """
    #: Per side, by (node, color), the node at the other end.
    at: tuple[dict[Edge, int], dict[Edge, int]] = ({}, {})
    ordered = sorted(edges, key=lambda edge: (edge[1] - edge[0], edge))
    for source, target in ordered:
        mine, theirs = _free(at[0], source), _free(at[1], target)
        if mine != theirs:
            _swap_along(at, target, mine, theirs)
        at[0][source, mine], at[1][target, mine] = target, source
    colors = sorted({color for _, color in at[0]})
    return [sorted((s, t) for (s, c), t in at[0].items() if c == color) for color in colors]


def _free(taken: dict[Edge, int], node: int) -> int:
    color = 0
    while (node, color) in taken:
        color += 1
    return color


def _swap_along(
    at: tuple[dict[Edge, int], dict[Edge, int]], target: int, wanted: int, free: int
) -> None:
    """Exchange two colors along the path from `target`, so that `wanted` becomes free there."""
    path: list[Edge] = []
    node, side, color = target, 1, wanted
    while (node, color) in at[side]:
        other = at[side][node, color]
        path.append((other, node) if side else (node, other))
        node, side, color = other, 1 - side, free if color == wanted else wanted
    colors = [wanted if i % 2 == 0 else free for i in range(len(path))]
    for (s, t), color in zip(path, colors, strict=True):
        del at[0][s, color], at[1][t, color]
    for (s, t), color in zip(path, colors, strict=True):
        changed = free if color == wanted else wanted
        at[0][s, changed], at[1][t, changed] = t, s
