"""Reading what `capture` wrote, a trace directory or a `.flint` file, and keeping it as it is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from flint.errors import FlintError
from flint.io.bounded import is_directory

if TYPE_CHECKING:
    from flint.ir.program import Program
    from flint.ir.workload import Workload

_CAPTURED = "give a directory that flint capture wrote, or a .flint file"


def load_workload(path: Path) -> Workload:
    """Load a `.flint` file, or the one in a trace directory.

    Raises FlintError FL301 if there is none or several, FL304 if it is not a `.flint` file.
    """
    from flint.ir.workload import Workload

    if not is_directory(path):
        _refuse_interrupted(path)
        return Workload.load(path)
    found = sorted(path.glob("*.flint"))
    if len(found) == 1:
        return Workload.load(found[0])
    if not found:
        raise FlintError(
            "FL301",
            f"{path} holds no .flint file",
            help=_CAPTURED,
        )
    raise FlintError(
        "FL301",
        f"{path} holds {len(found)} .flint files: {', '.join(f.name for f in found)}",
        help=f"give one of them: {found[0]}",
    )


def _refuse_interrupted(path: Path) -> None:
    """Raise FlintError FL301 for a trace that a killed capture has moved and not yet replaced."""
    from flint.backends.chakra.writing.output import left_behind

    told = left_behind(path)
    if told is not None:
        raise FlintError("FL301", f"cannot read {path}: No such file or directory", help=told)


def program_of_rank(workload: Workload, rank: int) -> Program:
    """The program that `rank` runs. Raises FlintError FL503 if the mesh has no such rank."""
    if not 0 <= rank < workload.mesh.size:
        raise FlintError(
            "FL503",
            f"the mesh {workload.mesh} has no rank {rank}",
            help=f"ranks are 0 to {workload.mesh.size - 1}",
        )
    return workload.program_of(rank)
