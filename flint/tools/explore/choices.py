"""What a point chose, by name: axes of its mesh, options, and what it is estimated on."""

from __future__ import annotations

from collections.abc import Iterable

from flint.tools.explore.point import Point
from flint.tools.explore.space.dimension import SWEPT


def choices(point: Point) -> dict[str, str]:
    """Names with what was chosen, as they are typed; "" is what is taken without a choice.

    An axis and an option of one name are told apart: the option is called `--set NAME`.
    """
    axes = dict(axis.split("=", 1) for axis in point.mesh.split(",") if "=" in axis)
    found = axes if axes or not point.mesh else {"mesh": point.mesh}
    for name, value in (*point.settings, *point.pipeline):
        found[f"--set {name}" if name in axes else name] = value
    found["cluster"] = point.cluster
    found |= {f"cluster.{name}": value for name, value in point.changes}
    chosen = dict(point.estimate)
    found |= {option.typed: chosen.get(name, "") for name, option in SWEPT.items()}
    return found


def varying(points: Iterable[Point]) -> dict[str, list[str]]:
    """Choices that differ between points, with their values: numbers ascend, others stand in the
    order in which they come. A point without a choice of a name chose ""."""
    chosen = [choices(point) for point in points]
    names = list(dict.fromkeys(name for c in chosen for name in c))
    values = {name: list(dict.fromkeys(c.get(name, "") for c in chosen)) for name in names}
    return {name: _ordered(found) for name, found in values.items() if len(found) > 1}


def _ordered(values: list[str]) -> list[str]:
    try:
        return sorted(values, key=lambda value: float(value) if value else float("-inf"))
    except ValueError:
        return values
