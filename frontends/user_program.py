"""A Python program as its user starts it, run in this process: a script, a module or a notebook."""

from __future__ import annotations

import ast
import json
import linecache
import os
import re
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from flint.errors import FlintError
from flint.io.bounded import FileKind, read_bounded

NOTEBOOK = ".ipynb"
#: The number of a process on its host in arguments of a program, as torchrun writes it, too.
LOCAL_RANK = "${local_rank}"
#: Magics of cells that run the cell's code as Python, with something around it.
_AROUND = re.compile(r"\s*%%(?:time|timeit|capture|prun)\b.*")
_MAGIC = re.compile(r"(\s*)(?:[%!]|\w+\s*=\s*[%!]).*")


def run_program(script: Path, module: str, argv: Sequence[str]) -> None:
    """Run a script or notebook, or with `module` what `python -m module` runs, as `__main__`.

    `sys.argv` and `sys.path` are the program's while it runs. What it raises goes through.
    """
    before = sys.argv, list(sys.path)
    sys.argv = [str(script), *argv]
    sys.path.insert(0, os.getcwd() if module else str(script.resolve().parent))
    try:
        if module:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        elif script.suffix == NOTEBOOK:
            _run_notebook(script)
        else:
            if b"\0" in script.read_bytes():  # before Python 3.11.4 a ValueError without a place
                raise SyntaxError("source code cannot contain null bytes")
            runpy.run_path(str(script), run_name="__main__")
    finally:
        sys.argv, sys.path[:] = before


def _run_notebook(path: Path) -> None:
    """Run the cells one after the other. Errors name them as `train.ipynb cell 3:LINE`."""
    main = ModuleType("__main__")
    main.__dict__["display"] = print
    before, sys.modules["__main__"] = sys.modules["__main__"], main
    try:
        for number, text in enumerate(_cells(path), 1):
            name = f"{path} cell {number}"
            linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
            exec(compile(text, name, "exec", dont_inherit=True), main.__dict__)  # noqa: S102
    finally:
        sys.modules["__main__"] = before


def source_of(path: Path) -> bytes:
    """The Python code of a script, or of all cells of a notebook.

    Raises FlintError FL301 for what cannot be read: no regular file, or larger than a model may be.
    """
    if path.suffix != NOTEBOOK:
        return read_bounded(path, FileKind.MODEL, "FL301")
    return "\n".join(_cells(path)).encode()


def _cells(path: Path) -> list[str]:
    """The code of a notebook's cells, without what only IPython runs. Raises FlintError FL301."""
    data = read_bounded(path, FileKind.MODEL, "FL301")
    try:
        cells = json.loads(data)["cells"]
        codes = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    except (ValueError, KeyError, TypeError) as error:
        raise FlintError("FL301", f"{path.name} is not a Jupyter notebook (format 4)") from error
    return [_plain(code) for code in codes]


def _plain(code: str) -> str:
    """Python's part of a cell; lines stay where they are."""
    first, newline, rest = code.partition("\n")
    if _AROUND.fullmatch(first):
        code = newline + rest
    elif first.lstrip().startswith("%%"):
        return ""
    lines = code.split("\n")
    while (number := _wrong_line(lines)) and (magic := _MAGIC.fullmatch(lines[number - 1])):
        lines[number - 1] = f"{magic[1]}pass"
    return "\n".join(lines)


def _wrong_line(lines: list[str]) -> int:
    """The line that Python does not understand, 0 if there is none."""
    try:
        ast.parse("\n".join(lines))
    except SyntaxError as error:
        return min(error.lineno or 0, len(lines))
    return 0
