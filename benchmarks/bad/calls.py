"""Readers that no command runs alone, as commands of the generator: they print what they believe.

A study is read while a model is explored, a lock while captures are made anew: both cost seconds.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any


def study(path: str) -> Any:
    """The ranked answers of a study file."""
    from flint.tools.explore.api import Answer

    found = Answer.load(path)
    return {
        "results": [r.to_json() for r in found.results],
        "best": found.best and asdict(found.best),
    }


def resumed(path: str) -> Any:
    """What an exploration takes from the file that it goes on with."""
    from flint.tools.explore.study.run import open_study
    from tests.explore_points import space_of

    with open_study(Path(path), space_of(Path("/nowhere"), range(1, 3))) as file:
        return {"found": [r.to_json() for r in file.found().values()], "notes": list(file.notes)}


def lock(path: str) -> Any:
    """The snapshots of a lock file."""
    from flint.tools.change.project.lock import load_lock
    from flint.tools.change.project.records import snapshot_record

    found = load_lock(Path(path))
    if found is None:
        return {}  # there is none: `flint verify` says so
    return {name: snapshot_record(s) for name, s in found.captures.items()}


def project(path: str) -> Any:
    """The captures of a project file."""
    from flint.tools.change.project.config import load_project

    found = load_project(Path(path))
    return {name: c.model_dump(mode="json") for name, c in found.captures.items()}


def simulator(path: str) -> Any:
    """What is heard of a simulator's output."""
    from flint.tools.simulators.astra_sim import Listener
    from flint.tools.simulators.process import Lines

    heard = Listener(4, None)
    lines = Lines(heard)
    lines.feed(Path(path).read_bytes())
    lines.close()
    return {"ends": [asdict(e) for e in heard.ends().values()], "missing": heard.missing}


CALLS: dict[str, Callable[[str], Any]] = {
    f"@{function.__name__}": function for function in (study, resumed, lock, project, simulator)
}


def call(name: str, path: str) -> None:
    """Run one as a command: its document on stdout, errors as commands have them."""
    import typer

    from flint.cli.exits import guarded

    try:
        guarded(lambda: print(json.dumps(CALLS[name](path), default=str)))()
    except typer.Exit as error:
        raise SystemExit(error.exit_code) from None
