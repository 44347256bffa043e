"""Communication that an operation needs and that Shardy does not spell out."""

from __future__ import annotations

from dataclasses import dataclass

from flint.mesh import Group, Mesh, Route
from flint.passes.extract.work import Operation
from flint.program import Collective


@dataclass(frozen=True, slots=True)
class Implied:
    """One collective on operand number `operand`, before the operation itself."""

    collective: Collective
    opcode: str
    operand: int
    comm_bytes: int
    result_bytes: int
    cause: str
    group: Group | None = None
    route: Route | None = None


def implied_communication(o: Operation, mesh: Mesh) -> list[Implied]:
    """Collectives that `o` needs on its operands because of how they are sharded."""
    return []
