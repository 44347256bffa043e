"""From lists of devices back to mesh axes: replica groups to Group, device pairs to Route.

Compilers write out who talks to whom as device numbers. A Program keeps that symbolic, so the
numbers are matched against the axes and sub-axes of the mesh here; what matches none stays a list.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from flint.errors import FlintError
from flint.ir.mesh import AxisRef, Group, Mesh, Route

Ranks = NDArray[np.int64]
RankLists = NDArray[np.int64] | Sequence[Sequence[int]]


def groups_to_axes(groups: RankLists, mesh: Mesh) -> Group:
    """The axes (with sub-axes) whose groups are `groups`, or a Group of explicit ranks.

    `groups` is an array (number of groups, group size) or a sequence of rank lists; no groups at
    all means one group of every device. The order of ranks inside a group is not compared: it
    says where a part lands, not who takes part. The axes are in `Mesh.canonical` form. Groups of
    one device give `Group()`. Raises FlintError FL102 for a rank that the mesh does not have.
    """
    table = _rectangle(groups)
    if table is None:
        lists = tuple(tuple(int(r) for r in g) for g in groups if len(g))
        _check_ranks(np.array([r for g in lists for r in g], dtype=np.int64), mesh)
        return Group(ranks=lists)
    if table.size == 0:
        return Group(axes=mesh.canonical(AxisRef(n) for n in mesh.names))
    _check_ranks(table, mesh)
    if table.shape[1] == 1:
        return Group()
    axes = _matching_axes(table, mesh)
    if axes is not None:
        return Group(axes=axes)
    return Group(ranks=tuple(map(tuple, table.tolist())))


def axes_of_members(members: Ranks, mesh: Mesh) -> tuple[AxisRef, ...] | None:
    """The canonical axes of which the ascending ranks `members` are one group, or None.

    Only these ranks are looked at: the other groups over the axes are the same, moved along.
    """
    axes: list[AxisRef] = []
    for stride, size in _runs(members - members[0]):
        parts = _axes_of_run(stride, size, mesh)
        if parts is None:
            return None
        axes.extend(parts)
    found = mesh.canonical(axes)
    return found if _first_is_first(int(members[0]), len(members), found, mesh) else None


def _first_is_first(rank: int, count: int, axes: tuple[AxisRef, ...], mesh: Mesh) -> bool:
    """Whether `axes` give groups of `count`, and `rank` is at position 0 of its own."""
    if mesh.group_size(axes) != count or not _are_apart(axes, mesh):
        return False
    return not positions_along(np.array([rank]), axes, mesh)[0]


def _are_apart(axes: tuple[AxisRef, ...], mesh: Mesh) -> bool:
    """Whether each sub-axis begins at a multiple of where the one before ends: 0, 1, 3, 4 of 6 do not."""
    pairs = ((one, other) for one, other in pairwise(axes) if one.name == other.name)
    return all(o.pre_size % (a.pre_size * mesh.axis_size(a)) == 0 for a, o in pairs)


def positions_along(ranks: Ranks, axes: tuple[AxisRef, ...], mesh: Mesh) -> Ranks:
    """Position of each rank in its group over canonical `axes`, row-major."""
    position = np.zeros(len(ranks), dtype=np.int64)
    for axis in axes:
        at = mesh.names.index(axis.name)
        stride = math.prod(mesh.sizes[at + 1 :])
        size = mesh.axis_size(axis)
        minor = mesh.sizes[at] // (axis.pre_size * size)
        position = position * size + ranks // (stride * minor) % size
    return position


def pairs_to_route(pairs: NDArray[np.int64] | Sequence[tuple[int, int]], mesh: Mesh) -> Route:
    """The Route that sends along every (source, target) of `pairs`, in the shortest form.

    Tried in order: a shift along the whole axes that messages cross, a shift along the sub-axes
    that they cross, the same (source, target) positions in every group of those sub-axes, and
    pairs of ranks. Messages that all stay at home give `Route()`.
    Raises FlintError FL102 for a rank that the mesh does not have.
    """
    table = np.asarray(pairs, dtype=np.int64).reshape(-1, 2)
    _check_ranks(table, mesh)
    if (table[:, 0] == table[:, 1]).all():
        return Route()
    crossed = _crossed_axes(table, mesh)
    whole = mesh.canonical(AxisRef(a.name) for a in crossed)
    for axes in dict.fromkeys((whole, crossed)):
        relative = _relative_pairs(table, axes, mesh)
        shift = None if relative is None else _as_shift(relative, axes, mesh)
        if shift is not None:
            return shift
    relative = _relative_pairs(table, crossed, mesh)
    if relative is not None:
        return Route(axes=crossed, pairs=_tuples(relative))
    return Route(pairs=_tuples(table[np.lexsort((table[:, 1], table[:, 0]))]))


def _rectangle(groups: RankLists) -> Ranks | None:
    """The groups as one array, or None if their sizes differ."""
    if isinstance(groups, np.ndarray):
        return groups.astype(np.int64, copy=False)
    lists = [g for g in groups if len(g)]
    if len({len(g) for g in lists}) > 1:
        return None
    width = len(lists[0]) if lists else 0
    return np.array(lists, dtype=np.int64).reshape(len(lists), width)


def _check_ranks(ranks: Ranks, mesh: Mesh) -> None:
    outside = (ranks < 0) | (ranks >= mesh.size)
    if outside.any():
        raise FlintError(
            "FL102",
            f"a collective names device {int(ranks[outside][0])}, but the mesh {mesh} has {mesh.size} devices",
            help="give the mesh that the program was compiled for",
        )


def _matching_axes(table: Ranks, mesh: Mesh) -> tuple[AxisRef, ...] | None:
    """Axes whose groups are the rows of `table`, found from the row of device 0, then checked."""
    if table.size != mesh.size:
        return None
    ordered = np.sort(table, axis=1)
    ordered = ordered[np.argsort(ordered[:, 0])]
    axes: list[AxisRef] = []
    for stride, size in _runs(ordered[0]):
        parts = _axes_of_run(stride, size, mesh)
        if parts is None:
            return None
        axes.extend(parts)
    found = mesh.canonical(axes)
    same = mesh.group_size(found) == table.shape[1] and np.array_equal(mesh.groups(found), ordered)
    return found if same else None


def _runs(row: Ranks) -> list[tuple[int, int]]:
    """(stride, size) of the nested arithmetic runs that make up an ascending row from 0."""
    runs: list[tuple[int, int]] = []
    done = 1
    while done < len(row):
        stride = int(row[done])
        starts = row[::done]
        regular = starts == np.arange(len(starts)) * stride
        size = len(starts) if regular.all() else int(np.argmin(regular))
        if size < 2:
            return []
        runs.append((stride, size))
        done *= size
    return runs


def _axes_of_run(stride: int, size: int, mesh: Mesh) -> list[AxisRef] | None:
    """The parts of axes that cover device numbers 0, stride, ..., (size - 1) * stride."""
    low, high = stride, stride * size
    axes: list[AxisRef] = []
    first = 1  # stride of the axis
    for name, whole in zip(reversed(mesh.names), reversed(mesh.sizes), strict=True):
        last = first * whole
        bottom, top = max(low, first), min(high, last)
        if bottom < top:
            if top % bottom or last % top or bottom % first:
                return None
            axes.append(AxisRef(name, last // top, top // bottom))
        first = last
    return axes


def _crossed_axes(table: Ranks, mesh: Mesh) -> tuple[AxisRef, ...]:
    """The smallest part of each axis in which some source and its target differ."""
    source = np.unravel_index(table[:, 0], mesh.sizes)
    target = np.unravel_index(table[:, 1], mesh.sizes)
    axes: list[AxisRef] = []
    for name, whole, s, t in zip(mesh.names, mesh.sizes, source, target, strict=True):
        if np.array_equal(s, t):
            continue
        pre = max(
            d for d in _divisors(whole) if np.array_equal(s // (whole // d), t // (whole // d))
        )
        minor = max(d for d in _divisors(whole // pre) if np.array_equal(s % d, t % d))
        axes.append(AxisRef(name, pre, whole // (pre * minor)))
    return mesh.canonical(axes)


def _divisors(number: int) -> list[int]:
    low = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*low, *(number // d for d in low)})


def _relative_pairs(table: Ranks, axes: tuple[AxisRef, ...], mesh: Mesh) -> Ranks | None:
    """(source, target) positions along `axes` if every group holds the same ones, else None."""
    groups = mesh.groups(axes)
    position = np.empty(mesh.size, dtype=np.int64)
    position[groups.ravel()] = np.tile(np.arange(groups.shape[1]), groups.shape[0])
    width = groups.shape[1]
    code = position[table[:, 0]] * width + position[table[:, 1]]
    unique, count = np.unique(code, return_counts=True)
    if not (count == groups.shape[0]).all():
        return None
    return np.stack([unique // width, unique % width], axis=1)


def _as_shift(relative: Ranks, axes: tuple[AxisRef, ...], mesh: Mesh) -> Route | None:
    """The shift by one offset that `relative` is, with or without wrapping around, else None."""
    width = mesh.group_size(axes)
    offsets = relative[:, 1] - relative[:, 0]
    first = int(offsets[0])
    if len(relative) == width - abs(first) and (offsets == first).all():
        return Route(axes=axes, offset=first, wrap=False)
    if len(relative) == width and (offsets % width == first % width).all():
        offset = first % width
        return Route(axes=axes, offset=offset - width if 2 * offset > width else offset)
    return None


def _tuples(pairs: Ranks) -> tuple[tuple[int, int], ...]:
    return tuple((int(s), int(t)) for s, t in pairs.tolist())
