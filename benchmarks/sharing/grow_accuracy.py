"""Grow captured programs, and hold them against captures of the programs that they should be.

    python -m benchmarks.sharing.grow_accuracy [FOLDER] [WORD...]

Writes its tables into `docs/share.md`. FOLDER keeps captures. With WORDs the pairs alone whose name has one of them, printed and
not written.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from benchmarks.accuracy_summary import between
from benchmarks.sharing.grow_pairs import Pair, measured, pairs
from flint.errors import FlintError
from flint.ir.workload import Workload
from flint.tools.share.anonymize import anonymize
from flint.tools.share.growing.grow import grow

PAGE = Path(__file__).parents[2] / "docs/share.md"
_HEAD = """| pair | FLOPs | bytes | worst kind | parameters | memory | step time | rows | bare |
|---|--:|--:|--:|--:|--:|--:|--:|---|
"""
_BASELINES = """
The unchanged small capture, and its numbers times the ratio of layers:

| pair | FLOPs as they are | bytes | FLOPs x layers | bytes |
|---|--:|--:|--:|--:|
"""


def main() -> None:
    """Print, and write, both tables."""
    arguments = sys.argv[1:]
    folder = Path(arguments[0]) if arguments else None
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    rows, baselines = [], []
    for one in pairs():
        if arguments[1:] and not any(word in one.name for word in arguments[1:]):
            continue
        small, real = one.small.workload(folder), one.real.workload(folder)
        rows.append(_row(one, small, real))
        baselines.append(_baseline(one, small, real))
        print(rows[-1], flush=True)
    text = _HEAD + "\n".join(rows) + "\n" + _BASELINES + "\n".join(baselines)
    if not arguments[1:]:
        PAGE.write_text(between(PAGE.read_text("utf-8"), "grow", text), encoding="utf-8")
    print(_BASELINES + "\n".join(baselines))


def _row(one: Pair, small: Workload, real: Workload) -> str:
    try:
        found = grow(small, **one.options).workload
    except FlintError as error:
        return (
            f"| {one.name} | refused: {error.message} "
            + "| " * 7
            + f"| {_bare(one, small, real)} |"
        )
    got, wanted = measured(found), measured(real)
    names = ("FLOPs", "collective bytes", "", "parameter bytes", "peak memory", "step time")
    cells = [_share(got[n], wanted[n]) if n else _worst(got, wanted) for n in names]
    lengths = f"{got['rows']:.0f} of {wanted['rows']:.0f}"
    return f"| {one.name} | {' | '.join(cells)} | {lengths} | {_bare(one, small, real)} |"


def _bare(one: Pair, small: Workload, real: Workload) -> str:
    """The worst difference of captures without names."""
    try:
        found = grow(anonymize(small).workload, **one.options).workload
    except FlintError as error:
        return f"refused ({error.code})"
    got, wanted = measured(found), measured(anonymize(real).workload)
    names = [n for n in wanted if n != "rows"]
    return _share_text(max((abs(_miss(got.get(n, 0.0), wanted[n])) for n in names), default=0.0))


def _baseline(one: Pair, small: Workload, real: Workload) -> str:
    before, after = measured(small), measured(real)
    layers = [s.settings.get("num_layers", 1) for s in (one.small, one.real)]
    ratio = layers[1] / layers[0]
    cells = [
        _share(times * before[name], after[name])
        for times in (1.0, ratio)
        for name in ("FLOPs", "collective bytes")
    ]
    return f"| {one.name} | {' | '.join(cells)} |"


def _worst(got: Mapping[str, float], wanted: Mapping[str, float]) -> str:
    names = {n for n in (*got, *wanted) if n.startswith(("bytes ", "count "))}
    return _share_text(
        max((abs(_miss(got.get(n, 0.0), wanted.get(n, 0.0))) for n in names), default=0.0)
    )


def _miss(got: float, wanted: float) -> float:
    if got == wanted:
        return 0.0
    return got / wanted - 1 if wanted else float("inf")


def _share(got: float, wanted: float) -> str:
    return _share_text(_miss(got, wanted))


def _share_text(miss: float) -> str:
    return "0" if not miss else f"{100 * miss:+.3g} %"


if __name__ == "__main__":
    main()
