"""What XLA's compilers do first after partitioning: copies go, and equal instructions become one.

Equal collectives stay two: XLA gives each a channel of its own.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from flint.ir.product_types import SETTING
from flint.passes.hlo.module import Computation, HloModule, Instruction, scope_and_phase
from flint.passes.hlo.precision import ALGORITHM
from flint.passes.partition.prepare.positions import KEPT

#: What two equal instructions certainly share: opcode, operands, the result's shape, and the phase.
_Likeness: TypeAlias = tuple[str, tuple[int, ...], bytes, int]
#: Instructions that are more than their result, and those that keep others apart.
_ALONE = frozenset(
    {
        *("parameter", "while", "conditional", "call", "custom-call", "opt-barrier", "rng"),
        *("rng-bit-generator", "rng-get-and-update-state", "infeed", "outfeed", "after-all"),
        *("send", "send-done", "recv", "recv-done", "optimization-barrier", "add-dependency"),
    }
)
#: Fields in which equal instructions may differ.
_OF_ONE = (
    *("id", "name", "metadata", "operand_ids", "channel_id", "called_computation_ids"),
    *("control_predecessor_ids", "frontend_attributes", "sharding"),
)
#: Bits of exponent and mantissa of a type (xla.PrimitiveType): float16, float32, float64, bfloat16.
_PRECISIONS = {10: (5, 10), 11: (8, 23), 12: (11, 52), 16: (8, 7)}
#: Frontend attributes that say what an instruction does: the type that a product is calculated in.
_ASKED = (ALGORITHM, SETTING)


def tidy(module: HloModule, *, in_passes: bool = False) -> None:
    """Drop copies and barriers of ours, and merge equal instructions in each computation of `module`, in place.

    `in_passes` says that its passes (forward, backward) run apart: what is in two of them stays two.
    """
    for computation in module.proto.computations:
        _tidy(computation, module, in_passes)


def _tidy(computation: Computation, module: HloModule, in_passes: bool) -> None:
    same: dict[int, int] = {}
    alone: dict[_Likeness, Instruction] = {}
    kept: dict[tuple[_Likeness, tuple[Any, ...]], Instruction] = {}
    gone: set[int] = set()
    for i in computation.instructions:
        if same:
            i.operand_ids[:] = [same.get(o, o) for o in i.operand_ids]
            i.control_predecessor_ids[:] = [same.get(o, o) for o in i.control_predecessor_ids]
        if _passes_on(i):
            same[i.id] = i.operand_ids[0]
            gone.add(i.id)
            continue
        if i.opcode in _ALONE or i.channel_id > 0:
            continue
        shape = i.shape.SerializeToString(deterministic=True)
        phase = scope_and_phase(i)[1] if in_passes else 0
        like = (i.opcode, tuple(i.operand_ids), shape, int(phase))
        other = alone.setdefault(like, i)
        if other is i:
            continue
        kept.setdefault((like, _says(other, module)), other)
        first = kept.setdefault((like, _says(i, module)), i)
        if first is not i:
            same[i.id] = first.id
            gone.add(i.id)
    if gone:
        computation.root_id = same.get(computation.root_id, computation.root_id)
        left = [i for i in computation.instructions if i.id not in gone]
        del computation.instructions[:]
        computation.instructions.extend(left)


def _passes_on(i: Instruction) -> bool:
    """Whether an instruction only hands on what it reads.

    JAX marks what checkpointing saves by `reduce_precision` to the precision that it has.
    """
    if i.opcode == "reduce-precision":
        kept = _PRECISIONS.get(i.shape.element_type)
        return bool((i.exponent_bits, i.mantissa_bits) == kept)
    return i.opcode == "copy" or (i.opcode == "opt-barrier" and KEPT in i.metadata.op_name)


def _says(i: Instruction, module: HloModule) -> tuple[Any, ...]:
    """All that an instruction does, but for its operands."""
    bare = type(i)()
    bare.CopyFrom(i)
    for name in _OF_ONE:
        bare.ClearField(name)
    asked = sorted((a.key, a.value) for a in i.frontend_attributes.map if a.key in _ASKED)
    called = (_does(computation, module) for computation in module.called(i))
    return (bare.SerializeToString(deterministic=True), *asked, *called)


def _does(computation: Computation, module: HloModule) -> tuple[Any, ...]:
    """What a computation does: its instructions, operands by their numbers, and its root."""
    numbers = {i.id: number for number, i in enumerate(computation.instructions)}
    steps = (
        (tuple(numbers[o] for o in i.operand_ids), _says(i, module))
        for i in computation.instructions
    )
    return (numbers[computation.root_id], *steps)
