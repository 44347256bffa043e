"""Whose products are these? A look-up of shapes in the configurations of public models.

It needs no capture of a model, and no structure: it finds profiles and other code of a model as
well, as long as sizes are as they were.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flint.ir.op_class import ATTENTION, PRODUCT
from flint.ir.program import Program
from flint.tools.share.leaks.model_shapes import MODELS, ModelShapes, Pair, pair_of

#: A model is named if its weights have so much of the operations of products.
_EXPLAINED = 0.9


@dataclass(frozen=True, slots=True)
class ShapeMatch:
    """A model whose layers are all there. `explained` is the share of operations of products that have
    its weights, `usual` how many of the `usual_of` shapes are there that its runs usually have."""

    model: str
    explained: float
    usual: int
    usual_of: int


@dataclass(frozen=True, slots=True)
class ShapeGuess:
    """Models that the shapes name, best first, of `among`; those as good as the first are its equals."""

    matches: tuple[ShapeMatch, ...]
    among: int

    @property
    def named(self) -> tuple[ShapeMatch, ...]:
        """The best, and those that are as good."""
        first = self.matches[:1]
        return tuple(m for m in self.matches for f in first if _rank(m) == _rank(f))


@dataclass(frozen=True)
class _Seen:
    """Operations by the pairs of sides that a product has, all of them, and lengths of attention."""

    pairs: Counter[frozenset[Pair]]
    flops: float
    lengths: frozenset[int]


def guess_by_shapes(
    programs: Sequence[Program], models: Sequence[ModelShapes] = MODELS
) -> ShapeGuess:
    """Models all of whose layers are there, and whose weights explain nearly all products."""
    seen = _seen(programs)
    found = [m for model in models if (m := _match(model, seen)) is not None]
    return ShapeGuess(tuple(sorted(found, key=_rank)), len(models))


def _rank(match: ShapeMatch) -> tuple[float, float]:
    return -match.usual / max(match.usual_of, 1), -round(match.explained, 2)


def _seen(programs: Sequence[Program]) -> _Seen:
    pairs: Counter[frozenset[Pair]] = Counter()
    lengths: set[int] = set()
    for p in programs:
        for row in np.flatnonzero(np.isin(p.op, sorted(PRODUCT | ATTENTION))).tolist():
            batch, m, n, k = p.dims[row].tolist()
            if p.op[row] in ATTENTION or batch > 1:
                lengths |= {m, n, k}
            elif min(m, n, k) > 0:
                sides = frozenset((pair_of(m, n), pair_of(m, k), pair_of(n, k)))
                pairs[sides] += int(p.trips[row]) * 2 * m * n * k
    return _Seen(pairs, float(sum(pairs.values())), frozenset(lengths))


def _match(model: ModelShapes, seen: _Seen) -> ShapeMatch | None:
    """How well a model fits, on as many devices a layer as fits best; None if it does not."""
    there = frozenset(pair for sides in seen.pairs for pair in sides)
    best = 0.0
    for shards, layers in model.shards.items():
        fused = frozenset(p for w in model.fused for p in (w, (w[0] // shards, w[1])))
        has_fused = any(pair_of(*w) in there for w in fused)
        if sum(any(p in there for p in each) for each in layers) < len(layers) - has_fused:
            continue
        own = model.pairs(shards)
        explained = sum(flops for sides, flops in seen.pairs.items() if sides & own)
        best = max(best, explained / seen.flops)
    if best < _EXPLAINED:
        return None
    usual = sum(pair_of(*w) in there for w in model.usual)
    usual += sum(length in seen.lengths for length in model.lengths)
    return ShapeMatch(model.name, best, usual, len(model.usual) + len(model.lengths))
