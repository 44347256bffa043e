"""`flint run`: the captures of flint.toml, their traces, and the lock file."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flint.cli.console import print_json, print_note, print_text, progress_bar
from flint.cli.options import CaptureNames, Jobs, Json, Quiet, Verbose
from flint.errors import FlintError
from flint.text import format_bytes, format_count, format_duration, headings, text_table

if TYPE_CHECKING:
    from flint.tools.change.project.captures import Captured
    from flint.tools.change.project.config import Capture, Project
    from flint.tools.change.project.documents import RanCaptureDocument, RunDocument
    from flint.tools.change.project.lock import Lock

Update = Annotated[
    bool, typer.Option("--update", help="Accept changes: write them into flint.lock.")
]
Anew = Annotated[bool, typer.Option("--anew", help="Also capture what has not changed.")]


def run(
    names: CaptureNames = None,
    update: Update = False,
    jobs: Jobs = 0,
    anew: Anew = False,
    json_: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Capture what flint.toml lists.

    Several captures run at a time; a capture whose files did not change is not repeated. New
    captures are added to flint.lock; changed ones only with --update.
    """
    from flint.tools.change.project.config import find_project, load_project
    from flint.tools.change.project.lock import Lock, load_lock
    from flint.tools.change.project.verify import accept, keep_accepted

    project = load_project(find_project(Path.cwd()))
    lock = None if update else load_lock(project.lock_path)
    if update:
        lock = _lock_to_replace(project, names)
    captures = project.chosen(names)
    captured = captured_with_progress(project, captures, jobs=jobs, anew=anew, quiet=quiet or json_)
    states = {n: _state(c, lock) for n, c in captured.items()}
    accepted = [c for n, c in captured.items() if update or states[n] == "new"]
    known = lock or Lock()
    gone = [n for n in known.captures if n not in project.captures] if update and not names else []
    if accepted or gone:
        accept(project, known, accepted, drop=gone)
    for name in captured:
        if states[name] == "equal":
            keep_accepted(project, captured[name])
    written = dict(_traces(project, captures, captured, quiet=quiet or json_))
    _print(captured, states, written, update=update, as_json=json_)


def _lock_to_replace(project: Project, names: list[str] | None) -> Lock | None:
    """The lock of which entries are kept that are not captured now.

    One that cannot be read is written anew, but not for some captures: others would be lost.
    """
    from flint.tools.change.project.lock import load_lock

    try:
        return load_lock(project.lock_path)
    except FlintError as error:
        if names:
            raise
        print_note(f"warning: {error.message}: it is rewritten")
        return None


def captured_with_progress(
    project: Project, captures: Mapping[str, Capture], *, jobs: int, anew: bool, quiet: bool
) -> dict[str, Captured]:
    """All captures, with a bar on a terminal."""
    from flint.tools.change.project.captures import capture_all

    with progress_bar("capturing", quiet=quiet) as bar:
        return capture_all(
            project,
            captures,
            jobs=jobs,
            anew=anew,
            progress=None if bar is None else lambda _, done, total: bar(done, total),
        )


def _state(captured: Captured, lock: Lock | None) -> str:
    """What the lock says of a capture: `new`, `equal` or `changed`."""
    from flint.tools.change.diff.causes import causes

    accepted = None if lock is None else lock.captures.get(captured.name)
    if accepted is None:
        return "new"
    if accepted.estimates.keys() != captured.entry.snapshot.estimates.keys():
        return "changed"  # other clusters
    return "changed" if causes(accepted, captured.entry.snapshot).found else "equal"


def _traces(
    project: Project,
    captures: Mapping[str, Capture],
    captured: Mapping[str, Captured],
    *,
    quiet: bool,
) -> Iterator[tuple[str, str]]:
    """Write the traces that are asked for and are not of this very workload and these options."""
    from flint.tools.change.project.traces import are_written, write

    for name, one in captured.items():
        options = captures[name].traces
        if options is None or are_written(project, one, options):
            continue
        with progress_bar(f"writing {name}", quiet=quiet) as bar:
            write(project, one, options, bar)
        yield name, options.output


def _print(
    captured: Mapping[str, Captured],
    states: Mapping[str, str],
    written: Mapping[str, str],
    *,
    update: bool,
    as_json: bool,
) -> None:
    if as_json:
        entries: dict[str, RanCaptureDocument] = {
            name: {
                "cached": one.was_cached,
                "lock": states[name],
                "accepted": update or states[name] == "new",
                "traces": written.get(name),
                "warnings": list(one.entry.warnings),
                "snapshot": one.entry.snapshot,
            }
            for name, one in captured.items()
        }
        printed: RunDocument = {"schema": "flint.run/1", "captures": entries}
        print_json(printed)
        return
    print_text(_table(captured, states))
    for name, one in captured.items():
        for warning in one.entry.warnings:
            print_note(f"warning: {name}: {warning}")
    for name, directory in written.items():
        print_note(f"wrote   traces of {name}: {directory}")
    changed = [name for name, state in states.items() if state == "changed"]
    if changed and not update:
        print_note(
            f"flint.lock is unchanged: {', '.join(changed)} changed (flint verify says how, "
            "flint run --update accepts it)"
        )


def _table(captured: Mapping[str, Captured], states: Mapping[str, str]) -> str:
    rows = []
    for name, one in captured.items():
        facts = one.entry.snapshot.program
        devices = math.prod(facts.mesh.values()) if facts is not None else 1
        times = [
            f"{format_duration(e.step_time_ns)} on {c}"
            for c, e in one.entry.snapshot.estimates.items()
        ]
        peaks = [format_bytes(e.peak_bytes) for e in one.entry.snapshot.estimates.values()]
        rows.append(
            (
                name,
                format_count(devices),
                ", ".join(times) or "-",
                ", ".join(dict.fromkeys(peaks)) or "-",
                "as before" if one.was_cached else "captured",
                states[name],
            )
        )
    columns = headings("capture | >devices | step time | >memory |  | flint.lock")
    return text_table(columns, rows)
