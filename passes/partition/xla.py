"""The `xla` partitioner: XLA's own SPMD partitioner, the one that runs before hardware does.

It runs in a fork of the compiler process, whose death becomes an error. XLA numbers devices and
forgets the names of mesh axes; `flint.passes.axes` finds them again.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from flint.errors import FlintError
from flint.io.scratch import scratch_folder
from flint.ir.arrays import Float64s
from flint.ir.program import Kind, Phase, Program
from flint.passes.hlo.arguments import given_arguments
from flint.passes.hlo.causes import MARKS, causes_of
from flint.passes.hlo.facts import CapturedFacts
from flint.passes.hlo.module import HloModule, decode_module
from flint.passes.hlo.program_order import restore
from flint.passes.hlo.splits import splits_of
from flint.passes.hlo.tidy import tidy
from flint.passes.hlo.walk import module_to_program, module_with_results
from flint.passes.mlir import make_context
from flint.passes.partition import Partitioned
from flint.passes.partition.prepare.sizes import refuse_huge_tensors
from flint.passes.partition.replicated import replicated_work
from flint.passes.partition.worker import the_worker
from flint.passes.rewrites.host_memory import with_host_memory
from flint.passes.rewrites.phases import with_phases
from flint.passes.rewrites.reduce_scatter import FoldAllReduces, FormReduceScatter
from flint.passes.work.totals import matmul_flops
from flint.steps.captured import Captured, Positions

#: What lists of devices take: 3 CPU s and 0.5 GB for 3 collectives, 41 s and 4.3 GB for 80.
MOST_DEVICES = 1 << 20
#: A `model_share` above this is 1.
_ALL = 0.995


def run_xla(task: str, options: dict[str, Any], payload: bytes) -> bytes:
    """Run `task` of `child.py` in a fork of the compiler process and return its result.

    Raises FlintError FL401 if XLA dies or takes too long (`flint.io.processes.Patience`), and the task's own
    FlintError (FL303, FL402) if it says why it cannot do it.
    """
    return _asked(task, options, payload)[1]


def _asked(task: str, options: dict[str, Any], payload: bytes) -> tuple[dict[str, Any], bytes]:
    with scratch_folder() as scratch:
        asked = {"forked": True, "scratch": str(scratch), **options}
        return the_worker().request(task, payload, asked)


def partitioned(captured: Captured) -> Partitioned:
    """`partition_xla` with the reduce-scatters that all of XLA's compilers form, and what is said of axes over
    which most of the work is not split.
    """
    both = divided(captured)
    program = FormReduceScatter().apply(FoldAllReduces().apply(_program(captured, both)))
    return Partitioned(program, *_repeated(captured, both.whole, program))


def partition_xla(captured: Captured) -> Program:
    """Partition `captured` with XLA, stopped right after its SPMD partitioner.

    Raises FlintError FL401 if XLA dies or takes too long, FL402 if it refuses
    the module, FL258 for more than MOST_DEVICES, FL403 for a loop whose trip count is not known, FL407 for tensors of 2^63 elements.
    """
    return _program(captured, divided(captured))


def position_with_results(
    captured: Captured, axis: str, of: Positions
) -> tuple[Program, tuple[int, ...]]:
    """The program of a device of each position of `axis`, where others run other programs, and a row
    for each of its results. Raises as `partition_xla`, and FlintError FL240 for a program over `axis`.
    """
    from flint.passes.partition.one_position import on_all_positions, on_one_position

    alone = on_one_position(captured, axis, of, in_passes=True)
    both = divided(alone, in_passes=True)
    facts = _facts(captured, both)
    found = module_with_results(both.part, alone.mesh, captured.trip_counts, facts, apart=False)
    program = with_host_memory(with_phases(found[0]))
    return on_all_positions(program, captured.mesh, axis), found[1]


@dataclass(frozen=True)
class Divided:
    """A module before and after XLA's partitioner."""

    whole: HloModule
    part: HloModule


def _program(captured: Captured, both: Divided) -> Program:
    facts = _facts(captured, both)
    program = module_to_program(both.part, captured.mesh, captured.trip_counts, facts)
    return with_host_memory(program)


def _facts(captured: Captured, both: Divided) -> CapturedFacts:
    arguments = given_arguments(captured)
    return CapturedFacts(
        [argument.sharding for argument in arguments],
        {number for number, argument in enumerate(arguments) if argument.on_host},
        {number for number, argument in enumerate(arguments) if argument.donated},
        causes_of(both.part, writes_own=any(mark in captured.module for mark in MARKS)),
        captured=True,
    )


def _repeated(captured: Captured, whole: HloModule, part: Program) -> tuple[str, float]:
    """What is said of axes that do not split work, and the `model_share` of `Partitioned`: nothing of a program
    that is too large for one device.

    Rows of the program before it is divided say by their causes which instructions they are.
    """
    splits = splits_of(whole, captured.mesh)
    known = CapturedFacts(causes={number: str(number) for number in splits}, captured=True)
    try:
        program = module_to_program(whole, captured.mesh, captured.trip_counts, known)
    except FlintError as error:
        if error.code != "FL407":
            raise
        return "", 1.0
    rows = np.flatnonzero((program.kind == Kind.COMPUTE) & (program.flops > 0)).tolist()
    found = {row: splits[int(program.strings[program.cause[row]])] for row in rows}
    ways = [split.ways for split in found.values()]
    axes = {row: split.axes for row, split in found.items()}
    needed, done = (_product_flops(p) for p in (program, part))
    share = float(needed[rows] @ np.array(ways)) / max(float(done.sum()) * captured.mesh.size, 1.0)
    told = replicated_work(program, axes, ways)
    return told, round(share, 4) if 0 < share < _ALL else 1.0


def _product_flops(program: Program) -> Float64s:
    """For each row those of a step, without layers that are recomputed."""
    flops = matmul_flops(program) * program.trips
    return np.where(program.phase == Phase.REMAT, 0.0, flops)


def divided(captured: Captured, *, in_passes: bool = False) -> Divided:
    """Both modules of a program, with `in_passes` as of `tidy`; raises as `partition_xla`."""
    if captured.mesh.size > MOST_DEVICES:
        raise FlintError(
            "FL258",
            f"XLA's partitioner lists all devices in each collective: {captured.mesh} has more than {MOST_DEVICES:,}",
            help="capture a smaller mesh",
        )
    options = {"num_devices": captured.mesh.size, "shardy": not captured.is_gspmd}
    try:
        facts, data = _asked("partition", options, captured.module)
    except FlintError:
        _refuse_huge_tensors(captured.module)  # XLA aborts there
        raise
    first = int(facts["first_bytes"])
    whole, part = (decode_module(d, captured.source) for d in (data[:first], data[first:]))
    restore(whole)
    restore(part)
    tidy(part, in_passes=in_passes)
    return Divided(whole, part)


def _refuse_huge_tensors(bytecode: bytes) -> None:
    from jaxlib.mlir import ir

    with make_context(), contextlib.suppress(ir.MLIRError):  # no module: XLA said so
        refuse_huge_tensors(ir.Module.parse(bytecode))
