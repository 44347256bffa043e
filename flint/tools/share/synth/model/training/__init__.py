"""Training of the row model with PyTorch. Importing this imports no PyTorch, calling `train` does."""

from __future__ import annotations

from collections.abc import Sequence as Several
from typing import TYPE_CHECKING, Any

import numpy as np

from flint.errors import FlintError
from flint.tools.share.synth.model.row_model import RowModel
from flint.tools.share.synth.model.sequence import Sequence
from flint.tools.share.synth.model.weights import Sizes

if TYPE_CHECKING:
    from flint.tools.share.synth.model.training.fit import Progress


def train(
    sequences: Several[Sequence],
    *,
    seed: int,
    steps: int,
    threads: int = 1,
    validation: Several[Sequence] | None = None,
    on_progress: Progress | None = None,
    vocabulary: int | None = None,
    condition_groups: Several[Several[int]] | None = None,
    parts: Several[Several[Any]] | None = None,
) -> RowModel:
    """A row model of programs, after `steps` steps of Adam.

    Equal arguments give equal models, on one machine and version of PyTorch. With `validation`,
    programs of other families, whom the model trusts how far is learned from them; without, from
    some of `sequences`, which it is trained on only after that.

    `vocabulary`: how many templates there are, by default as many as occur.
    `condition_groups`: conditions that are given together or not at all. `parts`, for each
    template: what it consists of, things that may be equal to those of other templates at the same
    place. `on_progress` gets the step, the number of steps, and nats a template and a pointer.

    Raises FlintError FL958 where PyTorch is missing, ValueError for sequences that contradict
    themselves or each other.
    """
    try:
        import torch
    except ImportError as error:
        raise FlintError(
            "FL958",
            "PyTorch is not installed in this environment, and training needs it",
            help="install flint-ir[torch]; what was trained before needs numpy alone",
        ) from error
    from flint.tools.share.synth.model.training.batches import prepare
    from flint.tools.share.synth.model.training.fit import Plan
    from flint.tools.share.synth.model.training.stages import train_model

    every = [*sequences, *(validation or ())]
    sizes = _sizes(every, vocabulary)
    before = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)
    try:
        return train_model(
            [prepare(s, sizes.vocabulary) for s in sequences],
            [prepare(s, sizes.vocabulary) for s in validation or ()],
            sizes,
            _numbers(parts, sizes.vocabulary),
            _groups(condition_groups, sizes.conditions),
            seed=seed,
            steps=steps,
            plan=Plan(),
            on_progress=on_progress,
        )
    finally:
        torch.set_num_threads(before[0])
        torch.use_deterministic_algorithms(before[1])


def _sizes(sequences: Several[Sequence], vocabulary: int | None) -> Sizes:
    if not sequences:
        raise ValueError("no sequences")
    for sequence in sequences:
        sequence.verify()
    widths = {(s.features.shape[1], len(s.conditions)) for s in sequences}
    if len(widths) > 1:
        raise ValueError(f"sequences of several widths: {sorted(widths)}")
    ((features, conditions),) = widths
    most = 1 + max(int(s.templates.max()) for s in sequences)
    if vocabulary is not None and vocabulary < most:
        raise ValueError(f"templates up to {most - 1} in a vocabulary of {vocabulary}")
    return Sizes(vocabulary or most, features, conditions)


def _numbers(parts: Several[Several[Any]] | None, vocabulary: int) -> np.ndarray[Any, Any]:
    """(V, K): for each column, equal numbers for equal things."""
    if parts is None:
        return np.zeros((vocabulary, 0), np.int64)
    if len(parts) != vocabulary:
        raise ValueError(f"parts of {len(parts)} templates, not of {vocabulary}")
    columns = []
    for things in zip(*parts, strict=True):
        seen: dict[str, int] = {}
        columns.append([seen.setdefault(repr(thing), len(seen)) for thing in things])
    return np.array(columns, np.int64).T.reshape(vocabulary, -1)


def _groups(groups: Several[Several[int]] | None, conditions: int) -> np.ndarray[Any, Any]:
    """(C,): the number of the group that each condition is of; without groups, all are of one."""
    found = np.zeros(conditions, np.int64)
    for number, members in enumerate(groups or ()):
        found[list(members)] = number
    return found
