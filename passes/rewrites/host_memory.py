"""Values in the memory of the host: what a program places there, and what that means for its rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from flint.ir.columns import Mask, edges, is_any, rewired, with_value
from flint.ir.op_class import GENERATED, LAYOUT, ON_HOST, OpClass
from flint.ir.program import Flag, Kind, Program
from flint.passes.mlir import target_of
from flint.passes.work.host_copies import CALLBACK, LOAD, PLACEMENTS, STORE, STREAMS, VIEW

COPIES = frozenset({OpClass.TO_HOST, OpClass.FROM_HOST})
#: Rows that only show a value, or a part of it, in another way.
_SHOWS = LAYOUT | {OpClass.DYNAMIC_SLICE, OpClass.CONCATENATE, OpClass.PAD}
_CHANGED = (
    "kind", "flags", "alias", "operand_bytes", "result_bytes", "flops", "stream", "opcode", "op"
)  # fmt: skip
_FILLS = GENERATED | {OpClass.BROADCAST}


def placement(op: Any) -> OpClass | None:
    """What a call does that moves a value to the host or to the device; None of anything else."""
    target = target_of(op) if op.name == "stablehlo.custom_call" else ""
    if target in (STORE, LOAD):
        return OpClass.TO_HOST if target == STORE else OpClass.FROM_HOST
    if target not in PLACEMENTS:
        return None
    if target == "annotate_device_placement":
        return OpClass.TO_HOST if "host" in _said(op.attributes) else OpClass.FROM_HOST
    return OpClass.TO_HOST if target == "MoveToHost" else OpClass.FROM_HOST


def _said(attributes: Any) -> str:
    """The kind of memory that `annotate_device_placement` names, "device" if none."""
    key, inner = "mhlo.frontend_attributes", "_xla_buffer_placement"
    if key not in attributes or inner not in attributes[key]:
        return "device"
    return str(attributes[key][inner].value)


def with_host_memory(program: Program) -> Program:
    """The program with rows for what it keeps on the host.

    Arguments there are `host.argument`. A copy is `host.store` or `host.load`, on a stream of its
    own for each direction. Slices, updates and changes of layout of what is on the host are views
    (`host.view`): the copy writes or reads only the part that it moves. A stack that a loop fills
    with stored values is on the host from the beginning; nothing fills it first. A copy of what is
    where it should be is a view. A call on the host (`host.callback`) is a value there. One that is only written into a stack has no result of its own.
    """
    if not is_any(program, COPIES | ON_HOST).any():
        return program
    return _Placed(program).program()


class _Placed:
    def __init__(self, program: Program) -> None:
        self.before = program
        self.ops = [OpClass(o) for o in program.op.tolist()]
        self.carried = {row for region in program.regions for row, _ in region.carries}
        self.yields = [pair for region in program.regions for pair in region.carries]
        self.host = [op in ON_HOST for op in self.ops]
        #: For each row on the host what it shows, or -1.
        self.shows = [-1] * len(program)
        #: Carried values that are on the host from the beginning of their loop.
        self.stacks: set[int] = set()

    def program(self) -> Program:
        while self._spread():
            pass
        program = self.before
        columns = {name: getattr(program, name).copy() for name in _CHANGED}
        alone = self._stands_alone()
        streams, opcodes = program.streams, program.opcodes
        for row, op in enumerate(self.ops):
            if op in COPIES and not self._is_there(row):
                streams, columns["stream"][row] = with_value(streams, STREAMS[op])
                columns["flags"][row] &= ~np.uint16(Flag.UNPRICED)
                columns["result_bytes"][row] *= bool(alone[row])
            elif row in self.stacks or self._becomes_view(row):
                if opcodes[columns["opcode"][row]] != CALLBACK:
                    opcodes, columns["opcode"][row] = with_value(opcodes, VIEW)
                columns["op"][row] = OpClass.HOST_VALUE
                columns["kind"][row] = Kind.VALUE
                columns["alias"][row] = self.shows[row]
                columns["flags"][row] = Flag.VIEW if self.shows[row] >= 0 else 0
                columns["operand_bytes"][row] = columns["flops"][row] = 0
        found = replace(program.with_rows(**columns), streams=streams, opcodes=opcodes)
        owner, target = edges(program)
        kept = ~np.isin(owner, list(self.stacks))
        return rewired(found, (owner[kept], target[kept]))

    def _stands_alone(self) -> Mask:
        """For each row whether more is done with its value than to write it into a stack."""
        program = self.before
        found = np.zeros(len(program), dtype=np.bool_)
        found[[produced for row, produced in self.yields if row != produced]] = True
        for row in range(len(program) - 1, -1, -1):
            shows = program.kind[row] == Kind.VALUE and self.ops[row] != OpClass.RESULT
            writes = self.ops[row] == OpClass.UPDATE_SLICE and self.host[row]
            if not writes and (found[row] or not shows):
                found[program.dependencies(row)] = True
        return found

    def _becomes_view(self, row: int) -> bool:
        """Whether a row that computes moves nothing: it is on the host, or a copy of what is there
        already."""
        if self.ops[row] in COPIES:
            return self._is_there(row)
        return self.host[row] and self.before.kind[row] == Kind.COMPUTE

    def _is_there(self, row: int) -> bool:
        """Whether a copy finds its operand where it should bring it."""
        read = self._main(row)
        found = read >= 0 and self.host[read] == (self.ops[row] == OpClass.TO_HOST)
        if found:
            self.shows[row] = read
        return found

    def _spread(self) -> bool:
        """One pass over the rows; whether more of them are on the host now."""
        before = sum(self.host)
        for row in range(len(self.host)):
            if not self.host[row]:
                self.host[row] = self._follows(row)
        for row, produced in self.yields:
            self.host[row] = self.host[row] or self.host[produced]
        self.stacks = {row for row in self.carried if self.host[row] and self._is_filled(row)}
        return sum(self.host) > before

    def _follows(self, row: int) -> bool:
        """Whether a row shows or updates what is on the host."""
        program, op = self.before, self.ops[row]
        read = self._main(row)
        if op == OpClass.UPDATE_SLICE:
            written = [d for d in program.dependencies(row).tolist() if self.host[d]]
            target = int(program.alias[row])
            if not written:
                return False
            self.shows[row] = target
            return True
        shows = op in _SHOWS or program.kind[row] == Kind.VALUE
        if not shows or read < 0 or not self.host[read] or op == OpClass.RESULT:
            return False
        self.shows[row] = read
        return True

    def _is_filled(self, row: int) -> bool:
        """Whether what a loop carries begins as a fill, which the host needs not."""
        initial = self._main(row)
        return initial >= 0 and not self.host[initial] and self.ops[initial] in _FILLS

    def _main(self, row: int) -> int:
        """The largest array that a row reads, or -1."""
        if self.before.alias[row] >= 0:
            return int(self.before.alias[row])
        read = self.before.dependencies(row).tolist()
        return max(read, key=lambda d: int(self.before.result_bytes[d]), default=-1)
