"""Shapes of the products of public models, from their published configurations.

Only what a configuration file says is here: widths of layers and heads, vocabularies, patches, and
lengths of sequences where an input has one usual size.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

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
