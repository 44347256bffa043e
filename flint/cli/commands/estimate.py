"""`flint estimate`: how long a captured step takes on a cluster, and where the time goes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from flint.backends.chakra.reading.captured import load_workload
from flint.cli.console import print_json, print_note, print_result
from flint.cli.options import READS, Force, HintsChoice, Json, Quiet, Verbose, Writes
from flint.cli.progress import stages_shown
from flint.cli.requests import refuse, takes_requests
from flint.errors import FlintError
from flint.io.outputs import OutputKind
from flint.plugins import API, load
from flint.requests.estimate import EstimateRequest
from flint.text import warning_lines

if TYPE_CHECKING:
    from rich.text import Text

    import flint
    from flint.backends.cost.estimate import Estimate

#: The policy that is not one of ours: a simulator's rules, for traces.
ASTRA_SIM = "astra-sim"
_AS_WRITTEN = f"--overlap {ASTRA_SIM}, which runs traces as they are written"
_OF_STEPS = ("scale", "replace", "measured", "routing", "collective_algorithm")
_AS_CAPTURED = "omit it; flint capture -c CLUSTER takes --map and --profile"
TracePath = Annotated[
    Path, typer.Argument(metavar="PATH", help="A trace directory, or a .flint file."), READS
]
Perfetto = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write the timeline of a rank class for ui.perfetto.dev."),
    Writes(OutputKind.TIMELINE),
]
RankClass = Annotated[
    str | None,
    typer.Option(
        "--class",
        metavar="NAME",
        help="Rank class for --perfetto and --view: its name or number, or all (default: the slowest).",
    ),
]
Window = Annotated[
    str | None,
    typer.Option(
        metavar="MS:MS",
        help="Times for --perfetto, in ms of the step (default: the first 100,000 nodes).",
    ),
]
Views = Annotated[
    list[str] | None,
    typer.Option(
        "--view",
        metavar="NAME",
        help="Add to --json: slices, roofline, communication, scopes or pipeline (repeatable).",
    ),
]

Compare = Annotated[
    str | None,
    typer.Option(
        metavar="NAME[=DIR],...",
        help="Compare fidelities side by side: analytic, compiled, cycles, simulated; DIR is another capture.",
    ),
    READS,
]
Binary = Annotated[
    str | None,
    typer.Option(
        metavar="PATH", help="ASTRA-sim binary for simulated (default: $FLINT_ASTRA_SIM)."
    ),
    READS,
]


@takes_requests
def estimate(
    path: TracePath,
    request: EstimateRequest,
    perfetto: Perfetto = None,
    class_: RankClass = None,
    window: Window = None,
    views: Views = None,
    compare: Compare = None,
    binary: Binary = None,
    what_now: HintsChoice = None,
    force: Force = False,
    json_: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Estimate step time, memory and exposed communication.

    Prices the kernels of each rank class on the cluster's chip and its collectives on the network,
    and schedules them. With --overlap astra-sim, runs the written traces by that simulator's rules,
    on the network.yml of --cluster and the system.json beside it. With --compare, shows several
    fidelities side by side.

    A workload that flint import made from profiles is replayed with its measured times. On another
    cluster than its device's, models scale each of them.
    """
    looks = (
        *(("--perfetto", perfetto), ("--class", class_), ("--window", window), ("--view", views)),
        ("--hints", what_now or None),
    )
    if compare is not None:
        _refuse(looks, "--compare, which is a table")
        with stages_shown(quiet=quiet or json_):
            table = _compared(compare, path, request, binary)
        _print_document(table, as_json=json_)
        return
    if binary is not None:
        raise FlintError("FL218", "--binary needs --compare", help="or use flint simulate")
    if request.policy == ASTRA_SIM:
        others = [name for name in request.options() if name not in ("cluster", "policy")]
        refuse(request, others, _AS_WRITTEN, _AS_CAPTURED)
        _refuse(looks, _AS_WRITTEN, _AS_CAPTURED)
        _simulated(path, str(_with_cluster(request).cluster), as_json=json_, quiet=quiet)
        return
    view = _view(perfetto, class_, window, in_json=bool(views))
    if views and not json_:
        raise FlintError("FL218", "--view needs --json", help="add --json")
    with stages_shown(quiet=quiet or json_):
        from flint.backends.cost.estimate import estimate as estimated

        found = estimated(load_workload(path), request)
        hints = found.hints(thorough=what_now)
    if view is not None:
        _write_perfetto(found, view, quiet=quiet or json_, force=force)
    if json_:
        document = found.to_json(views=views or (), rank_class=class_)
        print_json(hints.added_to(document) if hints else document)
    else:
        _warn(found, quiet=quiet)
        _print_text("\n\n".join(filter(None, (found.to_text(verbose=verbose > 0), _said(hints)))))


def _compared(names: str, path: Path, request: EstimateRequest, binary: str | None) -> Any:
    """Several fidelities side by side. Raises FlintError FL218 for options that they do not have."""
    refuse(request, _OF_STEPS, "--compare, which is a table")
    refuse(request, ("timing",), "--compare, which has a fidelity 'cycles'")
    return load(API, "Estimate.fidelities")(names, path, _with_cluster(request), binary)


def _with_cluster(request: EstimateRequest) -> EstimateRequest:
    """The request, which names a cluster. Raises FlintError FL218 for one without."""
    if request.cluster is None:
        raise FlintError("FL218", "--cluster is missing", help="add -c CLUSTER")
    return request


def _said(hints: flint.StepHints | None) -> str:
    return hints.to_text() if hints else ""


def _warn(found: Estimate, *, quiet: bool) -> None:
    if found.is_lower_bound:
        print_note("warning: operations without a price count as zero", quiet=quiet)
    for line in warning_lines(found.workload.warnings):
        print_note(line, quiet=quiet)


def _print_text(text: str) -> None:
    print_result(text, lambda: with_verdicts(text))


def with_verdicts(text: str) -> Text:
    """Text for a terminal in which what does not fit is seen at once."""
    from rich.text import Text

    shown = Text(text)
    shown.highlight_words(["DOES NOT FIT"], "bold red")
    shown.highlight_words(["may not fit"], "yellow")
    return shown


def _refuse(options: tuple[tuple[str, object], ...], reason: str, help_: str = "omit it") -> None:
    """Raise FlintError FL218 for an option that has no place beside another."""
    for option, value in options:
        if value is not None:
            raise FlintError("FL218", f"{option} does not apply to {reason}", help=help_)


def _print_document(found: Any, *, as_json: bool) -> None:
    if as_json:
        print_json(found.to_json())
    else:
        _print_text(found.to_text())


def _simulated(path: Path, network: str, *, as_json: bool, quiet: bool) -> None:
    """Run the traces at `path` by the rules of ASTRA-sim and print what it would say."""
    from dataclasses import replace

    from flint.backends.chakra.checking.listed_files import changed_files
    from flint.backends.chakra.reading.trace_files import find_traces
    from flint.backends.cost.astrasim.run import simulate_traces
    from flint.cluster.named import is_yaml

    if not is_yaml(network):
        raise FlintError(
            "FL218",
            f"--overlap {ASTRA_SIM} needs ASTRA-sim's own files",
            help=f"give -c {path / 'network.yml' if path.is_dir() else 'network.yml'}",
        )
    found = simulate_traces(path, Path(network))
    found = replace(found, warnings=changed_files(find_traces(path)))
    for warning in found.warnings:
        print_note(f"warning: {warning}", quiet=quiet)
    _print_document(found, as_json=as_json)


class _View(NamedTuple):
    path: Path
    rank_class: str | None
    window_ns: tuple[float, float] | None


def _view(
    path: Path | None, rank_class: str | None, window: str | None, *, in_json: bool
) -> _View | None:
    """What to write of the timeline. Raises FlintError FL218, FL502 or FL504.

    With `in_json` the class may also be one for `--view`.
    """
    if path is not None:
        return _View(path, rank_class, None if window is None else _window_ns(window))
    for option, value in (("--class", None if in_json else rank_class), ("--window", window)):
        if value is not None:
            raise FlintError("FL218", f"{option} needs --perfetto", help="add --perfetto FILE")
    return None


def _write_perfetto(found: Estimate, view: _View, *, quiet: bool, force: bool) -> None:
    report = load(API, "Estimate.write_perfetto")(
        found, view.path, rank_class=view.rank_class, window_ns=view.window_ns, force=force
    )
    which = "the first" if view.window_ns is None else "those in the window"
    rest = f" ({which}; {report.left_out:,} others left out)" if report.left_out else ""
    print_note(f"wrote   {report.nodes:,} nodes: {view.path}{rest}", quiet=quiet)


def _window_ns(text: str) -> tuple[float, float]:
    """Two times in ms, "10:12.5", in ns. Raises FlintError FL504."""
    start, _, end = text.partition(":")
    try:
        found = float(start) * 1e6, float(end) * 1e6
    except ValueError:
        found = (0.0, 0.0)
    if not 0 <= found[0] < found[1] < math.inf:
        raise FlintError("FL504", f"--window {text} is not a window", help="write --window 10:12.5")
    return found
