"""A fit: which table of which preset it writes, and from which data."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path
from types import ModuleType

import benchmarks.fits
from benchmarks.fits.toml_constants import constants_in
from flint.cluster.load import PRESETS
from flint.cluster.stack import STACKS

#: Value, kind ("fitted", "measured", "assumed", "datasheet") and source of a constant.
Constant = tuple[float, str, str]


@dataclass(frozen=True)
class Fit:
    """Constants that are made from data in benchmarks/data.

    `preset` is the cluster whose file they stand in, `table` where there: "chip.gpu.constants",
    "chip.gpu.libraries.aten", "chip.systolic.constants" or, of the tier nvlink,
    "network.nvlink.constants"; "" is the top of the file of a stack of that name. `names` are those that it writes, and no others of the table. `run`
    makes them. They are kept to four digits, which the same data give on any machine. CI makes those that are `quick`.
    `bounds` are what each may be: one that ends at an edge is listed on the accuracy page, and so is
    one that rests on fewer than `FEW` rows.
    """

    name: str
    preset: str
    table: str
    names: tuple[str, ...]
    rows: int
    run: Callable[[], Mapping[str, Constant]]
    bounds: Mapping[str, tuple[float, float, float]]
    quick: bool = False

    @property
    def path(self) -> Path:
        """The file that it writes."""
        return (PRESETS if self.table else STACKS) / f"{self.preset}.toml"


def borrowed(name: str, preset: str, like: str, table: str, names: Sequence[str], why: str) -> Fit:
    """Constants that a preset has from the same table of another one; `why` may be empty."""

    def run() -> Mapping[str, Constant]:
        whose = f"as {like}, {why}" if why else f"as {like}"
        there = constants_in(PRESETS / f"{like}.toml", table)
        return {n: (there[n]["value"], "assumed", f"{whose}: {there[n]['source']}") for n in names}

    return Fit(name, preset, table, tuple(names), len(names), run, {}, quick=True)


#: A constant that rests on fewer rows is listed.
FEW = 4


def all_fits(of: Callable[[ModuleType], bool] = lambda module: True) -> Sequence[Fit]:
    """The fits of all modules of this package, or some, in an order in which each finds what it prices with.

    A module names in `AFTER` those whose constants it starts from.
    """
    names = sorted(m.name for m in pkgutil.iter_modules(benchmarks.fits.__path__))
    modules = {name: importlib.import_module(f"benchmarks.fits.{name}") for name in names}
    before = {name: getattr(module, "AFTER", ()) for name, module in modules.items()}
    found: list[Fit] = []
    for name in TopologicalSorter(before).static_order():
        if hasattr(modules[name], "fits") and of(modules[name]):
            found += modules[name].fits()
    return found
