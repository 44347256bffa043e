"""The evaluation: fold by fold, each method trained on some families and compared with the others."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks.sharing.evaluation.folds import Fold, family_weights
from benchmarks.sharing.evaluation.generator import Generator, Trainer
from benchmarks.sharing.evaluation.measuring.cache import Cache
from benchmarks.sharing.evaluation.measuring.measured import Measured
from benchmarks.sharing.evaluation.methods import Made, make
from benchmarks.sharing.evaluation.real import Real
from benchmarks.sharing.evaluation.scoring.comparison import (
    Compared,
    bandwidths,
    compared,
    mean_compared,
)
from benchmarks.sharing.evaluation.scoring.distances import Sample
from benchmarks.sharing.evaluation.scoring.floors import halves
from benchmarks.sharing.evaluation.scoring.leakage import (
    Shared,
    membership_auc,
    neighbourhoods,
    shared_bits,
)
from benchmarks.sharing.evaluation.scoring.novelty import Novelty, novelty
from benchmarks.sharing.evaluation.scoring.surrogate import Labelled, Score, predictions, score

#: Seeds of samples for held-out conditions, and of those for training conditions, begin here.
_HELD_SEED, _TRAIN_SEED = 1_000_000, 2_000_000


@dataclass(frozen=True, slots=True)
class Options:
    """`samples` held-out conditions of a fold at most; `train_samples` training workloads of a
    surrogate in a fold; `seed` of all chance; `steps` of a training of Flint's generator."""

    samples: int
    train_samples: int
    seed: int
    steps: int = 0


@dataclass(frozen=True, eq=False)
class Result:
    """What is found of one method in one fold. `broken` counts workloads by broken rule."""

    asked: int
    made: int
    valid: int
    broken: Mapping[str, int]
    refused: Mapping[str, int]
    compared: Compared | None
    novelty: Novelty | None
    shared: tuple[Shared, ...]
    membership: float | None
    surrogates: Mapping[str, Score]
    labelled: int
    train_seconds: float
    sample_seconds: float


@dataclass(frozen=True, eq=False)
class FoldResult:
    """One fold: floors, the real workloads as a method would be judged, and each method.

    `labelled` real workloads, or `all_labelled`, train surrogates, and `tested` test them: those that
    have a step time.
    """

    fold: Fold
    held: int
    halves: Compared
    training: Compared
    novelty: Novelty
    shared: tuple[Shared, ...]
    surrogates: Mapping[str, Score]
    all_surrogates: Mapping[str, Score]
    labelled: int
    all_labelled: int
    tested: int
    methods: Mapping[str, Result]


@dataclass(eq=False)
class _Fold:
    """What is common to all methods of a fold."""

    real: Real
    fold: Fold
    options: Options
    cache: Cache
    held: list[int] = field(init=False)
    chosen: list[int] = field(init=False)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.options.seed)
        self.held = _some(self.fold.held_out, self.options.samples, rng)
        self.chosen = _some(self.fold.training, self.options.train_samples, rng)
        self.sample = self.real.sample(self.held)
        self.widths = bandwidths(self.sample)
        self.training = self.real.some_measured(self.fold.training)
        self.known = neighbourhoods(self.training)
        self.families = [self.real.captures[i].family for i in self.held]

    def floor(self) -> Compared:
        """Random halves of the held-out workloads from each other."""
        pairs = halves(self.families, self.options.seed)
        parts = [(self.sample.part(a), self.sample.part(b)) for a, b in pairs]
        return mean_compared([compared(a, b, self.widths, None) for a, b in parts])

    def result(self, trainer: Trainer) -> Result:
        """Train a method, and judge it."""
        start = time.process_time()
        captures = [self.real.captures[i] for i in self.fold.training]
        generator = trainer(captures, self.options.seed)
        spent = time.process_time() - start
        made = self._made(generator, self.held, _HELD_SEED, timed=False)
        for_surrogate = self._made(generator, self.chosen, _TRAIN_SEED, timed=True)
        return self._judged(made, for_surrogate, spent)

    def _made(
        self, generator: Generator, of: Sequence[int], first_seed: int, *, timed: bool
    ) -> Made:
        asked = [self.real.captures[i].conditions for i in of]
        seed = first_seed + 10_000 * self.options.seed
        return make(generator, asked, seed, self.cache, timed=timed)

    def _judged(self, made: Made, for_surrogate: Made, spent: float) -> Result:
        broken = Counter(rule for m in made.measured for rule in m.broken)
        some = bool(made.measured)
        labelled = self.labelled(for_surrogate.measured, np.array(for_surrogate.log_s))
        return Result(
            len(self.held),
            len(made.measured),
            sum(m.is_valid for m in made.measured),
            dict(broken.most_common()),
            made.refused,
            self._compared(made) if some else None,
            novelty(made.measured, self.training) if some else None,
            self.shared(made.measured),
            self._membership(made.measured) if some else None,
            self.scores(labelled) if len(labelled) > 1 else {},
            len(labelled),
            spent,
            made.seconds + for_surrogate.seconds,
        )

    def _compared(self, made: Made) -> Compared:
        weights = family_weights(self.families)[list(made.of)]
        sample = Sample.of([m.attributes for m in made.measured], weights)
        return compared(self.sample, sample, self.widths, made.of)

    def _membership(self, made: Sequence[Measured]) -> float:
        return membership_auc(made, self.training, self.real.some_measured(self.fold.held_out))

    def shared(self, measured: Sequence[Measured]) -> tuple[Shared, ...]:
        """Bits that each shares with a training workload."""
        return tuple(shared_bits(m, self.training, self.known) for m in measured)

    def labelled(self, measured: Sequence[Measured], log_s: np.ndarray) -> Labelled:
        """Those that have a step time, as surrogates read them."""
        known: list[int] = np.flatnonzero(np.isfinite(log_s)).tolist()
        totals = np.stack([measured[i].totals for i in known]) if len(known) else np.zeros((0, 0))
        return Labelled(totals, log_s[known])

    def real_labelled(self, of: Sequence[int]) -> Labelled:
        """Real workloads with a step time."""
        return self.labelled(self.real.some_measured(of), self.real.log_s[list(of)])

    def scores(self, train: Labelled) -> Mapping[str, Score]:
        """Each predictor, trained on these, on the real held-out workloads."""
        test = self.real_labelled(self.fold.held_out)
        found = predictions(train, test.totals)
        return {name: score(p, test.log_s) for name, p in found.items()}


def evaluate_fold(
    real: Real, fold: Fold, methods: Mapping[str, Trainer], options: Options, cache: Cache
) -> FoldResult:
    """All methods on one fold."""
    own = _Fold(real, fold, options, cache)
    held = real.some_measured(own.held)
    train, everything = own.real_labelled(own.chosen), own.real_labelled(fold.training)
    return FoldResult(
        fold,
        len(own.held),
        own.floor(),
        compared(own.sample, real.sample(fold.training), own.widths, None),
        novelty(held, own.training),
        own.shared(held),
        own.scores(train),
        own.scores(everything),
        len(train),
        len(everything),
        len(own.real_labelled(fold.held_out)),
        {name: own.result(trainer) for name, trainer in methods.items()},
    )


def _some(numbers: Sequence[int], most: int, rng: np.random.Generator) -> list[int]:
    """At most so many of the numbers, in order."""
    if len(numbers) <= most:
        return list(numbers)
    found: list[int] = sorted(rng.choice(np.array(numbers), size=most, replace=False).tolist())
    return found
