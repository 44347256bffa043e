"""The lowest versions that pyproject.toml allows, as constraints for pip: `name==version` lines.

    python .ci/lowest.py [EXTRA ...]

They are those of the dependencies, of the build and of the extras that are named, together with
what these refer to (`flint-ir[jax]`). Exits with 1 at a requirement without a lower bound.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.version import Version

PYPROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"


def main(arguments: list[str]) -> None:
    """Print the lines."""
    for name, version in sorted(lowest(tomllib.loads(PYPROJECT.read_text()), arguments).items()):
        print(f"{name}=={version}")


def lowest(pyproject: dict[str, Any], extras: Iterable[str]) -> dict[str, Version]:
    """Distribution -> the lowest version that all requirements on it allow."""
    found: dict[str, Version] = {}
    for requirement in _requirements(pyproject, extras):
        bound = _lower_bound(requirement)
        found[requirement.name] = max(bound, found.get(requirement.name, bound))
    return found


def _requirements(pyproject: dict[str, Any], extras: Iterable[str]) -> Iterator[Requirement]:
    """Those of the build, the dependencies and the extras; extras of the project itself opened."""
    project = pyproject["project"]
    for text in (*pyproject["build-system"]["requires"], *project["dependencies"]):
        yield Requirement(text)
    waiting, seen = list(extras), set[str]()
    while waiting:
        extra = waiting.pop()
        if extra in seen:
            continue
        seen.add(extra)
        for text in project["optional-dependencies"][extra]:
            requirement = Requirement(text)
            if requirement.name == project["name"]:
                waiting += requirement.extras
            else:
                yield requirement


def _lower_bound(requirement: Requirement) -> Version:
    bounds = [Version(s.version) for s in requirement.specifier if s.operator in (">=", "==", "~=")]
    if not bounds:
        sys.exit(f"pyproject.toml does not say which {requirement.name} is the lowest that works")
    return max(bounds)


if __name__ == "__main__":
    main(sys.argv[1:])
