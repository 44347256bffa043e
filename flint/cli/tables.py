"""Names that help texts list and shells offer. What they are of is loaded when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable


def _profiles() -> Iterable[str]:
    from flint.passes.profiles import PROFILES

    return PROFILES


def _policies() -> Iterable[str]:
    from flint.backends.cost.simulate.timeline import POLICIES

    return (*POLICIES, "astra-sim")


def _schedules() -> Iterable[str]:
    from flint.passes.pipeline.schedule.schedules import SCHEDULES

    return SCHEDULES


def _clusters() -> Iterable[str]:
    from flint.cluster.load import preset_names

    return preset_names()


def _stacks() -> Iterable[str]:
    from flint.cluster.stack import Stack

    return Stack.names()


#: What a help text may have in braces, "{profiles}", and an option as its names.
TABLES: dict[str, Callable[[], Iterable[str]]] = {
    "profiles": _profiles,
    "policies": _policies,
    "schedules": _schedules,
    "clusters": _clusters,
    "stacks": _stacks,
}


def offered(table: str) -> Callable[[], list[str]]:
    """What a shell offers for an option; it offers files itself."""
    return lambda: list(TABLES[table]())
