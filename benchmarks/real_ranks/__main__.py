"""Print the table, and with names of programs what differs in them."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from benchmarks.real_ranks.compare import Compared, compared


def line(name: str, ranks: dict[int, Compared]) -> str:
    """A row of the table."""
    equal = {
        q: all(c.is_equal[q] for c in ranks.values()) for q in next(iter(ranks.values())).is_equal
    }
    errors = [c.memory_error for c in ranks.values()]
    worst = max(errors, key=abs)
    marks = ["equal" if equal[q] else "**not**" for q in ("collectives", "products", "operators")]
    return f"| {name} | {' | '.join(marks)} | {worst:+.1%} |".replace("%", " %")


def main() -> None:
    """Compare all programs, or those that are named."""
    from benchmarks.real_ranks import parallel  # noqa: F401 - fills the table
    from benchmarks.real_ranks.table import PROGRAMS

    asked = sys.argv[1:]
    print("| program | collectives | products | operators | peak memory |\n|---|---|---|---|---:|")
    with tempfile.TemporaryDirectory() as folder:
        for name, ranks in compared(asked or list(PROGRAMS), Path(folder)):
            print(line(name, ranks), flush=True)
            for rank, one in ranks.items() if asked else ():
                print(f"rank {rank}: {one.is_equal} {one.memory_error:+.2%}\n{one.difference()}")


if __name__ == "__main__":
    main()
