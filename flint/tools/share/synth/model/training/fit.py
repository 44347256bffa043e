"""Training of the network: pieces of programs in an order that the seed decides, and Adam."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Several
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import cross_entropy

from flint.tools.share.synth.model.training.batches import Piece, Prepared, piece
from flint.tools.share.synth.model.training.network import Network, Run, entry_log_probs
from flint.tools.share.synth.model.weights import Floats

Progress: TypeAlias = Callable[[int, int, float, float], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """How training goes. `batch` programs at a time, in pieces of `length` steps.

    Shares that are dropped: `noise` of inputs and outputs, `blank` of templates that are read,
    `unasked` of conditions, `endless` of lengths. `smoothing` of labels.
    """

    batch: int = 10
    length: int = 128
    rate: float = 3e-3
    warm_up: int = 60
    decay: float = 1e-2
    clip: float = 1.0
    noise: float = 0.15
    blank: float = 0.05
    unasked: float = 0.25
    endless: float = 0.25
    smoothing: float = 0.03
    pointers: float = 1.0


def fit(
    network: Network,
    programs: Several[Prepared],
    groups: NDArray[np.int64],
    *,
    steps: int,
    seed: int,
    plan: Plan,
    on_progress: Progress | None = None,
) -> None:
    """Train for so many steps of Adam (Kingma and Ba 2015, decay as Loshchilov and Hutter 2019)."""
    parameters = network.parameters()
    optimizer = torch.optim.AdamW(
        parameters, lr=plan.rate, betas=(0.9, 0.98), weight_decay=plan.decay
    )
    pieces = _pieces(network, programs, groups, np.random.default_rng(seed), plan)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = plan.rate * _share_of_rate(step, steps, plan.warm_up)
        run, part = next(pieces)
        templates, pointers = _losses(run, part, plan)
        optimizer.zero_grad()
        (templates + plan.pointers * pointers).backward()
        torch.nn.utils.clip_grad_norm_(parameters, plan.clip)
        optimizer.step()
        if on_progress:
            on_progress(step + 1, steps, float(templates.detach()), float(pointers.detach()))


def _share_of_rate(step: int, steps: int, warm_up: int) -> float:
    """Linear to 1, then a half cosine down to 1 in 50."""
    rising = min(1.0, (step + 1) / warm_up)
    return rising * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / max(steps, 1))))


def _pieces(
    network: Network,
    programs: Several[Prepared],
    groups: NDArray[np.int64],
    random: np.random.Generator,
    plan: Plan,
) -> Iterator[tuple[Run, Piece]]:
    """Pieces for ever: programs of about one length together, all of them before any again."""
    vocabulary = network.sizes.vocabulary
    lengths = np.array([len(p.sequence) for p in programs])
    while True:
        order = np.argsort(lengths * random.uniform(0.8, 1.25, len(lengths)), kind="stable")
        parts = [order[i : i + plan.batch] for i in range(0, len(order), plan.batch)]
        for number in random.permutation(len(parts)):
            chosen = sorted(parts[number], key=lambda i: -int(lengths[i]))
            members = [programs[i] for i in chosen]
            asked = [_asked(p, groups, random, plan) for p in members]
            run = Run(network, np.stack([a for a, _ in asked]), plan.noise)
            for start in range(0, int(lengths[chosen[0]]), plan.length):
                alive = sum(int(lengths[i]) > start for i in chosen)
                rows = [r for _, r in asked[:alive]]
                part = piece(members[:alive], start, plan.length, vocabulary, rows, random)
                yield run, _blanked(part, vocabulary, random, plan)


def _asked(
    p: Prepared, groups: NDArray[np.int64], random: np.random.Generator, plan: Plan
) -> tuple[Floats, int | None]:
    """Conditions and length of a program, some of which are left out."""
    dropped = random.random(int(groups.max(initial=-1)) + 2) < plan.unasked
    dropped[-1] = False
    if random.random() < plan.unasked / 2:
        dropped[:-1] = True
    conditions = np.where(dropped[groups], np.float32(0), p.sequence.conditions)
    return conditions, None if random.random() < plan.endless else len(p.sequence)


def _blanked(part: Piece, vocabulary: int, random: np.random.Generator, plan: Plan) -> Piece:
    blank = [random.random(part.before.shape) < plan.blank for _ in range(2)]
    return replace(
        part,
        before=np.where(blank[0], vocabulary, part.before),
        guesses=np.where(blank[1], vocabulary, part.guesses),
    )


def _losses(run: Run, part: Piece, plan: Plan) -> tuple[Any, Any]:
    """Nats a template and a pointer, means by weight."""
    scores, entries, valid = run.outputs(part)
    weight = torch.tensor(part.weight)
    nats = cross_entropy(
        scores,
        torch.tensor(part.templates)[valid],
        reduction="none",
        label_smoothing=plan.smoothing,
    )
    mine = weight[valid]
    templates = (nats * mine).sum() / mine.sum()
    if not len(part.hits):
        return templates, torch.zeros(())
    chosen = entry_log_probs(entries, part)[torch.tensor(part.hits)]
    theirs = weight.reshape(-1)[torch.tensor(part.rows)]
    return templates, -(chosen * theirs).sum() / theirs.sum()
