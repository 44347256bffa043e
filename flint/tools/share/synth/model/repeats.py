"""What a program has done before: earlier places that are like the present one.

Programs repeat layers. A place is like the present one as far as the templates before both are the
same (as in a cache model, Kuhn and De Mori 1990, but with contexts of any length); what came there
comes here, the more likely the longer both are alike.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from flint.tools.share.synth.model.sequence import SLOTS

Ints: TypeAlias = NDArray[np.int64]
Doubles: TypeAlias = NDArray[np.float64]

#: Steps alike beyond which longer is not better.
LONGEST = 24
#: How much likelier an earlier place is for one more step alike.
_BASE = 3.0
_WEIGHTS = np.concatenate([[0.0], _BASE ** np.arange(LONGEST)])


class Guess(NamedTuple):
    """The next template: of all (V,), the likeliest (-1: none), and how many steps are alike."""

    probabilities: Doubles
    template: int
    alike: int
    places: int


class Repeats:
    """The steps so far, each with its template and the steps that it reads."""

    def __init__(self, vocabulary: int) -> None:
        self._vocabulary = vocabulary
        self._count = 0
        self._templates = np.zeros(256, np.int64)
        self._alike = np.zeros(257, np.int64)
        self._operands = np.full((256, SLOTS), -1, np.int64)

    def append(self, template: int, operands: Ints) -> None:
        """Add a step; `operands` (SLOTS,): the steps that it reads, -1 where it has none."""
        count = self._count
        if count == len(self._templates):
            self._grow()
        self._templates[count] = template
        self._operands[count] = operands
        alike = np.minimum(self._alike[:count] + 1, LONGEST)
        self._alike[1 : count + 1] = np.where(self._templates[:count] == template, alike, 0)
        self._count += 1

    def guess(self) -> Guess | None:
        """What comes next; None where no earlier place is like this one."""
        alike = self._alike[: self._count]
        longest = int(alike.max(initial=0))
        if not longest:
            return None
        weights = np.bincount(self._templates[: self._count], _WEIGHTS[alike], self._vocabulary)
        places = int(np.count_nonzero(alike == longest))
        return Guess(weights / weights.sum(), int(weights.argmax()), longest, places)

    def example(self, template: int) -> tuple[Ints, int, int]:
        """Operands of the earlier step of this template that is most like the next, the last such.

        With its number and how many steps before are alike; operands -1, 0 and 0 for none.
        """
        found = np.flatnonzero(self._templates[: self._count] == template)
        if not len(found):
            return np.full(SLOTS, -1, np.int64), 0, 0
        alike = self._alike[found]
        best = len(found) - 1 - int(alike[::-1].argmax())
        return self._operands[found[best]], int(found[best]), int(alike[best])

    def _grow(self) -> None:
        size = len(self._templates)
        self._templates = np.concatenate([self._templates, np.zeros(size, np.int64)])
        self._alike = np.concatenate([self._alike, np.zeros(size, np.int64)])
        empty = np.full((size, SLOTS), -1, np.int64)
        self._operands = np.concatenate([self._operands, empty])
