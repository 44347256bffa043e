"""`flint compare`: where a measured step and the model of it differ."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flint.cli.console import print_json, print_text
from flint.cli.inputs import load_workload
from flint.cli.options import READS, Json, Quiet, Verbose
from flint.cli.progress import stages_shown
from flint.cli.requests import Said, takes_requests
from flint.io.bounded import is_directory
from flint.log import stage
from flint.requests.estimate import EstimateRequest

if TYPE_CHECKING:
    from flint.ir.workload import Workload

MeasuredPath = Annotated[
    Path,
    typer.Argument(metavar="MEASURED", help="What flint import wrote (.flint), or a profile."),
    READS,
]
CapturedPath = Annotated[
    Path, typer.Argument(metavar="CAPTURED", help="A trace directory or a .flint file."), READS
]
#: When communication begins in the model, unless --overlap says otherwise.
_POLICY = "overlap"
ProfiledRank = Annotated[
    int | None, typer.Option("--rank", metavar="N", help="The profiled rank (default: the first).")
]
StepNumber = Annotated[
    int | None,
    typer.Option("--step", metavar="N", help="The step of a profile (default: the typical one)."),
]


_SAID = Said(
    {
        "cluster": "Price the capture on this cluster: a preset ({clusters}), a TOML file, or ASTRA-sim's "
        "network.yml (default: that of the measured device).",
        "policy": "When communication of the capture begins: {policies} (default: overlap; astra-sim: "
        "estimate alone).",
    }
)


@takes_requests
def compare(
    measurement: MeasuredPath,
    captured: CapturedPath,
    request: Annotated[EstimateRequest, _SAID],
    rank: ProfiledRank = None,
    step: StepNumber = None,
    json_: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Compare a measurement with a capture.

    Matches calls of operators and collectives by order, class and shape. For each kind of kernel it
    says what both sides do and how long it takes, what only one side has, where every measured
    millisecond belongs, and the three largest causes of the difference between the steps.
    Communication of the capture begins by --overlap overlap, unless another is named.
    """
    from flint.tools.measure.comparison.comparison import compare_measured

    with stages_shown(quiet=quiet or json_):
        first, second = _measured(measurement, step), load_workload(captured)
        with stage("compare"):
            found = compare_measured(
                first, second, request.but(policy=request.policy or _POLICY), rank=rank
            )
    if json_:
        print_json(found.to_json())
    else:
        print_text(found.to_text(verbose=verbose > 0))


def _measured(path: Path, step: int | None) -> Workload:
    """What was imported, or a profile that is imported now."""
    if is_directory(path) or path.suffix == ".flint":
        return load_workload(path)
    from flint.tools.measure.profiles.build import workload_of
    from flint.tools.measure.profiles.formats import read_profiles

    with stage("import"):
        return workload_of(read_profiles(path), step=step)
