"""Captures to learn from or to be like: files, directories of traces, and folders of either."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from flint.errors import FlintError
from flint.io.bounded import is_directory
from flint.ir.workload import Workload
from flint.tools.share.inputs import read_source


def captures_of(sources: Iterable[Workload | str | Path]) -> Iterator[tuple[str, Workload]]:
    """Every workload with what it is called: of a file its path, of a workload its number.

    A folder stands for the `.flint` files in it and in its folders, in the order of their names.
    Raises FlintError FL301 for a path that is not there, FL304 for a file that is no workload, FL955 for a
    folder without one.
    """
    for number, source in enumerate(sources):
        if isinstance(source, Workload):
            yield f"workload {number}", source
        elif is_directory(Path(source)):
            yield from _of_folder(Path(source))
        else:
            workload = read_source(source).workload
            assert workload is not None, "a file is a workload or a profile"
            yield str(source), workload


def _of_folder(folder: Path) -> Iterator[tuple[str, Workload]]:
    found = sorted(folder.rglob("*.flint"))
    if not found:
        raise FlintError(
            "FL955",
            f"{folder} holds no workload",
            help="give .flint files, directories that flint capture wrote, or a folder of them",
        )
    for path in found:
        yield str(path), Workload.load(path)
