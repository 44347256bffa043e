"""`flint verify`: the captures of flint.toml against flint.lock, for CI."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flint.cli.console import print_json, print_note, print_text
from flint.cli.exits import FOUND
from flint.cli.options import CaptureNames, Force, Jobs, Json, Quiet, Verbose, Writes
from flint.errors import FlintError
from flint.io.outputs import OutputKind, refuse_same_place, write_output

if TYPE_CHECKING:
    from flint.tools.change.project.captures import Captured
    from flint.tools.change.project.config import Project
    from flint.tools.change.project.documents import VerdictDocument, VerifyDocument
    from flint.tools.change.project.lock import Lock
    from flint.tools.change.project.verify import Verdict

Markdown = Annotated[bool, typer.Option("--markdown", help="Print a comment for a pull request.")]
Github = Annotated[
    bool,
    typer.Option(
        "--github", help="Annotate source lines, and write the summary and outputs of a runner."
    ),
]
Junit = Annotated[
    Path | None,
    typer.Option("--junit", metavar="FILE", help="Write JUnit XML."),
    Writes(OutputKind.JUNIT),
]
MarkdownFile = Annotated[
    Path | None,
    typer.Option("--comment", metavar="FILE", help="Write the comment to a file."),
    Writes(OutputKind.COMMENT),
]


def verify(
    names: CaptureNames = None,
    markdown: Markdown = False,
    github: Github = False,
    junit: Junit = None,
    comment: MarkdownFile = None,
    force: Force = False,
    jobs: Jobs = 0,
    json_: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Compare captures with flint.lock.

    Captures again what changed, says what differs and why, and exits with 1 if a budget is
    exceeded. A capture without budgets may not change at all; flint run --update accepts a change.
    """
    from flint.tools.change.commands.run import captured_with_progress
    from flint.tools.change.project.config import find_project, load_project
    from flint.tools.change.project.verify import require_accepted
    from flint.tools.change.project.verify import verify as compared

    project = load_project(find_project(Path.cwd()))
    lock = _accepted(project)
    outputs = (("--junit", junit), ("--comment", comment))
    refuse_same_place(
        [(n, p) for n, p in outputs if p], [project.root / project.file, project.lock_path]
    )
    captures = project.chosen(names)
    for name, capture in captures.items():  # before captures, which take their time
        require_accepted(project, lock, name, capture.clusters)
    gone = [name for name in lock.captures if name not in project.captures]
    if gone:
        print_note(f"warning: {project.file} no longer has {', '.join(gone)}", quiet=quiet)
    is_document = json_ or markdown
    captured = captured_with_progress(
        project, captures, jobs=jobs, anew=False, quiet=quiet or is_document
    )
    verdicts = compared(project, lock, captured, captures)
    _write(verdicts, junit, comment, force=force)
    if github:
        _tell_runner(project, verdicts, captured, on_stderr=is_document)
    _print(verdicts, as_json=json_, markdown=markdown, quiet=quiet, verbose=verbose > 0)
    if any(v.fails for v in verdicts):
        raise typer.Exit(FOUND)


def _accepted(project: Project) -> Lock:
    """The lock file. Raises FlintError FL723 if there is none, or it cannot be read."""
    from flint.tools.change.project.lock import load_lock

    lock = load_lock(project.lock_path)
    if lock is None:
        raise FlintError(
            "FL723",
            f"there is no {project.lock_path.name}",
            place=str(project.lock_path),
            help="flint run writes it; commit it beside the model",
        )
    return lock


def _write(
    verdicts: Sequence[Verdict], junit: Path | None, comment: Path | None, *, force: bool
) -> None:
    from flint.tools.change.project import ci

    if junit is not None:
        write_output(junit, ci.junit(verdicts), OutputKind.JUNIT, force=force)
    if comment is not None:
        write_output(comment, ci.markdown(verdicts).encode(), OutputKind.COMMENT, force=force)


def _tell_runner(
    project: Project,
    verdicts: Sequence[Verdict],
    captured: Mapping[str, Captured],
    *,
    on_stderr: bool,
) -> None:
    """Annotations, which the runner reads from both streams; the summary and the outputs."""
    from flint.tools.change.project import ci

    tell = print_note if on_stderr else print_text
    for line in ci.workflow_commands(verdicts, captured, project.root):
        tell(line)
    ci.tell_runner(verdicts, ci.markdown(verdicts))


def _print(
    verdicts: Sequence[Verdict], *, as_json: bool, markdown: bool, quiet: bool, verbose: bool
) -> None:
    from flint.tools.change.diff.document import document
    from flint.tools.change.project import ci

    if as_json:
        found: list[VerdictDocument] = [
            {
                "capture": v.name,
                "cluster": v.cluster,
                "fails": v.fails,
                "note": v.note,
                "difference": document(v.difference, v.broken),
            }
            for v in verdicts
        ]
        printed: VerifyDocument = {
            "schema": "flint.verify/1",
            "fails": any(v.fails for v in verdicts),
            "verdicts": found,
        }
        print_json(printed)
    elif markdown:
        print_text(ci.markdown(verdicts), end="")
    else:
        ordered = sorted(verdicts, key=lambda v: (not v.fails, v.difference.is_equal))
        blocks = [_block(v, verbose=verbose, quiet=quiet) for v in ordered]
        print_text("\n".join([*blocks, ci.summary_line(verdicts)]))


def _block(verdict: Verdict, *, verbose: bool, quiet: bool) -> str:
    from flint.tools.change.diff import show

    if quiet or verdict.difference.is_equal:
        return f"{verdict.title}: {show.verdict(verdict.difference)}"
    text = show.text(verdict.difference, verdict.broken, verbose=verbose)
    note = f"note: {verdict.note}\n" if verdict.note else ""
    return f"{verdict.title}: {text}\n{note}"
