"""From captures to what the row model learns from: a vocabulary of templates, and sequences."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from flint.errors import FlintError
from flint.ir.workload import Workload
from flint.tools.share.conditions import Conditions, conditions_of
from flint.tools.share.synth.codec.reader import Steps, is_readable, read_program
from flint.tools.share.synth.codec.template import Template, Vocabulary
from flint.tools.share.synth.encoding import encode
from flint.tools.share.synth.model import sequence

#: Fewer different programs than this teach copying rather than writing.
LEAST_PROGRAMS = 8
#: Longer programs are left out: most of them are layers that were written out one by one.
MOST_ROWS = 3_000
#: Programs with a larger share of rows that no rule explains are left out.
_MOST_UNKNOWN = 0.1


@dataclass(frozen=True)
class Example:
    """A capture to learn from, with what it would have been asked for. `family`: a number, or -1."""

    steps: Steps
    asked: Conditions
    family: int = -1


@dataclass(frozen=True)
class Lessons:
    """What is learned from: `sequences` are those of `examples`, in their order."""

    vocabulary: Vocabulary
    examples: tuple[Example, ...]
    sequences: tuple[sequence.Sequence, ...]


def example_of(workload: Workload, family: int = -1) -> Example | None:
    """A workload as an example; None for one that steps cannot say, or not enough of it."""
    if not is_readable(workload) or len(workload.programs[0]) > MOST_ROWS:
        return None
    steps = read_program(workload.programs[0])
    if steps.unknown_share > _MOST_UNKNOWN:
        return None
    return Example(steps, conditions_of(workload), family)


def lessons_of(examples: Iterable[Example], *, least_programs: int = 2) -> Lessons:
    """Encode examples by a vocabulary of the templates that several different programs have.

    Programs that are alike but for sizes count less each (one over the root of how many they are).
    Raises FlintError FL954 for fewer than `LEAST_PROGRAMS` different programs.
    """
    found = tuple(examples)
    shapes = [structure_of(e.steps) for e in found]
    times = Counter(shapes)
    if len(times) < LEAST_PROGRAMS:
        raise FlintError(
            "FL954",
            f"{len(found)} captures have {len(times)} programs that differ in more than sizes: "
            f"too few to learn from",
            help=f"give at least {LEAST_PROGRAMS}, of several models, meshes and options",
        )
    vocabulary = vocabulary_of([e.steps for e in found], shapes, least_programs)
    sequences = [
        encode(e.steps, vocabulary, e.asked, weight=times[shape] ** -0.5, family=e.family)
        for e, shape in zip(found, shapes, strict=True)
    ]
    return Lessons(vocabulary, found, tuple(sequences))


def vocabulary_of(
    programs: Sequence[Steps], shapes: Sequence[int], least_programs: int
) -> Vocabulary:
    """Templates of at least so many different programs, most frequent first."""
    where: dict[Template, set[int]] = defaultdict(set)
    for steps, shape in zip(programs, shapes, strict=True):
        for template in set(steps.templates):
            where[template].add(shape)
    kept = [t for t, found in where.items() if len(found) >= least_programs]
    kept.sort(key=lambda t: (-len(where[t]), str(t)))
    return Vocabulary(kept)


def structure_of(steps: Steps) -> int:
    """A number that programs share which differ in sizes alone."""
    return hash((tuple(steps.templates), tuple(steps.operands)))
