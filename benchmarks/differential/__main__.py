"""How often Flint and XLA partition a random program into the same collectives.

    python -m benchmarks.differential --seeds 0:60 --against xla-gpu
    python -m benchmarks.differential --seeds 7 --family update --against xla --show
    python -m benchmarks.differential --seeds 0:40 --against xla-gpu --write tests/oracle/differential_xla_gpu.json

`xla` is XLA's partitioner alone, `xla-gpu` its whole compiler for GPUs, whose plugin has to be
installed (`pip install 'flint-ir[xla-gpu]'`); it simplifies a program before it partitions it, so it
is the one that says what hardware does. Equal are the same bytes for every kind over the same axes.
`--write` keeps what the other side made of the programs that are equal: a test holds captured ones
against it.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

import flint
from benchmarks.compilers.compare import Comparison
from benchmarks.compilers.sides import Side, side
from benchmarks.differential.programs import FAMILIES, Program, program
from flint.errors import FlintError


def captured(example: Program, profile: str = "", **how: str) -> Side:
    """One side of a program; `how` as for `flint.trace`. Raises FlintError as that does."""
    trace = flint.trace(
        example.function, example.sizes, *example.arguments, out_shardings=example.out, **how
    )
    return side((trace.rewritten(profile) if profile else trace).program)


def compared(example: Program, against: str) -> Comparison:
    """Both sides of one program. Raises FlintError as `flint.trace` does."""
    is_compiler = against == "xla-gpu"
    mine = captured(example, against if is_compiler else "")
    other = captured(example, **{"compiler" if is_compiler else "partitioner": against})
    mesh = ",".join(f"{axis}={size}" for axis, size in example.sizes.items())
    return Comparison(example.name, mesh, mine, other)


def bytes_of(found: Side) -> dict[str, int]:
    """Bytes of each kind over each axis."""
    return {f"{kind} {axes}": size for (kind, axes), (_, size) in found.collectives.items()}


def main() -> None:
    """Compare programs of a range of seeds and count those that are equal."""
    options = _options()
    first, _, end = options.seeds.partition(":")
    total: Counter[str] = Counter()
    counts: Counter[tuple[str, str]] = Counter()
    kept: list[dict[str, Any]] = []
    for seed in range(int(first), int(end or int(first) + 1)):
        example = program(seed, options.family)
        family = example.name.partition(":")[0]
        total[family] += 1
        try:
            found = compared(example, options.against)
        except FlintError as error:
            print(f"{seed} {example.name}: {error}", flush=True)
            continue
        counts[family, "equal"] += found.is_equal
        counts[family, "ring"] += abs(found.ring_difference) <= 0.01
        if found.is_equal:
            entry = {"seed": seed, "family": options.family, "name": example.name}
            kept.append({**entry, "bytes": bytes_of(found.compiled)})
        if options.show or not found.is_equal:
            print(f"{seed} {example.name} {found.verdict}", flush=True)
            print(f"    {_shown(found.captured)}\n    {_shown(found.compiled)}", flush=True)
    for family in sorted(total):
        _say(family, *(counts[family, what] for what in ("equal", "ring")), total[family])
    _say("all", *(sum(counts[f, what] for f in total) for what in ("equal", "ring")), total.total())
    if options.write is not None:
        options.write.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", default="0:40", help="FIRST:END, or one seed")
    parser.add_argument("--family", choices=sorted(FAMILIES))
    parser.add_argument("--against", default="xla", choices=("xla", "xla-gpu"))
    parser.add_argument("--show", action="store_true", help="also those that are equal")
    parser.add_argument("--write", type=Path, help="keep what the other side made of equal ones")
    return parser.parse_args()


def _say(name: str, equal: int, ring: int, total: int) -> None:
    print(f"{name}: equal {equal}, ring bytes within 1 % {ring}, of {total}")


def _shown(found: Side) -> str:
    return "; ".join(f"{what} {size}" for what, size in bytes_of(found).items()) or "none"


if __name__ == "__main__":
    main()
