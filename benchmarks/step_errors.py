"""Errors of estimates of measured training steps, and what their parts alone would make them differ.

    python -m benchmarks.step_errors FILE           a sample of rows, as JSON
    python -m benchmarks.step_errors FILE --all     every row

`benchmarks.residuals --steps FILE` reads it.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.accuracy_steps import Result, priced, sampled
from benchmarks.step_rows import all_cases


@dataclass(frozen=True)
class StepError:
    """A measured step: ln(estimate / measured), the deviation of its parts, and where it ran.

    `half` 0 may be fitted on, 1 is held out.
    """

    data: str
    label: str
    half: int
    chip: str
    stack: str
    error: float
    parts: float


def step_error(found: Result) -> StepError:
    """What is kept of a priced row."""
    case = found.case
    error = math.log(found.predicted_ns / case.measured_ns)
    return StepError(case.data, case.label, case.half, found.chip, case.stack, error, found.parts)


def read_steps(path: Path) -> list[StepError]:
    """What `main` wrote."""
    return [StepError(**row) for row in json.loads(path.read_text())]


def main() -> None:
    parser = argparse.ArgumentParser(description="Errors of estimates of training steps.")
    parser.add_argument("file", type=Path, help="JSON to write")
    parser.add_argument("--all", action="store_true", help="every row, no samples")
    parser.add_argument("--only", default="", help="data sets whose name contains this")
    given = parser.parse_args()
    cases = [c for c in sampled(all_cases(), given.all) if given.only in c.data]
    rows = [asdict(step_error(priced(case))) for case in cases]
    given.file.write_text(json.dumps(rows, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
