"""One program as the row model reads it: steps, what each is, and which earlier steps it reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Int32s: TypeAlias = NDArray[np.int32]
Int64s: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float32]
Bools: TypeAlias = NDArray[np.bool_]

#: Operands of one step that the model tells apart; later ones count as the last.
SLOTS = 8


@dataclass(frozen=True, eq=False)
class Sequence:
    """One encoded program of T steps, with P choices of operands (pointers).

    `templates` (T,): what each step is, below the size of the vocabulary. `features` (T, F): what
    is known of a step's result once it is there, about -1 to 1. `conditions` (C,): what the program
    is asked for, 0 where nothing is.

    Pointer p is of step `step[p]` (ascending), its operand `slot[p]`, and reads step `target[p]`.
    It may choose among `candidates[first[p]:first[p + 1]]`, earlier steps in ascending order with
    the target among them; `first` is (P + 1,). `unread`, along candidates: nobody reads it yet.

    `weight`: how much the program counts in training. `family`: programs of one number are alike
    (one model, one code base); those that are held out together are. -1: of no family.
    """

    templates: Int32s
    features: Floats
    conditions: Floats
    step: Int32s
    slot: Int32s
    target: Int32s
    first: Int64s
    candidates: Int32s
    unread: Bools
    weight: float = 1.0
    family: int = -1

    def __len__(self) -> int:
        return len(self.templates)

    def verify(self) -> None:
        """Raise ValueError, with the reason, unless the arrays are what the class says."""
        steps, pointers = len(self.templates), len(self.step)
        lengths = {
            "features": (len(self.features), steps),
            "slot": (len(self.slot), pointers),
            "target": (len(self.target), pointers),
            "first": (len(self.first), pointers + 1),
            "unread": (len(self.unread), len(self.candidates)),
        }
        for name, (found, expected) in lengths.items():
            if found != expected:
                raise ValueError(f"{name} has {found} entries, not {expected}")
        if self.first[0] != 0 or self.first[-1] != len(self.candidates):
            raise ValueError("first does not span the candidates")
        if pointers:
            self._verify_pointers()

    def _verify_pointers(self) -> None:
        if (np.diff(self.first) <= 0).any():
            raise ValueError("a pointer has no candidates")
        if (np.diff(self.step) < 0).any() or self.step[-1] >= len(self) or self.step[0] < 0:
            raise ValueError("step does not ascend within the sequence")
        owner = self.owner
        if (self.candidates >= self.step[owner]).any() or (self.candidates < 0).any():
            raise ValueError("a candidate is no earlier step")
        rising = np.diff(self.candidates) > 0
        rising[self.first[1:-1] - 1] = True
        if not rising.all():
            raise ValueError("candidates of a pointer do not ascend")
        if np.bincount(owner[self.candidates == self.target[owner]]).sum() != len(self.step):
            raise ValueError("a target is not among its candidates")

    @property
    def owner(self) -> Int64s:
        """For each entry of `candidates`, the number of its pointer."""
        return np.repeat(np.arange(len(self.step)), np.diff(self.first))
