"""Templates: what a step is, apart from which earlier steps it reads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields
from enum import IntEnum
from typing import Any, TypeAlias

from flint.io.malformed import Malformed
from flint.ir.op_class import OpClass
from flint.ir.program import Collective, Kind, Phase

#: Numbers and words that a rule of shapes takes; nested, and hashable.
Arguments: TypeAlias = tuple[Any, ...]


class StepKind(IntEnum):
    """What a step does to the program that is written."""

    UNKNOWN = 0  #: a row that no rule explains; it is read while learning, and never generated
    ROW = 1
    OPEN = 2  #: a loop begins
    YIELD = 3  #: the next value that the loop carries goes on as an earlier row
    CLOSE = 4  #: the loop ends
    END = 5  #: the program ends: what nobody has read is what the step returns


@dataclass(frozen=True, slots=True)
class Template:
    """A kind of step. Rows of programs of every size share it: sizes follow from what is read.

    `rule` with its `arguments` says how the shape of the result follows (`flint.tools.share.synth.codec.shapes`),
    `arity` how many rows are read, `pointers` how many further steps only lend their dimensions.
    `alias` is the number of the operand whose storage the result shares, or -1. `rate` is FLOPs for
    each element of the result, of reductions for each element of the operand. `axes` are
    numbers of mesh axes of a group or route, `route` the offset and whether it wraps. `sizes`: of
    look-ups the numbers that an index is of; of convolutions (groups, dimension of features, operand and
    its dimension that k is made without). `several` is the bytes of all results in hundredths of those of the first. `changes` says
    of a value that a loop carries that another one goes on.
    """

    step: StepKind
    opcode: str = ""
    op: OpClass = OpClass.VALUE
    kind: Kind = Kind.VALUE
    collective: Collective = Collective.NONE
    axes: tuple[int, ...] = ()
    route: tuple[int, ...] = ()
    dtype: str = ""
    phase: Phase = Phase.UNKNOWN
    flags: int = 0
    rule: str = ""
    arguments: Arguments = ()
    arity: int = 0
    pointers: int = 0
    alias: int = -1
    rate: int = 0
    product: str = ""
    sizes: tuple[int, ...] = ()
    several: int = 100
    changes: bool = False

    def __hash__(self) -> int:
        """That of a few fields: programs look templates up for every row."""
        return hash((self.opcode, self.dtype, self.phase, self.rule, self.arity, self.arguments))

    @property
    def parts(self) -> tuple[Any, ...]:
        """What it consists of, for who learns from templates that share some of it."""
        where = (self.collective, self.axes, self.route)
        follows = (self.rule, self.arguments)
        reads = (self.arity, self.pointers, self.alias)
        kind = (self.step, self.kind, self.flags)
        return self.opcode, self.op, kind, where, self.dtype, self.phase, self.rule, follows, reads

    @property
    def slots(self) -> int:
        """How many earlier steps are chosen: those that are read, then those that lend dimensions."""
        return self.arity + self.pointers

    @property
    def is_carry(self) -> bool:
        """Whether the row stands for a value that a loop carries."""
        return self.opcode == CARRY

    def to_json(self) -> list[Any]:
        """Its fields in order."""
        return list(astuple(self))

    @classmethod
    def of(cls, data: Iterable[Any]) -> Template:
        """What `to_json` gave, also through a file. Raises Malformed for anything else."""
        from flint.io.records import record_of

        names = [f.name for f in fields(cls)]
        given = list(data)
        if len(given) != len(names):
            raise Malformed(f"a template has {len(given)} fields, not {len(names)}")
        values = dict(zip(names, given, strict=True))
        found = record_of(cls, {**values, "arguments": _nested(values["arguments"])})
        if not -1 <= found.alias < found.arity:
            raise Malformed(f"a template shares storage with operand {found.alias}")
        return found


#: The opcode of values that loops carry, whichever reader wrote it.
CARRY = "while.carry"
UNKNOWN = Template(StepKind.UNKNOWN)
YIELD = Template(StepKind.YIELD, arity=1)
CLOSE = Template(StepKind.CLOSE)
END = Template(StepKind.END)
#: Templates that every vocabulary has, in this order.
FIXED = (UNKNOWN, YIELD, CLOSE, END)


def _nested(value: Any) -> Any:
    return tuple(map(_nested, value)) if isinstance(value, list | tuple) else value


class Vocabulary:
    """Templates by number; number 0 is UNKNOWN, which is never generated."""

    def __init__(self, templates: Iterable[Template] = ()) -> None:
        self.templates: tuple[Template, ...] = tuple(dict.fromkeys((*FIXED, *templates)))
        self._numbers = {t: n for n, t in enumerate(self.templates)}

    def __len__(self) -> int:
        return len(self.templates)

    def number(self, template: Template) -> int:
        """The number of a template; 0 for one that the vocabulary lacks."""
        return self._numbers.get(template, 0)

    def to_json(self) -> list[list[Any]]:
        """Templates as lists."""
        return [t.to_json() for t in self.templates]

    @classmethod
    def of(cls, data: Iterable[Iterable[Any]]) -> Vocabulary:
        """What `to_json` gave. Raises Malformed for anything else."""
        return cls(map(Template.of, data))

    @classmethod
    def read(cls, text: bytes) -> Vocabulary:
        """The same from JSON. Raises Malformed for anything else."""
        from flint.io.records import record

        return cls.of(record(list[list[Any]], text))
