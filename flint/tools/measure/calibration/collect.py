"""The scripts that users run on one of their GPUs to measure what `flint calibrate` fits."""

from __future__ import annotations

import re
import sys
from importlib.resources import files
from pathlib import Path

from flint.io.outputs import OutputKind, write_output

#: Folder of the scripts, which import nothing of Flint.
_FOLDER = "flint.tools.measure.calibration.scripts"
_FUTURE = "from __future__ import annotations\n"
_IMPORT = re.compile(r"^(?:import|from) .*\n", re.MULTILINE)
_SHARED = re.compile(rf"^from {re.escape(_FOLDER)}\.grid import (?:\([^)]*\)|.*)\n", re.MULTILINE)


def script_of(framework: str) -> str:
    """The text of the script for "torch" or "jax": one file, with what both share inside."""
    folder = files(_FOLDER)
    shared_head, _, shared = (folder / "grid.py").read_text("utf-8").partition("# BEGIN\n")
    doc, _, code = (folder / f"{framework}_kernels.py").read_text("utf-8").partition(_FUTURE)
    code = _SHARED.sub("", code, count=1)
    imports = _IMPORT.findall(shared_head) + _IMPORT.findall(code)
    body = f"{shared.strip()}\n\n\n{_IMPORT.sub('', code).strip()}\n"
    return f"{doc}{_FUTURE}\n{_imports(imports)}\n{body}"


def _imports(lines: list[str]) -> str:
    """Import statements of both, once each: the standard library's first."""
    names: dict[str, set[str]] = {}
    for line in lines:
        _, module, *imported = line.replace(",", "").split()
        names.setdefault(module, set()).update(imported[1:])
    standard = {m: n for m, n in names.items() if m.partition(".")[0] in sys.stdlib_module_names}
    standard.pop("__future__", None)
    others = {m: n for m, n in names.items() if m.partition(".")[0] not in sys.stdlib_module_names}
    blocks = (
        "".join(map(_import, sorted(part.items(), key=lambda m: (bool(m[1]), m[0]))))
        for part in (standard, others)
    )
    return "\n".join(block for block in blocks if block)


def _import(found: tuple[str, set[str]]) -> str:
    module, names = found
    return f"from {module} import {', '.join(sorted(names))}\n" if names else f"import {module}\n"


def write_script(path: Path, framework: str, *, force: bool = False) -> None:
    """Write it. Raises FlintError FL508 for a file that is there already, without `force`."""
    write_output(path, script_of(framework).encode(), OutputKind.SCRIPT, force=force)
