"""Names that conditions may have, and what they stand for at a point."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from flint.ir.mesh import Mesh
from flint.tools.explore.point import SWEPT, Pairs, Point, PointField
from flint.tools.explore.result import PERCENTILES, SERVED
from flint.tools.explore.space.expression import Measure, Value

#: What an estimate says of a point. Names that end in their unit take plain numbers, too.
RESULTS: Mapping[str, Measure | None] = {
    "time": Measure.NS,
    "step_time_ns": Measure.NS,
    "mfu": None,
    "memory": Measure.BYTES,
    "memory_bytes": Measure.BYTES,
    "headroom": Measure.BYTES,
    "tokens": None,
    "tokens_per_s": None,
    "tokens_per_s_per_device": None,
    "cost_per_step": None,
    "cost_per_mtoken": None,
    "energy_per_mtoken": None,
    "ttft": Measure.NS,
    "ttft_ns": Measure.NS,
    "tpot": Measure.NS,
    "tpot_ns": Measure.NS,
    **{f"{quantity}_p{p}": Measure.NS for quantity in SERVED for p in PERCENTILES},
    "goodput": None,
    "goodput_per_device": None,
    "requests_per_s": None,
}
DEVICES = "devices"
#: Names of what a point is estimated on, as the command line calls it.
_ESTIMATED_ON: Mapping[str, str] = {
    PointField.CLUSTER: "cluster",
    **{name: option.typed for name, option in SWEPT.items()},
}
_POINT_NAMES = (DEVICES, *_ESTIMATED_ON.values())


@dataclass(frozen=True)
class Scope:
    """Mesh axes and options by name. `mesh.NAME`, `set.NAME`, `serve.NAME` and `result.NAME` say which is meant.

    Without that a name stands for whichever has it; one that several have stands for none.
    Characters of options that a name cannot have are `_` in it ("batch-size": batch_size).
    """

    axes: tuple[str, ...]
    options: tuple[str, ...]
    served: tuple[str, ...] = ()  #: what is said of a replay

    @cached_property
    def known(self) -> Mapping[str, Measure | None]:
        """Every name, with what it measures; those that stand for several things are omitted."""
        found: dict[str, Measure | None] = dict.fromkeys(self._full())
        found |= {f"result.{name}": measure for name, measure in RESULTS.items()}
        found |= {n: RESULTS.get(n) for n in self._plain() if n not in self.ambiguous}
        return found

    @cached_property
    def ambiguous(self) -> frozenset[str]:
        """Names without a dot that several things have."""
        plain = list(self._plain())
        return frozenset(n for n in plain if plain.count(n) > 1)

    def of(self, field: str, name: str, value: str) -> dict[str, Value]:
        """What the names that depend on a value of a dimension stand for."""
        if field == PointField.MESH:
            return self._of_mesh(value)
        if field in (PointField.SETTING, PointField.PIPELINE):
            return self._named("set", {as_name(name): value})
        if field == PointField.SERVE:
            return self._named("serve", {as_name(name): value})
        if field == PointField.CHANGE:
            return {}
        return self._named("", {_ESTIMATED_ON[field]: value})

    def at(self, point: Point, fixed: Pairs) -> dict[str, Value]:
        """Every name but those of results. `fixed` are options that are equal over all points."""
        found = self.fixed((*fixed, *point.pipeline, *point.settings))
        chosen: dict[str, str] = {PointField.MESH: point.mesh, PointField.CLUSTER: point.cluster}
        chosen |= {**dict.fromkeys(SWEPT, ""), **dict(point.estimate)}
        for field, value in chosen.items():
            found |= self.of(field, "", value)
        for name, value in point.serve:
            found |= self.of(PointField.SERVE, name, value)
        return found

    def fixed(self, options: Pairs) -> dict[str, Value]:
        """What the names of options stand for, later ones instead of earlier ones."""
        found: dict[str, Value] = {}
        for name, value in options:
            found |= self.of(PointField.SETTING, name, value)
        return found

    def results(self, values: Mapping[str, Value]) -> dict[str, Value]:
        """Names of results for values by the names of `RESULTS`."""
        return self._named("result", values)

    def _of_mesh(self, text: str) -> dict[str, Value]:
        if not text:
            return {}
        mesh = Mesh.parse(text, names=self.axes or None)
        return self._named("mesh", mesh.shape) | self._named("", {DEVICES: mesh.size})

    def _named(self, group: str, values: Mapping[str, Value]) -> dict[str, Value]:
        full = {f"{group}.{n}": v for n, v in values.items()} if group else {}
        return {n: v for n, v in values.items() if n not in self.ambiguous} | full

    def _plain(self) -> Iterator[str]:
        yield from self.axes
        yield from map(as_name, self.options)
        yield from map(as_name, self.served)
        yield from RESULTS
        yield from _POINT_NAMES

    def _full(self) -> Iterator[str]:
        yield from (f"mesh.{a}" for a in self.axes)
        yield from (f"set.{as_name(o)}" for o in self.options)
        yield from (f"serve.{as_name(o)}" for o in self.served)


def as_name(option: str) -> str:
    """An option of a script as conditions call it: `--batch-size` is batch_size."""
    return option.lstrip("-").replace("-", "_")
