"""Why a partitioned module communicates: which collectives its partitioner made, and for what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from flint.passes.hlo import shapes
from flint.passes.hlo.collectives import collective_kind
from flint.passes.hlo.module import Computation, HloModule, Instruction

#: What JAX calls the collectives that a program writes itself, in `shard_map`.
_WRITTEN: Final = frozenset(
    (
        *("psum", "psum2", "psum_invariant", "unreduced_psum", "preduced", "pmax", "pmin"),
        *("all_gather", "all_gather_invariant", "all_gather_reduced", "reduce_scatter"),
        *("psum_scatter", "unreduced_reduce_scatter", "ppermute", "pbroadcast", "all_to_all"),
        "ragged_all_to_all",
    )
)
#: Names of these operations in StableHLO: a program without any has no collective of its own.
MARKS: Final = (
    b"all_reduce", b"all_gather", b"all_to_all", b"reduce_scatter", b"collective", b"psum"
)  # fmt: skip
#: Instructions that hand a value on, or show it in another way.
_HANDS_ON: Final = frozenset(
    ["copy", "bitcast", "reshape", "transpose", "convert", "tuple", "get-tuple-element"]
)
_MOST_STEPS: Final = 16


def causes_of(module: HloModule, *, writes_own: bool) -> Mapping[int, str]:
    """A sentence for each collective that the partitioner made, by the number of its instruction.

    `writes_own` says that the program has collectives itself, which have no cause.
    """
    found: dict[int, str] = {}
    for computation in module.proto.computations:
        made = [
            i for i in computation.instructions
            if collective_kind(i.opcode) and not (writes_own and is_written(i.metadata.op_name))
        ]  # fmt: skip
        if made:
            around = _Around(computation)
            found.update((i.id, around.cause(i)) for i in made)
    return found


def is_written(name: str) -> bool:
    """Whether an instruction with this `op_name` is a collective that the program wrote itself."""
    return name.rpartition("/")[2].partition("[")[0].removesuffix("_start") in _WRITTEN


class _Around:
    """What a computation's collectives read, and what reads them."""

    def __init__(self, computation: Computation) -> None:
        self._made = {i.id: i for i in computation.instructions}
        self._readers: dict[int, list[Instruction]] = {}
        for i in computation.instructions:
            for operand in i.operand_ids:
                self._readers.setdefault(operand, []).append(i)

    def cause(self, i: Instruction) -> str:
        kind = i.opcode.removesuffix("-start")
        if kind in ("all-reduce", "reduce-scatter"):
            return f"each device has a part of the sum: {_shown(self._source(i))}"
        reader = self._reader(i)
        for_whom = f"for {_shown(reader)}" if reader is not None else "for the result"
        if kind == "all-gather":
            return f"dimension {', '.join(map(str, i.dimensions))} whole {for_whom}"
        return f"{'parts of other devices' if 'permute' in kind else 'another sharding'} {for_whom}"

    def _source(self, i: Instruction) -> Instruction:
        """What made the value that `i` reads."""
        at = self._made[i.operand_ids[0]]
        for _ in range(_MOST_STEPS):
            if at.opcode not in _HANDS_ON or not at.operand_ids:
                break
            at = self._made[at.operand_ids[0]]
        return at

    def _reader(self, i: Instruction) -> Instruction | None:
        """The first that does more with the value than hand it on; None if it is only returned."""
        return next(self._readings([i]), None)

    def _readings(self, found: Sequence[Instruction]) -> Iterator[Instruction]:
        for _ in range(_MOST_STEPS):
            readers = [r for i in found for r in self._readers.get(i.id, ())]
            yield from (r for r in readers if r.opcode not in _HANDS_ON)
            found = [r for r in readers if r.opcode in _HANDS_ON]


def _shown(i: Instruction) -> str:
    parts = shapes.leaves(i.shape)
    dtype, shape = shapes.first(parts[0]) if parts else ("", ())
    return f"{i.opcode} {dtype}[{','.join(map(str, shape))}]"
