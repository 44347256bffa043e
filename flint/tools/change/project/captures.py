"""Captures of a project: from the cache, else each in a process of its own, several at a time."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from flint.errors import FlintError
from flint.io.inputs import RECORD, ROOT, recorded
from flint.io.processes import Child, Patience, family, processors
from flint.io.scratch import scratch_folder
from flint.log import stage
from flint.text import plural
from flint.tools.change.project.cache import Cache, Entry, Made
from flint.tools.change.project.config import Capture, Project
from flint.tools.change.project.records import snapshot_from

_log = logging.getLogger(__name__)
#: Told when a capture is done: its name, how many are, and of how many.
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Captured:
    """A capture that is there, made now or found in the cache."""

    name: str
    model: str
    entry: Entry
    was_cached: bool


def capture_all(
    project: Project,
    captures: Mapping[str, Capture],
    *,
    jobs: int = 0,
    anew: bool = False,
    progress: Progress | None = None,
) -> dict[str, Captured]:
    """Capture what is not in the cache, `jobs` at a time (0: one for each processor).

    With `anew` the cache is not asked. Raises the first FlintError in the order of the captures,
    after all have ended, with the name of its capture.
    """
    cache = Cache(project.root)
    found = {n: None if anew else cache.find(c) for n, c in captures.items()}
    done = {
        n: Captured(n, captures[n].model, entry, True)
        for n, entry in found.items()
        if entry is not None
    }
    for name in done:
        _log.info("'%s' is reused: nothing that it was made from has changed", name)
    missing = [n for n in captures if n not in done]
    errors: dict[str, FlintError] = {}
    workers = max(1, min(jobs or processors(), len(missing)))
    _log.debug("%d captures to make, %d at a time", len(missing), workers)
    with _pool(workers) as pool:
        running: dict[Future[Entry], str] = {
            pool.submit(_capture, n, project.root, cache, captures[n]): n for n in missing
        }
        for number, future in enumerate(as_completed(running), 1):
            name = running[future]
            try:
                done[name] = Captured(name, captures[name].model, future.result(), False)
            except FlintError as error:
                errors[name] = error
            if progress is not None:
                progress(name, number, len(missing))
    for name in captures:
        if name in errors:
            raise _named(errors[name], name, len(errors))
    return {n: done[n] for n in captures}


@contextlib.contextmanager
def _pool(workers: int) -> Iterator[ThreadPoolExecutor]:
    """Threads that wait for children. If this one is interrupted, the children end at once."""
    with ThreadPoolExecutor(workers) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            family().end()
            raise


def _named(error: FlintError, name: str, count: int) -> FlintError:
    more = f" (and {plural(count - 1, 'other capture')} failed)" if count > 1 else ""
    named = FlintError(
        error.code, f"capture '{name}': {error.message}{more}", place=error.place, help=error.help
    )
    named.__cause__ = error.__cause__
    return named


def _capture(name: str, root: Path, cache: Cache, capture: Capture) -> Entry:
    """Run the worker, and keep what it found."""
    with stage(f"capture of '{name}'"):
        made = capture_once(root, capture)
    return cache.store(capture, made)


class InWorker(Exception):
    """Where in the model's code an error came from, as the worker saw it."""


def capture_once(root: Path, capture: Capture, paths: Sequence[str] = ()) -> Made:
    """Capture in a process that runs in `root`, with `paths` before all others for imports.

    Raises the FlintError that the capture raised.
    """
    from flint.tools.change.project.worker import RESULT, WORKLOAD

    with scratch_folder() as folder:
        reads, job = folder / "reads", folder / "job.json"
        job.write_text(capture.model_dump_json())
        variables = {RECORD: str(reads), ROOT: str(_repository(root)), **_environment(paths)}
        status, log = _run(root, [str(job), str(folder)], variables, folder)
        try:
            result = json.loads((folder / RESULT).read_text())
        except (OSError, ValueError) as error:
            raise _no_result(status, log) from error
        if "error" in result:
            code, message, place, help_, trace = result["error"]
            raise FlintError(code, message, place=place, help=help_) from InWorker(trace)
        return Made(
            snapshot_from(result["snapshot"]),
            (folder / WORKLOAD).read_bytes(),
            recorded(reads),
            tuple(map(str, result["warnings"])),
            {str(name): str(version) for name, version in result["made_with"].items()},
        )


def _repository(root: Path) -> Path:
    """The git repository around a folder, else the folder itself."""
    return next((p for p in (root, *root.parents) if (p / ".git").exists()), root)


def _no_result(status: int, log: str) -> Exception:
    if status < 0:
        name = signal.Signals(-status).name
        hint = (
            ", for example because the machine ran out of memory"
            if status == -signal.SIGKILL
            else ""
        )
        return FlintError(
            "FL203", f"the capture was ended by {name}{hint}", help="use fewer --jobs"
        )
    return RuntimeError(f"a capture ended with status {status} and no result\n{log}")


def _run(
    root: Path, arguments: list[str], variables: dict[str, str], folder: Path
) -> tuple[int, str]:
    """Run the worker to its end: its exit status, and what it printed, for an error of ours."""
    patience, log = Patience.from_environment(), folder / "log"
    command = [sys.executable, "-P", "-m", "flint.tools.change.project.worker", *arguments]
    with log.open("wb") as file:
        child = Child(
            command,
            cwd=root,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env={**os.environ, **variables},
        )
        try:
            with child.watched(patience) as watch:
                status = child.process.wait()
        finally:
            child.end()
    if watch.reason:
        raise FlintError("FL203", f"the capture {watch.reason}") from watch.cause()
    return status, log.read_text(errors="replace")[-20_000:]


def _environment(paths: Sequence[str]) -> dict[str, str]:
    """Flint is found where this process found it; modules of a model first in `paths`."""
    import flint

    here = str(Path(flint.__file__).resolve().parent.parent)
    set_ = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    return {"PYTHONPATH": os.pathsep.join(dict.fromkeys((*paths, here, *set_)))}
