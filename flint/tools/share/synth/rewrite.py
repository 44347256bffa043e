"""Bodies written anew: other operations of one price, and other operands of one type.

Only what leaves a valid program is drawn: operands come earlier, are of the loop, phase and type of the ones
before, and what was read is read by somebody. What breaks a rule of captured programs all the same is taken
back. Shapes, bytes, FLOPs and payloads stay as they are, so totals do not move.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from flint.ir.columns import edges, in_order_of_use, rewired
from flint.ir.op_class import OpClass
from flint.ir.program import Flag, Kind, Program
from flint.ir.workload import Workload
from flint.tools.share.rules import broken_rules

#: Operations with one price: one FLOP an element of two operands, of one and few instructions, of one and many.
PRICES: tuple[tuple[tuple[str, OpClass], ...], ...] = (
    (
        ("stablehlo.multiply", OpClass.MULTIPLY),
        ("stablehlo.add", OpClass.ADD),
        ("stablehlo.subtract", OpClass.SUBTRACT),
        ("stablehlo.divide", OpClass.DIVIDE),
        ("stablehlo.maximum", OpClass.MAXIMUM),
        ("stablehlo.minimum", OpClass.MINIMUM),
    ),
    (
        ("stablehlo.negate", OpClass.NEGATE),
        ("chlo.square", OpClass.ARITHMETIC),
        ("stablehlo.abs", OpClass.ARITHMETIC),
    ),
    (
        ("stablehlo.sqrt", OpClass.FUNCTION),
        ("stablehlo.rsqrt", OpClass.FUNCTION),
        ("stablehlo.exponential", OpClass.EXPONENTIAL),
        ("stablehlo.tanh", OpClass.FUNCTION),
        ("stablehlo.log", OpClass.LOGARITHM),
        ("stablehlo.cosine", OpClass.TRIGONOMETRIC),
        ("stablehlo.sine", OpClass.TRIGONOMETRIC),
    ),
)
_FLOATS = ("f", "bf")
#: The share of rows with other operations; rounds of exchanges; how many operands of a type away they reach.
OPERATIONS, ROUNDS, REACH = 0.5, 3, 8
#: How often what breaks a rule is taken back before a round is given up.
_MOST_TAKEN_BACK = 6
#: What tells operands of a product apart beside their types: such rows keep theirs.
_TOLD_APART = Flag.TURNED_FIRST | Flag.TURNED_LAST | Flag.SEEN_FIRST | Flag.SEEN_LAST
#: Two dependencies, by their numbers, whose rows exchange what they read.
_Exchange = tuple[int, int]


def rewritten(workload: Workload, random: np.random.Generator) -> Workload:
    """The workload of one program with another body. It verifies and keeps all rules that the original keeps."""
    program = _with_other_operations(workload.programs[0], random)
    for _ in range(ROUNDS):
        program = _with_other_operands(workload, program, random)
    found = replace(in_order_of_use(program), stream=program.stream, streams=program.streams)
    return replace(workload, programs=(found,))


def _with_other_operations(program: Program, random: np.random.Generator) -> Program:
    numbers = {name: number for number, name in enumerate(program.opcodes)}
    is_float = np.array([d.startswith(_FLOATS) for d in program.dtypes], dtype=np.bool_)
    op, opcode = program.op.copy(), program.opcode.copy()
    may = (program.kind == Kind.COMPUTE) & is_float[program.dtype]
    for group in PRICES:
        known = [numbers[name] for name, _ in group if name in numbers]
        rows = np.flatnonzero(may & np.isin(program.opcode, known))
        rows = rows[random.random(len(rows)) < OPERATIONS]
        new = random.integers(len(group), size=len(rows))
        op[rows] = np.array([c for _, c in group], dtype=op.dtype)[new]
        codes = [numbers.setdefault(name, len(numbers)) for name, _ in group]
        opcode[rows] = np.array(codes, dtype=opcode.dtype)[new]
    return replace(program, op=op, opcode=opcode, opcodes=tuple(numbers))


def _with_other_operands(
    workload: Workload, program: Program, random: np.random.Generator
) -> Program:
    """Rows that exchange operands, of which those that break a rule have their own again."""
    left = _exchanges(program, random)
    for _ in range(_MOST_TAKEN_BACK):
        found = _exchanged(program, left)
        bad = {b.row for b in broken_rules(replace(workload, programs=(found,)))}
        if not bad:
            return found
        left = _without(program, left, bad)
    return program


def _exchanged(program: Program, exchanges: Iterable[_Exchange]) -> Program:
    owner, read = edges(program)
    new = read.copy()
    for one, other in exchanges:
        new[one], new[other] = read[other], read[one]
    return rewired(program, (owner, new))


def _without(program: Program, exchanges: Iterable[_Exchange], bad: set[int]) -> list[_Exchange]:
    """The exchanges that have nothing to do with bad rows."""
    owner, read = edges(program)
    about = np.isin(owner, list(bad)) | np.isin(read, list(bad))
    return [(a, b) for a, b in exchanges if not (about[a] or about[b])]


def _exchanges(program: Program, random: np.random.Generator) -> list[_Exchange]:
    """Pairs of dependencies that may be exchanged, each dependency in one pair at most."""
    owner, read = edges(program)
    reads = [set(program.dependencies(row).tolist()) for row in range(len(program))]
    taken: set[int] = set()
    found: list[_Exchange] = []
    for group in _alike(program):
        for one in random.permutation(group).tolist():
            at = int(np.searchsorted(group, one)) + int(random.integers(-REACH, REACH + 1))
            if not 0 <= at < len(group) or one in taken or int(group[at]) in taken:
                continue
            other = int(group[at])
            a, b, v, w = (int(n) for n in (owner[one], owner[other], read[one], read[other]))
            if a == b or v == w or v >= b or w >= a or w in reads[a] or v in reads[b]:
                continue
            reads[a] = reads[a] - {v} | {w}
            reads[b] = reads[b] - {w} | {v}
            taken |= {one, other}
            found.append((one, other))
    return found


def _alike(program: Program) -> list[NDArray[np.int64]]:
    """Dependencies on values of one type, loop and phase, by the row that reads."""
    p = program
    owner, read = edges(p)
    writes = ((p.flags & Flag.IN_PLACE) != 0) & (p.alias >= 0)
    written = np.zeros(len(p), dtype=np.bool_)
    written[p.alias[writes]] = True
    may = (p.alias[owner] != read) & ~written[read] & (p.region[owner] == p.region[read])
    may &= (p.flags[owner] & int(_TOLD_APART)) == 0
    may &= (p.kind[owner] <= Kind.COMPUTE) & (p.kind[read] <= Kind.COMPUTE)
    columns = (p.dtype, p.shape, p.result_bytes, p.region, p.phase)
    keys = np.stack([c.astype(np.int64)[read] for c in columns], axis=1)
    at = np.flatnonzero(may)
    _, number = np.unique(keys[at], axis=0, return_inverse=True)
    order = at[np.argsort(number.reshape(-1), kind="stable")]
    return np.split(order, np.cumsum(np.bincount(number.reshape(-1)))[:-1])
