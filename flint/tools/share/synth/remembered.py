"""Programs that samples are made of: those that come with Flint, or a folder that `flint learn` wrote."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from pathlib import Path

import numpy as np

from flint.backends.chakra.writing.output import replaced_directory
from flint.errors import FlintError
from flint.io.bounded import is_directory
from flint.ir.arrays import Float64s
from flint.ir.program import Flag, Program
from flint.ir.workload import Workload
from flint.tools.share.inputs import read_source
from flint.tools.share.leaks.fingerprints import View, fingerprint_of, shares, structure_distances
from flint.tools.share.redact import redacted

# Captures to learn from or to be like: files, directories of traces, and folders of either.


def captures_of(sources: Iterable[Workload | str | Path]) -> Iterator[Workload]:
    """Every workload of some captures.

    A folder stands for the `.flint` files in it and in its folders, in the order of their names.
    Raises FlintError FL301 for a path that is not there, FL304 for a file that is not a workload, FL955 for a
    folder without one.
    """
    for source in sources:
        if isinstance(source, Workload):
            yield source
        elif is_directory(Path(source)):
            yield from _of_folder(Path(source))
        else:
            workload = read_source(source).workload
            assert workload is not None, "a file is a workload or a profile"
            yield workload


def _of_folder(folder: Path) -> Iterator[Workload]:
    found = sorted(folder.rglob("*.flint"))
    if not found:
        raise FlintError(
            "FL955",
            f"{folder} holds no workload",
            help="give .flint files, directories that flint capture wrote, or a folder of them",
        )
    yield from map(Workload.load, found)


#: The folder of programs that come with Flint.
DEFAULT = "programs"
#: What is compared: neighborhoods of rows, with their op classes.
_VIEW = View.OPS


def structure_of(program: Program) -> Float64s:
    """How often each neighborhood of rows occurs, as shares of all rows (`flint.tools.share.leaks`)."""
    return shares(fingerprint_of(program).histograms[_VIEW])


def distance(one: Float64s, others: Sequence[Float64s]) -> float:
    """The share of rows with another neighborhood than in the nearest of others; 1 where there is none."""
    return float(structure_distances(np.stack(others), one).min()) if others else 1.0


@dataclass(frozen=True)
class Remembered:
    """Redacted workloads of one program each, no two alike."""

    workloads: tuple[Workload, ...]

    @classmethod
    def of(cls, captures: Iterable[Workload]) -> Remembered:
        """The captures that can be remembered: those of one captured program, each once.

        Raises FlintError FL954 where there is none.
        """
        found: dict[int, Workload] = {}
        for workload in captures:
            if _can_be(workload):
                named = redacted(workload)
                found.setdefault(fingerprint_of(named.programs[0]).hash, named)
        if not found:
            raise FlintError(
                "FL954",
                "no capture is of a kind that can be remembered",
                help="give captures of one program for all ranks: no pipelines, recorded PyTorch, compiled programs or profiles",
            )
        return cls(tuple(found.values()))

    @classmethod
    def load(cls, folder: str | Path | None = None) -> Remembered:
        """Read a folder of captures; None: the programs that come with Flint.

        Raises FlintError FL301, FL304 or FL955 for what cannot be read, FL954 for captures none of which can
        be remembered.
        """
        if folder is None:
            own = files("flint.tools.share.synth").joinpath(DEFAULT).iterdir()
            paths = sorted((p for p in own if p.name.endswith(".flint")), key=lambda p: p.name)
            return cls(tuple(Workload.from_bytes(p.read_bytes()) for p in paths))
        if not is_directory(Path(folder)):
            raise FlintError(
                "FL955",
                f"{folder} is not a folder of captures",
                help="flint learn writes one; models trained by earlier releases cannot be read",
            )
        return cls.of(captures_of([folder]))

    def save(self, folder: str | Path) -> None:
        """Write a folder with a `.flint` file of each. Raises FlintError FL501 to FL506."""
        with replaced_directory(Path(folder)) as working:
            for number, workload in enumerate(self.workloads):
                workload.save(working / f"{number:03}.flint")

    @cached_property
    def structures(self) -> tuple[Float64s, ...]:
        """`structure_of` each."""
        return tuple(structure_of(w.programs[0]) for w in self.workloads)


def _can_be(workload: Workload) -> bool:
    """Whether a workload is one captured program for all ranks."""
    if len(workload.programs) != 1 or len(workload.classes) != 1 or workload.classes[0].ranks:
        return False
    if workload.measured_by is not None or workload.compiled_by is not None:
        return False
    program = workload.programs[0]
    launched = bool((program.flags & Flag.LAUNCHED).any())
    return len(program) > 0 and not launched
