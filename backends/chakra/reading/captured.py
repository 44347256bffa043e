"""Reading what `capture` wrote, a trace directory or a `.flint` file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from flint.errors import FlintError
from flint.io.bounded import is_directory

if TYPE_CHECKING:
    from flint.ir.workload import HasWorkload, Workload

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
        raise FlintError("FL301", f"{path} holds no .flint file", help=_CAPTURED)
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


def workload_of(found: HasWorkload | Workload | str | Path) -> Workload:
    """A workload: that of a trace, or of a path as `load_workload` reads it."""
    if isinstance(found, str | Path):
        return load_workload(Path(found))
    from flint.ir.workload import Workload

    return found if isinstance(found, Workload) else found.workload
