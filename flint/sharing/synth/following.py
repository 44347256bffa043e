"""Following what is remembered: the next step is that of a program that went on from a place like this one.

As with nearest-neighbour language models (Khandelwal et al., 2020) a place is like another one if the steps before it are
alike. Where nothing is, or what follows is not allowed, the row model decides.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flint.sharing.conditions import Conditions
from flint.sharing.synth.memory import CONTEXT, Memory

#: How often, at a step, another program is followed, a single step is left to the row model, and a
#: single operand is.
SWITCH, ALONE, REWIRE = 0.004, 0.006, 0.02
#: Steps in a row that are passed over before another place is looked for.
_MOST_PASSED = 12
#: How sharply programs of other totals are avoided, and places at another share of their program.
_SHARP, _SHARP_PLACE = 1.2, 10.0


class Proposal(NamedTuple):
    """A template, and for each slot the step that stands for what was read there; None: not known.

    `sizes`: of some of its new sizes the step and dimension that it is in a ratio to, and the ratio's code.
    """

    template: int
    operands: tuple[int | None, ...]
    sizes: Mapping[int, tuple[int, int, int]]


@dataclass
class Follower:
    """Who follows: `weights` say of each remembered program how much it is like what is asked for."""

    memory: Memory
    weights: NDArray[np.float64]
    random: np.random.Generator
    rows: int | None
    _recent: list[int] = field(default_factory=list)
    _occurrences: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    _place: int = -1
    _mapped: dict[int, int] = field(default_factory=dict)
    _passed: int = 0

    def propose(self) -> Proposal | None:
        """What comes next where it is followed; None where nothing is."""
        if not self._recent and self._place < 0:
            program = _choice(self.random, self.weights)
            self._place = int(self.memory.start[program])
        elif self.random.random() < SWITCH or self._passed > _MOST_PASSED or self._place < 0:
            self._jump()
        if self._place < 0 or self.random.random() < ALONE:
            return None
        places = self.memory.reads(self._place)
        template = int(self.memory.templates[self._place])
        return Proposal(template, tuple(self._stands_for(p) for p in places), self._sizes())

    def _sizes(self) -> dict[int, tuple[int, int, int]]:
        found = {}
        for which, (place, dimension, code) in self.memory.related(self._place).items():
            step = self._stands_for(place)
            if step is not None:
                found[which] = step, dimension, code
        return found

    def is_rewired(self) -> bool:
        """Whether a single operand is left to the row model."""
        return bool(self.random.random() < REWIRE)

    def took(self, step: int) -> None:
        """The proposal became this step."""
        self._mapped[self._place] = step
        self._passed = 0
        self._move()

    def passed(self) -> None:
        """The proposal was not possible: who reads it reads what it reads."""
        places = self.memory.reads(self._place)
        stands = self._stands_for(places[0]) if places else None
        if stands is not None:
            self._mapped[self._place] = stands
        self._passed += 1
        self._move()

    def saw(self, step: int, template: int) -> None:
        """A step came, from whomever."""
        self._recent.append(template)
        self._occurrences[template].append(step)

    def _move(self) -> None:
        self._place += 1
        if self._place in self.memory.start:
            self._place = -1

    def _jump(self) -> None:
        """Go on from another place like this one; stay where there is none."""
        places = self.memory.after(self._recent)
        places = places[places != self._place]
        if not len(places):
            return
        programs = self.memory.program_of(places)
        length = np.diff(self.memory.start)[programs]
        share = (places - self.memory.start[programs]) / length
        own = len(self._recent) / self.rows if self.rows else 0.5
        scores = np.log(self.weights[programs] + 1e-12) - _SHARP_PLACE * np.abs(share - own)
        self._place = int(places[_choice(self.random, np.exp(scores - scores.max()))])
        self._mapped = {}
        self._passed = 0
        for back in range(1, CONTEXT + 1):
            self._mapped[self._place - back] = len(self._recent) - back

    def _stands_for(self, place: int) -> int | None:
        """Our step for a remembered one: the one made of it, else the one that is as many of its kind ago."""
        known = self._mapped.get(place)
        if known is not None:
            return known
        template = int(self.memory.templates[place])
        since = int((self.memory.templates[place : self._place] == template).sum())
        ours = self._occurrences.get(template, ())
        return ours[-since] if 0 < since <= len(ours) else None


def weights_of(profiles: Sequence[Conditions], asked: Conditions) -> NDArray[np.float64]:
    """How much programs of these totals are like what is asked for, in all 1."""
    far = np.array([_SHARP * sum(_far(p, asked)) for p in profiles])
    found = np.exp(far.min() - far)
    return np.asarray(found / found.sum())


def _far(profile: Conditions, asked: Conditions) -> Iterator[float]:
    """What of the structure differs: rows, phases, axes, and a little of the totals."""
    yield 6 * _bits(profile.rows, asked.rows)
    yield 0.3 * _bits(profile.depth, asked.depth)
    yield 0.15 * _bits(profile.flops, asked.flops)
    yield 0.15 * _bits(profile.memory_bytes, asked.memory_bytes)
    if asked.phases:
        phases = {*profile.phases, *asked.phases}
        shares = [profile.phases.get(p, 0.0) - asked.phases.get(p, 0.0) for p in phases]
        yield 4 * sum(map(abs, shares)) + 3 * len(set(profile.phases) ^ set(asked.phases))
    if asked.mesh is not None and profile.mesh is not None:
        yield 2.0 * abs(len(profile.mesh.sizes) - len(asked.mesh.sizes))
        if asked.axis_bytes:
            yield 2.0 * len(_labels(profile) ^ _labels(asked))


def _labels(of: Conditions) -> set[tuple[int, ...]]:
    """Sets of axes that something is sent over, by their numbers."""
    assert of.mesh is not None
    number = {name: n for n, name in enumerate(of.mesh.names)}
    return {tuple(number.get(part, -1) for part in label.split(",")) for label in of.axis_bytes}


def _bits(one: float | None, other: float | None) -> float:
    return abs(math.log2(one / other)) if one and other else 0.0


def _choice(random: np.random.Generator, weights: NDArray[np.float64]) -> int:
    sums = np.cumsum(weights)
    return min(int(np.searchsorted(sums, random.random() * sums[-1], "right")), len(sums) - 1)
