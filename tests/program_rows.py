"""A builder that gives rows their classes by their names, as readers do."""

from __future__ import annotations

import re
from typing import Any

from flint.frontends.torch_world.program.op_classes import class_of as aten_class
from flint.ir.builder import ProgramBuilder as _ProgramBuilder
from flint.ir.op_class import OpClass
from flint.ir.program import CAUSAL, PERHAPS_A_WINDOW, Collective, Flag, Kind
from flint.passes.fusion.merging import MERGED_NAMES
from flint.passes.hlo.op_classes import CLASSES as HLO_CLASSES
from flint.passes.work.host_copies import OPCODES
from flint.passes.work.work import Work

_BY_NAME = {
    **{f"stablehlo.{name.replace('-', '_')}": op for name, op in HLO_CLASSES.items()},
    "stablehlo.return": OpClass.RESULT,
    "stablehlo.broadcast_in_dim": OpClass.BROADCAST,
    "stablehlo.dot_general": OpClass.MATMUL,
    "chlo.erf": OpClass.FUNCTION,
    "chlo.ragged_dot": OpClass.MATMUL,
    "func.return": OpClass.RESULT,
    "sdy.all_slice": OpClass.ALL_SLICE,
    **{f"hlo.{name}": op for name, op in HLO_CLASSES.items()},
    **{name: op for op, name in MERGED_NAMES.items()},
    **{name: op for op, name in OPCODES.items()},
    "flint.result": OpClass.RESULT,
    "hlo.ROOT": OpClass.RESULT,
    "case.join": OpClass.JOIN,
    "host.argument": OpClass.HOST_VALUE,
    "pipeline.turn": OpClass.TURN,
    "pipeline.saved": OpClass.SAVED,
    "pipeline.stash": OpClass.STASH,
    "pipeline.accumulator": OpClass.ACCUMULATOR,
    "pipeline.neighbour": OpClass.NEIGHBOUR,
}
_REDUCING = (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER)


def op_class(opcode: str, kind: Kind, collective: Collective) -> OpClass | None:
    """The class of a row with this opcode; None for that which the builder gives."""
    if kind is Kind.COLLECTIVE and collective in _REDUCING:
        return OpClass.MAXIMUM if "[" in opcode else OpClass.ADD
    if opcode.startswith(("aten.", "fsdp.")):
        return aten_class(opcode.partition("[")[0])
    name = opcode.partition("[")[0]
    if name.startswith("custom_call."):
        return _called(name)
    return _BY_NAME.get(name)


def _called(name: str) -> OpClass:
    """The class of what is called by name."""
    if "attention" in name or "fmha" in name:
        return OpClass.ATTENTION_BACKWARD if "ackward" in name else OpClass.ATTENTION
    return OpClass.DECLARED if name.startswith("custom_call.pallas.") else OpClass.CALL


def mask_of(opcode: str) -> int:
    """The mask that an opcode shows at its end."""
    window = re.search(r"\[window=(\d+)\]", opcode)
    if window:
        return int(window[1])
    return PERHAPS_A_WINDOW if "[window?]" in opcode else CAUSAL if "[causal]" in opcode else 0


class ProgramBuilder(_ProgramBuilder):
    """A `ProgramBuilder` whose rows have the classes and flags that readers give them."""

    def add(self, opcode: str, kind: Kind = Kind.COMPUTE, **columns: Any) -> int:  # type: ignore[override]
        """As `ProgramBuilder.add`, with `op` from the opcode unless it is given."""
        collective = columns.get("collective", Collective.NONE)
        columns.setdefault("mask", mask_of(opcode))
        flags = Flag(int(columns.get("flags", 0)))
        op = op_class(opcode, kind, collective)
        if op is OpClass.UNKNOWN and opcode.startswith("aten."):
            op = Work(unpriced=Flag.UNPRICED in flags).class_or(op)
        columns.setdefault("op", op)
        if opcode.startswith("aten."):
            flags |= Flag.LAUNCHED
        if opcode.startswith("sdy.") and kind is Kind.COLLECTIVE:
            flags |= Flag.PARTITIONED
        return super().add(opcode, kind, **{**columns, "flags": flags})
