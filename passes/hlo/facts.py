"""What is known of a partitioned module from the program that it was made of."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field

from flint.ir.program import Flag
from flint.passes.hlo.convolutions import turned_in_convolution
from flint.passes.hlo.module import Instruction
from flint.passes.hlo.turned import turned_in_product


@dataclass(frozen=True)
class CapturedFacts:
    """What is known of a module beside it: the arguments of the program, and its collectives.

    `shardings` are as `Program.cause` has them, `on_host` and `donated` numbers of arguments that
    the host holds and that the step may overwrite, `causes` what `causes_of` finds. `captured` says that
    no compiler has ordered what products read: then updates in place name what they update as their alias, too.
    """

    shardings: Sequence[str] = ()
    on_host: Container[int] = ()
    donated: Container[int] = ()
    causes: Mapping[int, str] = field(default_factory=dict)
    captured: bool = False

    def argument(self, number: int) -> tuple[bool, str]:
        """Whether the host holds an argument, and its sharding."""
        sharding = self.shardings[number] if number < len(self.shardings) else ""
        return number in self.on_host, sharding

    def cause(self, i: Instruction) -> tuple[str, Flag]:
        """Why an instruction communicates, and the flag of what the partitioner made."""
        cause = self.causes.get(i.id)
        return ("", Flag(0)) if cause is None else (cause, Flag.PARTITIONED)


NOTHING = CapturedFacts()


def turned_operands(i: Instruction, operands: list[Instruction], deps: list[int]) -> Flag:
    """The operands of a product that are copied into another order first, and a result that is after.

    Of a reduction, whether what it reduces lies apart.
    """
    if i.opcode == "reduce":
        after = operands[0].shape.dimensions[max(i.dimensions, default=-1) + 1 :]
        return Flag.COLUMNS if any(size > 1 for size in after) else Flag(0)
    if i.opcode == "convolution":
        return turned_in_convolution(i, operands, deps)
    if i.opcode != "dot":
        return Flag(0)
    n, (lhs, rhs) = i.dot_dimension_numbers, (list(o.shape.dimensions) for o in operands)
    return turned_in_product(
        (lhs, list(n.lhs_batch_dimensions), list(n.lhs_contracting_dimensions)),
        (rhs, list(n.rhs_batch_dimensions), list(n.rhs_contracting_dimensions)),
        deps,
    )
