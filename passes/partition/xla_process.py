"""Runs one request in a child process with XLA, and turns its death into an error."""

from __future__ import annotations

import io
import re
import signal
import subprocess
import sys
from dataclasses import replace
from typing import Any

from flint.errors import FlintError
from flint.io.processes import Child, Patience, family
from flint.passes.partition.worker import child_environment, read_message, write_message

#: Longest time that one request may take, in seconds.
TIMEOUT_SECONDS = 900.0
_LOG_PREFIX = re.compile(r"^[IWEF]\d{4} [\d:.]+\s+\d+ ")


def run_xla(
    task: str, options: dict[str, Any], payload: bytes, timeout_seconds: float = TIMEOUT_SECONDS
) -> bytes:
    """Run `task` of `xla_child` and return its result.

    Raises FlintError FL401 if the child dies or takes longer than `timeout_seconds`, and the
    child's own FlintError (FL303, FL402) if it says why it cannot do it.
    """
    command = [sys.executable, "-P", "-m", "flint.passes.partition.xla_child"]
    with family().scratch() as scratch:
        request = io.BytesIO()
        write_message(request, {"task": task, "scratch": str(scratch), **options}, payload)
        done = _run(command, request.getvalue(), task, timeout_seconds)
    try:
        header, result = read_message(io.BytesIO(done.stdout))
    except EOFError as error:
        raise _died(task, done) from error
    if header.get("error"):
        raise FlintError(header["code"], header["error"], help=header.get("help"))
    return result


def _run(
    command: list[str], request: bytes, task: str, seconds: float
) -> subprocess.CompletedProcess[bytes]:
    pipe = subprocess.PIPE
    child = Child(command, stdin=pipe, stdout=pipe, stderr=pipe, env=child_environment())
    patience = replace(Patience.from_environment(), total_seconds=seconds)
    try:
        with child.watched(patience) as watch:
            out, err = child.process.communicate(request)
    finally:
        code = child.end()
    if watch.reason:
        raise FlintError(
            "FL401",
            f"XLA {watch.reason} in '{task}'",
            help="scan over layers instead of unrolling them, or use --partitioner shardy",
        ) from watch.cause()
    return subprocess.CompletedProcess(command, code, out, err)


def _died(task: str, done: subprocess.CompletedProcess[bytes]) -> FlintError:
    code = done.returncode
    how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
    return FlintError(
        "FL401",
        f"XLA died in '{task}' ({how})",
        place=_last_words(done.stderr.decode(errors="replace")),
        help="this is a bug in the compiler, not in your process; use --partitioner shardy, or "
        "dump the program with --xla_dump_to and capture the dump",
    )


def _last_words(stderr: str) -> str:
    """The fatal line of a log if there is one, else its last line, without stack frames."""
    lines = [ln.strip() for ln in stderr.splitlines() if ln.strip()]
    fatal = [ln for ln in lines if re.match(r"F\d{4} ", ln)]
    said = [ln for ln in lines if not ln.startswith(("@", "***", "File", "Extension"))]
    last = (fatal or said or ["it said nothing"])[-1]
    return _LOG_PREFIX.sub("", last)[:400]
