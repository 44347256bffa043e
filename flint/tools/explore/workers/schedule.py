"""In which pieces, and by whom, points are evaluated."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby, islice
from typing import Protocol

from flint.ir.mesh import Mesh
from flint.tools.explore.point import Point
from flint.tools.explore.result import Result, Status
from flint.tools.explore.workers.work import Done, PointGroup

#: Points of a group: what a process that is killed loses.
MOST_POINTS = 100


class Executor(Protocol):
    """Evaluates groups somewhere, several at a time."""

    def run(self, groups: Iterable[PointGroup]) -> Iterator[Done]:
        """What became of each group, as they finish. Groups are asked for when there is room.

        A group whose process ends twice becomes results that FAILED.
        """
        ...


def groups_of(points: Iterable[Point], first: int = 0) -> Iterator[PointGroup]:
    """Points of one program that stand together, at most `MOST_POINTS` each.

    The first point of each of the `first` programs at the beginning is a group of its own: something
    can be shown before all points of a program are done.
    """
    programs = groupby(points, key=lambda p: p.program)
    early: list[list[Point]] = []
    for _, of_program in islice(programs, first):
        head, *rest = of_program
        yield PointGroup((head,))
        early.append(rest)
    for rest in early:
        yield from _pieces(rest)
    for _, of_program in programs:
        yield from _pieces(of_program)


def _pieces(points: Iterable[Point]) -> Iterator[PointGroup]:
    waiting = iter(points)
    while piece := tuple(islice(waiting, MOST_POINTS)):
        yield PointGroup(piece)


def failed(group: PointGroup, reason: str) -> Done:
    """Results of a group that no process has finished."""
    return Done(tuple(_failed(point, reason) for point in group.points))


def _failed(point: Point, reason: str) -> Result:
    return Result(point, Status.FAILED, devices_of(point), reason)


def devices_of(point: Point) -> int:
    """Devices of the mesh; 0 where the program's own is taken."""
    return Mesh.parse(point.mesh).size if point.mesh else 0


KILLED_TWICE = "the process that evaluated it was killed, twice"
