"""A program that grows step by step: what may come next, and which earlier steps may be read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from flint.ir.program import Flag, Int64s, Kind, Phase
from flint.tools.share.synth.codec.reader import Steps
from flint.tools.share.synth.codec.scene import Scene
from flint.tools.share.synth.codec.shapes import RULE_NAMED
from flint.tools.share.synth.codec.template import StepKind, Template, Vocabulary
from flint.tools.share.synth.codec.types_fit import type_fits
from flint.tools.share.synth.codec.value_type import ValueType

Mask = NDArray[np.bool_]
#: Numbers that a step is described by, see `Draft.features`.
FEATURES = 14
#: Optimizers keep at most so many arguments for each other one: moments, and a copy in more bits.
_MOST_MOMENTS = 4
#: Loops in loops.
_MOST_DEPTH = 4
_NO_TYPE = -1


@dataclass
class OpenLoop:
    """A loop that is being written. `changing` are carries whose next value is still to come."""

    start: int
    carries: int = 0
    changing: list[int] = field(default_factory=list)
    has_rows: bool = False
    yields: bool = False


class Draft:
    """Steps so far, with what choosing the next ones needs.

    Programs that are read go through it as well as those that are generated: a model sees the same
    candidates and features when it learns and when it draws.
    """

    def __init__(self, scene: Scene, vocabulary: Vocabulary, capacity: int = 1024) -> None:
        self.steps = Steps(scene)
        self.loops: list[OpenLoop] = []
        self.works = False
        self._closed = 0
        self._arguments = _Arguments()
        self._static = _Static.of(vocabulary, scene)
        self._vocabulary = vocabulary
        self._types: list[ValueType] = []
        self._type_numbers: dict[ValueType, int] = {}
        self._fits: dict[tuple[int, tuple[int, ...]], tuple[Template, list[bool]]] = {}
        self._type = np.full(capacity, _NO_TYPE, dtype=np.int64)
        self._phase = np.zeros(capacity, dtype=np.int64)
        self._plain = np.zeros(capacity, dtype=np.bool_)
        self._unread = np.zeros(capacity, dtype=np.bool_)
        #: Of steps that write into an earlier one, which.
        self._into = np.full(capacity, _NO_TYPE, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.steps)

    # what may come next -------------------------------------------------------------------------------

    def allowed(self) -> Mask:
        """For each template of the vocabulary, whether it may come next; slots are not looked at."""
        s, loop = self._static, self.loops[-1] if self.loops else None
        if loop is None:
            found = s.rows & ~s.carries
            found[s.end] = self.works
        elif loop.yields:
            found = np.zeros_like(s.rows)
            found[s.yield_ if loop.changing else s.close] = True
            return found
        elif not loop.has_rows:
            found = s.carries.copy()
            if any(loop.changing):
                found |= s.rows & ~s.carries
        else:
            found = s.rows & ~s.carries
            found[s.yield_] = True
        if loop is not None or self.works:
            found &= ~s.parameters
        if self._arguments.moments >= _MOST_MOMENTS * (self._arguments.others + 1):
            found &= ~s.moments
        if len(self.loops) >= _MOST_DEPTH or (loop is not None and not loop.has_rows):
            found &= ~s.opens
        return found

    def candidates(self, t: Template, chosen: Sequence[int]) -> Int64s:
        """Steps that may be chosen for the next slot of a template, ascending."""
        n = len(self.steps)
        if t.step is StepKind.YIELD:
            return self._yields(n)
        types = [int(self._type[c]) for c in chosen]
        fits = np.array([*self._type_fits(t, tuple(types)), False], dtype=np.bool_)
        found = fits[self._type[:n]]
        if len(chosen) < t.arity:
            found &= self._may_read(t, n)
        for step in chosen[: t.arity] if len(chosen) < t.arity else ():
            self._leave_out(found, step)
        return np.flatnonzero(found)

    def unread(self, steps: Int64s) -> Mask:
        """For each of these steps, whether nothing has read it yet."""
        return np.asarray(self._unread[steps])

    def _leave_out(self, found: Mask, step: int) -> None:
        """Nothing is read twice, nor beside what was written into it: that would be order alone."""
        found[step] = False
        found[self._into[: len(found)] == step] = False
        if self._into[step] >= 0:
            found[self._into[step]] = False

    def _may_read(self, t: Template, n: int) -> Mask:
        """No phase reads what a later one makes; carried values come from before their loop."""
        phase = self._phase[:n]
        found = np.ones(n, dtype=np.bool_)
        if t.phase in (Phase.FORWARD, Phase.BACKWARD, Phase.REMAT):
            found &= phase != Phase.OPTIMIZER
        if t.phase is Phase.FORWARD:
            found &= phase != Phase.BACKWARD
        if t.is_carry and self.loops:
            found[self.loops[-1].start :] = False
        return found

    def _yields(self, n: int) -> Int64s:
        """Rows of the body with the type of the value that is carried on."""
        loop = self.loops[-1]
        carry = loop.changing[0]
        found = (self._type[:n] == self._type[carry]) & self._plain[:n]
        found[: loop.start] = False
        found[carry] = False
        steps = np.flatnonzero(found)
        return steps if len(steps) else np.array([carry])

    def _type_fits(self, t: Template, chosen: tuple[int, ...]) -> list[bool]:
        """For each type so far, whether it fits the next slot."""
        key = (id(t), chosen)  # the template is kept beside: nothing else gets its id
        _, known = self._fits.setdefault(key, (t, []))
        if len(known) < len(self._types):
            before = [self._types[c] for c in chosen]
            rule = RULE_NAMED[t.rule]
            is_operand = len(chosen) < t.arity
            for candidate in self._types[len(known) :]:
                typed = not is_operand or type_fits(t, before, candidate)
                known.append(typed and rule.allows(t, before, candidate))
        return known

    # what came ------------------------------------------------------------------------------------------

    def append(self, t: Template, operands: Sequence[int], type_: ValueType | None) -> int:
        """Append a step whose slots and type are known."""
        step = self.steps.add(t, operands, type_)
        self._grow(step + 1)
        self._type[step] = self._number(type_)
        self._unread[list(operands[: t.arity])] = False
        self._arguments.read(operands[: t.arity])
        loop = self.loops[-1] if self.loops else None
        if t.step is StepKind.OPEN:
            self.loops.append(OpenLoop(step))
        elif t.step is StepKind.CLOSE:
            self.loops.pop()
            self._closed = step
        elif t.step is StepKind.YIELD and loop is not None:
            loop.yields = True
            if loop.changing:
                loop.changing.pop(0)
        else:
            self._append_row(step, t, loop)
        return step

    def _append_row(self, step: int, t: Template, loop: OpenLoop | None) -> None:
        works = t.kind >= Kind.COMPUTE
        self.works |= works
        if t.kind is Kind.PARAMETER:
            self._arguments.add(step, is_moment=t.phase is Phase.OPTIMIZER)
        self._unread[step] = works
        self._plain[step] = t.several == 100
        self._phase[step] = t.phase if works else Phase.UNKNOWN
        in_place = t.flags & Flag.IN_PLACE and t.alias >= 0
        self._into[step] = self.steps.operands[step][t.alias] if in_place else _NO_TYPE
        if loop is None:
            return
        if t.is_carry and not loop.has_rows:
            loop.carries += 1
            if t.changes:
                loop.changing.append(step)
        else:
            loop.has_rows = True

    def _number(self, type_: ValueType | None) -> int:
        if type_ is None:
            return _NO_TYPE
        if type_ not in self._type_numbers:
            self._type_numbers[type_] = len(self._types)
            self._types.append(type_)
        return self._type_numbers[type_]

    def _grow(self, size: int) -> None:
        if size <= len(self._type):
            return
        for name in ("_type", "_phase", "_plain", "_unread", "_into"):
            old = getattr(self, name)
            new = np.zeros(2 * len(old), dtype=old.dtype)
            new[: len(old)] = old
            setattr(self, name, new)

    def features(self) -> NDArray[np.float32]:
        """(FEATURES,): what is known of the last step, and of what waits.

        Its elements, dimensions, whether it has a value and a last dimension of 1; loops around it, how far the
        innermost has come and how many of its values still have to go on, how far the last one is; results that
        nothing has read; arguments: how many, how many of the optimizer for each other one, and the shares that
        nothing has read; whether anything works yet.
        """
        type_ = self.steps.types[-1]
        loop = self.loops[-1] if self.loops else None
        n, arguments = len(self.steps), self._arguments
        waiting = int(self._unread[max(n - 64, 0) : n].sum())
        found = (
            np.log2(type_.elements) / 40 if type_ else 0,
            type_.rank / 8 if type_ else 0,
            float(type_ is not None),
            float(type_ is not None and type_.shape[-1:] == (1,)),
            len(self.loops) / 4,
            np.log2(n - loop.start + 1) / 12 if loop else 0,
            min(len(loop.changing), 32) / 32 if loop else 0,
            np.log2(n - self._closed + 1) / 12 if self._closed else 0,
            min(waiting, 32) / 32,
            np.log2(arguments.others + 1) / 8,
            arguments.moments / (arguments.others + 1) / 4,
            arguments.unread_others / (arguments.others + 1),
            arguments.unread_moments / (arguments.moments + 1),
            float(self.works),
        )
        return np.array(found, dtype=np.float32)


@dataclass
class _Arguments:
    """Arguments of the step: those of the optimizer (moments) and others, and which nothing has read."""

    others: int = 0
    moments: int = 0
    unread_others: int = 0
    unread_moments: int = 0
    _unread: dict[int, bool] = field(default_factory=dict)

    def add(self, step: int, *, is_moment: bool) -> None:
        self._unread[step] = is_moment
        self.moments += is_moment
        self.others += not is_moment
        self.unread_moments += is_moment
        self.unread_others += not is_moment

    def read(self, steps: Sequence[int]) -> None:
        for step in steps:
            is_moment = self._unread.pop(step, None)
            if is_moment is not None:
                self.unread_moments -= is_moment
                self.unread_others -= not is_moment


@dataclass(frozen=True)
class _Static:
    """What is known of each template before a program begins."""

    rows: Mask
    carries: Mask
    parameters: Mask
    moments: Mask
    opens: Mask
    yield_: int
    close: int
    end: int

    @classmethod
    def of(cls, vocabulary: Vocabulary, scene: Scene) -> _Static:
        known = vocabulary.templates
        on_mesh = [_is_on(t, scene) for t in known]
        kinds = [t.step for t in known]
        rows = [
            k in (StepKind.ROW, StepKind.OPEN) and m for k, m in zip(kinds, on_mesh, strict=True)
        ]
        return cls(
            np.array(rows, dtype=np.bool_),
            np.array([t.is_carry for t in known], dtype=np.bool_) & np.array(rows, dtype=np.bool_),
            np.array([t.kind is Kind.PARAMETER for t in known], dtype=np.bool_),
            np.array([_is_moment(t) for t in known], dtype=np.bool_),
            np.array([k is StepKind.OPEN for k in kinds], dtype=np.bool_),
            kinds.index(StepKind.YIELD),
            kinds.index(StepKind.CLOSE),
            kinds.index(StepKind.END),
        )


def _is_moment(t: Template) -> bool:
    return t.kind is Kind.PARAMETER and t.phase is Phase.OPTIMIZER


def _is_on(t: Template, scene: Scene) -> bool:
    """Whether all axes of a template are of the mesh, and longer than 1."""
    sizes = scene.mesh.sizes
    parts = [p[1] for p in t.arguments if isinstance(p, tuple) and p and p[0] == "axis"]
    return all(a < len(sizes) and sizes[a] > 1 for a in (*t.axes, *parts))
