"""The commands, put together."""

from __future__ import annotations

from typing import Annotated

import typer

from flint.cli.capture import capture
from flint.cli.check import check
from flint.cli.clusters import clusters
from flint.cli.console import lost_output, print_any_character, print_error, print_text
from flint.cli.estimate import estimate
from flint.cli.exits import guarded
from flint.cli.explain import explain
from flint.cli.export import export
from flint.cli.help_tables import CommandWithTables
from flint.cli.opt import opt
from flint.cli.schedules import schedules
from flint.cli.signals import signals
from flint.cli.user_process import end_process
from flint.errors import FlintError

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
        print_text(f"flint {version('flint-ir')}")
    except PackageNotFoundError:
        print_text("flint (not installed: run from a source tree)")
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


for _command in (capture, estimate, check, explain, export, opt, schedules):
    app.command(_command.__name__, cls=CommandWithTables)(guarded(_command))
app.add_typer(clusters, name="clusters")


def run() -> None:
    """Run the command line and end the process."""
    print_any_character()
    try:
        app(prog_name="flint")
    except FlintError as error:  # of --version
        print_error(error)
        end_process(error.exit_code)
    except OSError as error:  # of --help
        print_error(lost_output(error))
        end_process(FlintError.exit_code)
    except SystemExit as end:
        signals().leave()
        end_process(end.code if isinstance(end.code, int) else int(end.code is not None))
