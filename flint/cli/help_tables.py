"""Help texts that name what there is: read from the tables, and only when help is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from typer.core import TyperCommand


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


#: What a help text may have in braces, "{profiles}", and the names that stand there then.
TABLES: dict[str, Callable[[], Iterable[str]]] = {
    "{profiles}": _profiles,
    "{policies}": _policies,
    "{schedules}": _schedules,
    "{clusters}": _clusters,
}


#: Stands for "-" in names until the lines are broken: names are not.
_HYPHEN = "\N{NON-BREAKING HYPHEN}"


class CommandWithTables(TyperCommand):
    """A command whose options' help may name one of `TABLES`."""

    def get_help(self, ctx: Any) -> str:
        """The help with the names in it."""
        for parameter in self.params:
            text = getattr(parameter, "help", None) or ""
            for name, table in TABLES.items():
                if name in text:
                    text = text.replace(name, ", ".join(table()).replace("-", _HYPHEN))
                    parameter.help = text  # type: ignore[attr-defined]
        return super().get_help(ctx).replace(_HYPHEN, "-")
