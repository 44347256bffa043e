"""`flint.synth` and `flint.learn`: workloads that nobody has, made of remembered programs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from flint.errors import FlintError
from flint.ir.arrays import Float64s
from flint.ir.program import Program
from flint.ir.workload import Workload
from flint.tools.share.synth.conditions import Conditions, conditions_of, phase_shares
from flint.tools.share.synth.remembered import Remembered, captures_of, distance, structure_of
from flint.tools.share.synth.resize import resized
from flint.tools.share.synth.rewrite import rewritten

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
    templates = [conditions_of(w) for _, w in captures_of(like)]
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
    return Remembered.of(w for _, w in captures_of(captures))


def sample(remembered: Remembered, asked: Conditions, seed: int) -> Synthetic:
    """One workload, whatever other samples are. Raises FlintError FL956 where no program can have what is asked for."""
    random = np.random.default_rng(seed)
    failed = []
    for number in random.permutation(len(remembered.workloads)).tolist():
        workload = remembered.workloads[number]
        given = _given(workload.programs[0], asked)
        if any(m.name == "rows" for m in given):  # no other size changes them
            failed.append(_Failed.of(given))
            continue
        for _ in range(_DRAWS):
            found = _drawn(workload, remembered, asked, random)
            if not isinstance(found, _Failed):
                return Synthetic(found, asked, conditions_of(found), seed)
            failed.append(found)
            if found.off > _HOPELESS:
                break
    raise _not_possible(min(failed).said)


def _given(program: Program, asked: Conditions) -> tuple[Miss, ...]:
    """What a program misses of the conditions that sizes change little or not at all."""
    has = Conditions(rows=len(program), phases=phase_shares(program))
    return missed(has, Conditions(rows=asked.rows, phases=asked.phases))


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
        *(
            (f"of the FLOPs {p.name.lower()}", has.phases.get(p), v)
            for p, v in asked.phases.items()
        ),
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
