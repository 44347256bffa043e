"""Options of `flint explore` that no other command has."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from flint.cli.paths import READS, Writes
from flint.cli.tables import offered
from flint.errors import FlintError
from flint.io.outputs import OutputKind

Explored = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL[:NAME]", help="What flint capture takes; without it, --study is shown."
    ),
    READS,
]
Devices = Annotated[
    str | None,
    typer.Option(
        "--devices",
        "-n",
        metavar="N,...",
        help="Numbers of devices: 512, or 128,256,512 for a curve.",
    ),
]
Clusters = Annotated[
    list[str] | None,
    typer.Option(
        "--cluster",
        "-c",
        metavar="NAME|FILE,...",
        autocompletion=offered("clusters"),
        help="Machines: presets or files, several with commas (repeatable).",
    ),
    READS,
]
MeshPattern = Annotated[
    str | None,
    typer.Option(
        "--mesh",
        "-m",
        metavar="AXIS=SIZES,...",
        help="Limits of axes: pipe=4,data=*,model=1..8 (default: all sizes of the entry's axes).",
    ),
]
Sweeps = Annotated[
    list[str] | None,
    typer.Option(
        "--sweep",
        metavar="NAME=VALUES",
        help="Explore an option, or cut, schedule, microbatches, chunks, cluster, stack, overlap, map, "
        "routing, cluster.TIER.bandwidth ...: a,b,c, 4..64 (doubled), 4..64:4, 50..400GB/s (repeatable).",
    ),
]
Where = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        metavar="CONDITION",
        help='Only such points: "microbatches * data == 256", "memory <= 70GiB" (repeatable).',
    ),
]
Objectives = Annotated[
    str | None,
    typer.Option(
        "--objective",
        metavar="NAME,...",
        help="What is best: time, tokens_per_s, mfu, cost_per_mtoken, energy_per_mtoken, memory, ttft, "
        "tpot ...; with several, their Pareto front (default: time, or tokens_per_s where steps differ).",
    ),
]
Tokens = Annotated[
    str,
    typer.Option(
        "--tokens", metavar="EXPRESSION", help="Tokens of a step, of options and axes: batch * seq."
    ),
]
StudyFileOption = Annotated[
    Path | None,
    typer.Option(
        "--study", metavar="FILE", help="Keep results here, and take those that still hold."
    ),
    Writes(OutputKind.STUDY, adds=True),
]
Budget = Annotated[
    int | None,
    typer.Option("--budget", metavar="N", min=1, help="Search spaces of more points than this."),
]
SearchName = Annotated[
    str | None,
    typer.Option(
        "--search", metavar="NAME", help="How: tpe, nsga2 or random (default: by objectives)."
    ),
]
Seed = Annotated[int, typer.Option("--seed", metavar="N", help="Of the search.")]
Jobs = Annotated[
    int, typer.Option("--jobs", "-j", metavar="N", min=0, help="Processes (0: one a processor).")
]
Top = Annotated[int, typer.Option("--top", metavar="N", min=1, help="Rows to print.")]
Explain = Annotated[
    str | None,
    typer.Option(
        "--explain", metavar="ROW,ROW", help="Why one row beats another: 1,2 is best and second."
    ),
]
Export = Annotated[
    Path | None,
    typer.Option("--export", metavar="FILE", help="Write all results: .csv or .parquet."),
    Writes(OutputKind.TABLE),
]
Html = Annotated[
    Path | None,
    typer.Option("--html", metavar="FILE", help="Write a page with pictures."),
    Writes(OutputKind.PAGE),
]
Machine = Annotated[
    Path | None,
    typer.Option("--machine", metavar="FILE", help="Write the cluster of the first row as a file."),
    Writes(OutputKind.CLUSTER),
]
Against = Annotated[
    Path | None,
    typer.Option("--against", metavar="STUDY", help="Compare with an older study, point by point."),
    READS,
]
Infeasible = Annotated[
    bool, typer.Option("--keep-infeasible", help="Price points that do not fit as well.")
]
Simulate = Annotated[
    int | None,
    typer.Option(
        "--simulate",
        metavar="N",
        min=1,
        help="Write traces of the first N rows to --output and run them by ASTRA-sim's rules, or with "
        "--binary by ASTRA-sim itself.",
    ),
]
Traces = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="DIR", help="Where traces of --simulate go."),
    Writes(adds=True),
]
Binary = Annotated[
    str | None,
    typer.Option("--binary", metavar="PATH", help="ASTRA-sim, for --simulate."),
    READS,
]


def refuse_with_a_study_alone(options: Mapping[str, object]) -> None:
    """Raise FlintError FL218 for options that were given and are of a model, which is not named.

    `options` by how they are typed; what is false was not given.
    """
    given = next((name for name, value in options.items() if value), None)
    if given is not None:
        raise FlintError(
            "FL218",
            f"{given} is for a model that is explored, not for a study that is shown",
            help="name the model as well: points that still hold are not evaluated again",
        )
