"""`flint explore`: which configuration of a program is best on some devices, and why."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flint.cli.console import print_json, print_text
from flint.cli.exits import FOUND
from flint.cli.options import Json, Quiet, Verbose
from flint.cli.paths import Force
from flint.cli.requests import Without, refuse, takes_requests
from flint.errors import FlintError
from flint.requests.capture import CaptureRequest
from flint.requests.estimate import EstimateRequest
from flint.tools.explore.commands.options import (
    Against,
    Binary,
    Budget,
    Clusters,
    Devices,
    Explain,
    Explored,
    Export,
    Html,
    Infeasible,
    Jobs,
    Machine,
    MeshPattern,
    Objectives,
    SearchName,
    Seed,
    Simulate,
    StudyFileOption,
    Sweeps,
    Tokens,
    Top,
    Traces,
    Where,
    refuse_with_a_study_alone,
)
from flint.tools.explore.commands.outputs import Outputs
from flint.tools.explore.commands.progress import study_shown
from flint.tools.explore.commands.workers import Dask, Scheduler, workers

if TYPE_CHECKING:
    from flint.tools.explore.answers.objectives import Objective
    from flint.tools.explore.api import Answer
    from flint.tools.explore.space.space import Space
    from flint.tools.explore.subject import Subject

#: Rows that a terminal shows.
_TOP = 10

#: Options of a capture that points say, or that explore has in a way of its own.
_OF_POINTS = ("model", "mesh", "steps", "step", "chip", "profile", "clusters")


@takes_requests
def explore(
    model: Explored = None,
    *,
    devices: Devices = None,
    cluster: Clusters = None,
    mesh: MeshPattern = None,
    sweep: Sweeps = None,
    where: Where = None,
    objective: Objectives = None,
    request: Annotated[CaptureRequest, Without(_OF_POINTS)],
    estimated: Annotated[EstimateRequest, Without(("cluster",))],
    tokens: Tokens = "",
    study: StudyFileOption = None,
    budget: Budget = None,
    search: SearchName = None,
    seed: Seed = 0,
    jobs: Jobs = 0,
    dask: Dask = None,
    scheduler: Scheduler = None,
    top: Top = _TOP,
    explain: Explain = None,
    against: Against = None,
    export: Export = None,
    html: Html = None,
    machine: Machine = None,
    simulate: Simulate = None,
    output: Traces = None,
    binary: Binary = None,
    keep_infeasible: Infeasible = False,
    force: Force = False,
    json_: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Find the fastest configurations that fit in memory.

    Explores meshes of the entry's axes and the options that it declares as choices (Literal, Enum,
    ranges), and what --sweep adds; estimates every point as flint estimate does; prints the best, why
    others are not among them, and the commands that give the first again. Exit status 1 if nothing fits.
    """
    outputs = Outputs(export, html, machine, against, simulate, output, binary, study, force)
    outputs.refuse()
    if simulate is not None:
        refuse(
            estimated, ("timing", "scale", "replace", "measured"), "--simulate, which runs traces"
        )
    rows = _rows(explain)
    if model is None:
        of_models = {
            "--devices": devices, "--cluster": cluster, "--mesh": mesh, "--sweep": sweep,
            **dict.fromkeys((*request.words(), *estimated.words()), True),
            "--tokens": tokens, "--budget": budget, "--search": search, "--seed": seed, "--jobs": jobs,
            "--dask": dask, "--scheduler": scheduler, "--keep-infeasible": keep_infeasible,
        }  # fmt: skip
        refuse_with_a_study_alone(of_models)
        found = _loaded(study, objective, where)
    else:
        from flint.steps.options import parse_trip_counts
        from flint.tools.explore.subject import Subject, fixed_sweeps

        parse_trip_counts(request.trip_counts)
        subject = Subject.of(
            request.but(model=model), estimated, tokens=tokens, keep_infeasible=keep_infeasible
        )
        sweeps = [*(sweep or []), *fixed_sweeps(estimated)]
        goals = _objectives(objective)
        space = _space(subject, devices, cluster, sweeps, where, mesh)
        run = _Run(study, budget, search, seed, jobs, dask, scheduler, verbose > 0)
        found = _explored(space, run, goals, quiet=quiet or json_)
    if rows is not None and (model is None or json_):
        found.explain(*rows)  # before files are written: the rows may not be there
    difference = outputs.difference(found)
    if json_:
        from flint.tools.explore.answers.document import explore_document

        simulated = outputs.write(found, quiet=True)
        print_json(explore_document(found, rows, difference, simulated))
    else:
        print_text(found.to_text(top=top, verbose=verbose > 0))  # whatever comes of the rest
        _print_more(found, rows)
        outputs.print_more(difference, outputs.write(found, quiet=quiet))
    if found.best is None:
        raise typer.Exit(FOUND)


@dataclass(frozen=True)
class _Run:
    """How a space is explored."""

    study: Path | None
    budget: int | None
    search: str | None
    seed: int
    jobs: int
    dask: str | None
    scheduler: str | None
    verbose: bool


def _objectives(names: str | None) -> tuple[Objective, ...]:
    from flint.tools.explore.answers.objectives import objectives_of

    return objectives_of([names]) if names is not None else ()


def _space(
    subject: Subject,
    devices: str | None,
    clusters: list[str] | None,
    sweeps: list[str],
    where: list[str] | None,
    mesh: str | None,
) -> Space:
    from flint.tools.explore.space.meshes import parse_devices
    from flint.tools.explore.space.space import space_of

    named = [name.strip() for text in clusters or [] for name in text.split(",")]
    return space_of(
        subject,
        devices=parse_devices(devices) if devices is not None else (),
        clusters=named,
        sweeps=sweeps,
        where=where or [],
        mesh=mesh,
    )


def _rows(text: str | None) -> tuple[int, int] | None:
    """`--explain`. Raises FlintError FL874 for what is no pair of rows."""
    if text is None:
        return None
    words = [w.strip() for w in text.split(",")]
    if len(words) != 2 or not all(w.isascii() and w.isdigit() and int(w) > 0 for w in words):
        raise FlintError(
            "FL874", f"--explain {text} is no pair of rows", help="write --explain 1,2"
        )
    return int(words[0]), int(words[1])


def _explored(space: Space, run: _Run, objectives: tuple[Objective, ...], *, quiet: bool) -> Answer:
    from flint.tools.explore.answers.objectives import RATE
    from flint.tools.explore.api import answer, find_search
    from flint.tools.explore.study.run import explore_space

    kind = find_search(run.search)
    by = workers(
        space.subject, dask=run.dask, scheduler=run.scheduler, jobs=run.jobs, verbose=run.verbose
    )
    with by as executor, study_shown(objectives, quiet=quiet) as progress:
        study = explore_space(
            space,
            executor=executor,
            study=run.study,
            budget=run.budget,
            objectives=objectives or (RATE,),
            kind=kind,
            seed=run.seed,
            progress=progress,
        )
    return answer(study, space, objectives)


def _loaded(path: Path | None, objective: str | None, where: list[str] | None) -> Answer:
    """A study as it lies there. Raises FlintError FL860 without one."""
    from flint.tools.explore.api import Answer

    if path is None:
        raise FlintError(
            "FL860",
            "nothing is named to explore",
            help="flint explore MODEL --devices 512 -c h100-dgx, or --study FILE to look at one",
        )
    asked = () if objective is None else (objective,)
    return Answer.load(path, objective=asked, where=where or ())


def _print_more(found: Answer, rows: tuple[int, int] | None) -> None:
    if rows is None:
        return
    from flint.tools.explore.answers.explain import explanation_text

    told = explanation_text(found.explain(*rows), found.ranking.objectives)
    print_text(f"\nrow {rows[0]} (first) against row {rows[1]} (second): {told}")
