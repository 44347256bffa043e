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


def passes() -> Iterable[tuple[str, str]]:
    """Passes with their options and defaults, and what each does."""
    from flint.passes.pass_list import described, known_passes

    return (described(one) for one in known_passes().values())


#: What stands after the help of a command, by the command's name: terms, and what they are.
LISTS: dict[str, tuple[str, Callable[[], Iterable[tuple[str, str]]]]] = {"opt": ("Passes", passes)}


class CommandWithTables(TyperCommand):
    """A command whose options' help may name one of `TABLES`, and that may end with one of `LISTS`."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the list of this command."""
        super().format_epilog(ctx, formatter)
        title, terms = LISTS.get(self.name or "", ("", tuple))
        rows = [(term.replace("-", _HYPHEN), text) for term, text in terms()]
        if rows:
            with formatter.section(title):
                formatter.write_dl(rows, col_max=24)

    def get_help(self, ctx: Any) -> str:
        """The help with the names in it."""
        for parameter in self.params:
            text = getattr(parameter, "help", None) or ""
            for name, table in TABLES.items():
                if name in text:
                    text = text.replace(name, ", ".join(table()).replace("-", _HYPHEN))
                    parameter.help = text  # type: ignore[attr-defined]
        return super().get_help(ctx).replace(_HYPHEN, "-")
