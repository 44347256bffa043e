"""Whose products are these? A look-up of shapes in the configurations of public models.

It needs no capture of a model, and no structure: it finds profiles and other code of a model as
well, as long as sizes are as they were.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from typing import TypeAlias

import numpy as np

from flint.ir.op_class import ATTENTION, PRODUCT
from flint.ir.program import Program

#: Two sides of a weight in ascending order: an observer does not see which one is reduced.
Pair: TypeAlias = tuple[int, int]
_SHARDS = (1, 2, 4, 8)


def pair_of(a: int, b: int) -> Pair:
    """Two sides in ascending order."""
    return (a, b) if a <= b else (b, a)


@dataclass(frozen=True)
class ModelShapes:
    """Weights (outputs, inputs) of a model's layers. `usual` are weights and lengths that not every run has.

    `fused` stand for several of `layers` in one product: queries with keys and values, gates.
    """

    name: str
    layers: tuple[Pair, ...]
    fused: tuple[Pair, ...] = ()
    usual: tuple[Pair, ...] = ()
    lengths: tuple[int, ...] = ()

    @cached_property
    def shards(self) -> dict[int, tuple[tuple[Pair, ...], ...]]:
        """By how many devices share a layer, for each of `layers` the pairs that it can be."""
        return {n: tuple(_divided(w, n) for w in self.layers) for n in _SHARDS}

    def pairs(self, shards: int) -> frozenset[Pair]:
        """All pairs that the model's products can have."""
        weights = (*self.layers, *self.fused, *self.usual)
        return frozenset(p for w in weights for p in (*_divided(w, shards), pair_of(*w)))


def _divided(weight: Pair, shards: int) -> tuple[Pair, ...]:
    """A weight divided by columns or by rows; none where it does not divide."""
    out, into = weight
    found = [pair_of(out // shards, into)] if not out % shards else []
    return (*found, pair_of(out, into // shards)) if not into % shards else tuple(found)


def _model(
    name: str,
    width: int,
    inner: int,
    *,
    usual: Sequence[Sequence[int]] = (),
    lengths: Sequence[int] = (),
    queries: int = 0,
    keys: int = 0,
    gated: bool = False,
    tower: Sequence[int] = (),
) -> ModelShapes:
    queries = queries or width
    keys = keys or queries
    layers = [(queries, width), (inner, width), (width, inner)]
    fused = [(queries + 2 * keys, width)] + [(keys, width)] * (keys < queries)
    fused += [(2 * inner, width)] * gated
    if tower:
        other = _model(name, *tower)
        layers, fused = [*layers, *other.layers], [*fused, *other.fused]
    weights = tuple((out, into) for out, into in usual)
    return ModelShapes(name, tuple(layers), tuple(fused), weights, tuple(lengths))


@cache
def public_shapes() -> tuple[ModelShapes, ...]:
    """The models of `models.toml`."""
    table = tomllib.loads((files("flint.tools.share.leaks") / "models.toml").read_text("utf-8"))
    return tuple(_model(name, **row) for name, row in table.items())


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


def guess_by_shapes(programs: Sequence[Program]) -> ShapeGuess:
    """Models all of whose layers are there, and whose weights explain nearly all products."""
    seen, models = _seen(programs), public_shapes()
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
