"""`flint.synth` and `flint.learn`: workloads that nobody has, made of remembered programs."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flint.backends.chakra.writing.output import refuse_output, replaced_directory
from flint.errors import FlintError
from flint.ir.arrays import Float64s
from flint.ir.columns import edges, in_order_of_use, rewired
from flint.ir.op_class import OpClass
from flint.ir.program import Flag, Kind, Program
from flint.ir.workload import Workload
from flint.tools.share.output import refuse_input
from flint.tools.share.synth.conditions import Conditions, conditions_of
from flint.tools.share.synth.remembered import Remembered, captures_of, distance, structure_of
from flint.tools.share.synth.resize import resized
from flint.tracing import Trace

if TYPE_CHECKING:
    from flint.tools.share.documents import SampleDocument

# Writing workloads that were made: a folder of `.flint` files or of directories of traces, with an index.

#: What each sample is of: `flint.synth/1` has the same.
INDEX = "index.json"


def refuse_folder(folder: Path, inputs: Sequence[Path] = ()) -> None:
    """Raise FlintError FL903 for a folder in, or around, one of `inputs`, which are read; else as `refuse_output`."""
    for source in inputs:
        refuse_input(folder, source)
    refuse_output(folder, inputs)


def written(
    samples: Iterable[Synthetic], folder: Path, *, traces: bool = False
) -> list[tuple[Path, Synthetic]]:
    """Write each sample as soon as it is made, and the index at the end: all of it or nothing.

    Raises FlintError FL501 to FL506 for what cannot be written.
    """
    found, index = [], []
    with replaced_directory(folder) as working:
        for number, sample in enumerate(samples):
            name = f"{number:05}" if traces else f"{number:05}.flint"
            if traces:
                Trace(sample.workload, {}).save(working / name)
            else:
                sample.workload.save(working / name)
            index.append(sample.to_json(name))
            found.append((folder / name, sample))
        (working / INDEX).write_text(json.dumps(index, indent=1) + "\n")
    return found


# Bodies written anew: other operations of one price, and other operands of one type.
#
# Only what leaves a valid program is drawn: operands come earlier, are of the loop, phase and type of the ones
# before, and what was read is read by somebody. Shapes, bytes, FLOPs and payloads stay as they are, so totals do
# not move.

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
#: What tells operands of a product apart beside their types: such rows keep theirs.
_TOLD_APART = Flag.TURNED_FIRST | Flag.TURNED_LAST | Flag.SEEN_FIRST | Flag.SEEN_LAST
#: Two dependencies, by their numbers, whose rows exchange what they read.
_Exchange = tuple[int, int]


def rewritten(workload: Workload, random: np.random.Generator) -> Workload:
    """The workload of one program with another body, each of whose rows fits what it reads."""
    program = _with_other_operations(workload.programs[0], random)
    for _ in range(ROUNDS):
        program = _with_other_operands(program, random)
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


def _with_other_operands(program: Program, random: np.random.Generator) -> Program:
    """Pairs of rows exchange what they read."""
    owner, read = edges(program)
    new = read.copy()
    for one, other in _exchanges(program, random):
        new[one], new[other] = read[other], read[one]
    return rewired(program, (owner, new))


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


#: Totals that are asked for are met within this share.
TOLERANCE = 0.10
#: No sample is nearer than this to a remembered program, or to another sample of the call: the share of rows
#: whose neighborhood (of depth 2, with op classes) the other has not.
LEAST_DISTANCE = 0.2
#: Samples of one call.
MOST_SAMPLES = 100_000
#: How often a program is resized and rewritten before another one is taken, and seeds that are omitted in
#: a row as too near to earlier samples.
_DRAWS, _MOST_SEEDS = 3, 50
#: A miss (in logarithms) beyond which no other draw of the program is tried.
_HOPELESS = 0.25


@dataclass(frozen=True)
class Synthetic:
    """A workload that was made, what was asked for, what it has, and the seed that makes it again."""

    workload: Workload
    asked: Conditions
    found: Conditions
    seed: int

    def to_json(self, path: str) -> SampleDocument:
        """What is said of it where it was written to `path`."""
        asked, found = self.asked.to_json(), self.found.to_json()
        return {"path": path, "seed": self.seed, "asked": asked, "found": found}


def synth(
    count: int = 1,
    *,
    asked: Conditions | None = None,
    like: Sequence[Workload | str | Path] = (),
    model: Remembered | str | Path | None = None,
    seed: int = 0,
) -> Iterator[Synthetic]:
    """Make `count` workloads, one after the other: valid by all strict rules, equal for equal arguments.

    Each is a program of `model` (a folder that `flint.learn` wrote, or of captures; None: the programs that
    come with Flint) at other sizes and with its body written anew. `asked` are totals that it has within
    `TOLERANCE`; the captures `like` (in turn) say what it leaves open of mesh, layers, FLOPs and memory. No
    sample is nearer than `LEAST_DISTANCE` to a remembered program or to another sample.

    Raises FlintError FL957 (count, seed), FL954 or FL955 (no captures), and FL956 where no remembered program can
    have what is asked for, or too few are far enough from each other.
    """
    _require(count, seed)
    remembered = model if isinstance(model, Remembered) else Remembered.load(model)
    templates = list(map(conditions_of, captures_of(like)))
    made: list[Float64s] = []
    for number in range(count):
        wanted = _wanted(asked or Conditions(), templates, number)
        for _ in range(_MOST_SEEDS):
            found = sample(remembered, wanted, seed)
            structure = structure_of(found.workload.programs[0])
            seed += 1
            if distance(structure, made) >= LEAST_DISTANCE:
                break
        else:
            raise _too_alike(len(made))
        made.append(structure)
        yield found


def learn(captures: Iterable[Workload | str | Path]) -> Remembered:
    """Remember captures, without their names: what `flint.synth` makes others of.

    Captures that cannot be remembered (several programs, recorded or compiled ones, profiles) are omitted, and of
    those that differ in sizes alone the first stays. Raises FlintError FL954 where none is left, and FL301, FL304 or FL955
    for what cannot be read.
    """
    return Remembered.of(captures_of(captures))


def sample(remembered: Remembered, asked: Conditions, seed: int) -> Synthetic:
    """One workload, whatever other samples are. Raises FlintError FL956 where no program can have what is asked for."""
    random = np.random.default_rng(seed)
    failed = []
    for number in random.permutation(len(remembered.workloads)).tolist():
        workload = remembered.workloads[number]
        misses = missed(Conditions(rows=len(workload.programs[0])), Conditions(rows=asked.rows))
        if misses:  # no other size changes them
            failed.append(_Failed.of(misses))
            continue
        for _ in range(_DRAWS):
            found = _drawn(workload, remembered, asked, random)
            if not isinstance(found, _Failed):
                return Synthetic(found, asked, conditions_of(found), seed)
            failed.append(found)
            if found.off > _HOPELESS:
                break
    raise _not_possible(min(failed).said)


class _Failed(NamedTuple):
    """Why a draw is not a sample: how far off it is (in logarithms), and in words."""

    off: float
    said: str

    @classmethod
    def of(cls, misses: Sequence[Miss]) -> _Failed:
        return cls(max(m.off for m in misses), "; ".join(map(str, misses)))


def _drawn(
    workload: Workload, remembered: Remembered, asked: Conditions, random: np.random.Generator
) -> Workload | _Failed:
    try:
        sized = resized(workload, asked, random)
    except FlintError as error:
        return _Failed(math.inf, error.message)
    made = rewritten(sized, random)
    misses = missed(conditions_of(made), asked)
    if misses:
        return _Failed.of(misses)
    if distance(structure_of(made.programs[0]), remembered.structures) < LEAST_DISTANCE:
        return _Failed(0.0, f"a body nearer than {LEAST_DISTANCE} to a remembered program")
    return made


@dataclass(frozen=True)
class Miss:
    """A total that is not within the tolerance."""

    name: str
    has: float
    asked: float

    @property
    def off(self) -> float:
        """How far off it is, in logarithms."""
        return abs(math.log(max(self.has, 1e-9) / self.asked))

    def __str__(self) -> str:
        return f"{self.has:,.4g} {self.name} instead of {self.asked:,.4g}"


def missed(has: Conditions, asked: Conditions) -> tuple[Miss, ...]:
    """Totals that were asked for, and are off by more than `TOLERANCE`."""
    pairs = [
        ("rows", has.rows, asked.rows),
        ("layers", has.depth, asked.depth),
        ("FLOPs", has.flops, asked.flops),
        ("bytes of memory", has.memory_bytes, asked.memory_bytes),
        *((f"bytes over {k}", has.axis_bytes.get(k), v) for k, v in asked.axis_bytes.items()),
    ]
    found = (Miss(name, value or 0.0, wanted) for name, value, wanted in pairs if wanted)
    return tuple(m for m in found if abs(m.has / m.asked - 1) > TOLERANCE)


def _wanted(asked: Conditions, templates: Sequence[Conditions], number: int) -> Conditions:
    """What is asked for, completed by a capture that samples are to be like."""
    if not templates:
        return asked
    like = templates[number % len(templates)]
    base = Conditions(
        mesh=like.mesh, flops=like.flops, depth=like.depth, memory_bytes=like.memory_bytes
    )
    return replace(base, **{name: value for name, value in vars(asked).items() if value})


def _require(count: int, seed: int) -> None:
    if not 1 <= count <= MOST_SAMPLES:
        raise FlintError("FL957", f"{count} samples", help=f"give from 1 to {MOST_SAMPLES:,}")
    if seed < 0:
        raise FlintError("FL957", f"the seed {seed} is negative", help="give 0 or more")


def _not_possible(nearest: str) -> FlintError:
    return FlintError(
        "FL956",
        f"no remembered program can meet the conditions within {TOLERANCE:.0%}: the nearest has {nearest}",
        help="ask for what the nearest has, drop a condition, or remember more programs with flint learn",
    )


def _too_alike(number: int) -> FlintError:
    return FlintError(
        "FL956",
        f"after {number:,} samples, {_MOST_SEEDS} more were each nearer than {LEAST_DISTANCE} to one of them",
        help="ask for fewer, or remember more programs with flint learn",
    )
