"""The child process in which compiler passes run, seen from the parent.

A compiler abort (a failed CHECK, a segmentation fault) ends the child, never the user's process:
it becomes FlintError FL401, and the next request starts a new child. One worker serves the whole
process; `prestart` lets it import MLIR while the parent still traces the user's function.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from functools import cache
from typing import IO, Any

from flint.errors import FlintError
from flint.io.processes import IDLE_SECONDS, TOTAL_SECONDS, Child, Patience, Watch, how_it_ended

_log = logging.getLogger(__name__)
_HEADER = struct.Struct("<IQ")


class Worker:
    """A child process that answers (task, options, payload) with bytes."""

    def __init__(self) -> None:
        self._child: Child | None = None
        self._errors: IO[bytes] | None = None
        self._lock = threading.Lock()
        self._is_ready = False

    def prestart(self) -> None:
        """Start the child if there is none, without waiting for it."""
        with self._lock:
            self._ensure()

    def request(
        self,
        task: str,
        payload: bytes,
        options: dict[str, Any] | None = None,
        seconds: float | None = None,
    ) -> tuple[dict[str, Any], bytes]:
        """Run `task` in the child; returns (facts about the result, result).

        A child that makes no progress, or has not answered `seconds` after it was ready (by default what
        `flint.io.processes.Patience` allows), is killed. Raises FlintError FL402 when the task says
        why it cannot be done, FL401 when the child dies or is too slow, and RuntimeError with the
        child's traceback for a bug of ours.
        """
        patience = Patience.from_environment()
        limited = patience if seconds is None else replace(patience, total_seconds=seconds)
        started = time.perf_counter()
        with self._lock:
            child = self._ensure()
            process = child.process
            assert process.stdin and process.stdout
            try:
                with child.watched(patience) as watch:
                    if not self._is_ready:
                        read_message(process.stdout)
                        self._is_ready = True
                with child.watched(limited) as watch:
                    write_message(process.stdin, {**(options or {}), "task": task}, payload)
                    header, result = read_message(process.stdout)
            except (EOFError, BrokenPipeError, OSError) as error:
                raise self._died(task, watch) from (watch.cause() if watch.reason else error)
            except BaseException:
                self.stop()  # an interrupt leaves an answer in the pipe that nobody will read
                raise
        seconds = time.perf_counter() - started
        _log.info(
            "%s answered after %.3f s: %d bytes to it, %d back",
            *(task, seconds, len(payload), len(result)),
        )
        if header.get("bug"):
            raise RuntimeError(f"in the process of the compiler:\n{header['bug']}")
        if header.get("error"):
            raise FlintError(
                header.get("code", "FL402"),
                header["error"],
                place=header.get("place"),
                help=header.get("help"),
            )
        return header, result

    def stop(self) -> None:
        """End the child."""
        child, self._child = self._child, None
        if child is not None:
            child.end()
        if self._errors is not None:
            self._errors.close()
            self._errors = None

    def _ensure(self) -> Child:
        if self._child is not None and self._child.process.poll() is None:
            return self._child
        self.stop()
        self._is_ready = False
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the child
        self._child = Child(
            # -P: a numpy.py or random.py in the user's directory is not for the child.
            [sys.executable, "-P", "-m", "flint.passes.partition.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=child_environment(),
        )
        _log.debug("started the compiler process %d", self._child.process.pid)
        return self._child

    def _died(self, task: str, watch: Watch) -> FlintError:
        assert self._child is not None and self._errors is not None
        code = self._child.process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        step = next((ln[6:] for ln in reversed(lines) if ln.startswith("step: ")), task)
        said = next((ln for ln in reversed(lines) if _is_diagnostic(ln)), "")
        self.stop()
        if watch.reason:
            return FlintError(
                "FL401",
                f"the compiler process {watch.reason} in '{step}'",
                help=f"-v shows where it stood; {TOTAL_SECONDS} and {IDLE_SECONDS} allow more time",
            )
        return FlintError(
            "FL401",
            f"the compiler process died in '{step}' ({how_it_ended(code)})",
            place=said.strip()[:400] or None,
            help=why_it_died(code) + ": please report the program",
        )


def why_it_died(code: int, said: str = "") -> str:
    """What most likely ended a process with this exit status that `said` this at last."""
    if "Could not write" in said:
        return (
            "the temporary folder (TMPDIR) is probably full. If not, this is a bug in the compiler"
        )
    if code == -signal.SIGKILL:
        return (
            "memory has probably run out: capture fewer layers, or in a scan, or free some. If not"
        )
    return "this is a bug in the compiler, not in your process"


def child_environment() -> dict[str, str]:
    """The environment of the child: it imports the `flint` of this process, from any directory."""
    import flint

    home = os.path.dirname(os.path.dirname(os.path.abspath(flint.__file__)))
    path = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([home, path] if path else [home])}


def _is_diagnostic(line: str) -> bool:
    return bool(line.strip()) and not line.startswith(("step: ", "Fatal Python", "  File", "Ext"))


@cache
def the_worker() -> Worker:
    """The worker of this process, stopped when the process ends."""
    worker = Worker()
    atexit.register(worker.stop)
    return worker


def write_message(pipe: IO[bytes], header: dict[str, Any], payload: bytes) -> None:
    """Write one framed message: lengths, JSON header, payload."""
    text = json.dumps(header).encode()
    pipe.write(_HEADER.pack(len(text), len(payload)) + text)
    pipe.write(payload)
    pipe.flush()


def read_message(pipe: IO[bytes]) -> tuple[dict[str, Any], bytes]:
    """Read one framed message. Raises EOFError when the other side is gone."""
    lengths = _read_exactly(pipe, _HEADER.size)
    text_length, payload_length = _HEADER.unpack(lengths)
    header = json.loads(_read_exactly(pipe, text_length))
    return header, _read_exactly(pipe, payload_length)


def _read_exactly(pipe: IO[bytes], count: int) -> bytes:
    data = pipe.read(count)
    if data is None or len(data) < count:
        raise EOFError("the other side closed the pipe")
    return data


def announce(step: str) -> None:
    """Say on stderr what is about to run, so that the parent can name it if it dies."""
    print(f"step: {step}", file=sys.stderr, flush=True)
