"""Program: the rows of `flint.ir.program_columns`, read one by one, changed and verified."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from flint.ir.op_class import OpClass
from flint.ir.program_columns import (
    CAUSAL,
    COLUMN_TYPES,
    COLUMNS,
    MAY_BE_LEFT_OUT,
    MOST_INT64,
    MOST_NESTED_REGIONS,
    PERHAPS_A_WINDOW,
    TABLES,
    Collective,
    Flag,
    Int32s,
    Int64s,
    Kind,
    Phase,
    ProgramColumns,
    Region,
    RegionKind,
    Row,
)
from flint.ir.verify import verify_program

__all__ = [  # names of columns are those of programs, too
    "CAUSAL",
    "COLUMNS",
    "COLUMN_TYPES",
    "MAY_BE_LEFT_OUT",
    "MOST_INT64",
    "MOST_NESTED_REGIONS",
    "PERHAPS_A_WINDOW",
    "TABLES",
    "Collective",
    "Flag",
    "Int32s",
    "Int64s",
    "Kind",
    "Phase",
    "Program",
    "Region",
    "RegionKind",
    "Row",
]


class Program(ProgramColumns):
    """The work of one rank class. Columns are read-only numpy arrays of equal length.

    | column | meaning |
    |---|---|
    | opcode | index into `opcodes`: a name for people (`stablehlo.dot_general`, ...) |
    | op | `OpClass`: what every pass and price asks for; of a collective, how it reduces |
    | kind | `Kind` |
    | dtype, shape | of the first result, local to the device; indices into `dtypes`, `shapes` |
    | result_bytes, operand_bytes | bytes written and read by one execution on one device |
    | flops | of one execution on one device; a multiply-add counts 2 |
    | dims | (batch, m, n, k): product of two matrices; (1, rows, 1, reduced) for reductions; |
    |      | (how many wait in the stash, chunk, number, 0) of `pipeline.saved`; else 0 |
    | product | index into `products`: what a product multiplies, see `flint.ir.product_types` |
    | mask | of attention: `CAUSAL`, `PERHAPS_A_WINDOW`, keys that a query sees, or 0: all |
    | collective, group, comm_bytes | kind, index into `groups` (or -1), bytes of the rank's input |
    | route | index into `routes` (or -1) for PERMUTE, SEND and RECV |
    | channel | number shared by the SEND and RECV rows of one message, else -1 |
    | stream | index into `streams`; stream 0 is compute |
    | name, scope, location, cause | indices into `strings`: parameter name (pytree path), source |
    |      | scope (`layers/attention`), `file:line`, and why a collective exists |
    | phase, flags | `Phase`, `Flag` |
    | compiled | number of the call of a compiled function (`torch.compile`) that a recorded row |
    |      | is part of, forward and backward alike; 0: none |
    | cycles | of one core, for one execution, as the compiler that made the kernel estimates them; |
    |      | 0: not known |
    | measured_ns | how long one execution took, of a row of an imported profile; 0: not measured. |
    |      | Of a HOST row what the host did before a launch, of a collective the transfer alone where |
    |      | profiles of all its ranks tell it from waiting |
    | launcher | number of the call of an operator that launched the row: rows of an imported |
    |      | profile that have one number are one operator's; 0: not known |
    | region | index into `regions` of the innermost region, or -1 |
    | alias | dependency whose storage the result shares (a view, an update in place), or -1 |
    | dep_start, deps | row i reads rows `deps[dep_start[i]:dep_start[i + 1]]`, ascending, unique |
    """

    def met_over(self, row: int) -> object:
        """What names those who meet in a collective: its group, of a permutation its route."""
        if self.collective[row] == Collective.PERMUTE:
            return self.routes[int(self.route[row])]
        return self.groups[int(self.group[row])]

    def row(self, index: int) -> Row:
        """Row `index` as a readable object."""
        at = int(index)

        def text(column: Int32s) -> str:
            return self.strings[int(column[at])]

        group, route = int(self.group[at]), int(self.route[at])
        b, m, n, k = (int(d) for d in self.dims[at])
        return Row(
            number=at,
            opcode=self.opcodes[self.opcode[at]],
            op=OpClass(int(self.op[at])),
            kind=Kind(int(self.kind[at])),
            dtype=self.dtypes[self.dtype[at]],
            shape=self.shapes[self.shape[at]],
            result_bytes=int(self.result_bytes[at]),
            operand_bytes=int(self.operand_bytes[at]),
            flops=int(self.flops[at]),
            dims=(b, m, n, k),
            product=self.products[self.product[at]],
            mask=int(self.mask[at]),
            collective=Collective(int(self.collective[at])),
            group=self.groups[group] if group >= 0 else None,
            comm_bytes=int(self.comm_bytes[at]),
            route=self.routes[route] if route >= 0 else None,
            channel=int(self.channel[at]),
            stream=self.streams[self.stream[at]],
            name=text(self.name),
            scope=text(self.scope),
            location=text(self.location),
            cause=text(self.cause),
            phase=Phase(int(self.phase[at])),
            flags=Flag(int(self.flags[at])),
            compiled=int(self.compiled[at]),
            cycles=int(self.cycles[at]),
            measured_ns=int(self.measured_ns[at]),
            launcher=int(self.launcher[at]),
            region=int(self.region[at]),
            alias=int(self.alias[at]),
            deps=tuple(int(d) for d in self.dependencies(at)),
        )

    def with_rows(self, **columns: Any) -> Program:
        """Return a copy with some columns or tables replaced."""
        return replace(self, **columns)

    def verify(self) -> None:
        """Raise AssertionError, with the row, unless every invariant that passes rely on holds.

        The list of invariants is `flint.ir.verify.INVARIANTS`. They are checked once: nothing changes a program.
        """
        if not self.__dict__.get("_is_verified"):
            verify_program(self)
            self.__dict__["_is_verified"] = True
