"""Options of `flint explore` that no other command has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from flint.cli.options import READS, Writes
from flint.errors import FlintError
from flint.io.outputs import OutputKind
from flint.requests.option import Form, Request, option

Explored = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL[:NAME]", help="What flint capture takes; without it, --study is shown."
    ),
    READS,
]


@dataclass(frozen=True)
class SpaceRequest(Request):
    """Which points there are, and what is best of them."""

    devices: str | None = option(
        "--devices",
        "-n",
        metavar="N,...",
        help="Numbers of devices: 512, or 128,256,512 for a curve.",
    )
    cluster: Sequence[str] = option(
        "--cluster",
        "-c",
        form=Form.TEXTS,
        default=(),
        metavar="NAME|FILE,...",
        names="clusters",
        reads=True,
        help="Machines: presets or files, separated by commas (repeatable).",
    )
    mesh: str | None = option(
        "--mesh",
        "-m",
        metavar="AXIS=SIZES,...",
        help="Limits of axes: pipe=4,data=*,model=1..8 (default: all sizes of the entry's axes).",
    )
    sweep: Sequence[str] = option(
        "--sweep",
        form=Form.TEXTS,
        default=(),
        metavar="NAME=VALUES",
        help="Explore an option, or cut, schedule, microbatches, chunks, cluster, stack, overlap, map, "
        "routing, cluster.TIER.bandwidth ...: a,b,c, 4..64 (doubled), 4..64:4, 50..400GB/s (repeatable).",
    )
    tokens: str = option(
        "--tokens",
        default="",
        metavar="EXPRESSION",
        help="Tokens of a step, in terms of options and axes: batch * seq.",
    )
    keep_infeasible: bool = option(
        "--keep-infeasible",
        form=Form.SWITCH,
        default=False,
        help="Also price points that do not fit.",
    )


@dataclass(frozen=True)
class RankingRequest(Request):
    """What is best, and of which points: of a study that is shown, too."""

    where: Sequence[str] = option(
        "--where",
        form=Form.TEXTS,
        default=(),
        metavar="CONDITION",
        help='Keep only these points: "microbatches * data == 256", "memory <= 70GiB" (repeatable).',
    )
    objective: str | None = option(
        "--objective",
        metavar="NAME,...",
        help="Objective: time, tokens_per_s, mfu, cost_per_mtoken, energy_per_mtoken, memory, "
        "ttft, tpot ...; with several, their Pareto front (default: time, or tokens_per_s "
        "where steps differ).",
    )
    study: Path | None = option(
        "--study",
        form=Form.PATH,
        metavar="FILE",
        role=Writes(OutputKind.STUDY, adds=True),
        help="Keep results in this file, and reuse those that are still valid.",
    )


@dataclass(frozen=True)
class RunRequest(Request):
    """Who evaluates points, and which of them."""

    budget: int | None = option(
        "--budget",
        form=Form.NUMBER,
        metavar="N",
        least=1,
        help="Search spaces that have more points than this.",
    )
    search: str | None = option(
        "--search",
        metavar="NAME",
        help="Search method: tpe, nsga2 or random (default: by objectives).",
    )
    seed: int = option(
        "--seed", form=Form.NUMBER, default=0, metavar="N", help="Seed of the search."
    )
    jobs: int = option(
        "--jobs",
        "-j",
        form=Form.NUMBER,
        default=0,
        metavar="N",
        least=0,
        help="Processes (0: one per processor).",
    )
    dask: str | None = option(
        "--dask",
        metavar="WHERE",
        help="Evaluate on Dask workers: local, slurm or k8s (--jobs: how many).",
    )
    scheduler: str | None = option(
        "--scheduler",
        metavar="ADDRESS",
        help="Evaluate on the workers of this Dask scheduler: tcp://HOST:8786.",
    )


def refuse_with_a_study_alone(*requests: Request) -> None:
    """Raise FlintError FL218 for options that were given and are of a model, which is not named."""
    given = next((word for request in requests for word in request.words()), None)
    if given is not None:
        raise FlintError(
            "FL218",
            f"{given} needs a model to explore, not a study to show",
            help="also name the model: points that are still valid are not evaluated again",
        )
