"""`flint kinds`: the operations of rank 0 by kind."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from flint.cli.console import print_text


def kinds(
    path: Annotated[Path, typer.Argument(help="A trace directory, or a .flint file.")],
) -> None:
    """Count the operations of rank 0 by kind."""
    from flint.backends.chakra.reading.captured import load_workload
    from flint.ir.program import Kind

    counts = Counter(load_workload(path).program_of(0).kind.tolist())
    for kind in Kind:
        print_text(f"{kind.name.lower():<12} {counts[kind]:,}")
