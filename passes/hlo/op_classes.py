"""What the instructions of HLO are, as classes: those of StableHLO by its names, and HLO's own."""

from __future__ import annotations

from flint.ir.op_class import OpClass
from flint.passes.extract.op_classes import STABLEHLO

_OWN: dict[OpClass, str] = {
    OpClass.RANDOM: "rng-get-and-update-state",
    OpClass.FUNCTION: "erf stochastic-convert",
    OpClass.RESHAPE: "bitcast",
    OpClass.COPY: "copy",
    OpClass.SCATTER: "scatter-add",
    OpClass.MATMUL: "ragged-dot scaled-dot",
    OpClass.TOP_K: "topk top-k",
    OpClass.EFFECT: "send-done recv-done",
    OpClass.COMPILED: "fusion",
}
#: Opcodes, as HLO spells them, to classes.
CLASSES: dict[str, OpClass] = {
    name.replace("_", "-"): c
    for table in (STABLEHLO, _OWN)
    for c, names in table.items()
    for name in names.split()
}


def class_of(opcode: str) -> OpClass:
    """The class of an instruction; UNKNOWN if it has none."""
    return CLASSES.get(opcode, OpClass.UNKNOWN)
