"""How likely a model finds programs that others wrote."""

from __future__ import annotations

from collections.abc import Sequence as Several
from dataclasses import dataclass

import numpy as np

from flint.tools.share.synth.model.row_model import RowModel
from flint.tools.share.synth.model.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Losses:
    """Nats (natural logarithms), means over steps or pointers.

    `template` is of the mixture; `network`, `counts` and `repeats` of each source alone (repeats
    with 1 % of the counts, as they exclude what is new). `pointer` is of the operands, `uniform` of
    a choice among the same candidates at random.
    """

    template: float
    network: float
    counts: float
    repeats: float
    pointer: float
    uniform: float
    steps: int
    pointers: int


def losses(model: RowModel, sequences: Several[Sequence]) -> Losses:
    """Follow programs step by step, as they would be written. Raises ValueError for no steps."""
    templates: list[tuple[float, float, float, float]] = []
    pointers: list[float] = []
    uniform: list[float] = []
    for sequence in sequences:
        _follow(model, sequence, templates, pointers)
        uniform += np.log(np.diff(sequence.first)).tolist()
    if not templates:
        raise ValueError("no steps")
    template, network, counts, repeats = (-np.mean(templates, axis=0)).tolist()
    return Losses(
        template,
        network,
        counts,
        repeats,
        pointer=-float(np.mean(pointers)) if pointers else 0.0,
        uniform=float(np.mean(uniform)) if uniform else 0.0,
        steps=len(templates),
        pointers=len(pointers),
    )


def _follow(
    model: RowModel,
    s: Sequence,
    templates: list[tuple[float, float, float, float]],
    pointers: list[float],
) -> None:
    state = model.start(s.conditions, len(s))
    starts = np.searchsorted(s.step, np.arange(len(s) + 1))
    for step, template in enumerate(s.templates.tolist()):
        templates.append(state.judge(template))
        chosen: list[int] = []
        for pointer in range(starts[step], starts[step + 1]):
            entries = slice(s.first[pointer], s.first[pointer + 1])
            candidates, target = s.candidates[entries], int(s.target[pointer])
            found = state.pointer_log_probs(
                template, int(s.slot[pointer]), chosen, candidates, s.unread[entries]
            )
            pointers.append(float(found[np.searchsorted(candidates, target)]))
            chosen.append(target)
        state.advance(template, chosen, s.features[step])
