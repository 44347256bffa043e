"""Whose products are these? A look-up of shapes in the configurations of public models.

It needs no capture of a model, and no structure: it finds profiles and other code of a model as
well, as long as sizes are as they were.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np

from flint.ir.op_class import ATTENTION, PRODUCT
from flint.ir.program import Program

# Shapes of the products of public models, from their published configurations.
#
# Only what a configuration file says is here: widths of layers and heads, vocabularies, patches, and
# lengths of sequences where an input has one usual size.

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


def _decoder(
    name: str,
    width: int,
    inner: int,
    vocabulary: int,
    *,
    queries: int = 0,
    keys: int = 0,
    gated: bool = True,
) -> ModelShapes:
    queries = queries or width
    keys = keys or queries
    fused = [(queries + 2 * keys, width), (keys, width)] + [(2 * inner, width)] * gated
    return ModelShapes(
        name,
        ((queries, width), (inner, width), (width, inner)),
        tuple(fused),
        ((vocabulary, width),),
    )


def _plain(
    name: str,
    width: int,
    inner: int,
    usual: tuple[Pair, ...],
    lengths: tuple[int, ...] = (),
    *others: Pair,
) -> ModelShapes:
    """Layers with as many keys as queries and without gates; `others` are those of a second tower."""
    layers = ((width, width), (inner, width), (width, inner), *others)
    fused = tuple((3 * out, into) for out, into in layers if out == into)
    return ModelShapes(name, layers, fused, usual, lengths)


def _tower(width: int, inner: int) -> tuple[Pair, ...]:
    return (width, width), (inner, width), (width, inner)


MODELS: tuple[ModelShapes, ...] = (
    _plain("ViT-S/16", 384, 1536, ((384, 768),), (197,)),
    _plain("ViT-B/16", 768, 3072, (), (197,)),
    _plain("ViT-L/16", 1024, 4096, ((1024, 768),), (197,)),
    _plain("ViT-H/14", 1280, 5120, ((1280, 588),), (257,)),
    _plain("CLIP ViT-L/14", 1024, 4096, ((1024, 588), (768, 1024)), (257, 77), *_tower(768, 3072)),
    _plain("OWLv2-B/16", 768, 3072, ((512, 768),), (3601,), *_tower(512, 2048)),
    _plain("OWLv2-L/14", 1024, 4096, ((1024, 588), (768, 1024)), (5185,), *_tower(768, 3072)),
    _plain("TimeSformer-B", 768, 3072, ((400, 768),), (8,)),
    _plain("BERT-small", 512, 2048, ((30522, 512),)),
    _plain("BERT-base", 768, 3072, ((30522, 768),)),
    _plain("BERT-large", 1024, 4096, ((30522, 1024),)),
    _plain("RoBERTa-base", 768, 3072, ((50265, 768),)),
    _plain("T5-large", 1024, 4096, ((32128, 1024),)),
    _plain("Whisper-large-v3", 1280, 5120, ((51866, 1280),), (1500,)),
    _plain("GPT-2", 768, 3072, ((50257, 768),)),
    _plain("GPT-2 XL", 1600, 6400, ((50257, 1600),)),
    _plain("GPT-3 175B", 12288, 49152, ((50257, 12288),)),
    _plain("OPT-6.7B", 4096, 16384, ((50272, 4096),)),
    _plain("BLOOM-7B1", 4096, 16384, ((250880, 4096),)),
    _plain("MPT-7B", 4096, 16384, ((50432, 4096),)),
    _decoder("Falcon-7B", 4544, 18176, 65024, keys=64, gated=False),
    _decoder("Llama-2-7B", 4096, 11008, 32000),
    _decoder("Llama-2-13B", 5120, 13824, 32000),
    _decoder("Llama-3-8B", 4096, 14336, 128256, keys=1024),
    _decoder("Llama-3-70B", 8192, 28672, 128256, keys=1024),
    _decoder("Llama-3.1-405B", 16384, 53248, 128256, keys=1024),
    _decoder("Mistral-7B, Mixtral-8x7B", 4096, 14336, 32000, keys=1024),
    _decoder("Qwen1.5-0.5B", 1024, 2816, 151936),
    _decoder("Qwen2-7B", 3584, 18944, 152064, keys=512),
    _decoder("Qwen3-8B", 4096, 12288, 151936, keys=1024),
    _decoder("Gemma-7B", 3072, 24576, 256000, queries=4096),
    _decoder("Gemma-2-9B", 3584, 14336, 256000, queries=4096, keys=2048),
    _decoder("Phi-3-mini", 3072, 8192, 32064),
)

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
