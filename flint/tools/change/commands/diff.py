"""`flint diff`: what differs between two captures, why, and whether budgets hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from flint.cli.console import print_json, print_text
from flint.cli.exits import FOUND
from flint.cli.options import READS, Json, MeshText, Quiet, Settings, Verbose
from flint.cli.progress import stages_shown
from flint.cli.requests import Said, takes_requests
from flint.errors import FlintError
from flint.log import stage
from flint.requests.estimate import EstimateRequest

if TYPE_CHECKING:
    from flint.tools.change.diff.budgets import Broken
    from flint.tools.change.diff.difference import Difference

SideText = Annotated[
    str,
    typer.Argument(
        metavar="BEFORE",
        help="A trace directory, a .flint file, a saved estimate (.json), a model, REVISION:MODEL, "
        "or a capture of flint.toml.",
    ),
    READS,
]
OtherText = Annotated[
    str | None,
    typer.Argument(metavar="[AFTER]", help="The same; with --rev, the current BEFORE."),
    READS,
]
Revision = Annotated[
    str | None, typer.Option("--rev", metavar="REV", help="Take BEFORE from this git revision.")
]
FailOver = Annotated[
    str | None,
    typer.Option(
        "--fail-over",
        metavar="BUDGETS",
        help="Exit with 1 if a budget is exceeded: step-time=+2%,memory=+1GiB,bytes:data=+0.",
    ),
]
ExitCode = Annotated[
    bool, typer.Option("--exit-code", help="Exit with 1 if anything but names differs.")
]
Markdown = Annotated[
    bool, typer.Option("--markdown", help="Print a comment for a pull request, below 60 lines.")
]


_SAID = Said(
    {
        "cluster": "Estimate both on this cluster, and compare times and memory: a preset ({clusters}), a TOML "
        "file, or ASTRA-sim's network.yml (default: as flint.toml says, and the device of what was measured)."
    }
)


@takes_requests
def diff(
    before: SideText,
    after: OtherText = None,
    rev: Revision = None,
    mesh: MeshText = None,
    set_: Settings = None,
    *,
    estimated: Annotated[EstimateRequest, _SAID],
    fail_over: FailOver = None,
    exit_code: ExitCode = False,
    markdown: Markdown = False,
    json_: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Compare two captures.

    Says what differs and from which cause: sharding, shapes, layers, precision, recomputation,
    collectives. Operations are matched by what they do, so renamed functions and moved lines are
    not differences.
    """
    from flint.tools.change.commands.sides import Request, is_model, side
    from flint.tools.change.diff.budgets import broken, parse_budgets
    from flint.tools.change.diff.difference import compare

    budgets = parse_budgets(fail_over or "")
    if after is None and rev is None:
        raise FlintError(
            "FL218", "there is nothing to compare with", help="give AFTER, or --rev HEAD~1"
        )
    for flag, given in (("--mesh", mesh), ("--set", set_)):
        if given and not any(map(is_model, filter(None, (before, after)))):
            raise FlintError(
                "FL218",
                f"{flag} is for models, and neither side is one",
                help=f"omit {flag}, or give a model file",
            )
    request = Request(mesh, tuple(set_ or ()), estimated)
    with stages_shown(quiet=quiet or json_):
        first = side(before, rev, request)
        second = side(before if after is None else after, None, request)
        with stage("compare"):
            found = compare(first, second)
    told = broken(found, budgets)
    _print(found, told, as_json=json_, markdown=markdown, quiet=quiet, verbose=verbose > 0)
    if told or (exit_code and not found.is_equal):
        raise typer.Exit(FOUND)


def _print(
    found: Difference,
    told: list[Broken],
    *,
    as_json: bool,
    markdown: bool,
    quiet: bool,
    verbose: bool,
) -> None:
    from flint.tools.change.diff import document, show

    if as_json:
        print_json(document.document(found, told))
    elif markdown:
        print_text(show.markdown(found, told), end="")
    elif quiet:
        print_text(show.verdict(found))
    else:
        print_text(show.text(found, told, verbose=verbose))
