"""The `xla` partitioner: XLA's own SPMD partitioner, the one that runs before hardware does.

It runs in a fork of the compiler process, whose death becomes an error. XLA numbers devices and
forgets the names of mesh axes; `flint.passes.axes` finds them again.
"""

from __future__ import annotations

import contextlib
from typing import Any

from flint.errors import FlintError
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
from flint.passes.partition.worker import the_worker
from flint.steps.captured import Captured

#: Longest time that one request may take, in seconds.
TIMEOUT_SECONDS = 900.0


def run_xla(
    task: str, options: dict[str, Any], payload: bytes, timeout_seconds: float = TIMEOUT_SECONDS
) -> bytes:
    """Run `task` of `child.py` in a fork of the compiler process and return its result.

    Raises FlintError FL401 if XLA dies or takes longer than `timeout_seconds`, and the task's own
    FlintError (FL303, FL402) if it says why it cannot do it.
    """
    with scratch_folder() as scratch:
        asked = {"forked": True, "scratch": str(scratch), **options}
        return the_worker().request(task, payload, asked, timeout_seconds)[1]


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
