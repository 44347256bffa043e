"""All algorithms of collectives: what the modules of `algorithms/` have in `ALGORITHMS`."""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module

from flint.backends.cost.collectives import algorithms as folder
from flint.backends.cost.collectives.algorithm import AcrossTiers, Algorithm, Constant


@cache
def _registered() -> tuple[Algorithm | AcrossTiers, ...]:
    """By module and in the order that each states: of equally fast ones the first is taken."""
    found: list[Algorithm | AcrossTiers] = []
    for name in sorted(m.name for m in pkgutil.iter_modules(folder.__path__)):
        found += import_module(f"{folder.__name__}.{name}").ALGORITHMS
    names = [a.name for a in found]
    assert len(set(names)) == len(names), f"two algorithms of collectives have one name: {names}"
    return tuple(found)


@cache
def algorithms() -> tuple[Algorithm, ...]:
    """Those that run inside one tier."""
    return tuple(a for a in _registered() if isinstance(a, Algorithm))


@cache
def across_tiers() -> tuple[AcrossTiers, ...]:
    """Those that run over several tiers."""
    return tuple(a for a in _registered() if isinstance(a, AcrossTiers))


@cache
def constants() -> dict[str, Constant]:
    """The constants of a tier that algorithms read beyond those that every tier has, by name."""
    return {name: c for a in _registered() for name, c in a.constants.items()}
