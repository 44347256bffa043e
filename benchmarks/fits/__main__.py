"""Make fitted constants again, and compare with those in the presets or write them there.

    python -m benchmarks.fits                       all of them, against the files
    python -m benchmarks.fits --only 'gemm*@h100*'  those whose NAME@PRESET matches
    python -m benchmarks.fits --quick               the subset that CI makes
    python -m benchmarks.fits --write               into flint/cluster/presets/*.toml and stacks/*.toml

Without --write the exit status is 1 if any constant is not what its file has. One that differs in its last
digit is printed, and no failure: another processor adds up in another order.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from typing import Any

from benchmarks.fits.fit import FEW, Constant, Fit, all_fits, constants_in, set_constants
from flint.tools.measure.calibration.fitted import at_bounds

#: Below this a constant is 0 and what is left of it the noise of the search, which other machines do not repeat.
NOTHING = 1e-6
#: As a share of a constant, one of its last digit.
LAST_DIGIT = 1e-3


def _written(value: float) -> float:
    """A constant as files have it: with four digits."""
    return 0.0 if abs(value) < NOTHING else float(f"{value:.4g}")


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
        made = {name: (_written(v), k, s) for name, (v, k, s) in fit.run().items()}
        there = constants_in(fit.path, fit.table)
        lines = list(_differences(fit, made, there))
        edges = at_bounds({n: v for n, (v, _, _) in made.items() if n in fit.bounds}, fit.bounds)
        print(f"{label}: {len(made)} constants of {fit.rows} rows, {len(lines)} differ", end="")
        print(f"; at their bounds: {', '.join(edges)}" if edges else "", end="")
        print("; rests on few rows" if fit.rows < FEW else "", flush=True)
        for line in lines:
            print(f"  {line}", flush=True)
        if given.write and lines:
            set_constants(fit.path, fit.table, made)
        differs |= any(_apart(constant, there.get(name)) for name, constant in made.items())
    return int(differs and not given.write)


def _apart(made: Constant, there: Mapping[str, object] | None) -> bool:
    """Whether a constant is another one than that of its file, not by its last digit alone."""
    value, kind, source = made
    if there is None or (there["kind"], there["source"]) != (kind, source):
        return True
    return not math.isclose(float(str(there["value"])), value, rel_tol=LAST_DIGIT)


def _differences(fit: Fit, made: Mapping[str, Constant], table: Mapping[str, Any]) -> Iterator[str]:
    if set(made) != set(fit.names):
        raise ValueError(f"{fit.name} says that it makes {fit.names}, and makes {tuple(made)}")
    for name, (value, kind, source) in made.items():
        there = table.get(name)
        if there != {"value": value, "kind": kind, "source": source}:
            yield f"{name}: {there['value'] if there else 'not there'} -> {value:g}"


if __name__ == "__main__":
    sys.exit(main())
