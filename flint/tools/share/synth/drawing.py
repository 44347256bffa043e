"""Drawing a program: step after step from the row model, among what the grammar allows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flint.ir.program import Kind, Phase
from flint.tools.share.conditions import Conditions
from flint.tools.share.synth.asked import condition_vector
from flint.tools.share.synth.codec.draft import Draft
from flint.tools.share.synth.codec.reader import Steps
from flint.tools.share.synth.codec.scene import Scene
from flint.tools.share.synth.codec.template import END, YIELD, StepKind, Template, Vocabulary
from flint.tools.share.synth.codec.value_type import ValueType
from flint.tools.share.synth.codec.writer import new_sizes, shape_of
from flint.tools.share.synth.following import Follower
from flint.tools.share.synth.model.row_model import RowModel
from flint.tools.share.synth.model.state import State

#: Templates that are tried for one step; then the program is given up.
_MOST_TRIES = 40
#: The program may end at this share of the rows that are asked for, and is made to end at the other.
_MAY_END, _MUST_END = 0.9, 1.1
#: Arguments are at most this share of the rows that are asked for.
_MOST_ARGUMENTS = 0.2
#: Sizes of one octave: its first number times these eighths.
_EIGHTHS = np.array([8, 9, 10, 11, 12, 13, 14, 15])
_CHANCES = np.array([0.55, 0.02, 0.12, 0.03, 0.16, 0.03, 0.07, 0.02])
#: Most bytes of one value: more is on no device.
_MOST_BYTES = 1 << 42


@dataclass(frozen=True)
class Pen:
    """Who writes: a model, its vocabulary, how boldly it draws (1: as it has learned), and chance."""

    model: RowModel
    vocabulary: Vocabulary
    random: np.random.Generator
    temperature: float = 1.0


def draw(pen: Pen, asked: Conditions) -> Steps | None:
    """A program on the mesh that is asked for, of about as many rows, with the phases and over the sets
    of axes that are asked for alone; None where it came to a point from which nothing follows."""
    assert asked.mesh is not None, "without a mesh there is no program"
    draft = Draft(Scene(asked.mesh, asked.depth or 1), pen.vocabulary)
    state = pen.model.start(condition_vector(asked), asked.rows)
    bounds = _Bounds.of(pen.vocabulary, asked)
    most = int((asked.rows or 1500) * 1.5) + 100
    while not (draft.steps.templates and draft.steps.templates[-1].step is StepKind.END):
        if len(draft) > most or not _draw_step(pen, draft, state, bounds):
            return None
    return draft.steps


def redraw(pen: Pen, exemplar: Steps, asked: Conditions) -> Steps | None:
    """An exemplar written again: step by step, with what `Follower` leaves out, exchanges and leaves to the
    row model; None where it came to a point from which nothing follows."""
    known = Vocabulary((*pen.vocabulary.templates, *exemplar.templates))
    draft = Draft(exemplar.scene, known, len(exemplar))
    state = pen.model.start(condition_vector(asked), len(exemplar))
    bounds = _Bounds.of(pen.vocabulary, asked)
    follower = Follower(exemplar, pen.vocabulary, pen.random)
    while not follower.is_over:
        is_end = exemplar.templates[follower.place].step is StepKind.END
        if (follower.is_inserted() and not is_end) or not _can_follow(draft, known, follower):
            if not _draw_step(pen, draft, state, bounds, ending=False):
                return None
            if len(draft) > 2 * len(exemplar) + 100:
                return None
        elif follower.is_left_out() or not _follow_step(pen, draft, state, known, follower):
            follower.passed()
    return draft.steps if draft.steps.templates[-1].step is StepKind.END else None


def _can_follow(draft: Draft, known: Vocabulary, follower: Follower) -> bool:
    """Whether the grammar has a choice: where it has none, the exemplar waits."""
    allowed = draft.allowed()
    wanted = known.number(follower.exemplar.templates[follower.place])
    return bool(allowed[wanted]) or int(allowed.sum()) > 1


def _follow_step(
    pen: Pen, draft: Draft, state: State, known: Vocabulary, follower: Follower
) -> bool:
    """Append the next step of the exemplar; False where the grammar does not allow it."""
    template = follower.template
    if not draft.allowed()[known.number(template)]:
        return False
    number = pen.vocabulary.number(template)
    operands = _followed_operands(pen, draft, state, template, follower.operands())
    type_ = None
    if template.step is StepKind.ROW and operands is not None:
        types = [t for t in (draft.steps.types[o] for o in operands) if t is not None]
        shape = shape_of(template, types, draft.steps.scene, follower.sizes)
        type_ = ValueType(template.dtype, shape) if shape is not None else None
    if operands is None or (template.step is StepKind.ROW and type_ is None):
        return False
    step = draft.append(template, operands, type_)
    draft.steps.symbols.taken.extend(follower.sizes)
    state.advance(number, operands, draft.features())
    follower.took(step)
    return True


def _followed_operands(
    pen: Pen, draft: Draft, state: State, template: Template, wanted: Sequence[int | None]
) -> list[int] | None:
    """The steps that are wanted, where the grammar allows them; else as the row model draws."""
    number = pen.vocabulary.number(template)
    chosen: list[int] = []
    for slot in range(template.slots):
        candidates = draft.candidates(template, chosen)
        if not len(candidates):
            return None
        known = wanted[slot] if slot < len(wanted) else None
        at = int(np.searchsorted(candidates, known)) if known is not None else len(candidates)
        if at < len(candidates) and candidates[at] == known:
            chosen.append(int(candidates[at]))
            continue
        unread = draft.unread(candidates)
        scores = state.pointer_log_probs(number, slot, chosen, candidates, unread)
        chosen.append(int(candidates[_choice(pen.random, scores / pen.temperature)]))
    return chosen


def _draw_step(
    pen: Pen, draft: Draft, state: State, bounds: _Bounds, *, ending: bool = True
) -> bool:
    scores = state.template_log_probs() / pen.temperature
    scores[~(draft.allowed()[: len(scores)] & bounds.wanted)] = -np.inf
    if ending:
        bounds.apply(draft, scores)
    else:
        scores[bounds.opens] = -np.inf
        scores[bounds.end] = -np.inf
    for _ in range(_MOST_TRIES):
        if np.isneginf(scores).all():
            return False
        number = _choice(pen.random, scores)
        template = pen.vocabulary.templates[number]
        operands = _draw_operands(pen, draft, state, number, template)
        type_, sizes = _type(pen, draft, template, operands)
        if operands is None or (template.step is StepKind.ROW and type_ is None):
            scores[number] = -np.inf
            continue
        draft.append(template, operands, type_)
        draft.steps.symbols.taken.extend(sizes)
        state.advance(number, operands, draft.features())
        return True
    return False


def _draw_operands(
    pen: Pen, draft: Draft, state: State, number: int, template: Template
) -> list[int] | None:
    """Steps for each slot; None if one has no candidates."""
    chosen: list[int] = []
    for slot in range(template.slots):
        candidates = draft.candidates(template, chosen)
        if not len(candidates):
            return None
        unread = draft.unread(candidates)
        scores = state.pointer_log_probs(number, slot, chosen, candidates, unread)
        chosen.append(int(candidates[_choice(pen.random, scores / pen.temperature)]))
    return chosen


def _type(
    pen: Pen, draft: Draft, template: Template, operands: Sequence[int] | None
) -> tuple[ValueType | None, list[int]]:
    """The type that follows, and the new sizes that it took; no type if none follows."""
    if operands is None or template.step not in (StepKind.ROW, StepKind.OPEN):
        return None, []
    sizes = [size_of_octave(octave, pen.random) for octave in new_sizes(template)]
    if template.step is StepKind.OPEN:
        return None, sizes
    types = [draft.steps.types[o] for o in operands]
    chosen = [t for t in types if t is not None]
    shape = shape_of(template, chosen, draft.steps.scene, sizes)
    if shape is None:
        return None, []
    found = ValueType(template.dtype, shape)
    return (found, sizes) if 0 < found.num_bytes <= _MOST_BYTES else (None, [])


def size_of_octave(octave: int, random: np.random.Generator) -> int:
    """A size from 2^octave up to twice that: mostly round numbers, as people choose them."""
    if octave < 3:
        return 1 << octave
    return int(random.choice(_EIGHTHS, p=_CHANCES / _CHANCES.sum())) << (octave - 3)


@dataclass(frozen=True)
class _Bounds:
    """What is asked for, as far as single templates can keep it: phases, axes, and the number of rows."""

    wanted: NDArray[np.bool_]
    opens: NDArray[np.bool_]
    arguments: NDArray[np.bool_]
    end: int
    yield_: int
    rows: int | None

    @classmethod
    def of(cls, vocabulary: Vocabulary, asked: Conditions) -> _Bounds:
        known = vocabulary.templates
        return cls(
            np.array([_is_wanted(t, asked) for t in known], dtype=np.bool_),
            np.array([t.step is StepKind.OPEN for t in known], dtype=np.bool_),
            np.array([t.kind is Kind.PARAMETER for t in known], dtype=np.bool_),
            vocabulary.number(END),
            vocabulary.number(YIELD),
            asked.rows,
        )

    def apply(self, draft: Draft, scores: NDArray[np.float64]) -> None:
        """Not arguments alone, no end before the rows that are asked for are nearly there, and no new
        loops beyond them."""
        done = len(draft) / self.rows if self.rows else 1.0
        if not draft.works and self.rows and done > _MOST_ARGUMENTS:
            scores[self.arguments] = -np.inf
        if done < _MAY_END:
            scores[self.end] = -np.inf
        if done <= _MUST_END:
            return
        scores[self.opens] = -np.inf
        wanted = self.yield_ if draft.loops else self.end
        if not np.isneginf(scores[wanted]):
            scores[np.arange(len(scores)) != wanted] = -np.inf


def _is_wanted(t: Template, asked: Conditions) -> bool:
    """Whether a template is of a phase, and over axes, that the program is to have."""
    if asked.phases and t.phase is not Phase.UNKNOWN and t.phase not in asked.phases:
        return False
    if t.kind is not Kind.COLLECTIVE or not asked.axis_bytes:
        return True
    assert asked.mesh is not None
    names = asked.mesh.names
    return all(a < len(names) for a in t.axes) and (
        ",".join(names[a] for a in t.axes) in asked.axis_bytes
    )


def _choice(random: np.random.Generator, scores: NDArray[np.float64]) -> int:
    sums = np.cumsum(np.exp(scores - scores.max()))
    return min(int(np.searchsorted(sums, random.random() * sums[-1], "right")), len(sums) - 1)
