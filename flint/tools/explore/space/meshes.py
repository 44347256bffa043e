"""Meshes: a number of devices split over axes in every way, or as `--mesh pipe=4,model=1..8` limits."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flint.errors import FlintError, nearest
from flint.ir.mesh import DEFAULT_AXIS_NAMES, MOST_DEVICES, Mesh
from flint.text import format_count, plural

#: A space with more meshes than this is not what anybody wants to look through.
MOST_MESHES = 200_000
_SIZE = re.compile(r"(?P<least>\d+)(?:\.\.(?P<most>\d+))?")
_HELP = "write sizes, ranges or *: pipe=4,data=*,model=1..8"


@dataclass(frozen=True, slots=True)
class AxisLimit:
    """An axis, and the sizes that it may have: any from `least` to `most`, both included."""

    name: str
    least: int = 1
    most: int = MOST_DEVICES

    def allows(self, size: int) -> bool:
        """Whether the axis may be of this size."""
        return self.least <= size <= self.most

    def __str__(self) -> str:
        if self.least == self.most:
            return f"{self.name}={self.least}"
        if (self.least, self.most) == (1, MOST_DEVICES):
            return f"{self.name}=*"
        return f"{self.name}={self.least}..{self.most}"


def parse_axes(text: str | None, declared: Sequence[str]) -> tuple[AxisLimit, ...]:
    """The axes of all meshes, in their order, with what `--mesh` says of their sizes.

    Axes that the entry declares and `text` omits have any size. The order is that of the
    entry, or that of `text` where it names all of them; then it may have further ones. With no
    names ("4x*x8") sizes are of the axes in their order.

    Raises FlintError FL863 for an axis that is not there, and a size that cannot be read.
    """
    if text is None:
        return tuple(AxisLimit(name) for name in declared or DEFAULT_AXIS_NAMES[2])
    given = _named(text) if "=" in text else _unnamed(text, declared)
    names = [axis.name for axis in given]
    again = next((n for n in names if names.count(n) > 1), None)
    if again is not None:
        raise FlintError("FL863", f"--mesh {text} names the axis '{again}' twice")
    missing = [n for n in declared if n not in names]
    unknown = [n for n in names if n not in declared]
    if declared and missing and unknown:
        raise FlintError(
            "FL863",
            f"the entry has no mesh axis '{unknown[0]}'{nearest(unknown[0], missing)}",
            help=f"its axes are {', '.join(declared)}; name all of them to add another",
        )
    known = {axis.name: axis for axis in given}
    return given if not missing else tuple(known.get(n, AxisLimit(n)) for n in declared)


def meshes_of(devices: Sequence[int], axes: Sequence[AxisLimit]) -> tuple[str, ...]:
    """Every mesh of `axes` with one of these numbers of devices, as `--mesh` takes it.

    Of no numbers: the one mesh whose sizes are all given. Meshes of one number of devices come in the order of the
    last axis, then of the first to the last but one, small sizes first.

    Raises FlintError FL863 for a number of devices that no mesh has, or that has none of these,
    FL862 for more meshes than `MOST_MESHES`.
    """
    if not devices:
        return (_only(axes),)
    found: list[str] = []
    for count in devices:
        _require_devices(count)
        if list(devices).count(count) > 1:
            raise FlintError("FL863", f"{plural(count, 'device')} are given twice")
        before = len(found)
        for sizes in factorisations(count, axes):
            found.append(",".join(f"{a.name}={s}" for a, s in zip(axes, sizes, strict=True)))
            _require_few(len(found))
        if len(found) == before:
            raise FlintError(
                "FL863",
                f"no mesh of {plural(count, 'device')} matches {','.join(map(str, axes))}",
                help="the sizes of the axes must multiply to the number of devices",
            )
    return tuple(found)


def factorisations(devices: int, axes: Sequence[AxisLimit]) -> Iterator[tuple[int, ...]]:
    """Sizes of `axes`, in their order, whose product is `devices` and that their limits allow.

    Lazy: nothing is kept but the divisors of `devices`.
    """
    order = [len(axes) - 1, *range(len(axes) - 1)]  # the last axis slowest: it is the innermost
    divisors = divisors_of(devices)
    sizes = [1] * len(axes)

    def fill(at: int, left: int) -> Iterator[tuple[int, ...]]:
        axis = axes[order[at]]
        if at == len(order) - 1:
            if axis.allows(left):
                sizes[order[at]] = left
                yield tuple(sizes)
            return
        for size in divisors:
            if size > min(left, axis.most):
                break
            if left % size == 0 and axis.allows(size):
                sizes[order[at]] = size
                yield from fill(at + 1, left // size)

    return fill(0, devices)


def divisors_of(number: int) -> tuple[int, ...]:
    """Every divisor of a number above 0, sorted."""
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return tuple(sorted({*small, *(number // d for d in small)}))


def parse_devices(text: str) -> tuple[int, ...]:
    """`512`, `128,256,512` or `128..1024` (doubling) as numbers. Raises FlintError FL863."""
    from flint.tools.explore.space.sweep import parse_values

    found = [t.replace("_", "") for t in parse_values(text, "--devices")]
    for value in found:
        if not value.isascii() or not value.isdigit():
            raise FlintError(
                "FL863",
                f"--devices {text}: '{value}' is not a whole number",
                help="write --devices 512, or --devices 128,256,512",
            )
        _require_devices(int(value))
    return tuple(map(int, found))


def _named(text: str) -> tuple[AxisLimit, ...]:
    axes = []
    for part in text.split(","):
        name, equals, size = (p.strip() for p in part.partition("="))
        if not equals or not name:
            raise FlintError("FL863", f"--mesh {text}: '{part}' is not AXIS=SIZE", help=_HELP)
        axes.append(_limit(name, size, text))
    return tuple(axes)


def _unnamed(text: str, declared: Sequence[str]) -> tuple[AxisLimit, ...]:
    sizes = [s.strip() for s in re.split("[,x×]", text)]
    names = declared or DEFAULT_AXIS_NAMES.get(len(sizes), ())
    if len(names) != len(sizes):
        axes = f"has the axes {', '.join(names)}" if names else "names none"
        raise FlintError(
            "FL863",
            f"--mesh {text} has {plural(len(sizes), 'size')}, but the entry {axes}",
            help="name the axes: " + _HELP.removeprefix("write sizes, ranges or *: "),
        )
    return tuple(_limit(n, s, text) for n, s in zip(names, sizes, strict=True))


def _limit(name: str, size: str, text: str) -> AxisLimit:
    if size == "*":
        return AxisLimit(name)
    found = _SIZE.fullmatch(size)
    least = int(found["least"]) if found else 0
    most = int(found["most"] or least) if found else 0
    if not 1 <= least <= most:
        raise FlintError(
            "FL863", f"--mesh {text}: '{size}' is not a size of the axis '{name}'", help=_HELP
        )
    return AxisLimit(name, least, most)


def _only(axes: Sequence[AxisLimit]) -> str:
    if any(axis.least != axis.most for axis in axes):
        raise FlintError(
            "FL863",
            f"the number of devices is not known: the mesh is {','.join(map(str, axes))}",
            help="add --devices 512, or several: --devices 128,256,512",
        )
    return str(Mesh(tuple(a.name for a in axes), tuple(a.least for a in axes)))


def _require_devices(count: int) -> None:
    if not 1 <= count <= MOST_DEVICES:
        raise FlintError(
            "FL863",
            f"a mesh of {format_count(count)} devices",
            help=f"give a number from 1 to {format_count(MOST_DEVICES)}",
        )


def _require_few(meshes: int) -> None:
    if meshes > MOST_MESHES:
        raise FlintError(
            "FL863",
            f"there are more than {format_count(MOST_MESHES)} meshes",
            help="limit their axes: " + _HELP.removeprefix("write sizes, ranges or *: --mesh "),
        )
