"""Tables of benchmarks as they stand in the docs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def markdown(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose first column is text and whose others are numbers."""
    line = ["|---|" + "---:|" * (len(headings) - 1)]
    return (
        "\n".join(f"| {' | '.join(cells)} |" for cells in [headings])
        + "\n"
        + "\n".join(line + [f"| {' | '.join(cells)} |" for cells in rows])
    )
