"""The command line: `flint`, `flint-ir` and `python -m flint`.

Each module of `commands` is a command, by its name. Modules here import typer and the standard
library; commands import the rest when they run, so that `flint --help` takes a fraction of a
second. This file imports nothing before `main` has said what Ctrl-C does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flint.cli.command_line import app as app


def main() -> None:
    """Run the command line and exit the process."""
    from flint.cli.signals import take_signals

    take_signals()
    _open_streams()
    from flint.cli.command_line import run

    run()


def _open_streams() -> None:
    """Open what the caller has closed of the standard streams, or a file of ours would get its number."""
    import os
    import sys

    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


def __getattr__(name: str) -> Any:
    if name != "app":
        raise AttributeError(f"module 'flint.cli' has no attribute {name!r}")
    from flint.cli.command_line import app

    return app
