"""Which neutral word each name of a workload becomes: the same one for the same name, in all programs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from flint.ir.mesh import AxisRef, Mesh
from flint.ir.program import Kind, Program
from flint.ir.workload import Workload
from flint.tools.share.names.scopes import neutral_scopes

#: Streams that mean something wherever they are: the device's, the host's and copies between them.
_STREAMS = re.compile(r"(compute|counters|host|to host|from host)(?: \(\d{1,4}\))?")


@dataclass(frozen=True)
class Words:
    """What names of a workload become. Names that are not in a table are dropped."""

    axes: Mapping[str, str]
    streams: Mapping[str, str]
    scopes: Mapping[str, str]
    names: Mapping[str, str]
    places: Mapping[str, str]

    @classmethod
    def of(cls, workload: Workload) -> Words:
        """Numbers in the order in which rows use what they stand for."""
        programs = workload.programs
        return cls(
            {name: f"axis{n}" for n, name in enumerate(workload.mesh.names)},
            _streams(s for p in programs for s in p.streams),
            neutral_scopes(s for p in programs for s in _used(p, "scope")),
            _names(s for p in programs for s in _used(p, "name")),
            _numbered("file ", (s for p in programs for s in _places(p))),
        )

    def mesh(self, mesh: Mesh) -> Mesh:
        """The mesh with neutral axes."""
        return Mesh(tuple(self.axes[name] for name in mesh.names), mesh.sizes)

    def refs(self, axes: Iterable[AxisRef]) -> tuple[AxisRef, ...]:
        """Axes, or parts of axes, by their neutral names."""
        return tuple(AxisRef(self.axes[a.name], a.pre_size, a.size) for a in axes)


def _numbered(word: str, names: Iterable[str]) -> dict[str, str]:
    found = dict.fromkeys(filter(None, names))
    return {"": "", **{name: f"{word}{n}" for n, name in enumerate(found)}}


def _used(program: Program, column: str) -> list[str]:
    """Strings of a column in the order of their first row."""
    used, first = np.unique(getattr(program, column), return_index=True)
    return [program.strings[at] for at in used[np.argsort(first)].tolist()]


def _places(program: Program) -> list[str]:
    """Lines of collectives: gathers of one line may be of one layer, see `simulate.layers`."""
    return _used(program.with_rows(location=program.location[_collectives(program)]), "location")


def _collectives(program: Program) -> np.ndarray:
    return np.flatnonzero(program.kind == Kind.COLLECTIVE)


def _streams(names: Iterable[str]) -> dict[str, str]:
    found = list(dict.fromkeys(names))
    other = [name for name in found if not _STREAMS.fullmatch(name)]
    return {name: name for name in found} | {name: f"stream {n}" for n, name in enumerate(other)}


def _names(names: Iterable[str]) -> dict[str, str]:
    """Arguments by family, which is what memory tells apart: the name up to its first bracket or dot."""
    families: dict[str, int] = {}
    members: dict[str, int] = {}
    found = {"": ""}
    for name in dict.fromkeys(filter(None, names)):
        family = name.split("[")[0].split(".")[0]
        number = families.setdefault(family, len(families))
        member = members[family] = members.get(family, -1) + 1
        found[name] = f"argument{number}[{member}]"
    return found
