"""Whether made workloads are useful: predictors of step time trained on them, tested on real ones.

The predictors are neither Flint's estimator nor a part of the generator: they read a vector of totals
(`totals.py`). LayerDAG's surrogate shares the generator's encoder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import pearsonr, spearmanr
from sklearn.ensemble import ExtraTreesRegressor, GradientBoostingRegressor
from sklearn.linear_model import LinearRegression, RidgeCV
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.sharing.evaluation.measuring.totals import FLOPS_AT
from flint.ir.arrays import Float64s


@dataclass(frozen=True, eq=False)
class Labelled:
    """Vectors of workloads (workloads, totals) and logarithms of their step times in seconds."""

    totals: Float64s
    log_s: Float64s

    def __len__(self) -> int:
        return len(self.log_s)

    def part(self, rows: np.ndarray) -> Labelled:
        """Some of the workloads."""
        return Labelled(self.totals[rows], self.log_s[rows])


@dataclass(frozen=True, slots=True)
class Score:
    """Of predictions: correlations (0 where all are alike), and the mean error of the logarithm."""

    pearson: float
    spearman: float
    error: float


Predictor = Callable[[Labelled, Float64s], Float64s]


def _mean(train: Labelled, totals: Float64s) -> Float64s:
    return np.full(len(totals), train.log_s.mean())


def _flops(train: Labelled, totals: Float64s) -> Float64s:
    line = LinearRegression().fit(train.totals[:, [FLOPS_AT]], train.log_s)
    return np.asarray(line.predict(totals[:, [FLOPS_AT]]))


def _ridge(train: Labelled, totals: Float64s) -> Float64s:
    model = make_pipeline(StandardScaler(), RidgeCV(np.logspace(-2, 3, 11)))
    return _inside(train, model.fit(train.totals, train.log_s).predict(_near(train, totals)))


def _neighbours(train: Labelled, totals: Float64s) -> Float64s:
    model = KNeighborsRegressor(min(5, len(train)), weights="distance")
    whole = make_pipeline(StandardScaler(), model)
    return np.asarray(whole.fit(train.totals, train.log_s).predict(totals))


def _boosted(train: Labelled, totals: Float64s) -> Float64s:
    model = GradientBoostingRegressor(n_estimators=150, max_depth=3, subsample=0.7, random_state=0)
    return np.asarray(model.fit(train.totals, train.log_s).predict(totals))


def _trees(train: Labelled, totals: Float64s) -> Float64s:
    model = ExtraTreesRegressor(n_estimators=200, min_samples_leaf=2, random_state=0)
    return np.asarray(model.fit(train.totals, train.log_s).predict(totals))


def _near(train: Labelled, totals: Float64s) -> Float64s:
    """Totals no further than a third of the training range outside of it: lines go on for ever."""
    low, high = train.totals.min(axis=0), train.totals.max(axis=0)
    return np.clip(totals, low - (high - low) / 3, high + (high - low) / 3)


def _inside(train: Labelled, found: Float64s) -> Float64s:
    """The same of predictions."""
    low, high = train.log_s.min(), train.log_s.max()
    return np.asarray(np.clip(found, low - (high - low) / 3, high + (high - low) / 3))


#: Surrogates; beside them, what needs no graph.
SURROGATES: Mapping[str, Predictor] = {
    "ridge": _ridge,
    "boosted trees": _boosted,
    "random trees": _trees,
    "nearest neighbours": _neighbours,
}
TRIVIAL: Mapping[str, Predictor] = {"mean": _mean, "line in log FLOPs": _flops}


def predictions(train: Labelled, test: Float64s) -> Mapping[str, Float64s]:
    """What each predictor says of the test workloads."""
    return {name: of(train, test) for name, of in {**SURROGATES, **TRIVIAL}.items()}


def score(predicted: Float64s, measured: Float64s) -> Score:
    """Predictions against labels."""
    varies = float(np.ptp(predicted)) > 0 and float(np.ptp(measured)) > 0
    return Score(
        float(pearsonr(predicted, measured).statistic) if varies else 0.0,
        float(spearmanr(predicted, measured).statistic) if varies else 0.0,
        float(np.abs(predicted - measured).mean()),
    )


def mean_score(scores: Sequence[Score]) -> Score:
    """Means over folds."""
    table = np.array([(s.pearson, s.spearman, s.error) for s in scores])
    return Score(*table.mean(axis=0).tolist())
