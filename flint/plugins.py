"""What other packages add to Flint, and Flint's own tools as well: entry points of packages.

A package names its objects in its pyproject.toml, under `[project.entry-points."GROUP"]`, as
`name = "module:object"`. Groups are

- `flint.commands`: commands of the command line, functions or typer applications;
- `flint.stand_ins`: modules that stand in for packages of CUDA while a PyTorch script is recorded;
- `flint.readers`: formats of `flint import`;
- `flint.chip_families`: tables of chips in cluster files, with their prices;
- `flint.cluster_formats`: files of other programs that are read as clusters;
- `flint.sharding_rules`: rules for custom calls, by `custom_call:NAME`;
- `flint.documents`: types of what these commands print with `--json`: `flint schema` has their schemas;
- `flint.api`: names of the package `flint` (`explore`) and methods of its classes (`Trace.diff`).

Nothing of a group is imported before it is asked for. What cannot be used is an error where it is asked for;
elsewhere it is omitted, with a warning. The core imports no tool: it finds them here.
"""

from __future__ import annotations

import html
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from flint.errors import FlintError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

COMMANDS, STAND_INS, READERS = "flint.commands", "flint.stand_ins", "flint.readers"
CHIP_FAMILIES, SHARDING_RULES = "flint.chip_families", "flint.sharding_rules"
API, DOCUMENTS, CLUSTER_FORMATS = "flint.api", "flint.documents", "flint.cluster_formats"
_DISTRIBUTION = "flint-ir"
#: Packages of which a warning was printed, for the processes that this one starts.
_WARNED = "FLINT_WARNED_OF"
_log = logging.getLogger(__name__)
T = TypeVar("T")


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


def load(group: str, name: str, kind: type = object) -> Any:
    """The object of type `kind` that an entry point names.

    Raises FlintError FL880 if two packages add it, FL881 if none does, FL882 if it cannot be imported or is of another type.
    """
    points = _points(group).get(name, ())
    if not points:
        raise FlintError(
            "FL881",
            f"no installed package adds '{name}' to {group}",
            help="Flint's own tools do: reinstall flint-ir (pip install flint-ir)",
        )
    if len(points) > 1:
        raise FlintError(
            "FL880",
            f"{name} of {group} is in two packages: {_package(points[0])} and {_package(points[1])}",
            help="uninstall one of them",
        )
    with blamed(group, name, "be imported"):
        found = points[0].load()
        if isinstance(found, kind):
            return found
        raise AttributeError(f"it is a {type(found).__name__}, not a {kind.__name__}")


@contextmanager
def blamed(group: str, name: str, what: str) -> Iterator[None]:
    """Raise what the code of another package raises inside as FlintError FL882: it cannot `what`."""
    try:
        yield
    except FlintError:
        raise
    except Exception as error:  # whatever another package raises; what ours raises are bugs
        package = _package_of(group, name)
        if package == _DISTRIBUTION and not isinstance(error, ImportError | AttributeError):
            raise
        raise FlintError(
            "FL882",
            f"'{name}' of {group} cannot {what}: {error} (package {package})",
            help="reinstall that package, or uninstall it",
        ) from error


def usable(group: str, names: Iterable[str], read: Callable[[str], T]) -> dict[str, T]:
    """What `read` makes of each of some names of a group, where it can.

    What other packages register wrongly is omitted, with a warning.
    """
    found: dict[str, T] = {}
    for name in names:
        with left_out(group, name, "be used"):
            found[name] = read(name)
    return found


@contextmanager
def left_out(group: str, name: str, what: str) -> Iterator[None]:
    """Log what another package raises inside, where it should `what`: one warning for a package."""
    try:
        with blamed(group, name, what):
            yield
    except FlintError as error:
        package = _package_of(group, name)
        if package == _DISTRIBUTION:
            raise
        if package not in (before := os.environ.get(_WARNED, "").split()):
            os.environ[_WARNED] = " ".join([*before, package])
            _log.warning("left out: %s", error.message)


def of_others(group: str) -> list[str]:
    """The names of a group that other packages add, sorted."""
    return [name for name in registered(group) if _package_of(group, name) != _DISTRIBUTION]


def drawn(name: str, value: object) -> str:
    """A value as HTML for notebooks, by the tool that is registered for it; its text where none is."""
    if name in registered(API):
        return str(load(API, name)(value))
    return f"<pre>{html.escape(str(value))}</pre>"


def _package_of(group: str, name: str) -> str:
    """The package that adds a name; of two that of the other, not Flint."""
    packages = [_package(point) for point in _points(group).get(name, ())]
    return next((p for p in packages if p != _DISTRIBUTION), _DISTRIBUTION)


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
