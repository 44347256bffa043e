"""The `xla` partitioner: XLA's own SPMD partitioner, the one that runs before hardware does.

XLA numbers devices and forgets the names of mesh axes; `flint.passes.axes` finds them again.
"""

from __future__ import annotations

from flint.ir.program import Program
from flint.passes.hlo.module import decode_module
from flint.passes.hlo.walk import module_to_program
from flint.passes.mlir import module_text
from flint.passes.partition import Partitioned
from flint.passes.partition.replicated import never_split, replicated_work
from flint.passes.partition.xla_process import TIMEOUT_SECONDS, run_xla
from flint.steps.captured import Captured


def partitioned(captured: Captured) -> Partitioned:
    """`partition_xla`, and what is said of axes that no sharding of the program names."""
    program = partition_xla(captured)
    splits = never_split(program, module_text(captured.module))
    return Partitioned(program, replicated_work(program, splits))


def partition_xla(captured: Captured, timeout_seconds: float = TIMEOUT_SECONDS) -> Program:
    """Partition `captured` with XLA, stopped right after its SPMD partitioner.

    Raises FlintError FL401 if XLA dies or takes longer than `timeout_seconds`, FL402 if it refuses
    the module, FL403 for a loop whose trip count is not known.
    """
    options = {"num_devices": captured.mesh.size}
    data = run_xla("partition", options, captured.module, timeout_seconds)
    module = decode_module(data, captured.source)
    return module_to_program(module, captured.mesh, captured.trip_counts)
