"""`flint explore`: which configuration of a program is best on some devices, and why."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flint.cli.console import has_colour, is_terminal, print_json, print_text
from flint.cli.exits import FOUND
from flint.cli.options import READS, Force, Json, Quiet, Verbose, Writes
from flint.cli.requests import Without, refuse, takes_requests
from flint.cli.signals import signals
from flint.errors import FlintError
from flint.io.outputs import OutputKind
from flint.requests.capture import CaptureRequest
from flint.requests.estimate import EstimateRequest
from flint.requests.option import Form, Request, option
from flint.tools.explore.commands.outputs import Outputs

if TYPE_CHECKING:
    from flint.tools.explore.answers.objectives import Objective
    from flint.tools.explore.api import Answer
    from flint.tools.explore.result import Result
    from flint.tools.explore.space.space import Space
    from flint.tools.explore.study.run import Listener, Progress
    from flint.tools.explore.subject import Subject
    from flint.tools.explore.workers.work import Executor

# Options of `flint explore` that no other command has.

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
    serve: Sequence[str] = option(
        "--serve",
        form=Form.TEXTS,
        default=(),
        metavar="NAME=VALUES",
        help="Replay requests on engines that serve the model: rate=1..50/s, lengths=sharegpt, replicas=1,2, "
        "engine=vllm,sglang, engine.max_num_seqs=64..512, decode_replicas ... (repeatable).",
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


# How far an exploration is: a line on stderr with points done, their rate, and the best so far.


@contextlib.contextmanager
def study_shown(objectives: Sequence[Objective], *, quiet: bool) -> Iterator[Listener | None]:
    """Give a listener that draws the line, or None where nobody would see it."""
    if quiet or not is_terminal(sys.stderr):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as RichProgress

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}", markup=False))
    console = Console(stderr=True, no_color=not has_colour(sys.stderr))
    with RichProgress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("exploring", total=None)
        best = Best(objectives)

        def listen(progress: Progress) -> None:
            best.hear(progress.latest)
            text = best.text(progress.done - progress.reused)
            bar.update(
                task, completed=progress.done, total=progress.total or None, description=text
            )

        yield listen


class Best:
    """The best result so far, and the rate at which results come."""

    def __init__(self, objectives: Sequence[Objective]) -> None:
        self._objectives = tuple(objectives)
        self._began = time.monotonic()
        self._best: Result | None = None
        self._all: list[Result] = []

    def hear(self, latest: Sequence[Result]) -> None:
        """Take new results in."""
        from flint.tools.explore.answers.objectives import default_objective
        from flint.tools.explore.result import Status

        self._all += [r for r in latest if r.status is Status.FITS]
        if self._all:
            goal = (self._objectives or (default_objective(self._all),))[0]
            self._best = min(self._all, key=goal.order)

    def text(self, done: int) -> str:
        """`12.3/s, best 4.21 s: data=64,model=8 remat=none`."""
        from flint.text import format_duration

        seconds = max(time.monotonic() - self._began, 1e-3)
        rate = f"{done / seconds:.1f}/s"
        if self._best is None:
            return f"{rate}, nothing fits yet"
        p = self._best.point
        options = " ".join(f"{n}={v}" for n, v in (*p.settings, *p.pipeline))
        return (
            f"{rate}, best {format_duration(self._best.step_time_ns)}: {p.mesh} {options}".rstrip()
        )


#: Options of a capture that points say, or that explore has in a way of its own.
_OF_POINTS = ("model", "mesh", "steps", "step", "chip", "profile", "clusters", "cross_check")


@takes_requests
def explore(
    model: Explored = None,
    *,
    asked: SpaceRequest,
    ranking: RankingRequest,
    request: Annotated[CaptureRequest, Without(_OF_POINTS)],
    estimated: Annotated[EstimateRequest, Without(("cluster",))],
    run: RunRequest,
    outputs: Outputs,
    force: Force = False,
    json_: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Find the fastest configurations that fit in memory.

    Explores meshes of the entry's axes, the options that it declares as choices (Literal, Enum,
    ranges), and what --sweep adds. Estimates every point as flint estimate does. Prints the best,
    why others are not among them, and the commands that reproduce the first. Exits with 1 if
    nothing fits.
    """
    outputs.refuse()
    if outputs.simulate is not None:
        without = (*("timing", "routing", "scale", "replace"), "measured", "collective_algorithm")
        refuse(estimated, without, "--simulate, which runs traces")
        refuse(asked, ("serve",), "--simulate, which runs one step")
    rows = outputs.rows()
    if model is None:
        refuse_with_a_study_alone(asked, request, estimated, run)
        found = _loaded(ranking)
    else:
        space = _space(asked, ranking, request.but(model=model), estimated)
        goals = _objectives(ranking.objective)
        found = _explored(
            space, run, ranking.study, goals, quiet=quiet or json_, verbose=verbose > 0
        )
    if rows is not None and (model is None or json_):
        found.explain(*rows)  # before files are written: the rows may not be there
    difference = outputs.difference(found)
    if json_:
        from flint.tools.explore.answers.document import explore_document

        simulated = outputs.write(found, ranking.study, force=force, quiet=True)
        print_json(explore_document(found, rows, difference, simulated))
    else:
        print_text(
            found.to_text(top=outputs.top, verbose=verbose > 0)
        )  # whatever comes of the rest
        _print_more(found, rows)
        simulated = outputs.write(found, ranking.study, force=force, quiet=quiet)
        outputs.print_more(difference, simulated)
    if found.best is None:
        raise typer.Exit(FOUND)


def _objectives(names: str | None) -> tuple[Objective, ...]:
    from flint.tools.explore.answers.objectives import objectives_of

    return objectives_of([names]) if names is not None else ()


def _space(
    asked: SpaceRequest,
    ranking: RankingRequest,
    capture: CaptureRequest,
    estimated: EstimateRequest,
) -> Space:
    from flint.steps.options import parse_trip_counts
    from flint.tools.explore.space.meshes import parse_devices
    from flint.tools.explore.space.space import space_of
    from flint.tools.explore.subject import Subject, fixed_sweeps

    parse_trip_counts(capture.trip_counts)
    serves = bool(asked.serve)
    if serves and asked.tokens:
        raise FlintError("FL218", "--tokens counts those of a step, and --serve replays requests")
    how = {"tokens": asked.tokens, "keep_infeasible": asked.keep_infeasible, "serves": serves}
    return space_of(
        Subject.of(capture, estimated, **how),
        devices=parse_devices(asked.devices) if asked.devices is not None else (),
        clusters=[name.strip() for text in asked.cluster for name in text.split(",")],
        sweeps=[*asked.sweep, *fixed_sweeps(estimated)],
        where=ranking.where,
        mesh=asked.mesh,
        serve=asked.serve,
    )


def _explored(
    space: Space,
    run: RunRequest,
    kept: Path | None,
    objectives: tuple[Objective, ...],
    *,
    quiet: bool,
    verbose: bool,
) -> Answer:
    from flint.tools.explore.answers.objectives import RATE
    from flint.tools.explore.api import answer, find_search
    from flint.tools.explore.study.run import explore_space

    kind = find_search(run.search)
    by = workers(
        space.subject, dask=run.dask, scheduler=run.scheduler, jobs=run.jobs, verbose=verbose
    )
    with by as executor, study_shown(objectives, quiet=quiet) as progress:
        study = explore_space(
            space,
            executor=executor,
            study=kept,
            budget=run.budget,
            objectives=objectives or (RATE,),
            kind=kind,
            seed=run.seed,
            progress=progress,
        )
    return answer(study, space, objectives)


def _loaded(ranking: RankingRequest) -> Answer:
    """A study as it lies there. Raises FlintError FL860 without one."""
    from flint.tools.explore.api import Answer

    if ranking.study is None:
        raise FlintError(
            "FL860",
            "there is nothing to explore",
            help="flint explore MODEL --devices 512 -c h100-dgx, or --study FILE to show one",
        )
    asked = () if ranking.objective is None else (ranking.objective,)
    return Answer.load(ranking.study, objective=asked, where=ranking.where)


def _print_more(found: Answer, rows: tuple[int, int] | None) -> None:
    if rows is None:
        return
    from flint.tools.explore.answers.explain import explanation_text

    told = explanation_text(found.explain(*rows), found.ranking.objectives)
    print_text(f"\nrow {rows[0]} (first) against row {rows[1]} (second): {told}")


@contextlib.contextmanager
def workers(
    subject: Subject, *, dask: str | None, scheduler: str | None, jobs: int, verbose: bool
) -> Iterator[Executor]:
    """Who evaluates points: processes of this machine, or workers of Dask. They end with the block.

    Raises FlintError FL867 for both options at once, and as `dask_executor` does.
    """
    from flint.tools.explore.workers.local import LocalExecutor
    from flint.tools.explore.workers.work import work_of

    if dask is not None and scheduler is not None:
        raise FlintError(
            "FL867", "--dask and --scheduler exclude each other", help="omit one of them"
        )
    work = work_of(subject)
    with signals().unwinding():
        if dask is None and scheduler is None:
            with LocalExecutor(work, jobs, verbose) as local:
                yield local
            return
        from flint.tools.explore.workers.dask_pool import dask_executor, find_kind

        kind = find_kind(dask) if dask is not None else None
        with dask_executor(work, kind=kind, scheduler=scheduler or "", jobs=jobs) as remote:
            yield remote
