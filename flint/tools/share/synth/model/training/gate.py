"""Training of the gate, on programs that neither the network nor the counts have seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Several
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from flint.tools.share.synth.model.mixing import EVIDENCE, SOURCES, WIDTH, evidence
from flint.tools.share.synth.model.ngrams import Ngrams
from flint.tools.share.synth.model.repeats import Repeats
from flint.tools.share.synth.model.sequence import SLOTS
from flint.tools.share.synth.model.training.batches import Prepared, piece
from flint.tools.share.synth.model.training.network import Network, Run
from flint.tools.share.synth.model.weights import Floats

Doubles: TypeAlias = NDArray[np.float64]

#: Steps of Adam over all samples at once, and how fast.
_STEPS, _RATE = 400, 0.02
#: Steps of programs that are looked at: more make no difference.
_MOST_SAMPLES = 24_000


class Samples(NamedTuple):
    """What the sources say of the steps of held-out programs: evidence (N, EVIDENCE), the
    probability of what came (N, SOURCES), and how much each step counts (N,)."""

    seen: Doubles
    given: Doubles
    weight: Doubles


def samples(network: Network, ngrams: Ngrams, programs: Several[Prepared]) -> Samples:
    """Follow held-out programs, up to enough steps. Each family counts the same."""
    ends = np.cumsum([len(p.sequence) for p in programs])
    few = programs[: 1 + int(np.searchsorted(ends, _MOST_SAMPLES))]
    steps = Counter[int]()
    for p in few:
        steps[p.sequence.family] += len(p.sequence)
    found = [_follow(network, ngrams, p) for p in few]
    weights = [np.full(len(p.sequence), 1 / steps[p.sequence.family]) for p in few]
    seen, given = (np.concatenate(column) for column in zip(*found, strict=True))
    return Samples(seen, given, np.concatenate(weights))


def _follow(network: Network, ngrams: Ngrams, p: Prepared) -> tuple[Doubles, Doubles]:
    vocabulary, templates = network.sizes.vocabulary, p.sequence.templates.tolist()
    with torch.no_grad():
        whole = piece([p], 0, len(templates), vocabulary, [len(templates)], None)
        scores, _, _ = Run(network, whole.conditions).outputs(whole)
        chances = torch.softmax(scores.double(), -1).numpy()
    repeats, none = Repeats(vocabulary), np.full(SLOTS, -1, np.int64)
    seen, given = np.empty((len(templates), EVIDENCE)), np.empty((len(templates), SOURCES))
    for step, template in enumerate(templates):
        follow, guess = ngrams.follow(templates[max(0, step - 2) : step]), repeats.guess()
        seen[step] = evidence(chances[step], follow, guess)
        counted = follow.probabilities[template]
        copied = counted if guess is None else guess.probabilities[template]
        given[step] = chances[step, template], counted, copied
        repeats.append(template, none)
    return seen, given


def fit_gate(several: Several[Samples], seed: int) -> dict[str, Floats]:
    """Weights of the gate that make what came most likely. Each set of samples counts the same."""
    weight = np.concatenate([s.weight / s.weight.sum() for s in several]) / len(several)
    seen = torch.tensor(np.concatenate([s.seen for s in several]), dtype=torch.float32)
    given = torch.tensor(np.concatenate([s.given for s in several]), dtype=torch.float32)
    weights = torch.tensor(weight, dtype=torch.float32)
    maker = torch.Generator().manual_seed(seed)
    first = (torch.randn(WIDTH, EVIDENCE, generator=maker) * EVIDENCE**-0.5).requires_grad_()
    second = torch.zeros(SOURCES, WIDTH, requires_grad=True)
    biases = torch.zeros(WIDTH, requires_grad=True), torch.zeros(SOURCES, requires_grad=True)
    trained = [first, second, *biases]
    optimizer = torch.optim.AdamW(trained, lr=_RATE, weight_decay=0.01)
    for step in range(_STEPS):
        optimizer.param_groups[0]["lr"] = _RATE * (1 - step / _STEPS)
        inner = torch.tanh(seen @ first.T + biases[0])
        shares = torch.softmax(inner @ second.T + biases[1], -1)
        loss = -(weights * torch.log((shares * given).sum(-1) + 1e-12)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    names = ("gate_w1", "gate_w2", "gate_b1", "gate_b2")
    return {n: w.detach().numpy().copy() for n, w in zip(names, trained, strict=True)}
