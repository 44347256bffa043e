"""`flint mcp`: a server for agents and editors, on standard input and output."""

from __future__ import annotations

from typing import Annotated

import typer


def mcp(
    *,
    allow_run: Annotated[
        bool,
        typer.Option(
            "--allow-run",
            help="Let tools run model files and scripts, and write files (capture, explore, diff of model files).",
        ),
    ] = False,
) -> None:
    """Serve eight commands to agents and editors by the Model Context Protocol.

    capture, estimate, explain, diff, explore, check, compare and clusters are tools that take the
    options of the commands and return their JSON. Nothing is run or written without --allow-run.
    The server reads standard input until it ends.
    """
    from flint.tools.mcp.server import serve

    serve(allow_run=allow_run)
