"""Results of collectives: a dimension that grows, shrinks, or both, by the size of the group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flint.ir.op_class import OpClass
from flint.ir.program import Collective
from flint.tools.share.synth.codec.scene import Scene
from flint.tools.share.synth.codec.shapes.rule import Reading, Seen, first_then_rest
from flint.tools.share.synth.codec.template import Template
from flint.tools.share.synth.codec.value_type import Shape, ValueType


@dataclass(frozen=True)
class Gathered:
    """A dimension is as many times as long as the group has members. Arguments: (dimensions, which)."""

    name: str = "gathered"

    def read(self, row: Seen) -> Reading | None:
        if row.collective is not Collective.ALL_GATHER:
            return None
        return _one_changed(row, lambda whole, part: part * row.group_size == whole)

    def allows(self, t: Template, chosen: Sequence[ValueType], candidate: ValueType) -> bool:
        return bool(chosen) or candidate.rank == t.arguments[0]

    def shape(self, t: Template, chosen: Sequence[ValueType], scene: Scene) -> Shape | None:
        return _changed(chosen[0].shape, t.arguments[1], scene.group_size(t.axes), 1)


@dataclass(frozen=True)
class Divided:
    """A dimension is divided by the members of the group. Arguments: (dimensions, which)."""

    name: str = "divided"

    def read(self, row: Seen) -> Reading | None:
        if row.collective is not Collective.REDUCE_SCATTER and row.op is not OpClass.ALL_SLICE:
            return None
        return _one_changed(row, lambda whole, part: whole * row.group_size == part)

    def allows(self, t: Template, chosen: Sequence[ValueType], candidate: ValueType) -> bool:
        return bool(chosen) or candidate.rank == t.arguments[0]

    def shape(self, t: Template, chosen: Sequence[ValueType], scene: Scene) -> Shape | None:
        return _changed(chosen[0].shape, t.arguments[1], 1, scene.group_size(t.axes))


@dataclass(frozen=True)
class Swapped:
    """One dimension grows, another shrinks. Arguments: (dimensions, which grows, which shrinks)."""

    name: str = "swapped"

    def read(self, row: Seen) -> Reading | None:
        if row.collective is not Collective.ALL_TO_ALL or len(row.reads) != 1:
            return None
        shape, result = row.reads[0].type.shape, row.result.shape
        size, rank = row.group_size, len(shape)
        for grows in range(rank):
            for shrinks in range(rank):
                found = _changed(shape, grows, size, 1)
                found = found and _changed(found, shrinks, 1, size)
                if found == result:
                    return Reading((rank, grows, shrinks), row.reads)
        return None

    def allows(self, t: Template, chosen: Sequence[ValueType], candidate: ValueType) -> bool:
        return bool(candidate.rank == t.arguments[0])

    def shape(self, t: Template, chosen: Sequence[ValueType], scene: Scene) -> Shape | None:
        size = scene.group_size(t.axes)
        _, grows, shrinks = t.arguments
        divided = _changed(chosen[0].shape, shrinks, 1, size)
        if grows == shrinks:
            return chosen[0].shape if divided else None
        return _changed(divided, grows, size, 1) if divided else None


def _one_changed(row: Seen, holds: object) -> Reading | None:
    assert callable(holds)
    for read in row.reads:
        shape, result = read.type.shape, row.result.shape
        if len(shape) != len(result):
            continue
        other = [i for i, (s, r) in enumerate(zip(shape, result, strict=True)) if s != r]
        if len(other) == 1 and holds(result[other[0]], shape[other[0]]):
            return Reading((len(shape), other[0]), first_then_rest(row, read))
    return None


def _changed(shape: Shape, at: int, times: int, over: int) -> Shape | None:
    if shape[at] * times % over:
        return None
    return (*shape[:at], shape[at] * times // over, *shape[at + 1 :])
