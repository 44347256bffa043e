"""`flint export`: the program of a rank as a graph file, or all ranks as traces."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flint.cli.console import print_json, print_note, print_text
from flint.cli.options import READS, Force, Json, Quiet, Rank, Verbose, Writes
from flint.errors import FlintError
from flint.io.outputs import OutputKind, write_output
from flint.plugins import API, load

if TYPE_CHECKING:
    from flint.cli.documents import ExportDocument
    from flint.ir.workload import Workload


class Format(StrEnum):
    """Graph formats (the keys of `flint.backends.summary.graph.FORMATS`), traces, and GOAL."""

    JSON = "json"
    GRAPHML = "graphml"
    DOT = "dot"
    CHAKRA = "chakra"
    GOAL = "goal"


class RunnerName(StrEnum):
    """What runs a benchmark."""

    TORCH = "torch"
    NCCL_TESTS = "nccl-tests"
    PARAM = "param"


Runner = Annotated[
    RunnerName | None,
    typer.Option(
        "--benchmark",
        help="Write what runs the step's kernels and collectives (torch), or its collectives, without Flint.",
    ),
]

Custom = Annotated[
    str | None,
    typer.Option(
        "--custom-collective",
        metavar="BYTES",
        help="Write a collective for MSCCL (.xml), of BYTES per rank, as traces that ASTRA-sim runs it by.",
    ),
]
Source = Annotated[
    Path,
    typer.Argument(
        metavar="PATH", help="A trace directory, a .flint file, or an algorithm (.xml)."
    ),
    READS,
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE|DIR",
        help="File to write (default: stdout), or directory.",
    ),
    Writes(OutputKind.GRAPH, or_traces=True, unless="benchmark"),
]


def export(
    path: Source,
    output: Output = None,
    format_: Annotated[Format, typer.Option("--format", "-f", help="Graph format.")] = Format.JSON,
    benchmark: Runner = None,
    custom_collective: Custom = None,
    rank: Rank = 0,
    force: Force = False,
    json_: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Export the program of a rank as a graph.

    Formats are json, graphml (networkx, Gephi, yEd) and dot (Graphviz). chakra writes traces of all
    ranks into a directory, as flint capture does: it replaces only traces that Flint wrote. goal
    writes traces of sends and receives (--groups p2p) as one text for LogGOPSim and ATLAHS. With
    --benchmark a directory gets a script for torchrun, on GPUs or CPUs, which measures itself, or
    the communication alone as a script for nccl-tests or as traces for PARAM's comm_replay;
    with --custom-collective one trace for each rank of a collective that somebody wrote.
    """
    from flint.backends.summary.graph import FORMATS
    from flint.cli.inputs import load_workload, program_of_rank

    given: dict[str, object] = {"--rank": rank, "--force": force, "--json": json_}
    given["--format"] = format_ is not Format.JSON
    if custom_collective is not None:
        given |= {"--benchmark": benchmark}
        _write_collective(path, custom_collective, output, given, quiet=quiet)
        return
    if benchmark is not None:
        _write_benchmark(path, benchmark, output, given, quiet=quiet)
        return
    _refuse(output, format_, json_=json_, force=force)
    if format_ is Format.GOAL:
        _write_goal(path, output, {"--rank": rank, "--json": json_}, force=force, quiet=quiet)
        return
    workload = load_workload(path)
    if output is None:
        print_text(FORMATS[format_.value](program_of_rank(workload, rank)), end="")
        return
    if format_ is Format.CHAKRA:
        nodes, edges = _write_traces(workload, rank, output)
    else:
        program = program_of_rank(workload, rank)
        nodes, edges = len(program), len(program.deps)
        text = FORMATS[format_.value](program)
        write_output(output, text.encode(), OutputKind.GRAPH, force=force)
    if json_:
        document: ExportDocument = {
            "schema": "flint.export/1",
            "file": str(output),
            "format": format_.value,
            "nodes": nodes,
            "dependencies": edges,
        }
        print_json(document)
    else:
        print_note(f"{output}: {nodes:,} nodes, {edges:,} dependencies", quiet=quiet)


def _refuse(output: Path | None, format_: Format, *, json_: bool, force: bool) -> None:
    """Raise FlintError FL218 for options that exclude each other."""
    if output is None and (json_ or format_ is Format.CHAKRA):
        report = "--json prints a report on stdout, so the graph needs a file"
        raise FlintError(
            "FL218", report if json_ else "traces need a directory", help="add -o FILE"
        )
    if force and format_ is Format.CHAKRA:
        raise FlintError(
            "FL218",
            "--force is for files: a directory is replaced only if all of it is Flint's",
            help="omit --force, or move what else is there away",
        )


def _write_collective(
    path: Path, size: str, output: Path | None, others: Mapping[str, object], *, quiet: bool
) -> None:
    folder = _folder(output, "--custom-collective", others)
    setting, nodes = load(API, "export.custom_collective")(path, size, folder)
    print_note(f"{folder}: {nodes:,} nodes; for system.json: {setting}", quiet=quiet)


def _write_benchmark(
    path: Path, by: RunnerName, output: Path | None, others: Mapping[str, object], *, quiet: bool
) -> None:
    from flint.cli.inputs import load_workload

    folder = _folder(output, "--benchmark", others)
    said = "kernels and messages" if by is RunnerName.TORCH else "messages"
    written = load(API, "export.benchmark")(load_workload(path), folder, by.value)
    for name, steps in written.items():
        print_note(f"{folder}: {steps:,} {said} of {name}", quiet=quiet)


def _write_goal(
    path: Path, output: Path | None, others: Mapping[str, object], *, force: bool, quiet: bool
) -> None:
    _refuse_others("--format goal", others)
    text, nodes = load(API, "export.goal")(path)
    if output is None:
        print_text(text, end="")
        return
    write_output(output, text.encode(), OutputKind.GRAPH, force=force)
    print_note(f"{output}: {nodes:,} nodes of all ranks", quiet=quiet)


def _folder(output: Path | None, flag: str, others: Mapping[str, object]) -> Path:
    """Where an option writes. Raises FlintError FL218 without a place, and for options that it does not have."""
    if output is None:
        raise FlintError("FL218", f"{flag} needs a directory", help="add -o DIR")
    _refuse_others(flag, others)
    return output


def _refuse_others(flag: str, others: Mapping[str, object]) -> None:
    for other in (other for other, is_given in others.items() if is_given):
        raise FlintError("FL218", f"{other} does not apply to {flag}", help=f"omit {other}")


def _write_traces(workload: Workload, rank: int, folder: Path) -> tuple[int, int]:
    """Traces of all ranks; nodes and dependencies of one."""
    from flint.backends.chakra.writing.expand import expand
    from flint.backends.cost.simulate.layers import untimed_nodes
    from flint.tracing import Trace

    Trace(workload).save(folder, link=True)
    nodes = expand(untimed_nodes(workload, "kernel").program_of(rank))
    return len(nodes), len(nodes.deps)
