"""What the memory of a device is used for."""

from __future__ import annotations

from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from flint.backends.cost.memory.liveness import Buffers, donated
from flint.ir.opcodes import RESULT, opcode_mask
from flint.ir.program import Collective, Kind, Phase, Program


class MemoryKind(StrEnum):
    """Why a buffer is there."""

    PARAMETERS = "parameters"  #: weights: arguments that are no other kind
    OPTIMIZER_STATE = "optimizer_state"  #: arguments that only the optimizer reads
    STATE = "state"  #: donated arguments of a step without an optimizer: caches
    INPUTS = "inputs"  #: arguments of integers, and those that training does not change
    GRADIENTS = "gradients"  #: what backward passes leave for the optimizer, or return
    SAVED_ACTIVATIONS = "saved_activations"  #: what a forward pass leaves for the backward pass
    PIPELINE_STASH = "pipeline_stash"  #: saved activations of other microbatches in flight
    GATHERED = "gathered"  #: parameters and activations gathered from other devices
    OUTPUTS = "outputs"  #: results of the step that take the place of no argument
    TEMPORARIES = "temporaries"  #: everything else


def kinds(program: Program, buffers: Buffers) -> NDArray[np.object_]:
    """The `MemoryKind` of each buffer."""
    found = np.full(len(buffers.num_bytes), MemoryKind.TEMPORARIES, dtype=object)
    reads = _Reads(program, buffers)
    first, phase = buffers.first, program.phase
    backward = np.isin(phase[first], (Phase.BACKWARD, Phase.REMAT))
    forward = np.isin(phase[first], (Phase.FORWARD, Phase.UNKNOWN))
    found[reads.returned] = MemoryKind.OUTPUTS
    found[forward & (reads.by[Phase.BACKWARD] | reads.by[Phase.REMAT])] = (
        MemoryKind.SAVED_ACTIVATIONS
    )
    found[backward & (reads.by[Phase.OPTIMIZER] | reads.returned)] = MemoryKind.GRADIENTS
    gathers = program.collective == Collective.ALL_GATHER
    found[np.setdiff1d(buffers.of_row[gathers], np.flatnonzero(reads.returned))] = (
        MemoryKind.GATHERED
    )
    found[gathers[first] & ~reads.returned] = MemoryKind.GATHERED  # those for the next layer too
    for opcode, kind in _OPCODES.items():
        found[opcode_mask(program, frozenset({opcode}))[first]] = kind
    arguments = program.kind[first] == Kind.PARAMETER
    found[arguments] = _arguments(program, first[arguments], reads)
    return found


_OPCODES = {
    "pipeline.stash": MemoryKind.PIPELINE_STASH,
    "pipeline.saved": MemoryKind.SAVED_ACTIVATIONS,
    "pipeline.neighbour": MemoryKind.SAVED_ACTIVATIONS,
    "pipeline.accumulator": MemoryKind.GRADIENTS,
}


class _Reads:
    """In which phases each buffer is read, and whether the step returns it."""

    def __init__(self, program: Program, buffers: Buffers) -> None:
        owner, target = program.dep_owner[buffers.reads], program.deps[buffers.reads]
        buffer, count = buffers.of_row[target], len(buffers.num_bytes)
        uses = buffers.of_row[owner] != buffer
        uses |= program.kind[owner] == Kind.COMPUTE
        results = opcode_mask(program, RESULT)[owner]
        self.by = {}
        for phase in Phase:
            self.by[phase] = np.zeros(count, dtype=np.bool_)
            self.by[phase][buffer[uses & ~results & (program.phase[owner] == phase)]] = True
        self.returned = np.zeros(count, dtype=np.bool_)
        self.returned[buffer[results]] = True
        #: For each row, the phases of its direct readers, as bits.
        self.phases = np.zeros(len(program), dtype=np.int64)
        np.bitwise_or.at(
            self.phases, target[~results], 1 << program.phase[owner[~results]].astype(np.int64)
        )


def _arguments(program: Program, rows: NDArray[np.int64], reads: _Reads) -> list[MemoryKind]:
    """What each argument is. Those with one name before the first bracket are of one kind."""
    trains = bool((program.phase == Phase.OPTIMIZER).any())
    updated = donated(program)
    own = {
        row: _argument(program, row, int(reads.phases[row]), bool(updated[row]), trains)
        for row in rows.tolist()
    }
    weights: dict[str, int] = {}
    for row, kind in own.items():
        if kind is MemoryKind.PARAMETERS:
            weights[_family(program, row)] = 1
    return [
        MemoryKind.PARAMETERS
        if own[row] is MemoryKind.INPUTS
        and _is_float(program, row)
        and _family(program, row) in weights
        else own[row]
        for row in rows.tolist()
    ]


def _argument(
    program: Program, row: int, phases: int, is_donated: bool, trains: bool
) -> MemoryKind:
    updated = is_donated or bool(phases & (1 << Phase.OPTIMIZER))
    if trains and phases == 1 << Phase.OPTIMIZER:
        return MemoryKind.OPTIMIZER_STATE
    if not _is_float(program, row) and not is_donated:
        return MemoryKind.INPUTS
    if trains:
        return MemoryKind.PARAMETERS if updated else MemoryKind.INPUTS
    return MemoryKind.STATE if is_donated else MemoryKind.PARAMETERS


def _is_float(program: Program, row: int) -> bool:
    dtype = program.dtypes[program.dtype[row]]  # "" for what has none
    return "float" in dtype or dtype.startswith("f")


def _family(program: Program, row: int) -> str:
    name: str = program.strings[program.name[row]]
    return name.split("[")[0].split(".")[0]
