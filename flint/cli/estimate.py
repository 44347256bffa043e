"""`flint estimate`: how long a captured step takes on a cluster, and where the time goes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flint.cli.console import print_json, print_note, print_result
from flint.cli.inputs import load_workload
from flint.cli.options import Json, Quiet, Verbose

if TYPE_CHECKING:
    from rich.console import RenderableType

    from flint.backends.cost.estimate import Estimate


def estimate(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="A trace directory, or a .flint file.")
    ],
    cluster: Annotated[
        str,
        typer.Option(
            "--cluster", "-c", metavar="NAME|FILE", help="A preset (h100-dgx, v5p) or a TOML file."
        ),
    ],
    map_: Annotated[
        str | None,
        typer.Option(
            "--map", metavar="AXIS=TIER,...", help="Tiers of mesh axes: model=nvlink,data=ib."
        ),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Whose kernels: xla-gpu, xla-gpu+flash, inductor, megatron, eager, xla-tpu.",
        ),
    ] = None,
    overlap: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="When communication begins: overlap, xla, ddp, fsdp, in-order, blocking.",
        ),
    ] = "overlap",
    unpriced: Annotated[
        str | None,
        typer.Option(metavar="zero", help="Count operations without a price as nothing."),
    ] = None,
    perfetto: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write the timeline of a rank class for ui.perfetto.dev."
        ),
    ] = None,
    class_: Annotated[
        str | None,
        typer.Option(
            "--class", metavar="NAME", help="Rank class of --perfetto, or all (default: slowest)."
        ),
    ] = None,
    window: Annotated[
        str | None,
        typer.Option(metavar="MS:MS", help="Times that --perfetto writes, in ms of the step."),
    ] = None,
    json_: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Estimate step time, memory and exposed communication.

    The kernels of each rank class are priced on the cluster's chip, its collectives on the
    network, and placed in time.
    """
    from flint.backends.cost.estimate import SCHEMA
    from flint.backends.cost.estimate import estimate as estimate_workload
    from flint.backends.cost.placement import parse_mapping
    from flint.cli.clusters import load_cluster
    from flint.errors import FlintError

    if perfetto is None and (class_ or window):
        option = "--class" if class_ else "--window"
        raise FlintError("FL218", f"{option} is for --perfetto", help="add --perfetto FILE")
    found = estimate_workload(
        load_workload(path),
        load_cluster(cluster),
        profile=profile or "",
        policy=overlap,
        mapping=None if map_ is None else parse_mapping(map_),
        unpriced_is_zero=_is_zero(unpriced),
    )
    if perfetto is not None:
        _write_perfetto(found, perfetto, class_, window, quiet=quiet or json_)
    if json_:
        print_json(SCHEMA, {k: v for k, v in found.to_json().items() if k != "schema"})
        return
    if found.is_lower_bound:
        print_note("warning: operations without a price count nothing", quiet=quiet)

    def rich_form() -> RenderableType:
        from rich.text import Text

        return Text(text)

    text = found.to_text(verbose=verbose)
    print_result(text, rich_form)


def _write_perfetto(
    found: Estimate, path: Path, rank_class: str | None, window: str | None, *, quiet: bool
) -> None:
    from flint.backends.perfetto_file import write_perfetto

    between = None if window is None else _window_ns(window)
    report = write_perfetto(found, path, rank_class=rank_class, window_ns=between)
    which = "the first" if window is None else "those in the window"
    rest = f" ({which}; {report.left_out:,} others left out)" if report.left_out else ""
    print_note(f"wrote   {report.nodes:,} nodes: {path}{rest}", quiet=quiet)


def _window_ns(text: str) -> tuple[float, float]:
    """Two times in ms, "10:12.5", in ns. Raises FlintError FL504."""
    from flint.errors import FlintError

    start, _, end = text.partition(":")
    try:
        found = float(start) * 1e6, float(end) * 1e6
    except ValueError:
        found = (0.0, 0.0)
    if not 0 <= found[0] < found[1] < math.inf:
        raise FlintError("FL504", f"--window {text} is no window", help="write --window 10:12.5")
    return found


def _is_zero(text: str | None) -> bool:
    from flint.errors import FlintError

    if text not in (None, "zero"):
        raise FlintError("FL704", f"--unpriced {text} is not known", help="write --unpriced zero")
    return text == "zero"
