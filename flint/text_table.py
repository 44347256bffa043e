"""Tables as plain text: for pipes, files and logs, where nothing may be cut off or coloured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from flint.io.printable import one_line


class Column(NamedTuple):
    """A heading, and whether its cells are numbers."""

    title: str
    right: bool = False


def text_table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> str:
    """Cells in columns that are as wide as they need to be, two spaces apart, each on one line."""
    cells = [[c.title for c in columns], *([one_line(str(c)) for c in r] for r in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    return "\n".join(
        "  ".join(
            text.rjust(width) if column.right else text.ljust(width)
            for text, width, column in zip(line, widths, columns, strict=True)
        ).rstrip()
        for line in cells
    )
