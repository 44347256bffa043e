"""`flint capture`: a model file or a compiler dump on a virtual mesh becomes execution traces."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from flint import capturing
from flint.cli.console import print_json, print_note, print_result, progress_bar
from flint.cli.exits import user_process
from flint.cli.options import (
    Granularity,
    GranularityChoice,
    GroupForm,
    GroupsChoice,
    HintsChoice,
    Json,
    Link,
    Output,
    Quiet,
    Ranks,
    TensorSize,
    TensorSizeChoice,
    Verbose,
)
from flint.cli.progress import stages_shown
from flint.cli.requests import Without, takes_requests
from flint.errors import FlintError
from flint.log import stage
from flint.requests.capture import CaptureRequest
from flint.requests.estimate import OF_TRACES, EstimateRequest

if TYPE_CHECKING:
    from rich.console import RenderableType

    from flint.backends.chakra import WriteReport
    from flint.backends.cost.estimate import Estimate
    from flint.backends.cost.estimate_json import EstimateDocument
    from flint.backends.summary.summary import Summary
    from flint.cli.documents import CaptureDocument, FilesDocument
    from flint.cluster.models import Cluster
    from flint.ir.workload import Workload
    from flint.tracing import Trace


@takes_requests
def capture(
    request: CaptureRequest,
    estimated: Annotated[EstimateRequest, Without(("cluster", "profile"))],
    output: Output = None,
    granularity: GranularityChoice = Granularity.KERNEL,
    ranks: Ranks = "all",
    tensor_size: TensorSizeChoice = TensorSize.TOTAL,
    groups: GroupsChoice = GroupForm.NAMES,
    link: Link = False,
    what_now: HintsChoice = None,
    json_: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Capture a step on a virtual mesh.

    Prints a summary, with -c an estimate on that cluster, and with -o writes execution traces for
    every rank.
    """
    from flint.io.scratch import remove_leftovers

    started = time.perf_counter()
    if output is None:
        _refuse_of_traces(ranks, granularity, tensor_size, groups, link)
    _refuse_clusters(output, request.clusters, estimated, quiet=quiet)
    capturing.require_profile(request.profile)
    remove_leftovers()
    hardware = _loaded(request.clusters, hints=bool(what_now))
    with stages_shown(quiet=quiet or json_):
        trace = capturing.capture(request, user_process)
        trace, estimates = _estimated(trace, hardware, estimated)
        again = None if trace.recorded else request  # a script is not recorded again for hints
        each = [(e, e.hints(again, thorough=what_now)) for e in estimates]
    files: FilesDocument | None = None
    written = estimates[0].kernels if len({e.profile for e in estimates}) == 1 else None
    if output is not None:
        options = {
            "granularity": granularity.value,
            "tensor_size": tensor_size.value,
            "groups": groups.value,
            "link": link,
            "cluster": hardware[0] if hardware else None,
            **{name: getattr(estimated, name) for name in OF_TRACES},
        }
        trace, report = _written(trace, output, quiet=quiet or json_, ranks=ranks, **options)
        files, written = files_document(report, output), written or report.written
    for warning in trace.warnings:
        print_note(f"warning: {warning}", quiet=quiet)
    seconds = {**trace.timings, "total_seconds": time.perf_counter() - started}
    if json_:
        said = [h.added_to(e.to_json()) if h else e.to_json() for e, h in each]
        print_json(_document(trace, written, said, files, seconds))
        return
    tail = _tail(files, seconds, verbose > 0)
    below = [trace.cross_check.to_text()] if trace.cross_check else []
    for e, h in each:
        below += filter(None, [e.to_text(verbose=verbose > 0), h.to_text() if h else ""])
    _print(trace.recorded, trace.summary(written), below, tail)


def _refuse_of_traces(*given: object) -> None:
    """Raise FlintError FL218 for options of traces without any."""
    usual = ("all", Granularity.KERNEL, TensorSize.TOTAL, GroupForm.NAMES, False)
    flags = ("--ranks", "--granularity", "--tensor-size", "--groups", "--link")
    for flag, value, default in zip(flags, given, usual, strict=True):
        if value != default:
            raise FlintError("FL218", f"{flag} needs --output", help="add -o DIR")


def _loaded(clusters: Sequence[str], *, hints: bool) -> list[Cluster]:
    if hints and not clusters:
        raise FlintError("FL218", "--hints needs --cluster", help="add --cluster NAME")
    if not clusters:
        return []  # and nothing that reads cluster files is imported
    from flint.cluster.named import load_cluster

    return list(map(load_cluster, clusters))


def _estimated(
    trace: Trace, clusters: list[Cluster], request: EstimateRequest
) -> tuple[Trace, list[Estimate]]:
    timings = dict(trace.timings)
    if not clusters:
        return trace, []
    with stage("estimate", timings):
        from flint.backends.cost.estimate import estimate

        found = [estimate(trace.workload, request.but(cluster=c)) for c in clusters]
    return replace(trace, timings=timings), found


def _refuse_clusters(
    output: Path | None, clusters: Sequence[str], request: EstimateRequest, *, quiet: bool = False
) -> None:
    """Raise FlintError FL218 for traces of two clusters, or options of a cluster without one.

    Say which options traces do not have.
    """
    if output is not None and len(clusters) > 1:
        raise FlintError(
            "FL218",
            f"traces can have the durations of only one cluster, but {len(clusters)} are given",
            help="capture once with each, or omit -o",
        )
    for name in request.given():
        flag = request.options()[name].flag
        if not clusters:
            raise FlintError("FL218", f"{flag} needs --cluster", help="add --cluster NAME")
        links = name == "slow" and any("@" in text for text in request.slow)
        if output is not None and (links or name not in OF_TRACES):
            flag += " of links" if links else ""
            said = f"warning: {flag} affects only the estimate, not the traces"
            print_note(said, quiet=quiet)


def _written(
    trace: Trace, output: Path, *, quiet: bool, **options: Any
) -> tuple[Trace, WriteReport]:
    began = time.perf_counter()
    with progress_bar("writing", quiet=quiet) as progress:
        report = trace.save(output, progress=progress, **options)
    seconds = time.perf_counter() - began
    return replace(trace, timings={**trace.timings, "write_seconds": seconds}), report


def files_document(report: WriteReport, output: Path) -> FilesDocument:
    """What was written, as documents say it."""
    return {
        "directory": str(output),
        "files": report.files,
        "ranks": report.ranks,
        "nodes": report.nodes,
        "trace_bytes": report.trace_bytes,
        "disk_bytes": report.disk_bytes,
    }


def _document(
    trace: Trace,
    written: Workload | None,
    estimates: list[dict[str, Any]],
    files: FilesDocument | None,
    seconds: dict[str, float],
) -> CaptureDocument:
    document: CaptureDocument = {
        "schema": "flint.capture/1",
        "summary": trace.summary(written),
        "files": files,
        "estimates": cast("list[EstimateDocument]", estimates),
        "warnings": list(trace.warnings),
        "timings": {stage: round(s, 6) for stage, s in seconds.items()},
    }
    if trace.cross_check is not None:
        document["cross_check"] = trace.cross_check
    return document


def _print(recorded: str, summary: Summary, parts: list[str], tail: list[tuple[str, str]]) -> None:
    """How the model was taken, the summary, what a compiler and estimates say, and what was done."""
    above = f"{recorded}\n\n" if recorded else ""
    below = "\n\n".join([*parts, "\n".join(f"{label:<7} {value}" for label, value in tail)])

    def rich_form() -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        from flint.cli.commands.estimate import with_verdicts

        return Group(Text(above), summary.to_rich(), with_verdicts(below))

    print_result(f"{above}{summary.to_text()}\n\n{below}", rich_form)


def _tail(
    files: FilesDocument | None, seconds: dict[str, float], verbose: bool
) -> list[tuple[str, str]]:
    from flint.text import format_bytes, format_count, format_seconds, plural

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
        nodes = " or ".join(sorted({format_count(n) for n in files["nodes"].values()}))
        lines.append(
            ("wrote", f"{count}, up to {nodes} nodes a rank, {size}: {files['directory']}")
        )
    return lines
