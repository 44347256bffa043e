"""The command line: `flint`, `flint-ir` and `python -m flint`. One file per command.

Modules here import typer and the standard library; commands import the rest when they run, so that
`flint --help` takes a fraction of a second.
"""

from __future__ import annotations

import gc
from typing import Annotated

import typer

from flint.cli.capture import capture
from flint.cli.check import check
from flint.cli.clusters import clusters
from flint.cli.estimate import estimate
from flint.cli.exits import guarded, unwind_on_sigterm
from flint.cli.explain import explain
from flint.cli.export import export
from flint.cli.help_tables import CommandWithTables

app = typer.Typer(
    name="flint",
    help="What a JAX or PyTorch step would do on every device of a mesh that is not there.",
    epilog="Exit status: 0 fine, 1 a check found something, 2 unusable input, 70 a bug in flint.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: it is the same everywhere, and rich costs 0.1 s
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if not wanted:
        return
    from importlib.metadata import PackageNotFoundError, version

    try:
        print(f"flint {version('flint-ir')}")
    except PackageNotFoundError:
        print("flint (not installed: run from a source tree)")
    raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """What a JAX or PyTorch step would do on every device of a mesh that is not there."""


for _command in (capture, estimate, check, explain, export):
    app.command(_command.__name__, cls=CommandWithTables)(guarded(_command))
app.add_typer(clusters, name="clusters")


def main() -> None:
    """Run the command line and exit the process."""
    unwind_on_sigterm()
    try:
        app(prog_name="flint")
    finally:
        gc.freeze()  # or the interpreter looks for cycles in all of JAX before it ends: 0.4 s
