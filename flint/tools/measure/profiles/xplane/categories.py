"""What XLA calls the kinds of its operations, as op classes and collectives.

Names of categories are those of HloInstruction::ToCategory and of the TPU compiler's: a kind of
fusion, a few words for groups of opcodes, else the opcode.
"""

from __future__ import annotations

import re

from flint.ir.op_class import Collective, OpClass
from flint.passes.hlo.collectives import COLLECTIVES
from flint.passes.hlo.op_classes import class_of

_OWN = {
    "convolution fusion": OpClass.COMPILED,
    "data formatting": OpClass.MOVE,
    "non-fusion elementwise": OpClass.ARITHMETIC,
    "custom-call": OpClass.CALL,
    "copy-start": OpClass.COPY,
    "copy-done": OpClass.COPY,
}
#: PyTorch's names of collectives, which Comm has.
_COMMS = {
    Collective.ALL_REDUCE: "allreduce",
    Collective.ALL_GATHER: "_allgather_base",
    Collective.REDUCE_SCATTER: "_reduce_scatter_base",
    Collective.ALL_TO_ALL: "all_to_all",
    Collective.PERMUTE: "collective_permute",
    Collective.BROADCAST: "broadcast",
}
_NUMBER = re.compile(r"(\.\d+|\.clone|\.remat\d*)+$")
#: Opcodes that only hold others.
CONTAINERS = frozenset(
    {"while", "conditional", "call", "async-start", "async-done", "async-update"}
)


def class_of_category(category: str) -> OpClass:
    """The class of what has this category: COMPILED for fusions, UNKNOWN if nothing is known."""
    own = _OWN.get(category)
    if own is not None:
        return own
    return OpClass.COMPILED if category.endswith("fusion") else class_of(category)


def stem(name: str) -> str:
    """The name of an instruction without what makes it unique: `fusion.12.remat` -> `fusion`."""
    return _NUMBER.sub("", name.lstrip("%"))


def collective_opcode(*words: str) -> str:
    """The collective that one of the words names (a category, an opcode, an instruction), or ""."""
    for word in words:
        opcode = stem(word).removesuffix("-start").removesuffix("-done").removesuffix(" fusion")
        if opcode in COLLECTIVES:
            return opcode
    return ""


def comm_name(opcode: str) -> str:
    """PyTorch's name of a collective of HLO, "" for what is none."""
    return _COMMS.get(COLLECTIVES.get(opcode.removesuffix("-start"), Collective.NONE), "")
