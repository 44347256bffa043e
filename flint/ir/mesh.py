"""The virtual device mesh: named axes, coordinates and the groups of an axis set.

Nothing here is stored per device: groups are computed when they are asked for.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flint.errors import FlintError, nearest
from flint.io.fields import shown
from flint.ir.axis_types import AxisType, axis_types_of

# Who decides how arrays are sharded over an axis of the mesh: the partitioner or the program.

#: Larger meshes than this are typing errors.
MOST_DEVICES = 2**24
#: A mesh has a handful of axes. numpy 1 has arrays of 32 dimensions, and sub-axes need some more.
MOST_AXES = 16
#: Axis names given to a mesh that was written without names ("64x8").
DEFAULT_AXIS_NAMES: dict[int, tuple[str, ...]] = {
    1: ("data",),
    2: ("data", "model"),
    3: ("pipe", "data", "model"),
}


@dataclass(frozen=True, slots=True)
class AxisRef:
    """A mesh axis or, with `size`, the part of it that Shardy calls a sub-axis.

    `AxisRef("x")` is the whole axis. `AxisRef("x", pre_size=2, size=4)` splits the axis into
    (2, 4, rest), major to minor, and names the middle part: Shardy's `"x":(2)4`.
    """

    name: str
    pre_size: int = 1
    size: int | None = None

    def __str__(self) -> str:
        return self.name if self.size is None else f"{self.name}:({self.pre_size}){self.size}"


@dataclass(frozen=True)
class Mesh:
    """Named axes with sizes. Devices are numbered row-major: the last axis varies fastest.

    `axis_types` has one entry per axis, or none where nothing is said. It is for frontends: meshes
    that differ in it alone are equal.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    axis_types: tuple[AxisType, ...] = field(default=(), compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.names or len(self.names) != len(self.sizes):
            raise FlintError(
                "FL101",
                f"a mesh needs one name per axis, got {self.names} and {self.sizes}",
                help="write 64x8, or data=64,model=8",
            )
        if len(self.names) > MOST_AXES:
            raise FlintError(
                "FL101",
                f"a mesh of {len(self.names)} axes: at most {MOST_AXES} are possible",
                help="use one axis for several dimensions of a network",
            )
        for name in self.names:
            _check_name(name)
        if len(set(self.names)) != len(self.names):
            raise FlintError("FL101", f"mesh axis names repeat: {', '.join(self.names)}")
        bad = [f"{n}={s}" for n, s in zip(self.names, self.sizes, strict=True) if s < 1]
        if bad:
            raise FlintError("FL101", f"mesh axis sizes must be at least 1: {', '.join(bad)}")
        if math.prod(self.sizes) > MOST_DEVICES:
            raise FlintError(
                "FL101",
                f"a mesh of {'x'.join(map(str, self.sizes))} has more than {MOST_DEVICES:,} devices",
                help="no system is that large; estimates keep some numbers for each device",
            )

    @classmethod
    def parse(cls, spec: object, names: tuple[str, ...] | None = None) -> Mesh:
        """Build a mesh from "64x8", "data=64,model=8", a mapping, a Mesh or a JAX mesh.

        `names` are the axis names for a spec that has none. Raises FlintError FL101.
        """
        if isinstance(spec, Mesh):
            return spec
        if isinstance(spec, str):
            return _parse_text(cls, spec, names)
        if isinstance(spec, Mapping):
            return cls(tuple(spec), tuple(_axis_size(v) for v in spec.values()))
        shape = getattr(spec, "shape", None)
        if isinstance(shape, Mapping):  # jax.sharding.AbstractMesh and jax.sharding.Mesh
            mesh = cls(tuple(map(str, shape)), tuple(int(s) for s in shape.values()))
            return replace(mesh, axis_types=axis_types_of(spec))
        raise FlintError(
            "FL101",
            f"cannot read a mesh from {type(spec).__name__}",
            help='use "64x8", {"data": 64, "model": 8} or a jax.sharding.AbstractMesh',
        )

    @cached_property
    def size(self) -> int:
        """Number of devices."""
        return math.prod(self.sizes)

    @property
    def shape(self) -> dict[str, int]:
        """Axis name to axis size, in mesh order."""
        return dict(zip(self.names, self.sizes, strict=True))

    def __str__(self) -> str:
        return ",".join(f"{n}={s}" for n, s in self.shape.items())

    def axis_size(self, axis: AxisRef | str) -> int:
        """Number of devices along an axis or sub-axis. Raises FlintError FL102 if unknown."""
        ref = AxisRef(axis) if isinstance(axis, str) else axis
        if ref.name not in self.names:
            raise FlintError(
                "FL102",
                f"mesh has no axis '{ref.name}'{nearest(ref.name, self.names)}",
                help=f"the mesh is {self}",
            )
        whole = self.sizes[self.names.index(ref.name)]
        return whole if ref.size is None else ref.size

    def group_size(self, axes: Iterable[AxisRef]) -> int:
        """Number of devices in one group over `axes`."""
        return math.prod(self.axis_size(a) for a in axes)

    def canonical(self, axes: Iterable[AxisRef]) -> tuple[AxisRef, ...]:
        """Sort axes into mesh order, join adjacent sub-axes, drop parts of size 1."""
        order = {n: i for i, n in enumerate(self.names)}
        refs = sorted(set(axes), key=lambda a: (order.get(a.name, -1), a.pre_size))
        joined: list[AxisRef] = []
        for ref in refs:
            size = self.axis_size(ref)
            if size == 1:
                continue
            last = joined[-1] if joined else None
            if (
                last is not None
                and last.name == ref.name
                and last.size is not None
                and last.pre_size * last.size == ref.pre_size
            ):
                joined[-1] = AxisRef(ref.name, last.pre_size, last.size * size)
            else:
                joined.append(AxisRef(ref.name, ref.pre_size, size))
        return tuple(AxisRef(r.name) if r.size == self.axis_size(r.name) else r for r in joined)

    def without(
        self, axes: Iterable[AxisRef], part: Iterable[AxisRef]
    ) -> tuple[AxisRef, ...] | None:
        """The axes that are in `axes` and not in `part`, canonical; None if `part` is not inside.

        `x` of size 8 without `x:(1)2` is `x:(2)4`. A part that cuts across a factor of an axis
        (2 out of the middle of 3) is not inside.
        """
        left = list(self.canonical(axes))
        for ref in self.canonical(part):
            pre, size = ref.pre_size, self.axis_size(ref)
            for i, whole in enumerate(left):
                outer_pre, outer_size = whole.pre_size, self.axis_size(whole)
                if whole.name != ref.name or pre % outer_pre:
                    continue
                major = pre // outer_pre
                if outer_size % (major * size):
                    continue
                minor = outer_size // (major * size)
                left[i : i + 1] = [
                    AxisRef(ref.name, outer_pre, major),
                    AxisRef(ref.name, pre * size, minor),
                ]
                break
            else:
                return None
        return self.canonical(left)

    def coordinates(self, rank: int) -> dict[str, int]:
        """Axis name to coordinate of one device."""
        found = np.unravel_index(rank, self.sizes)
        return {n: int(c) for n, c in zip(self.names, found, strict=True)}

    def rank(self, coordinates: Mapping[str, int]) -> int:
        """Device number at `coordinates` (all axes given)."""
        return int(np.ravel_multi_index([coordinates[n] for n in self.names], self.sizes))

    def require(self, axes: Iterable[AxisRef]) -> None:
        """Raise FlintError FL102 unless the mesh has these axes and sub-axes, apart."""
        self._split(self.canonical(axes))

    def groups(self, axes: Iterable[AxisRef]) -> NDArray[np.int64]:
        """All groups over `axes`: shape (number of groups, group size), ranks ascending by mesh.

        Computed on demand; a mesh of a million devices costs eight megabytes here and nothing
        elsewhere.
        """
        shape, chosen = self._split(self.canonical(axes))
        ranks = np.arange(self.size, dtype=np.int64).reshape(shape)
        rest = [i for i in range(len(shape)) if i not in chosen]
        moved = ranks.transpose(rest + chosen)
        return moved.reshape(-1, math.prod(shape[i] for i in chosen))

    def _split(self, axes: tuple[AxisRef, ...]) -> tuple[list[int], list[int]]:
        """Mesh shape with sub-axes split out, and the positions that `axes` occupy in it."""
        shape: list[int] = []
        chosen: list[int] = []
        for name, whole in zip(self.names, self.sizes, strict=True):
            done = 1
            for ref in (a for a in axes if a.name == name):
                size = self.axis_size(ref)
                if ref.pre_size % done or whole % (ref.pre_size * size):
                    raise FlintError("FL102", f"sub-axis {ref} does not divide axis {name}={whole}")
                if ref.pre_size > done:
                    shape.append(ref.pre_size // done)
                chosen.append(len(shape))
                shape.append(size)
                done = ref.pre_size * size
            shape.append(whole // done)
        return shape, chosen


@dataclass(frozen=True, slots=True)
class Group:
    """Who takes part in a collective: an axis set, or explicit rank lists where none matches.

    With `positions`, only those (row-major over `axes`) of each group over `axes` take part. `copy`
    numbers communicators of the same ranks: what runs over one does not meet what runs over another.
    """

    axes: tuple[AxisRef, ...] = ()
    ranks: tuple[tuple[int, ...], ...] = ()
    positions: tuple[int, ...] = ()
    copy: int = 0

    def __str__(self) -> str:
        if self.ranks:
            return f"{len(self.ranks)} explicit groups of {len(self.ranks[0])}"
        some = f"[{','.join(map(str, self.positions))}]" if self.positions else ""
        return ",".join(map(str, self.axes)) + some

    @property
    def is_listed(self) -> bool:
        """Whether it is anything but every rank along `axes`."""
        return bool(self.ranks or self.positions)

    def size(self, mesh: Mesh) -> int:
        """Number of devices that take part with one device."""
        if self.ranks:
            return max(map(len, self.ranks))
        return len(self.positions) or mesh.group_size(self.axes)

    def members(self, mesh: Mesh) -> NDArray[np.int64] | list[NDArray[np.int64]]:
        """Every group: an array (groups, size), or a list of arrays for explicit groups."""
        if self.ranks:
            return [np.asarray(r, dtype=np.int64) for r in self.ranks]
        groups = mesh.groups(self.axes)
        return groups[:, list(self.positions)] if self.positions else groups


@dataclass(frozen=True, slots=True)
class Route:
    """Where a point-to-point message goes, for all ranks at once.

    Along `axes` position p (row-major over `axes`) sends to p + `offset`, around the end if
    `wrap`; or, when `pairs` is not empty, by explicit (source, target) positions. With no `axes`
    the positions are ranks of the mesh. Sender and receiver hold the same Route.
    """

    axes: tuple[AxisRef, ...] = ()
    offset: int = 0
    wrap: bool = True
    pairs: tuple[tuple[int, int], ...] = ()

    def __str__(self) -> str:
        where = ",".join(map(str, self.axes)) or "ranks"
        if self.pairs:
            return f"{len(self.pairs)} pairs of {where}"
        return f"{where}{self.offset:+d}{'' if self.wrap else ' (no wrap)'}"

    def targets(self, mesh: Mesh) -> NDArray[np.int64]:
        """For each rank, the rank it sends to, or -1 if it sends to none."""
        return self._follow(mesh, forward=True)

    def sources(self, mesh: Mesh) -> NDArray[np.int64]:
        """For each rank, the rank it receives from, or -1 if it receives from none."""
        return self._follow(mesh, forward=False)

    def _follow(self, mesh: Mesh, *, forward: bool) -> NDArray[np.int64]:
        groups = mesh.groups(self.axes) if self.axes else np.arange(mesh.size)[None, :]
        n = groups.shape[1]
        peer = np.full(n, -1, dtype=np.int64)
        if self.pairs:
            table = np.asarray(self.pairs, dtype=np.int64)
            source, target = (table[:, 0], table[:, 1]) if forward else (table[:, 1], table[:, 0])
            peer[source] = target
        else:
            peer = np.arange(n, dtype=np.int64) + (self.offset if forward else -self.offset)
            inside = (peer >= 0) & (peer < n)
            peer = peer % n if self.wrap else np.where(inside, peer, -1)
        result = np.empty(mesh.size, dtype=np.int64)
        result[groups.ravel()] = np.where(peer >= 0, groups[:, peer], -1).ravel()
        return result


def _parse_text(cls: type[Mesh], text: str, names: tuple[str, ...] | None) -> Mesh:
    parts = [p.strip() for p in re.split(r"[,x×]" if "=" not in text else r",", text.strip())]
    if "=" in text:
        pairs = [p.partition("=") for p in parts]
        return cls(tuple(k.strip() for k, _, _ in pairs), tuple(_axis_size(v) for _, _, v in pairs))
    sizes = tuple(_axis_size(p) for p in parts)
    if names is not None and len(names) != len(sizes):
        raise FlintError(
            "FL101",
            f"mesh '{text}' has {len(sizes)} axes, but the program names {len(names)}: {', '.join(names)}",
            help="give " + "x".join(f"<{n}>" for n in names),
        )
    chosen = names or DEFAULT_AXIS_NAMES.get(len(sizes))
    if chosen is None:
        raise FlintError(
            "FL101",
            f"mesh '{text}' has {len(sizes)} axes but no names",
            help="name them: " + ",".join(f"axis{i}={s}" for i, s in enumerate(sizes)),
        )
    return cls(chosen, sizes)


def _check_name(name: object) -> None:
    """Raise FlintError FL101 for a name that cannot be written in a sharding, or not be seen."""
    if isinstance(name, str) and name and name.isprintable() and name == name.strip():
        return
    raise FlintError(
        "FL101",
        f"{shown(name)} is not the name of a mesh axis",
        help="names are text without control characters or surrounding spaces: data=64,model=8",
    )


def _axis_size(value: Any) -> int:
    try:
        size = int(str(value).strip())
    except ValueError:
        raise FlintError(
            "FL101",
            f"mesh axis size {shown(value)} is not a whole number",
            help="write 64x8, or data=64,model=8",
        ) from None
    if size < 1:
        raise FlintError("FL101", f"mesh axis sizes must be at least 1, got {shown(size)}")
    return size
