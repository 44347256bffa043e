"""Half of the calls of real profiles, calibrated, against the other half.

    python -m benchmarks.calibrate_calls [h100|mi300x]

Calls of one shape are taken in turn: every second one is calibrated with (`--residuals` too), the
others are what the sums are compared with. A step repeats its shapes in each layer, so that most of
the other half are shapes that were seen: this says what a calibrated file gives for the program that
was measured, not for other programs (docs/calibrate.md has those errors).
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from flint.cluster.models import Cluster
from flint.text import Column, text_table
from flint.tools.measure.calibration.calibrate import calibrated
from flint.tools.measure.calibration.data import Data, read_data
from flint.tools.measure.calibration.fitted import Fitted
from flint.tools.measure.measurements.rows import KernelTime

PROFILES = Path(__file__).resolve().parent / "data" / "kineto"
_COLUMNS = (
    Column("of the other half"),
    Column("shapes", right=True),
    Column("time", right=True),
    Column("base, %", right=True),
    Column("calibrated, %", right=True),
)
BASES = {"h100": "h100-dgx", "mi300x": "mi300x"}


def halves(data: Data) -> tuple[Data, Data]:
    """Calls of each shape by turns; a shape of one call is in the second half alone."""
    counts = Counter(map(_shape, data.kernels))
    seen: Counter[KernelTime] = Counter()
    parts: tuple[list[KernelTime], list[KernelTime]] = ([], [])
    for row in data.kernels:
        shape = _shape(row)
        parts[(seen[shape] + (counts[shape] == 1)) % 2].append(row)
        seen[shape] += 1
    first, second = (replace(data, kernels=part, collectives=[]) for part in parts)
    return first, second


def _shape(row: KernelTime) -> KernelTime:
    return replace(row, measured_ns=1.0)


def report(chip: str) -> str:
    """The table of errors on the second half, with the base's constants and with the file."""
    base = Cluster.load(BASES[chip])
    data = read_data(sorted(PROFILES.glob(f"{chip}_*.json.gz")), base.chip)
    first, second = halves(data)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "half.toml"
        calibrated(first, base, BASES[chip]).write(path, residuals=True)
        ours = Cluster.load(path)
        before = calibrated(second, base, BASES[chip], check=True)
        after = calibrated(second, ours, str(path), check=True)
    return text_table(_COLUMNS, list(map(_cells, before.kernels, after.kernels)))


def _cells(old: Fitted, new: Fitted) -> tuple[str, ...]:
    assert old.before is not None and new.before is not None
    time = f"{new.measured_ns / 1e6:.2f} ms"
    return (
        new.name,
        str(new.rows),
        time,
        f"{old.before.of_sum_percent:+.1f}",
        f"{new.before.of_sum_percent:+.1f}",
    )


def main() -> None:
    for chip in sys.argv[1:] or list(BASES):
        print(f"{chip}\n{report(chip)}\n")


if __name__ == "__main__":
    main()
