"""`flint capture`: a model file or a compiler dump on a virtual mesh becomes execution traces."""

from __future__ import annotations

import time
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flint.cli.console import print_json, print_result, progress_bar
from flint.cli.options import Json, Quiet, Verbose

if TYPE_CHECKING:
    from rich.console import RenderableType

    from flint.backends.report import Summary
    from flint.model_file import Target
    from flint.trace import Trace

SCHEMA = "flint.capture/1"


class Partitioner(StrEnum):
    """Who splits the program over devices."""

    SHARDY = "shardy"
    XLA = "xla"


class Granularity(StrEnum):
    """What one node of a trace is."""

    OP = "op"
    KERNEL = "kernel"


class Profile(StrEnum):
    """Whose later rewrites of collectives to imitate."""

    NONE = "none"
    XLA_GPU = "xla-gpu"
    XLA_TPU = "xla-tpu"


class TensorSize(StrEnum):
    """What `tensor_size` of a node counts."""

    TOTAL = "total"
    OUTPUT = "output"


class Groups(StrEnum):
    """How a node says who takes part in its collective."""

    NAMES = "names"
    DIMS = "dims"


def capture(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL[:NAME]",
            help="A model file (.py), StableHLO (.mlir, .mlirbc) or XLA HLO (.hlo, .txt, .pb).",
        ),
    ],
    mesh: Annotated[
        str | None,
        typer.Option(
            "--mesh",
            "-m",
            metavar="MESH",
            help="64x8, or data=64,model=8 (dumps may hold their own).",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="DIR", help="Write traces here (else: summary only)."
        ),
    ] = None,
    args: Annotated[
        str | None,
        typer.Option(metavar="FILE.py:NAME", help="Arguments for a function that is not an entry."),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Option of the entry (repeatable)."),
    ] = None,
    partitioner: Annotated[
        Partitioner, typer.Option(help="Who splits the program over devices.")
    ] = Partitioner.SHARDY,
    trip_count: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=N", help="Trip count of a loop without a bound (repeatable)."),
    ] = None,
    granularity: Annotated[
        Granularity, typer.Option(help="One node per operation or per kernel.")
    ] = Granularity.OP,
    profile: Annotated[
        Profile, typer.Option(help="Rewrite collectives as this compiler does.")
    ] = Profile.NONE,
    ranks: Annotated[
        str, typer.Option(metavar="RANKS", help="Ranks to write: all, classes or 0,8-15.")
    ] = "all",
    tensor_size: Annotated[
        TensorSize, typer.Option(help="Bytes of operands and results, or of results.")
    ] = TensorSize.TOTAL,
    groups: Annotated[
        Groups, typer.Option(help="Name communicator groups, or mark mesh dimensions.")
    ] = Groups.NAMES,
    link: Annotated[bool, typer.Option("--link", help="Hard-link ranks of equal bytes.")] = False,
    json_: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Capture a step on a virtual mesh.

    Prints a summary and, with -o, writes execution traces for every rank.
    """
    started = time.perf_counter()
    trace = _trace(model, mesh, args, set_ or [], trip_count or [], partitioner.value)
    trace = _rewritten(trace, profile.value, granularity.value)
    files: dict[str, Any] | None = None
    if output is not None:
        options = {"tensor_size": tensor_size.value, "groups": groups.value, "link": link}
        began = time.perf_counter()
        files = _write(trace, output, quiet=quiet or json_, ranks=ranks, **options)
        trace = replace(trace, timings={**trace.timings, "write_seconds": _since(began)})
    seconds = {**trace.timings, "total_seconds": _since(started)}
    _report(trace.summary(), files, seconds, as_json=json_, verbose=verbose)


def _trace(
    model: str,
    mesh: str | None,
    args: str | None,
    settings: list[str],
    trip_counts: list[str],
    partitioner: str,
) -> Trace:
    from flint.errors import FlintError
    from flint.input_kind import InputKind, input_kind
    from flint.model_file import Target
    from flint.model_options import parse_settings, parse_trip_counts

    target = Target.parse(model)
    values, counts = parse_settings(settings), parse_trip_counts(trip_counts)
    if input_kind(target.path) is InputKind.PYTHON:
        if mesh is None:
            raise FlintError(
                "FL101", "no mesh is given", help="add --mesh 64x8, or --mesh data=64,model=8"
            )
        return _trace_model(target, mesh, args, values, counts, partitioner)
    if args is not None or values or target.name is not None:
        raise FlintError(
            "FL218",
            f"{target.path.name} is not a Python file: :NAME, --args and --set are for those",
        )
    from flint.mesh import Mesh
    from flint.trace import trace_file

    parsed = Mesh.parse(mesh) if mesh is not None else None
    return trace_file(target.path, parsed, partitioner=partitioner, trip_counts=counts)


def _trace_model(
    target: Target,
    mesh: str,
    args: str | None,
    settings: dict[str, str],
    trip_counts: dict[str, int],
    partitioner: str,
) -> Trace:
    from flint.model_file import Target, importable, load_step
    from flint.trace import trace_step

    given = Target.parse(args) if args is not None else None
    with importable(target.path.parent):
        loaded = load_step(target, mesh, args=given, settings=settings)
        return trace_step(
            loaded.step,
            loaded.mesh,
            name=loaded.name,
            source=loaded.source,
            trip_counts=trip_counts,
            partitioner=partitioner,
        )


def _rewritten(trace: Trace, profile: str, granularity: str) -> Trace:
    from flint.rewrite import rewrite

    started = time.perf_counter()
    workload = rewrite(trace.workload, profile=profile, granularity=granularity)
    timings = {**trace.timings, "rewrite_seconds": _since(started)}
    return replace(trace, workload=workload, timings=timings)


def _since(started: float) -> float:
    return time.perf_counter() - started


def _write(trace: Trace, output: Path, *, quiet: bool, **options: Any) -> dict[str, Any]:
    with progress_bar("writing", quiet=quiet) as progress:
        report = trace.save(output, progress=progress, **options)
    return {
        "directory": str(output),
        "files": report.files,
        "ranks": report.ranks,
        "trace_bytes": report.trace_bytes,
        "disk_bytes": report.disk_bytes,
    }


def _report(
    summary: Summary,
    files: dict[str, Any] | None,
    seconds: dict[str, float],
    *,
    as_json: bool,
    verbose: bool,
) -> None:
    if as_json:
        rounded = {stage: round(s, 6) for stage, s in seconds.items()}
        document = {"summary": summary.to_json(), "files": files, "timings": rounded}
        print_json(SCHEMA, document)
        return
    tail = "\n".join(f"{label:<7} {value}" for label, value in _tail(files, seconds, verbose))

    def rich_form() -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        return Group(summary.to_rich(), Text(tail))

    print_result(f"{summary.to_text()}\n\n{tail}", rich_form)


def _tail(
    files: dict[str, Any] | None, seconds: dict[str, float], verbose: bool
) -> list[tuple[str, str]]:
    from flint.units import format_bytes, format_seconds, plural

    lines = [("time", format_seconds(seconds["total_seconds"]))]
    if verbose:
        stages = [
            f"{stage.removesuffix('_seconds')} {format_seconds(s)}"
            for stage, s in seconds.items()
            if stage != "total_seconds"
        ]
        lines = [("time", f"{format_seconds(seconds['total_seconds'])} ({', '.join(stages)})")]
    if files is not None:
        size = f"{format_bytes(files['trace_bytes'])} of traces"
        if files["disk_bytes"] != files["trace_bytes"]:
            size += f" ({format_bytes(files['disk_bytes'])} on disk)"
        count = f"{plural(files['ranks'], 'rank')} in {plural(files['files'], 'file')}"
        lines.append(("wrote", f"{count}, {size}: {files['directory']}"))
    return lines
