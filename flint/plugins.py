"""What other packages add to Flint, and Flint's own tools as well: entry points of packages.

A package names its objects in its pyproject.toml, under `[project.entry-points."GROUP"]`, as
`name = "module:object"`. Groups are

- `flint.commands`: commands of the command line, functions or typer applications;
- `flint.stand_ins`: modules that stand in for packages of CUDA while a PyTorch script is recorded;
- `flint.readers`: formats of `flint import`;
- `flint.chip_families`: tables of chips in cluster files, with their prices;
- `flint.sharding_rules`: rules for custom calls, by `custom_call:NAME`;
- `flint.documents`: types of what these commands print, from which `flint.schemas.generate` makes schemas;
- `flint.api`: names of the package `flint` (`explore`) and methods of its classes (`Trace.diff`).

Nothing of a group is imported before it is asked for. The core imports no tool: it finds them here.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flint.errors import FlintError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

COMMANDS, STAND_INS, READERS = "flint.commands", "flint.stand_ins", "flint.readers"
CHIP_FAMILIES, SHARDING_RULES = "flint.chip_families", "flint.sharding_rules"
API, DOCUMENTS = "flint.api", "flint.documents"
_DISTRIBUTION = "flint-ir"


def registered(group: str) -> Mapping[str, EntryPoint]:
    """The entry points of a group by name, each the first on `sys.path`."""
    return {name: points[0] for name, points in _points(group).items()}


@cache
def _points(group: str) -> Mapping[str, tuple[EntryPoint, ...]]:
    """All entry points of a group by name: several where packages add the same name."""
    from importlib.metadata import distributions

    found = {name: (point,) for name, point in _of_checkout(group).items()}
    seen = {_DISTRIBUTION} if _checkout() else set()
    for distribution in distributions():
        points = [e for e in distribution.entry_points if e.group == group]
        if not points or (name := distribution.name) in seen:
            continue  # the first on sys.path is what Python imports
        seen.add(name)
        for point in points:
            found[point.name] = (*found.get(point.name, ()), point)
    return dict(sorted(found.items()))


def load(group: str, name: str) -> Any:
    """The object that an entry point names.

    Raises FlintError FL880 if two packages add that name, FL881 if none does, FL882 if it cannot be imported.
    """
    points = _points(group).get(name, ())
    if not points:
        raise FlintError(
            "FL881",
            f"no installed package adds '{name}' to {group}",
            help="Flint's own tools do: install flint-ir again (pip install flint-ir)",
        )
    if len(points) > 1:
        raise FlintError(
            "FL880",
            f"{name} of {group} is in two packages: {_package(points[0])} and {_package(points[1])}",
            help="uninstall one of them",
        )
    package = _package(points[0])
    try:
        return points[0].load()
    except FlintError:
        raise
    except Exception as error:  # whatever the module of another package raises; ours are bugs
        if package == _DISTRIBUTION and not isinstance(error, ImportError | AttributeError):
            raise
        raise FlintError(
            "FL882",
            f"'{name}' of {group} cannot be imported from {package}: {error}",
            help="install that package again, or uninstall it",
        ) from error


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist else _DISTRIBUTION


@cache
def _checkout() -> Mapping[str, Mapping[str, str]]:
    """Groups of the pyproject.toml beside a checkout's package; an installed package has none."""
    import tomllib

    file = Path(__file__).resolve().parent.parent / "pyproject.toml"
    if not file.is_file():
        return {}
    project = tomllib.loads(file.read_text(encoding="utf-8")).get("project", {})
    return project.get("entry-points", {}) if project.get("name") == _DISTRIBUTION else {}


def _of_checkout(group: str) -> Mapping[str, EntryPoint]:
    """Those of a checkout: an editable installation knows what was there when it was installed."""
    from importlib.metadata import EntryPoint

    return {n: EntryPoint(n, value, group) for n, value in _checkout().get(group, {}).items()}
