"""`flint explore`: which configuration of a program is best on some devices, and why."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flint.cli.commands.estimate import PolicyName, RoutingName, StackName
from flint.cli.console import print_json, print_note, print_text
from flint.cli.explore_workers import Dask, Scheduler, workers
from flint.cli.options import (
    Arguments,
    Compiler,
    CompilerChoice,
    Cut,
    Json,
    Mapping,
    Microbatches,
    Partitioner,
    PartitionerChoice,
    Quiet,
    Schedule,
    Settings,
    TripCounts,
    Verbose,
    cluster_candidates,
)
from flint.cli.options import Chunks as ChunksOption
from flint.cli.study_progress import study_shown
from flint.errors import FlintError

if TYPE_CHECKING:
    from flint.exploring.api import Answer
    from flint.exploring.objectives import Objective
    from flint.exploring.point import Pairs
    from flint.exploring.rank import Ranking
    from flint.exploring.space import Space
    from flint.exploring.study import Study
    from flint.exploring.subject import Subject
    from flint.schemas.documents.explore import ExploreDocument

#: Rows that a terminal shows.
_TOP = 10

Explored = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL[:NAME]", help="What flint capture takes; without it, --study is shown."
    ),
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
        autocompletion=cluster_candidates,
        help="Machines: presets or files, several with commas (repeatable).",
    ),
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
]
Html = Annotated[
    Path | None, typer.Option("--html", metavar="FILE", help="Write a page with pictures.")
]
Machine = Annotated[
    Path | None,
    typer.Option("--machine", metavar="FILE", help="Write the cluster of the first row as a file."),
]
Against = Annotated[
    Path | None,
    typer.Option("--against", metavar="STUDY", help="Compare with an older study, point by point."),
]
Infeasible = Annotated[
    bool, typer.Option("--keep-infeasible", help="Price points that do not fit as well.")
]


def explore(
    model: Explored = None,
    devices: Devices = None,
    cluster: Clusters = None,
    mesh: MeshPattern = None,
    sweep: Sweeps = None,
    where: Where = None,
    objective: Objectives = None,
    set_: Settings = None,
    args: Arguments = None,
    cut: Cut = None,
    schedule: Schedule = None,
    microbatches: Microbatches = None,
    chunks: ChunksOption = None,
    stack: StackName = None,
    overlap: PolicyName = None,
    map_: Mapping = None,
    routing: RoutingName = None,
    partitioner: PartitionerChoice = Partitioner.SHARDY,
    compiler: CompilerChoice = None,
    trip_count: TripCounts = None,
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
    keep_infeasible: Infeasible = False,
    json_: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Find the fastest configurations that fit in memory.

    Explores meshes of the entry's axes and the options that it declares as choices (Literal, Enum,
    ranges), and what --sweep adds; estimates every point as flint estimate does; prints the best, why
    others are not among them, and the commands that give the first again. Exit status 1 if nothing fits.
    """
    outputs = _Outputs(export, html, machine, against)
    outputs.refuse()
    rows = _rows(explain)
    estimated_on = {"stack": stack, "overlap": overlap, "map": map_, "routing": routing}
    if model is None:
        found = _loaded(study, objective, where)
    else:
        subject = _subject(
            model,
            args=args,
            settings=set_ or [],
            pipeline={
                "cut": cut,
                "schedule": schedule,
                "microbatches": microbatches,
                "chunks": chunks,
            },
            trip_counts=trip_count or [],
            partitioner=partitioner,
            compiler=compiler,
            tokens=tokens,
            keep_infeasible=keep_infeasible,
        )
        space = _space(
            subject, devices, cluster, [*(sweep or []), *_fixed(estimated_on)], where, mesh
        )
        run = _Run(study, budget, search, seed, jobs, dask, scheduler, verbose > 0)
        found = _explored(space, run, _objectives(objective), quiet=quiet or json_)
    outputs.write(found, quiet=quiet or json_)
    if json_:
        print_json(_document(found, rows))
    else:
        print_text(found.to_text(top=top, verbose=verbose > 0))
        _print_more(found, rows, against)
    if found.best is None:
        raise typer.Exit(1)


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


@dataclass(frozen=True)
class _Outputs:
    """What is written beside the answer."""

    export: Path | None
    html: Path | None
    machine: Path | None
    against: Path | None

    def refuse(self) -> None:
        """Raise FlintError FL870 or FL502 for files that cannot be written, before any work."""
        from flint.cli.inputs import keep_traces

        for path in (self.export, self.html, self.machine):
            keep_traces(path)
        if self.export is not None:
            from flint.exploring.export import require_format

            require_format(self.export)

    def write(self, found: Answer, *, quiet: bool) -> None:
        """Write the files that were asked for."""
        from flint.io.files import write_atomically

        if self.export is not None:
            found.export(self.export)
        if self.html is not None:
            write_atomically(self.html, found.to_html().encode())
        if self.machine is not None and found.best is not None:
            from flint.exploring.machine.text import cluster_text

            point = found.best.point
            text = cluster_text(point.cluster, point.changes, self.machine.stem)
            write_atomically(self.machine, text.encode())
        for path in (self.export, self.html, self.machine):
            if path is not None:
                print_note(f"wrote   {path}", quiet=quiet)


def _objectives(names: str | None) -> tuple[Objective, ...]:
    from flint.exploring.objectives import objectives_of

    return objectives_of([names]) if names else ()


def _fixed(estimated_on: dict[str, str | None]) -> list[str]:
    """Options of an estimate are dimensions of one value."""
    return [f"{name}='{value}'" for name, value in estimated_on.items() if value is not None]


def _subject(
    model: str,
    *,
    args: str | None,
    settings: list[str],
    pipeline: dict[str, Any],
    trip_counts: list[str],
    partitioner: Partitioner,
    compiler: Compiler | None,
    tokens: str,
    keep_infeasible: bool,
) -> Subject:
    from flint.exploring.subject import Subject
    from flint.steps.options import parse_settings, parse_trip_counts

    parse_trip_counts(trip_counts)
    given: Pairs = tuple((n, str(v)) for n, v in sorted(pipeline.items()) if v is not None)
    return Subject(
        model,
        args=args,
        settings=tuple(sorted(parse_settings(settings).items())),
        pipeline=given,
        trip_counts=tuple(trip_counts),
        partitioner=partitioner.value,
        compiler=compiler.value if compiler else "",
        tokens=tokens,
        keep_infeasible=keep_infeasible,
    )


def _space(
    subject: Subject,
    devices: str | None,
    clusters: list[str] | None,
    sweeps: list[str],
    where: list[str] | None,
    mesh: str | None,
) -> Space:
    from flint.exploring.space import space_of

    named = [name.strip() for text in clusters or [] for name in text.split(",")]
    return space_of(
        subject,
        devices=_numbers(devices),
        clusters=named,
        sweeps=sweeps,
        where=where or [],
        mesh=mesh,
    )


def _numbers(text: str | None) -> list[int]:
    """`--devices`. Raises FlintError FL863 for what is no number of devices."""
    found = []
    for word in text.split(",") if text else []:
        number = word.strip().replace("_", "")
        if not number.isascii() or not number.isdigit() or int(number) < 1:
            raise FlintError(
                "FL863",
                f"--devices {text}: '{word}' is no number of devices",
                help="write --devices 512",
            )
        found.append(int(number))
    return found


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
    from flint.exploring.api import answer, find_search
    from flint.exploring.objectives import RATE
    from flint.exploring.run import explore_space

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
    """A study as it lies there. Raises FlintError FL860 without one, and for conditions."""
    from flint.exploring.api import Answer
    from flint.exploring.study import Study

    if path is None:
        raise FlintError(
            "FL860",
            "nothing is named to explore",
            help="flint explore MODEL --devices 512 -c h100-dgx, or --study FILE to look at one",
        )
    study = Study.load(path)
    return Answer(study, _ranking(study, _objectives(objective), where or []))


def _ranking(study: Study, objectives: tuple[Objective, ...], where: list[str]) -> Ranking:
    from flint.exploring.objectives import default_objective
    from flint.exploring.rank import rank

    if where:
        raise FlintError(
            "FL861",
            "--where is for a model that is explored, not for a study that is shown",
            help="name the model as well: points that still hold are not evaluated again",
        )
    return rank(study.results, objectives or (default_objective(study.results),))


def _print_more(found: Answer, rows: tuple[int, int] | None, against: Path | None) -> None:
    if rows is not None:
        from flint.exploring.explain import explanation_text

        print_text(
            f"\nrow {rows[0]} against row {rows[1]}: {explanation_text(found.explain(*rows), found.ranking.objectives)}"
        )
    if against is not None:
        from flint.exploring.study import Study

        print_text(f"\nagainst {against}:")
        from flint.exploring.answers.against import against as compare

        older = Study.load(against)
        print_text(compare(older, found.study, found.ranking.objectives).to_text())


def _document(found: Answer, rows: tuple[int, int] | None) -> ExploreDocument:
    from flint.exploring.answers.document import explore_document

    return explore_document(found, rows)
