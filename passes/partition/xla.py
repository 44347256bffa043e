"""The `xla` partitioner: XLA's own SPMD partitioner, the one that runs before hardware does.

It runs in a child process for each request, whose death becomes an error. XLA numbers devices and
forgets the names of mesh axes; `flint.passes.axes` finds them again.
"""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
from dataclasses import replace
from typing import Any

from flint.errors import FlintError
from flint.io.processes import Child, Patience, how_it_ended, last_words
from flint.io.scratch import scratch_folder
from flint.ir.program import Program
from flint.passes.hlo.arguments import argument_shardings
from flint.passes.hlo.module import decode_module
from flint.passes.hlo.tidy import tidy
from flint.passes.hlo.walk import module_to_program
from flint.passes.mlir import make_context, module_text
from flint.passes.partition import Partitioned
from flint.passes.partition.prepare.sizes import refuse_huge_tensors
from flint.passes.partition.replicated import never_split, replicated_work
from flint.passes.partition.worker import child_environment, read_message, write_message
from flint.steps.captured import Captured

#: Longest time that one request may take, in seconds.
TIMEOUT_SECONDS = 900.0


def run_xla(
    task: str, options: dict[str, Any], payload: bytes, timeout_seconds: float = TIMEOUT_SECONDS
) -> bytes:
    """Run `task` of `xla_child` and return its result.

    Raises FlintError FL401 if the child dies or takes longer than `timeout_seconds`, and the
    child's own FlintError (FL303, FL402) if it says why it cannot do it.
    """
    command = [sys.executable, "-P", "-m", "flint.passes.partition.xla_child"]
    with scratch_folder() as scratch:
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
    return FlintError(
        "FL401",
        f"XLA died in '{task}' ({how_it_ended(done.returncode)})",
        place=last_words(done.stderr),
        help="this is a bug in the compiler, not in your process; use --partitioner shardy, or "
        "dump the program with --xla_dump_to and capture the dump",
    )


def partitioned(captured: Captured, timeout_seconds: float = TIMEOUT_SECONDS) -> Partitioned:
    """`partition_xla`, and what is said of axes that no sharding of the program names."""
    program = partition_xla(captured, timeout_seconds)
    if captured.is_gspmd:
        return Partitioned(program)  # its shardings name no axes
    splits = never_split(program, module_text(captured.module))
    return Partitioned(program, replicated_work(program, splits))


def partition_xla(captured: Captured, timeout_seconds: float = TIMEOUT_SECONDS) -> Program:
    """Partition `captured` with XLA, stopped right after its SPMD partitioner.

    Raises FlintError FL401 if XLA dies or takes longer than `timeout_seconds`, FL402 if it refuses
    the module, FL403 for a loop whose trip count is not known, FL407 for tensors of 2^63 elements.
    """
    options = {"num_devices": captured.mesh.size, "shardy": not captured.is_gspmd}
    try:
        data = run_xla("partition", options, captured.module, timeout_seconds)
    except FlintError:
        _refuse_huge_tensors(captured.module)  # XLA aborts there
        raise
    module = decode_module(data, captured.source)
    tidy(module)
    shardings = [] if captured.is_gspmd else argument_shardings(captured)
    return module_to_program(module, captured.mesh, captured.trip_counts, shardings)


def _refuse_huge_tensors(bytecode: bytes) -> None:
    from jaxlib.mlir import ir

    with make_context(), contextlib.suppress(ir.MLIRError):  # no module: XLA said so
        refuse_huge_tensors(ir.Module.parse(bytecode))
