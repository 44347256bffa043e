"""A rule of shapes: how the shape of a result follows from what a row reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from flint.ir.op_class import OpClass
from flint.ir.program import Collective, Kind
from flint.tools.share.synth.codec.scene import Scene
from flint.tools.share.synth.codec.template import Arguments, Template
from flint.tools.share.synth.codec.value_type import Shape, ValueType


class Read(NamedTuple):
    """One row that is read: its step, and the type of its first result."""

    step: int
    type: ValueType


@dataclass(frozen=True, slots=True)
class Seen:
    """A captured row, as rules read it. `reads` are in descending order of steps.

    `written_bytes` is the column `result_bytes`: of a row that writes a part of an array less than
    those of its type. `group_size` is that of a collective.
    """

    op: OpClass
    kind: Kind
    collective: Collective
    result: ValueType
    written_bytes: int
    reads: tuple[Read, ...]
    group_size: int
    dims: tuple[int, int, int, int]
    scene: Scene


class Reading(NamedTuple):
    """How a captured row follows from what it reads: `order` holds each of its reads once."""

    arguments: Arguments
    order: tuple[Read, ...]
    pointers: tuple[int, ...] = ()  #: steps that lend their dimensions


class ShapeRule(Protocol):
    """Reads captured rows, says what may be chosen, and gives shapes.

    `chosen` are types of the slots before; the operands come first.
    """

    @property
    def name(self) -> str: ...

    def read(self, row: Seen) -> Reading | None:
        """The arguments with which the rule explains a captured row; None if it does not."""

    def allows(self, t: Template, chosen: Sequence[ValueType], candidate: ValueType) -> bool:
        """Whether a value of this type may be chosen for the next slot."""

    def shape(self, t: Template, chosen: Sequence[ValueType], scene: Scene) -> Shape | None:
        """The shape of the result of a row whose slots are all chosen; None if there is none."""


def first_then_rest(row: Seen, first: Read) -> tuple[Read, ...]:
    """The reads with one of them in front."""
    return (first, *(r for r in row.reads if r.step != first.step))
