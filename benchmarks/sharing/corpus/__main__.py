"""Capture the corpus into a folder; see the package."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from itertools import count, cycle, islice
from pathlib import Path
from typing import TypeAlias

from benchmarks.sharing.corpus.capture import workload_of
from benchmarks.sharing.corpus.draw import Draw, drawn
from benchmarks.sharing.corpus.families import FAMILIES
from flint.errors import FlintError
from flint.ir.workload import Workload
from flint.tools.share.rules import broken_rules

#: What models with options that do not fit each other raise, beside FlintError.
_WRONG = (FlintError, ValueError, TypeError, AssertionError, NotImplementedError)
#: Rows that a program of the corpus has: others are left out.
FEWEST_ROWS, MOST_ROWS = 150, 2500
#: Draws of a family, one after the other, until one is captured: so families stay balanced.
TRIES = 6
#: More failures than captures in that share end the run: then something is wrong with all.
MOST_FAILED = 0.5

Row: TypeAlias = dict[str, str]
Rows: TypeAlias = dict[str, Row]


def main() -> None:
    """Capture until there are `count`; what fails is named and left out."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.sharing.corpus", description=__doc__
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=560)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--family", action="append", help="only of these families")
    parser.add_argument("--retry", action="store_true", help="try again what failed before")
    o = parser.parse_args()
    o.folder.mkdir(parents=True, exist_ok=True)
    families = tuple(f for f in FAMILIES if not o.family or f.name in o.family)
    known = _rows(o.folder / "index.json")
    kept = {file: row for file, row in known.items() if (o.folder / file).exists()}
    before = {} if o.retry else _rows(o.folder / "failed.json")
    rows: Rows = {}
    failed: Rows = {}
    numbers = {family.name: count() for family in families}
    for family in cycle(families):
        if len(rows) >= o.count or len(failed) > 20 + MOST_FAILED * len(rows):
            break
        for number in islice(numbers[family.name], TRIES):
            draw = drawn(family, number, o.seed)
            row = row_of(draw)
            error = _error(draw, row, o.folder, kept, before)
            if not error:
                rows[draw.file] = row
                _write(o.folder / "index.json", kept | rows)
                break
            failed[draw.file] = {**row, "error": error}
            _write(o.folder / "failed.json", before | failed)
    counts = Counter(row["family"] for row in rows.values())
    print(f"{len(rows)} captures of {len(counts)} families, {len(failed)} failed: {dict(counts)}")


def row_of(draw: Draw) -> Row:
    """The row of `index.json`, in the form that `known_examples` has."""
    code = draw.example.model.partition(".py")[0].rpartition("/")[2] if draw.example else "corpus"
    name = draw.file.removesuffix(".flint")
    return {
        "file": draw.file,
        "family": draw.family.name,
        "model": name,
        "mesh": draw.mesh,
        "options": draw.words,
        "code": code,
    }


def _error(draw: Draw, row: Row, folder: Path, kept: Rows, before: Rows) -> str:
    """Why a draw is not in the corpus, or an empty text; it is captured unless that is known."""
    if kept.get(draw.file) == row:
        return ""
    past = before.get(draw.file, {"error": ""})
    if past == {**row, "error": past["error"]}:
        return past["error"]
    error = _captured(draw, folder)
    if error:
        print(f"{draw.file} ({draw.mesh} {draw.words}): {error}", file=sys.stderr, flush=True)
    return error


def _captured(draw: Draw, folder: Path) -> str:
    """Capture to its file; why it failed, or an empty text."""
    begin = time.perf_counter()
    try:
        workload = workload_of(draw)
        workload.verify()
    except _WRONG as error:
        return f"{type(error).__name__}: {error}"
    size = len(workload.programs[0])
    if not FEWEST_ROWS <= size <= MOST_ROWS:
        return f"{size} rows"
    broken = broken_rules(workload)
    if broken:
        return "; ".join(str(one) for one in broken[:3])
    _save(workload, folder / draw.file)
    seconds = time.perf_counter() - begin
    print(f"{draw.file} {draw.mesh} rows={size} {seconds:.2f} s", flush=True)
    return ""


def _save(workload: Workload, path: Path) -> None:
    """Whole or not at all."""
    part = path.with_name("." + path.name)
    workload.save(part)
    os.replace(part, path)


def _rows(path: Path) -> Rows:
    """Rows of a list that is there, by file: what it tells of in the same words is not done again."""
    found: list[Row] = json.loads(path.read_text("utf-8")) if path.exists() else []
    return {row["file"]: row for row in found}


def _write(path: Path, rows: Rows) -> None:
    """A list of rows, whole or not at all."""
    part = path.with_name("." + path.name)
    part.write_text(json.dumps([*rows.values()], indent=1) + "\n", encoding="utf-8")
    os.replace(part, path)


if __name__ == "__main__":
    main()
