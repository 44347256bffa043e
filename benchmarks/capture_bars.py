"""Hold captures of an 80-layer Llama 3 (70B, 512 devices) to the CPU seconds they may take.

    python -m benchmarks.capture_bars                    the fastest of three each
    python -m benchmarks.capture_bars --repeat 1

The cases are those of `benchmarks/capture.py`; the exit status is 1 if one takes longer. The bars
are for one quiet core of a 2-core AMD EPYC virtual machine.
"""

from __future__ import annotations

import argparse
import sys

from benchmarks import capture

#: CPU seconds of process and child, by how the layers are written.
BARS = {"loop": 8.0, "unrolled": 5.0, "scan": 1.6}


def main() -> None:
    """Print a line for each case; exit with 1 if one is over its bar."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--repeat", type=int, default=3)
    repeat = parser.parse_args().repeat
    print(f"{'layers':>9} {'rows':>9} {'cpu s':>9} {'bar':>9}")
    over = False
    for layers, bar in BARS.items():
        runs = [capture.run("70b", layers, "512") for _ in range(repeat)]
        best = min(runs, key=lambda r: r["cpu"])
        print(f"{layers:>9} {best['rows']:9,.0f} {best['cpu']:9.2f} {bar:9.2f}", flush=True)
        over |= best["cpu"] > bar
    sys.exit(over)


if __name__ == "__main__":
    main()
