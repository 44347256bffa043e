"""Workload: a mesh, the programs of its rank classes, and which ranks run which."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from flint.io.bounded import FileKind, read_bounded
from flint.ir.mesh import Mesh
from flint.ir.program import Flag, Program
from flint.ir.rank_class import RankClass
from flint.ir.verify import groups_fit_the_mesh, hold
from flint.log import stage

if TYPE_CHECKING:
    from flint.ir.made_by import CompiledBy, MeasuredBy, StoodIn

_log = logging.getLogger(__name__)
T = TypeVar("T")


class Kept:
    """For each name the result that was asked for last: what is kept cannot grow with questions.

    It is no part of the value that has it: copies and pickles of that begin empty.
    """

    def __init__(self) -> None:
        self._results: dict[str, tuple[Hashable, object]] = {}

    def get(self, name: str, key: Hashable, make: Callable[[], T]) -> T:
        """The result of `make`, which must depend on `key` and the value only."""
        found = self._results.get(name)
        if found is None or found[0] != key:
            found = (key, make())
            self._results[name] = found
        else:
            _log.debug("%s of %s are reused", name, key)
        return cast(T, found[1])

    def __reduce__(self) -> tuple[type[Kept], tuple[()]]:
        return Kept, ()


@dataclass(frozen=True, eq=False)
class Workload:
    """What every device of a mesh does.

    `metadata` is JSON: producer, source, options. It holds no times and no paths of the machine,
    so that equal input gives equal bytes. `kept` holds what was last made of the workload (its
    kernels for a target profile, ...) and is no part of it.
    """

    mesh: Mesh
    programs: tuple[Program, ...]
    classes: tuple[RankClass, ...]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    kept: Kept = field(default_factory=Kept, init=False, repr=False)

    @classmethod
    def single(cls, program: Program, metadata: Mapping[str, Any] | None = None) -> Workload:
        """One program that every rank of its mesh runs."""
        return cls(program.mesh, (program,), (RankClass("all", 0),), dict(metadata or {}))

    @property
    def compiled_by(self) -> CompiledBy | None:
        """The compiler that made the programs; None for what Flint or a partitioner made."""
        found = self.metadata.get("compiler")
        if not found:
            return None
        from flint.ir.made_by import CompiledBy

        return CompiledBy.from_json(found)

    @property
    def measured_by(self) -> MeasuredBy | None:
        """What was recorded where the programs are of profiles; None for what nobody measured."""
        found = self.metadata.get("measured")
        if not found:
            return None
        from flint.ir.made_by import MeasuredBy

        return MeasuredBy.from_json(found)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What could not be captured as asked for, and what was made up: sentences."""
        return tuple(map(str, self.metadata.get("warnings", ())))

    @property
    def model_share(self) -> float:
        """Part of the product FLOPs of all devices that the whole program has; 1 where that is unknown."""
        return float(self.metadata.get("model_share", 1.0))

    @property
    def is_launched(self) -> bool:
        """Whether a framework launched its operators, one by one: it was recorded."""
        return any((p.flags & Flag.LAUNCHED).any() for p in self.programs)

    @property
    def stood_in(self) -> StoodIn:
        """What stood in for software and data where the program was recorded without them."""
        from flint.ir.made_by import StoodIn

        return StoodIn.from_json(self.metadata.get("stood_in", {}))

    def class_of_ranks(self) -> NDArray[np.int16]:
        """For each rank, the index of its class. Computed; two bytes per device."""
        found = np.full(self.mesh.size, -1, dtype=np.int16)
        for i, c in enumerate(self.classes):
            found[c.mask(self.mesh)] = i
        return found

    def program_of(self, rank: int) -> Program:
        """The program that `rank` runs."""
        return self.programs[self.classes[int(self.class_of_ranks()[rank])].program]

    def verify(self) -> None:
        """Raise AssertionError unless each rank is in exactly one class and programs verify."""
        count = np.zeros(self.mesh.size, dtype=np.int64)
        for c in self.classes:
            hold(0 <= c.program < len(self.programs), f"class {c.name} has no program")
            c.verify(self.mesh)
            count += c.mask(self.mesh)
        wrong = np.flatnonzero(count != 1)
        if len(wrong):
            raise AssertionError(f"rank {wrong[0]} is in {count[wrong[0]]} classes")
        for i, program in enumerate(self.programs):
            hold(program.mesh == self.mesh, f"program {i} is of another mesh")
            groups_fit_the_mesh(program)
            program.verify()

    def to_bytes(self) -> bytes:
        """The `.flint` file as bytes: a zip of manifest.json and one npz of columns a program."""
        from flint.ir.workload_file import Contents, to_bytes

        return to_bytes(Contents(self.mesh, self.programs, self.classes, self.metadata))

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write a `.flint` file, whole or not at all.

        Raises FlintError FL502 if it cannot be written, FL508 if another file stands there, without
        `force`.
        """
        from flint.io.outputs import OutputKind, write_output

        write_output(Path(path), self.to_bytes(), OutputKind.WORKLOAD, force=force)

    @classmethod
    def from_bytes(cls, data: bytes, source: str = "workload") -> Workload:
        """Read what `to_bytes` wrote. Raises FlintError FL304 for anything else."""
        from flint.ir.workload_file import from_bytes

        return from_bytes(data, source, cls._of_file)

    @classmethod
    def _of_file(cls, mesh: Mesh, *parts: Any) -> Workload:
        found = cls(mesh, *parts)
        found.verify()
        return found

    @classmethod
    def load(cls, path: str | Path) -> Workload:
        """Read a `.flint` file. Raises FlintError FL301 (cannot read) or FL304 (not one)."""
        help_ = "give a directory that flint capture wrote, or a .flint file"
        with stage("read"):
            data = read_bounded(Path(path), FileKind.WORKLOAD, "FL301", help_)
            found = cls.from_bytes(data, str(path))
        rows = sum(map(len, found.programs))
        _log.info(
            "%s: %d bytes, %d programs of %d rows", path, len(data), len(found.programs), rows
        )
        return found


class HasWorkload(Protocol):
    """What has a workload, as a `flint.Trace` does."""

    @property
    def workload(self) -> Workload: ...
