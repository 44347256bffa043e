"""`flint clusters`: which clusters there are, and every number of one with its source."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from flint.cli.console import print_json, print_note, print_result, print_text
from flint.cli.exits import guarded
from flint.cli.options import READS, Force, Json, Quiet, Verbose, Writes
from flint.cluster.constants import numbers
from flint.io.outputs import OutputKind, write_output

if TYPE_CHECKING:
    from rich.table import Table

    from flint.cli.documents import ClustersDocument, ClusterSummaryDocument
    from flint.cluster.models import Cluster
    from flint.cluster.stack import Stack

SCHEMA: Final = "flint.clusters/1"
_LIST = ("name", "chips", "bf16", "memory", "bandwidth", "networks")
_STACKS = ("name", "what", "profiles", "libraries", "overlap", "host's launches")
_SHOW = ("key", "value", "kind", "source")

clusters = typer.Typer(
    help="List clusters, or show one with the source of every number.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@clusters.command("list")
@guarded
def list_(json_: Json = False, quiet: Quiet = False, verbose: Verbose = 0) -> None:
    """List the clusters that come with Flint."""
    from flint.cluster.models import Cluster

    loaded = [Cluster.load(name) for name in Cluster.names()]
    if json_:
        listed: ClustersDocument = {"schema": SCHEMA, "clusters": [_summary(c) for c in loaded]}
        print_json(listed)
        return
    _print_table(_LIST, [_row(c) for c in loaded])


@clusters.command("show")
@guarded
def show(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="A cluster, a TOML file, a graph, or ASTRA-sim's .yml."
        ),
        READS,
    ],
    json_: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Show a cluster: each number with its kind and source."""
    from flint.backends.cost.chips.model import model_of
    from flint.backends.cost.software import stack_for, with_stack
    from flint.backends.cost.uncertainty import trust_in
    from flint.cluster.named import load_cluster

    cluster = load_cluster(name)
    usual = stack_for(model_of(cluster.chip).profile("", recorded=True), cluster)
    trust = trust_in(with_stack(cluster, usual))
    if json_:
        document: ClustersDocument = {"schema": SCHEMA, "cluster": cluster, "trust": trust}
        print_json(document)
        return
    print_text(f"{cluster.name}: {cluster.title}")
    if cluster.notes:
        print_text(cluster.notes)
    print_text(f"{trust} (stack {usual.name})")
    _print_table(_SHOW, numbers(cluster.model_dump(mode="json", exclude_defaults=True)))


@clusters.command("export")
@guarded
def export(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A preset, or a TOML file."), READS],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="File to write (default: stdout)."),
        Writes(OutputKind.CLUSTER),
    ] = None,
    infragraph: Annotated[
        bool, typer.Option("--infragraph", help="As an InfraGraph document, in YAML.")
    ] = False,
    force: Force = False,
    json_: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Write a cluster as a file of another program, which -c reads again."""
    from flint.cluster.formats import write_other
    from flint.cluster.models import Cluster
    from flint.errors import FlintError

    if not infragraph:
        raise FlintError("FL218", "clusters export needs a format", help="add --infragraph")
    if json_ and output is None:
        raise FlintError("FL218", "--json prints on stdout as well", help="add -o FILE")
    text = write_other("infragraph", name, output and output.parent)
    if output is None:
        print_text(text, end="")
        return
    write_output(output, text.encode(), OutputKind.CLUSTER, force=force)
    if json_:
        document: ClustersDocument = {"schema": SCHEMA, "cluster": Cluster.load(name)}
        print_json(document)
    else:
        print_note(f"{output}: {name}", quiet=quiet)


@clusters.command("stacks")
@guarded
def stacks(json_: Json = False, quiet: Quiet = False, verbose: Verbose = 0) -> None:
    """List the software stacks that may run on a cluster (estimate --stack)."""
    from flint.cluster.stack import shipped_stacks

    found = shipped_stacks()
    if json_:
        listed: ClustersDocument = {"schema": SCHEMA, "stacks": found}
        print_json(listed)
        return
    _print_table(_STACKS, [_stack_row(s) for s in found])


def _stack_row(stack: Stack) -> tuple[str, ...]:
    host = stack.host_launch_ns
    launch = f"{host.value / 1e3:g} us" if host else "never late"
    profiles, libraries = ", ".join(stack.profiles), ", ".join(stack.libraries)
    return stack.name, stack.title, profiles, libraries, stack.policy, launch


def _summary(cluster: Cluster) -> ClusterSummaryDocument:
    peaks = cluster.chip.peak_flops_per_s
    return {
        "name": cluster.name,
        "title": cluster.title,
        "aliases": list(cluster.aliases),
        "chip": cluster.chip.name,
        "peak_flops_per_s": {dtype: peak.value for dtype, peak in peaks.items()},
        "memory_bytes": int(cluster.chip.memory_bytes.value),
        "memory_bandwidth_bytes_per_s": cluster.chip.memory_bandwidth_bytes_per_s.value,
        "networks": [{"name": n.name, "size": n.size} for n in cluster.network],
    }


def _row(cluster: Cluster) -> tuple[str, ...]:
    chip = cluster.chip
    peak = chip.peak_flops_per_s.get("bf16")
    tiers = [f"{n.name} {n.size}" if n.size else n.name for n in cluster.network]
    return (
        cluster.name,
        chip.name,
        f"{peak.value / 1e12:,.0f} TFLOP/s" if peak else "",
        f"{chip.memory_bytes.value / 1e9:.0f} GB",
        f"{chip.memory_bandwidth_bytes_per_s.value / 1e9:,.0f} GB/s",
        ", ".join(tiers),
    )


def _print_table(titles: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    from flint.text import Column, text_table

    right = {"bf16", "memory", "bandwidth", "value"}
    columns = [Column(t, t in right) for t in titles]

    def rich_form() -> Table:
        from rich.table import Table

        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in columns:
            table.add_column(column.title, justify="right" if column.right else "left")
        for row in rows:
            table.add_row(*row)
        return table

    print_result(text_table(columns, rows), rich_form)
