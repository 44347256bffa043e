"""`flint explore`: which configuration of a program is best on some devices, and why."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flint.cli.console import print_json, print_text
from flint.cli.exits import FOUND
from flint.cli.options import Force, Json, Quiet, Verbose
from flint.cli.requests import Without, refuse, takes_requests
from flint.cli.signals import signals
from flint.errors import FlintError
from flint.requests.capture import CaptureRequest
from flint.requests.estimate import EstimateRequest
from flint.tools.explore.commands.options import (
    Explored,
    RankingRequest,
    RunRequest,
    SpaceRequest,
    refuse_with_a_study_alone,
)
from flint.tools.explore.commands.outputs import Outputs
from flint.tools.explore.commands.progress import study_shown

if TYPE_CHECKING:
    from flint.tools.explore.answers.objectives import Objective
    from flint.tools.explore.api import Answer
    from flint.tools.explore.space.space import Space
    from flint.tools.explore.subject import Subject
    from flint.tools.explore.workers.schedule import Executor

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
        without = ("timing", "routing", "scale", "replace", "measured")
        refuse(estimated, without, "--simulate, which runs traces")
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
    how = {"tokens": asked.tokens, "keep_infeasible": asked.keep_infeasible}
    return space_of(
        Subject.of(capture, estimated, **how),
        devices=parse_devices(asked.devices) if asked.devices is not None else (),
        clusters=[name.strip() for text in asked.cluster for name in text.split(",")],
        sweeps=[*asked.sweep, *fixed_sweeps(estimated)],
        where=ranking.where,
        mesh=asked.mesh,
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
