"""A reduce part in independent pieces, so that each can begin when its gradients are complete."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from flint.passes.pipeline.split.parts import Part, Partial
from flint.steps.captured import Port


@dataclass(frozen=True, eq=False)
class Piece:
    """Rows that depend on no row outside of the piece: what they read, and what they give."""

    rows: frozenset[int]
    partials: frozenset[Partial]
    gradients: tuple[Port, ...]


def pieces(part: Part) -> list[Piece]:
    """The connected components of a reduce part, in the order of their first rows."""
    program = part.program
    parent = list(range(len(program)))

    def root(row: int) -> int:
        while parent[row] != row:
            parent[row] = parent[parent[row]]
            row = parent[row]
        return row

    def join(rows: Iterable[int]) -> None:
        roots = sorted({root(r) for r in rows})
        for other in roots[1:]:
            parent[other] = roots[0]

    shared = {row for key, row in part.inputs.items() if not isinstance(key, Partial)}
    for row in range(len(program)):
        join([row, *(d for d in program.dependencies(row).tolist() if d not in shared)])
    for region in program.regions:
        join(range(region.start, region.stop))
    return _described(part, {row: root(row) for row in range(len(program)) if row not in shared})


def _described(part: Part, root: dict[int, int]) -> list[Piece]:
    inputs = set(part.inputs.values())
    rows: dict[int, set[int]] = {}
    for row, of in root.items():
        rows.setdefault(of, set())
        if row not in inputs:
            rows[of].add(row)
    partials: dict[int, set[Partial]] = {}
    for key, row in part.inputs.items():
        if isinstance(key, Partial):
            partials.setdefault(root[row], set()).add(key)
    gradients: dict[int, list[Port]] = {}
    for given, row in part.outputs.items():
        if isinstance(given, Port):
            gradients.setdefault(root[row], []).append(given)
    return [
        Piece(frozenset(rows[of]), frozenset(partials.get(of, ())), tuple(gradients.get(of, ())))
        for of in sorted(rows)
        if gradients.get(of)
    ]
