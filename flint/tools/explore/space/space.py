"""Space: all points of a study, made when they are asked for."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import Any

from flint.errors import FlintError
from flint.text import format_count
from flint.tools.explore.evaluation.tokens import require_tokens
from flint.tools.explore.point import SWEPT, Pairs, Point, PointField, SpaceDimension
from flint.tools.explore.space.conditions import Condition, parse_conditions
from flint.tools.explore.space.declared import Declared
from flint.tools.explore.space.dimensions import axes_of, dimensions_of, mesh_dimension
from flint.tools.explore.space.expression import Value
from flint.tools.explore.space.names import Scope, as_name
from flint.tools.explore.subject import Subject
from flint.tools.serve.surface.sizes import SIZES

# The product of dimensions, without what conditions forbid: a condition ends a branch early.

#: Values that a walk tries while conditions forbid nearly all: some seconds.
MOST_FORBIDDEN = 1_000_000


@dataclass
class Walk:
    """One walk through a product; `left_out` counts, by condition, what it forbade so far.

    It raises FlintError FL862 where conditions forbid more than `MOST_FORBIDDEN` values one by one.
    """

    dimensions: Sequence[SpaceDimension]
    conditions: Sequence[Condition]
    scope: Scope
    fixed: Pairs
    left_out: Counter[str] = field(default_factory=Counter)
    _forbidden: int = field(default=0, init=False)

    def __iter__(self) -> Iterator[tuple[str, ...]]:
        """A value for each dimension, the last one changing fastest."""
        return self._fill(0, (), self.scope.fixed(self.fixed))

    @property
    def size(self) -> int:
        """Combinations before conditions."""
        return math.prod(len(d.values) for d in self.dimensions)

    def parts(self) -> list[Walk]:
        """A walk for each group of conditions that have no dimension in common with others."""
        groups: list[tuple[set[int], list[Condition]]] = []
        for condition in self.conditions:
            apart = [g for g in groups if not g[0] & self._named(condition)]
            joined = [g for g in groups if g not in apart]
            at = self._named(condition).union(*(g[0] for g in joined))
            groups = [*apart, (at, [*(c for g in joined for c in g[1]), condition])]
        return [
            replace(
                self,
                dimensions=[self.dimensions[i] for i in sorted(at)],
                conditions=[c for c in self.conditions if c in some],
                left_out=Counter(),
            )
            for at, some in groups
        ]

    @cached_property
    def _meanings(self) -> list[list[dict[str, Value]]]:
        of = self.scope.of
        return [[of(d.field, d.name, v) for v in d.values] for d in self.dimensions]

    @cached_property
    def _points_below(self) -> list[int]:
        sizes = [len(d.values) for d in self.dimensions]
        return [math.prod(sizes[at + 1 :]) for at in range(len(sizes))]

    def _named(self, condition: Condition) -> set[int]:
        """The dimensions that a condition depends on; the first one stands for none."""
        wanted = set(condition.names)
        return {i for i, m in enumerate(self._meanings) if wanted & m[0].keys()} or {0}

    @cached_property
    def _due(self) -> list[list[Condition]]:
        """For each dimension, the conditions whose last name it gives."""
        due: list[list[Condition]] = [[] for _ in self.dimensions]
        for condition in self.conditions:
            due[max(self._named(condition))].append(condition)
        return due

    def _fill(
        self, at: int, chosen: tuple[str, ...], names: dict[str, Value]
    ) -> Iterator[tuple[str, ...]]:
        if at == len(self.dimensions):
            yield chosen
            return
        for value, meaning in zip(self.dimensions[at].values, self._meanings[at], strict=True):
            names.update(meaning)
            failed = next((c for c in self._due[at] if not c.holds(names)), None)
            if failed is None:
                yield from self._fill(at + 1, (*chosen, value), names)
            else:
                self.left_out[failed.text] += self._points_below[at]
                self._forbidden += 1
                if self._forbidden > MOST_FORBIDDEN:
                    raise _too_many(failed)


def _too_many(condition: Condition) -> FlintError:
    return FlintError(
        "FL862",
        f"'{condition.text}' and other conditions forbid more than {MOST_FORBIDDEN:,} combinations, one by one",
        help="give the wanted values in --mesh and --sweep instead of forbidding the others",
    )


#: Combinations that are tried to see whether conditions leave anything.
MOST_TRIED = 100_000
#: Points of a study that nobody has asked for by a budget.
MOST_POINTS = 200_000
_PAIRS: dict[str, str] = {
    PointField.SETTING: "settings",
    PointField.PIPELINE: "pipeline",
    PointField.CHANGE: "changes",
    PointField.SERVE: "serve",
}


@dataclass(frozen=True)
class Space:
    """The product of `dimensions`, without the points that `conditions` forbid.

    Dimensions of what is captured come before those of what it is estimated on, so points of one
    program come one after the other.
    """

    subject: Subject
    dimensions: tuple[SpaceDimension, ...]
    devices: tuple[int, ...]  #: as asked for; none for a mesh that is given whole
    axes: tuple[str, ...]
    conditions: tuple[Condition, ...] = ()  #: of points
    limits: tuple[Condition, ...] = ()  #: of what came of them
    fixed: Pairs = ()  #: options that are not explored, as `--set` and the entry's defaults have them

    @cached_property
    def scope(self) -> Scope:
        """The names that conditions, limits and other expressions may have."""
        asked = (PointField.SETTING, PointField.PIPELINE)
        options = [d.name for d in self.dimensions if d.field in asked]
        served = tuple(d.name for d in self.dimensions if d.field == PointField.SERVE)
        return Scope(self.axes, (*(n for n, _ in self.fixed), *options), served)

    def size(self) -> int:
        """Number of points before conditions."""
        return self._walk().size

    def points(self) -> Iterator[Point]:
        """Every point whose conditions hold, always in the same order; the last dimension is the fastest.

        Raises FlintError FL861 for a condition that cannot be told of a point.
        """
        return map(self._made, self._walk())

    def point(self, choices: Mapping[str, str]) -> Point | None:
        """The point with these values, by the name of the dimension; None if a condition forbids it.

        Raises KeyError for a dimension without a value, FlintError FL861 as `points` does.
        """
        made = self._made([choices[d.name] for d in self.dimensions])
        names = self.names(made)
        return made if all(c.holds(names) for c in self.conditions) else None

    def count(self) -> int:
        """Number of points; never less, and more only as `left_out` says."""
        return self.size() - sum(self.left_out().values())

    def exceeds(self, points: int) -> bool:
        """Whether there are more points than this; stops at the first one too many."""
        return next(islice(self._walk(), points, None), None) is not None

    def require_few(self) -> None:
        """Raise FlintError FL862 for more points than `MOST_POINTS`."""
        if self.size() > MOST_POINTS and self.exceeds(MOST_POINTS):
            raise FlintError(
                "FL862",
                f"there are more than {MOST_POINTS:,} points, of {self.size():,} combinations",
                help="--budget 1000 searches them; --where, --mesh and fewer values reduce them",
            )

    def left_out(self) -> dict[str, int]:
        """Points that are forbidden, by the condition that forbade them first.

        Conditions on the same dimensions are tried together; where those have more than `MOST_TRIED`
        combinations, nothing is counted for them.
        """
        found: dict[str, int] = {}
        left = self.size()
        for part in self._walk().parts():
            if part.size > MOST_TRIED:
                continue
            others = left // part.size
            kept = sum(1 for _ in part)
            found |= {text: count * others for text, count in part.left_out.items()}
            left = kept * others
        return {c.text: found[c.text] for c in self.conditions if c.text in found}

    def names(self, point: Point) -> dict[str, Value]:
        """What the names of `scope` stand for at a point, but those of results."""
        return self.scope.at(point, self.fixed)

    def to_json(self) -> dict[str, Any]:
        """Dimensions, devices and conditions, JSON-able: the same for the same points."""
        return {
            "dimensions": [asdict(d) for d in self.dimensions],
            "devices": list(self.devices),
            "axes": list(self.axes),
            "conditions": [c.text for c in self.conditions],
            "limits": [c.text for c in self.limits],
            "fixed": dict(self.fixed),
        }

    def require_points(self) -> None:
        """Raise FlintError FL862 if conditions leave nothing, with what each leaves alone.

        Conditions on dimensions with more than `MOST_TRIED` combinations are not looked at.
        """
        parts = [part for part in self._walk().parts() if part.size <= MOST_TRIED]
        if all(next(iter(part), None) is not None for part in parts):
            return
        alone = {c.text: replace(self, conditions=(c,)).count() for c in self.conditions}
        nothing = next((text for text, count in alone.items() if not count), None)
        said = (
            f"'{nothing}' is true for none" if nothing else "the conditions contradict each other"
        )
        left = ", ".join(f"'{text}' leaves {format_count(n)}" for text, n in alone.items())
        raise FlintError(
            "FL862",
            f"no point of {format_count(self.size())} is left: {said}",
            help=f"alone, {left}",
        )

    def _walk(self) -> Walk:
        return Walk(self.dimensions, self.conditions, self.scope, self.fixed)

    def _made(self, chosen: Sequence[str]) -> Point:
        found: dict[str, Any] = {"mesh": "", "cluster": ""}
        estimate: dict[str, str] = {}
        for dimension, value in sorted(
            zip(self.dimensions, chosen, strict=True), key=lambda c: c[0].name
        ):
            if dimension.field in _PAIRS:
                name = _PAIRS[dimension.field]
                found[name] = (*found.get(name, ()), (dimension.name, value))
            elif dimension.field in SWEPT:
                estimate[dimension.field] = value
            else:
                found[dimension.field] = value
        asked = tuple((n, estimate[n]) for n in SWEPT if estimate.get(n))
        return Point(**found, estimate=asked)


def space_of(
    subject: Subject,
    *,
    devices: Sequence[int] = (),
    clusters: Sequence[str],
    sweeps: Sequence[str] = (),
    where: Sequence[str] = (),
    mesh: str | None = None,
    serve: Sequence[str] = (),
) -> Space:
    """The space of what an entry declares and a user asks for. Runs the code of the model file.

    `devices` are numbers of devices, `clusters` presets or files, `sweeps` as `--sweep` has them,
    `where` conditions; `mesh` limits the sizes of axes: "pipe=4,data=*,model=1..8"; `serve` is what is
    replayed, as `--serve` has it.

    Raises FlintError FL860 (a sweep, no cluster), FL861 (a condition, tokens), FL862 (nothing is left),
    FL863 (an axis, numbers of devices), FL216 (an option), FL701 and FL702 (a cluster), and what
    importing the model file raises.
    """
    declared = Declared.of(subject)
    axes = axes_of(declared, mesh)
    meshes = mesh_dimension(declared, axes, devices, mesh)
    dimensions = dimensions_of(subject, declared, meshes, clusters, sweeps, serve)
    explored = {d.name for d in dimensions if d.field in (PointField.SETTING, PointField.PIPELINE)}
    given = {**dict(declared.defaults()), **dict(subject.pipeline), **dict(subject.settings)}
    if subject.serves:  # a pass has these by itself
        given = {n: v for n, v in given.items() if n not in SIZES}
    fixed = tuple(sorted((n, v) for n, v in given.items() if n not in explored))
    space = Space(subject, dimensions, tuple(devices), tuple(a.name for a in axes), fixed=fixed)
    require_tokens(subject.tokens, space.scope)
    words = {as_name(n): (v,) for n, v in fixed} | {as_name(d.name): d.values for d in dimensions}
    conditions = parse_conditions(where, space.scope, words)
    found = replace(
        space,
        conditions=tuple(c for c in conditions if not c.of_results),
        limits=tuple(c for c in conditions if c.of_results),
    )
    found.require_points()
    return found
