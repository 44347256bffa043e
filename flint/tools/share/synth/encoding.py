"""Steps as the row model reads them, with the candidates that the grammar leaves for each choice."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flint.ir.program import Int64s
from flint.tools.share.conditions import Conditions
from flint.tools.share.synth.asked import condition_vector
from flint.tools.share.synth.codec.draft import FEATURES, Draft
from flint.tools.share.synth.codec.reader import Steps
from flint.tools.share.synth.codec.template import Vocabulary
from flint.tools.share.synth.model.sequence import SLOTS, Sequence


def encode(
    steps: Steps,
    vocabulary: Vocabulary,
    asked: Conditions,
    *,
    weight: float = 1.0,
    family: int = -1,
) -> Sequence:
    """A captured program as a sequence. Choices that the grammar would not allow are left out."""
    draft = Draft(steps.scene, vocabulary, len(steps))
    choices = _Choices()
    features = np.zeros((len(steps), FEATURES), dtype=np.float32)
    for number, template in enumerate(steps.templates):
        operands = steps.operands[number]
        for slot, operand in enumerate(operands[:SLOTS]):
            candidates = draft.candidates(template, operands[:slot])
            if operand in candidates:
                choices.add((number, slot, operand), candidates, draft.unread(candidates))
        draft.append(template, operands, steps.types[number])
        features[number] = draft.features()
    return Sequence(
        templates=np.array([vocabulary.number(t) for t in steps.templates], dtype=np.int32),
        features=features,
        conditions=condition_vector(asked),
        weight=weight,
        family=family,
        **choices.arrays(),
    )


@dataclass
class _Choices:
    """Choices of operands in the order in which they are made."""

    chosen: list[tuple[int, int, int]] = field(default_factory=list)
    candidates: list[Int64s] = field(default_factory=list)
    unread: list[NDArray[np.bool_]] = field(default_factory=list)

    def add(
        self, chosen: tuple[int, int, int], candidates: Int64s, unread: NDArray[np.bool_]
    ) -> None:
        self.chosen.append(chosen)
        self.candidates.append(candidates)
        self.unread.append(unread)

    def arrays(self) -> dict[str, NDArray[Any]]:
        table = np.array(self.chosen, dtype=np.int32).reshape(-1, 3)
        first = np.zeros(len(table) + 1, dtype=np.int64)
        np.cumsum([len(c) for c in self.candidates], out=first[1:])
        none = [np.zeros(0, dtype=np.int64)]
        return {
            "step": table[:, 0],
            "slot": table[:, 1],
            "target": table[:, 2],
            "first": first,
            "candidates": np.concatenate([*none, *self.candidates]).astype(np.int32),
            "unread": np.concatenate([np.zeros(0, dtype=np.bool_), *self.unread]),
        }
