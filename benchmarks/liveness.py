"""Late ranks and broken traces, at length: do written traces end, and is what `check` says of others true?

    python -m benchmarks.liveness                     40 programs, 10 disturbances each, 200 faults
    python -m benchmarks.liveness --programs 400 --faults 2000

By Flint's run of ASTRA-sim's rules. Exits 1 where traces of Flint hang, or fails where `check` is wrong.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.late_ranks import count_outcomes, late_hangs, tangled


def main() -> int:
    """Print how many runs hang, and what was said of broken traces."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--programs", type=int, default=40)
    parser.add_argument("--disturbances", type=int, default=10)
    parser.add_argument("--faults", type=int, default=200)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        hanging = sum(
            late_hangs(tangled(seed, 40), Path(place) / f"late{seed}", seed, options.disturbances)
            for seed in range(options.programs)
        )
        runs = options.programs * (options.disturbances + 1)
        print(f"late ranks: {hanging} of {runs} runs hang")
        said = count_outcomes(range(options.faults), Path(place) / "broken", options.disturbances)
        print(f"broken traces: {dict(said)}, none that is ok hangs")
    return hanging > 0


if __name__ == "__main__":
    sys.exit(main())
