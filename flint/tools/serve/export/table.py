"""Tables of other simulators: CSV, and the sizes that they have rows for."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from importlib.resources import files

#: Rows of the smallest tile of a large product, in tokens.
_TILE = 32


def csv_of(columns: Sequence[str], rows: Iterable[Sequence[object]], **constants: object) -> bytes:
    """A CSV file with a header, its lines ended as on Unix; `constants` are the first columns of each row."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow((*constants, *columns))
    writer.writerows((*constants.values(), *row) for row in rows)
    return text.getvalue().encode()


def readme(kind: str, **facts: object) -> bytes:
    """The README of a kind of tables, `facts` in the places of their names; without any, as it stands."""
    text = files(__package__).joinpath(f"{kind}.md").read_text(encoding="utf-8")
    return (text.format(**facts) if facts else text).encode()


def grid(first: int, last: int, ratio: float, multiple: int = 1) -> list[int]:
    """Numbers from `first` to `last`, both of them, each about `ratio` times the one before.

    All but the ends are multiples of `multiple`.
    """
    found, at = {first, last}, float(first)
    while at < last:
        at = max(at * ratio, at + multiple)
        found.add(min(max(int(at // multiple * multiple), first), last))
    return sorted(found)


def steps(last: int) -> list[int]:
    """Numbers of tokens up to `last`, on both sides of where products of matrices begin another tile."""
    edges = {n for edge in range(_TILE, last, _TILE) for n in (edge, edge + 1)}
    return sorted({*grid(1, min(last, _TILE), 1.06), *edges, last})
