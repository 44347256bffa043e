"""Run every property test on new random examples for as long as asked.

    python -m benchmarks.explore_properties --minutes 60

The tests themselves use the same examples at every run (profile `fixed` of tests/conftest.py). This
draws others: each round is one run of pytest with the next seed. What a round finds is printed with
the seed and the example; that test is left out of later rounds. Mend the cause, and keep the example
as a test. Exit status 1 if anything was found.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+::\S+)", re.MULTILINE)


def main() -> int:
    """Explore until the time is over; the number of tests that failed decides the exit status."""
    options = _options()
    until = time.monotonic() + options.minutes * 60
    failed: list[str] = []
    seed = options.seed
    while time.monotonic() < until:
        found = _round(options.tests, seed, options.processes, failed)
        failed += found
        left = max(0, round((until - time.monotonic()) / 60))
        print(f"seed {seed}: {len(found)} failed, {left} minutes left", flush=True)
        seed += 1
    print(f"{seed - options.seed} rounds, {len(failed)} tests failed: {' '.join(failed)}")
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="how long to go on")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the first round")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="for pytest")
    parser.add_argument("tests", nargs="*", default=["tests"], help="files or folders; all of them")
    return parser.parse_args()


def _round(tests: list[str], seed: int, processes: int, known: list[str]) -> list[str]:
    """One run of pytest; the tests that failed in it, after their output."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "hypothesis", "-n", str(processes)]
    command += ["-p", "no:cacheprovider", "-rfE", "--no-header", "--timeout", "1800"]
    command += ["--hypothesis-profile", "explore", f"--hypothesis-seed={seed}"]
    command += [f"--deselect={test}" for test in known]
    whole = [*command, *tests]
    run = subprocess.run(whole, cwd=_ROOT, capture_output=True, text=True, check=False)
    if run.returncode == 0:
        return []
    print(run.stdout, run.stderr, sep="\n", flush=True)
    found = _FAILED.findall(run.stdout)
    if not found:
        raise SystemExit(f"pytest ended with {run.returncode} and named no test")
    return [test.partition("[")[0] for test in found]


if __name__ == "__main__":
    sys.exit(main())
