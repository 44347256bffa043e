"""Training of a row model: first without some programs, to see whom to trust, then with all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence as Several
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from flint.tools.share.synth.model.ngrams import Ngrams, count_ngrams
from flint.tools.share.synth.model.row_model import RowModel, rounded
from flint.tools.share.synth.model.training.batches import Prepared
from flint.tools.share.synth.model.training.fit import Plan, Progress, fit
from flint.tools.share.synth.model.training.gate import fit_gate, samples
from flint.tools.share.synth.model.training.network import Network
from flint.tools.share.synth.model.weights import Floats, Sizes, random_weights

Ints: TypeAlias = NDArray[np.int64]

#: Share of the steps before the gate is trained, the rest after.
_FIRST = 0.35
#: Shares of programs that are held out till then: of whole families, and of the other programs.
_FAMILIES, _PROGRAMS = 0.15, 0.1


def train_model(
    programs: Several[Prepared],
    validation: Several[Prepared],
    sizes: Sizes,
    parts: Ints,
    groups: Ints,
    *,
    seed: int,
    steps: int,
    plan: Plan,
    on_progress: Progress | None = None,
) -> RowModel:
    """A model of programs. Without `validation`, some of them are held out in the first part."""
    torch.manual_seed(seed)
    random = np.random.default_rng(seed)
    kept, held = _split(programs, random)
    if validation:
        kept, held = list(programs), [list(validation)]
    weights = random_weights(sizes, seed)
    weights["bias"] = _frequencies(programs, sizes.vocabulary)
    network = Network(sizes, weights, parts)
    first = steps if validation else round(_FIRST * steps)
    report = _Report(on_progress, steps)
    fit(network, kept, groups, steps=first, seed=seed, plan=plan, on_progress=report)
    counts = counted(kept, sizes.vocabulary)
    gate = fit_gate([samples(network, counts, h) for h in held if h], seed)
    if not validation:
        report.done = first
        rest = steps - first
        fit(network, programs, groups, steps=rest, seed=seed + 1, plan=plan, on_progress=report)
        counts = counted(programs, sizes.vocabulary)
    about = {"seed": seed, "steps": steps, "programs": len(programs)}
    return RowModel(sizes, rounded(network.arrays() | gate), counts, about)


class _Report:
    """Steps of both parts as one count."""

    def __init__(self, on_progress: Progress | None, steps: int) -> None:
        self._on_progress, self._steps, self.done = on_progress, steps, 0

    def __call__(self, step: int, _: int, templates: float, pointers: float) -> None:
        if self._on_progress:
            self._on_progress(self.done + step, self._steps, templates, pointers)


def counted(programs: Several[Prepared], vocabulary: int) -> Ngrams:
    """Counts of templates. Each family counts as one program: what is frequent is in several."""
    family_weight: dict[Any, float] = defaultdict(float)
    keys = [_family(p, n) for n, p in enumerate(programs)]
    for key, p in zip(keys, programs, strict=True):
        family_weight[key] += p.sequence.weight
    weights = [p.sequence.weight / family_weight[k] for k, p in zip(keys, programs, strict=True)]
    texts = [p.sequence.templates.astype(np.int64) for p in programs]
    return count_ngrams(texts, weights, vocabulary)


def _family(p: Prepared, number: int) -> tuple[bool, int]:
    """The family, or for a program of none one of its own."""
    family = p.sequence.family
    return (True, family) if family >= 0 else (False, number)


def _split(
    programs: Several[Prepared], random: np.random.Generator
) -> tuple[list[Prepared], list[list[Prepared]]]:
    """Programs to train on first, and two sets to hold out: whole families, and of the others."""
    keys = [_family(p, n) for n, p in enumerate(programs)]
    names = sorted(set(keys))
    out = [
        names[i] for i in random.permutation(len(names))[: max(1, round(_FAMILIES * len(names)))]
    ]
    strangers = [p for p, k in zip(programs, keys, strict=True) if k in out]
    others = [p for p, k in zip(programs, keys, strict=True) if k not in out]
    order = random.permutation(len(others))
    cut = max(1, round(_PROGRAMS * len(others)))
    known = [others[i] for i in order[:cut]]
    kept = [others[i] for i in np.sort(order[cut:])]
    shuffled = [strangers[i] for i in random.permutation(len(strangers))]
    return kept or list(programs), [shuffled, known]


def _frequencies(programs: Several[Prepared], vocabulary: int) -> Floats:
    """Logarithms of how frequent templates are, to start from."""
    every = np.concatenate([p.sequence.templates for p in programs])
    times = np.bincount(every, minlength=vocabulary) + 0.5
    found: Floats = np.log(times / times.sum()).astype(np.float32)
    return found
