"""`flint.synth` and `flint.learn`: workloads that nobody has, and the generator that makes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from flint.errors import FlintError
from flint.ir.workload import Workload
from flint.tools.share.captures import captures_of
from flint.tools.share.conditions import Conditions, conditions_of
from flint.tools.share.synth.asked import CONDITION_GROUPS
from flint.tools.share.synth.generator import Generator
from flint.tools.share.synth.learn import Example, example_of, lessons_of
from flint.tools.share.synth.memory import Memory

#: A total that is off by more than this factor is not what was asked for.
FAR = 2.0
#: Samples of one call.
MOST_SAMPLES = 100_000
MOST_STEPS = 1_000_000
#: Steps of training: about twelve CPU minutes, whatever the captures.
TRAINING_STEPS = 4_500


@dataclass(frozen=True)
class Synthetic:
    """A workload that was made, what was asked for, and the seed that makes it again."""

    workload: Workload
    asked: Conditions
    seed: int

    @cached_property
    def found(self) -> Conditions:
        """The totals that the workload has."""
        return conditions_of(self.workload)

    @property
    def missed(self) -> tuple[str, ...]:
        """Totals that were asked for and are off by more than a factor of `FAR`, in words."""
        has, asked = self.found, self.asked
        pairs = [
            ("rows", has.rows, asked.rows),
            ("layers", has.depth, asked.depth),
            ("FLOPs", has.flops, asked.flops),
            ("bytes of memory", has.memory_bytes, asked.memory_bytes),
            *(
                (f"bytes over {k}", has.axis_bytes.get(k, 0), v)
                for k, v in asked.axis_bytes.items()
            ),
        ]
        return tuple(
            f"{value or 0:,.4g} {name}, asked for {wanted:,.4g}"
            for name, value, wanted in pairs
            if wanted and not 1 / FAR <= (value or 0) / wanted <= FAR
        )


def synth(
    count: int = 1,
    *,
    asked: Conditions | None = None,
    like: Sequence[Workload | str | Path] = (),
    model: Generator | str | Path | None = None,
    seed: int = 0,
    temperature: float = 1.0,
) -> Iterator[Synthetic]:
    """Make `count` workloads, one after the other: valid by all strict rules, equal for equal arguments.

    `asked` are totals that they should have; what it leaves open is as in the captures `like` (in turn), or
    as in one of the totals that `model` has learned (None: the model that comes with Flint). A lower
    `temperature` writes what is more usual.

    Raises FlintError FL957 (count, seed, temperature), FL955 (no capture), FL959 (no model), and FL956 where no
    program that follows the rules was found.
    """
    _require(count, seed, temperature)
    generator = model if isinstance(model, Generator) else Generator.load(model)
    templates = [conditions_of(w) for _, w in captures_of(like)]
    for number in range(count):
        wanted = _wanted(asked or Conditions(), templates, number)
        own_seed = seed + number
        made = generator.sample(wanted, own_seed, temperature=temperature)
        yield Synthetic(made, wanted, own_seed)


def learn(
    captures: Iterable[Workload | str | Path],
    *,
    families: Callable[[str], str] | None = None,
    seed: int = 0,
    steps: int = TRAINING_STEPS,
    memory: bool = True,
    on_progress: Callable[[int, int, float, float], None] | None = None,
) -> Generator:
    """Train a generator on captures (needs the extra `torch`); equal arguments give an equal one.

    `families` names the family of a capture by its path: those of one family are left out together
    where the share of counts and network is tuned. Captures that steps cannot say (several programs, pipelines,
    recorded PyTorch) are left out. Without `memory` the file has weights and counts of three templates alone:
    it gives less away of its captures, and samples are less like them.

    Raises FlintError FL954 (too few that differ), FL955 (none), FL957 (steps), FL958 (no torch).
    """
    return learned(
        examples_of(captures_of(captures), families),
        seed=seed,
        steps=steps,
        on_progress=on_progress,
    )


def examples_of(
    captures: Iterable[tuple[str, Workload]], families: Callable[[str], str] | None = None
) -> list[Example]:
    """Captures by what they are called, as examples; those that steps cannot say are left out."""
    numbers: dict[str, int] = {}
    found = []
    for name, workload in captures:
        family = numbers.setdefault(families(name), len(numbers)) if families else -1
        example = example_of(workload, family)
        if example is not None:
            found.append(example)
    return found


def learned(
    examples: Sequence[Example],
    *,
    seed: int = 0,
    steps: int = TRAINING_STEPS,
    memory: bool = True,
    on_progress: Callable[[int, int, float, float], None] | None = None,
) -> Generator:
    """A generator of examples that were read already. Raises FlintError FL954, FL957 or FL958."""
    if not 1 <= steps <= MOST_STEPS:
        raise FlintError("FL957", f"{steps} steps of training", help=f"give 1 to {MOST_STEPS:,}")
    from flint.tools.share.synth.model.training import train

    lessons = lessons_of(examples)
    model = train(
        lessons.sequences,
        seed=seed,
        steps=steps,
        threads=1,  # sums in one order, whatever the machine
        on_progress=on_progress,
        vocabulary=len(lessons.vocabulary),
        condition_groups=CONDITION_GROUPS,
        parts=[t.parts for t in lessons.vocabulary.templates],
    )
    known = Memory.of(e.steps for e in lessons.examples) if memory else None
    profiles = tuple(e.asked for e in lessons.examples)
    return Generator(model, lessons.vocabulary, profiles, known)


def _wanted(asked: Conditions, templates: Sequence[Conditions], number: int) -> Conditions:
    """What is asked for, completed by a capture that samples are to be like."""
    if not templates:
        return asked
    base = templates[number % len(templates)]
    given = {name: value for name, value in vars(asked).items() if value}
    if "mesh" in given and given["mesh"] != base.mesh:
        base = replace(base, axis_bytes={})
    return replace(base, **given)


def _require(count: int, seed: int, temperature: float) -> None:
    if not 1 <= count <= MOST_SAMPLES:
        raise FlintError("FL957", f"{count} samples", help=f"give from 1 to {MOST_SAMPLES:,}")
    if seed < 0:
        raise FlintError("FL957", f"the seed {seed} is negative", help="give 0 or more")
    if not 0.1 <= temperature <= 2:
        raise FlintError(
            "FL957", f"the temperature {temperature:g} is not from 0.1 to 2", help="1 is as learned"
        )
