"""`flint compare`: where a measured step and the model of it differ."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flint.cli.console import print_json, print_text
from flint.cli.inputs import load_workload
from flint.cli.options import Json, Mapping, Quiet, UnpricedChoice, Verbose
from flint.cli.paths import READS
from flint.cli.progress import stages_shown
from flint.io.bounded import is_directory
from flint.log import stage

if TYPE_CHECKING:
    from flint.ir.workload import Workload

MeasuredPath = Annotated[
    Path,
    typer.Argument(
        metavar="MEASURED", help="What flint import wrote (.flint), or a profile as it is."
    ),
    READS,
]
CapturedPath = Annotated[
    Path, typer.Argument(metavar="CAPTURED", help="A trace directory or a .flint file."), READS
]
ClusterName = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        "-c",
        metavar="NAME|FILE",
        help="Price the capture on this cluster, not on that of the measured device.",
    ),
    READS,
]
ProfiledRank = Annotated[
    int | None,
    typer.Option("--rank", metavar="N", help="Which profiled rank, the first otherwise."),
]
StepNumber = Annotated[
    int | None,
    typer.Option("--step", metavar="N", help="Of a profile: which step, the typical otherwise."),
]
ProfileName = Annotated[
    str | None, typer.Option("--profile", metavar="NAME", help="Whose kernels the capture becomes.")
]
PolicyName = Annotated[
    str, typer.Option("--overlap", metavar="NAME", help="When communication begins in the model.")
]


def compare(
    measured: MeasuredPath,
    captured: CapturedPath,
    cluster: ClusterName = None,
    map_: Mapping = None,
    profile: ProfileName = None,
    overlap: PolicyName = "overlap",
    unpriced: UnpricedChoice = None,
    rank: ProfiledRank = None,
    step: StepNumber = None,
    json_: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Compare a measurement with a capture.

    Matches calls of operators and collectives by order, class and shape, and says for each kind of
    kernel what both do and how long, what only one side has, to what every measured millisecond
    belongs, and the three largest causes of the difference between the steps.
    """
    from flint.backends.cost.replay.plan import cluster_for
    from flint.tools.measure.comparison.comparison import compare_measured

    with stages_shown(quiet=quiet or json_):
        first, second = _measured(measured, step), load_workload(captured)
        with stage("compare"):
            found = compare_measured(
                first,
                second,
                cluster_for(first, cluster),
                rank=rank,
                profile=profile or "",
                policy=overlap,
                mapping=map_,
                unpriced_is_zero=unpriced is not None,
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
