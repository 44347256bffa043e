"""Make fitted constants again, and compare with those in the presets or write them there.

    python -m benchmarks.fits                       all of them, against the files
    python -m benchmarks.fits --only 'gemm*@h100*'  those whose NAME@PRESET matches
    python -m benchmarks.fits --quick               the subset that CI makes
    python -m benchmarks.fits --write               into flint/cluster/presets/*.toml and stacks/*.toml

Without --write the exit status is 1 if any constant is not what its file has.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

from benchmarks.fits.fit import FEW, Fit, all_fits
from flint.backends.cost.fitting.determined import at_bounds
from flint.backends.cost.fitting.toml_constants import constants_in, update_constants


def main() -> int:
    """Run the fits that were asked for; 1 if a file has other constants."""
    parser = argparse.ArgumentParser(description="Make fitted constants again.")
    parser.add_argument("--only", default="*", help="NAME@PRESET, with * for anything")
    parser.add_argument("--quick", action="store_true", help="those that CI makes")
    parser.add_argument("--write", action="store_true", help="into their files")
    given = parser.parse_args()
    differs = False
    for fit in all_fits():
        label = f"{fit.name}@{fit.preset}"
        if not fnmatch(label, given.only) or (given.quick and not fit.quick):
            continue
        made = {name: (float(f"{v:.4g}"), k, s) for name, (v, k, s) in fit.run().items()}
        lines = list(_differences(fit, made, fit.path))
        edges = at_bounds({n: v for n, (v, _, _) in made.items() if n in fit.bounds}, fit.bounds)
        print(f"{label}: {len(made)} constants of {fit.rows} rows, {len(lines)} differ", end="")
        print(f"; at their bounds: {', '.join(edges)}" if edges else "", end="")
        print("; rests on few rows" if fit.rows < FEW else "", flush=True)
        for line in lines:
            print(f"  {line}", flush=True)
        if given.write and lines:
            update_constants(fit.path, fit.table, made)
        differs |= bool(lines)
    return int(differs and not given.write)


def _differences(fit: Fit, made: dict[str, tuple[float, str, str]], path: Path) -> Iterator[str]:
    if set(made) != set(fit.names):
        raise ValueError(f"{fit.name} says that it makes {fit.names}, and makes {tuple(made)}")
    table = constants_in(path, fit.table)
    for name, (value, kind, source) in made.items():
        there = table.get(name)
        if there != {"value": value, "kind": kind, "source": source}:
            yield f"{name}: {there['value'] if there else 'not there'} -> {value:g}"


if __name__ == "__main__":
    sys.exit(main())
