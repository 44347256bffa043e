"""Files that nothing which is written may replace: those of traces, and what is read."""

from __future__ import annotations

from pathlib import Path

from flint.backends.chakra.manifest import NAME, read_manifest
from flint.errors import FlintError
from flint.io.bounded import is_directory, is_file

#: What captures and clusters are read from: nobody means to replace one by a graph.
_INPUTS = (".py", ".mlir", ".mlirbc", ".hlo", ".toml")


def refuse_to_replace(output: Path | None) -> None:
    """Raise FlintError FL502 for a file to write that is a directory, of a trace, or an input."""
    if output is None:
        return
    if is_directory(output):
        raise FlintError(
            "FL502", f"cannot write {output}: it is a directory", help="give the name of a file"
        )
    what = _worth_keeping(output) if is_file(output) else None
    if what is not None:
        raise FlintError(
            "FL502", f"{output} is {what}, and is not overwritten", help="give another name"
        )


def _worth_keeping(output: Path) -> str | None:
    """What an existing file is that no graph and no timeline may replace."""
    if output.suffix in (".flint", ".et") or output.name == NAME:
        return "a file of a trace"
    if output.suffix in _INPUTS:
        return f"a {output.suffix} file, which flint reads"
    manifest = read_manifest(output.parent)
    if manifest is not None and output.name in manifest.listing:
        return "a file of a trace"
    return None
