"""Programs for tests: short ways to write one down, and a text form to compare."""

from __future__ import annotations

from typing import Any

from flint.ir.mesh import AxisRef, Group, Mesh
from flint.ir.program import Collective, Kind, Program
from tests.program_rows import ProgramBuilder

MESH = Mesh(("x", "y"), (8, 4))


def group(*axes: str | AxisRef) -> Group:
    """A group over axes, by name or reference."""
    return Group(tuple(AxisRef(a) if isinstance(a, str) else a for a in axes))


class Rows(ProgramBuilder):
    """A builder with short names; sizes are 64 bytes unless given."""

    def __init__(self, mesh: Mesh = MESH) -> None:
        super().__init__(mesh)

    def parameter(self, **columns: Any) -> int:
        """An argument of 64 bytes."""
        return self.op("func.argument", kind=Kind.PARAMETER, operand_bytes=0, **columns)

    def op(self, opcode: str, *deps: int, kind: Kind = Kind.COMPUTE, **columns: Any) -> int:
        """A row of 16 f32; a dialect that is not given is StableHLO."""
        name = opcode if "." in opcode else f"stablehlo.{opcode}"
        sized = {
            "dtype": "f32",
            "shape": (16,),
            "result_bytes": 64,
            "operand_bytes": 64 * len(set(deps)),
        }
        return self.add(name, kind, deps=deps, **{**sized, **columns})

    def all_reduce(self, dep: int, over: Group | None = None, **columns: Any) -> int:
        """A sum over `over`, or over x."""
        sized = {"comm_bytes": columns.get("result_bytes", 64), **columns}
        return self.op(
            "sdy.all_reduce",
            dep,
            kind=Kind.COLLECTIVE,
            collective=Collective.ALL_REDUCE,
            group=over or group("x"),
            **sized,
        )

    def all_slice(self, dep: int, over: Group, *, part_bytes: int, **columns: Any) -> int:
        """The device's part of a row."""
        shape = (part_bytes // 4,)
        sized = {"result_bytes": part_bytes, "shape": shape, **columns}
        return self.op("sdy.all_slice", dep, group=over, **sized)

    def result(self, *deps: int) -> int:
        """What the step returns."""
        return self.op("flint.result", *deps, kind=Kind.VALUE, result_bytes=0, operand_bytes=0)


def lines(program: Program) -> list[str]:
    """One line per row: number, opcode, group or route, comm_bytes, result bytes and reads."""
    found = []
    for i in range(len(program)):
        r = program.row(i)
        over = r.group or r.route
        where = f"{{{over}}} {r.comm_bytes}->{r.result_bytes}" if over else ""
        reads = " ".join(f"%{d}" for d in r.deps)
        words = [f"%{i}", r.opcode.partition(".")[2] or r.opcode, where, reads]
        found.append(" ".join(w for w in words if w))
    return found
