"""Templates by the two before: counts, interpolated with those by one, by none, and all alike.

P(w | u v) = (c(u v w) + n(u v) P(w | v)) / (c(u v) + n(u v)), where n(u v) is how many templates
follow u v: interpolation (Jelinek and Mercer 1980) with the weights of method C of Witten and Bell
1991, and the same for P(w | v) and P(w).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from flint.io.malformed import Malformed
from flint.io.npz import column_of

Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float32]
Doubles: TypeAlias = NDArray[np.float64]

#: Templates that are looked at together.
ORDER = 3


class Follow(NamedTuple):
    """What is known of a context: P of the next (V,), how often it was seen, by how many followed.

    Both numbers along orders 2 and 3.
    """

    probabilities: Doubles
    seen: tuple[float, ...]
    distinct: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Level:
    """Counts of one order. Context `contexts[i]` is followed by `words[starts[i]:starts[i + 1]]`.

    Contexts ascend: the templates before as digits of base V + 1, the last one lowest.
    """

    contexts: Ints
    starts: Ints
    words: Ints
    counts: Floats

    def find(self, context: int) -> slice:
        """Where the followers of a context are; empty if it never was."""
        at = int(np.searchsorted(self.contexts, context))
        if at == len(self.contexts) or self.contexts[at] != context:
            return slice(0, 0)
        return slice(int(self.starts[at]), int(self.starts[at + 1]))


@dataclass(frozen=True, eq=False)
class Ngrams:
    """Counts of templates by the templates before. Before the first step all are number V."""

    vocabulary: int
    single: Doubles
    levels: tuple[Level, ...]

    def follow(self, before: Sequence[int]) -> Follow:
        """What follows the templates `before`, the last of which is the last."""
        probabilities = self.single
        base, context = self.vocabulary + 1, 0
        seen, distinct = [], []
        for back, level in enumerate(self.levels, 1):
            word = before[-back] if back <= len(before) else self.vocabulary
            context += word * base ** (back - 1)
            found = level.find(context)
            counts = level.counts[found]
            total, kinds = float(counts.sum()), len(counts)
            seen.append(total)
            distinct.append(kinds)
            if kinds:
                probabilities = probabilities * (kinds / (total + kinds))
                probabilities[level.words[found]] += counts / (total + kinds)
        return Follow(probabilities, tuple(seen), tuple(distinct))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """As arrays to store, by name; `from_arrays` reads them."""
        stored: dict[str, NDArray[Any]] = {"ngram_single": self.single.astype(np.float32)}
        for order, level in enumerate(self.levels, 2):
            stored[f"ngram_contexts_{order}"] = np.diff(level.contexts, prepend=0)
            stored[f"ngram_kinds_{order}"] = np.diff(level.starts).astype(np.uint16)
            stored[f"ngram_words_{order}"] = level.words.astype(np.uint16)
            stored[f"ngram_counts_{order}"] = level.counts.astype(np.float16)
        return stored

    @classmethod
    def from_arrays(cls, stored: Mapping[str, NDArray[Any]]) -> Ngrams:
        """From what `arrays` gave. Raises Malformed for anything else."""
        single = column_of(stored, "ngram_single", "float32").astype(np.float64)
        if single.ndim != 1 or (single < 0).any() or not single.any():
            raise Malformed("ngram_single holds no probabilities")
        levels = [_stored_level(stored, order, len(single)) for order in range(2, ORDER + 1)]
        return cls(len(single), single, tuple(levels))


def _stored_level(stored: Mapping[str, NDArray[Any]], order: int, vocabulary: int) -> Level:
    types = {"contexts": "int64", "kinds": "uint16", "words": "uint16", "counts": "float16"}
    contexts, kinds, words, counts = (
        column_of(stored, f"ngram_{name}_{order}", dtype).reshape(-1)
        for name, dtype in types.items()
    )
    starts = np.concatenate([[0], np.cumsum(kinds.astype(np.int64))])
    if len({len(words), len(counts), int(starts[-1])}) > 1 or len(contexts) != len(kinds):
        raise Malformed(f"counts of order {order} are of different lengths")
    if len(words) and words.max() >= vocabulary:
        raise Malformed(f"order {order} has templates that there are not")
    sums = np.cumsum(contexts)
    if (counts < 0).any() or (sums < 0).any() or (np.diff(sums) <= 0).any():
        raise Malformed(f"counts of order {order} are negative, or out of order")
    return Level(sums, starts, words.astype(np.int64), counts.astype(np.float32))


def count_ngrams(programs: Sequence[Ints], weights: Sequence[float], vocabulary: int) -> Ngrams:
    """Count the templates of programs, each as often as its weight says (rounded to float16)."""
    words = np.concatenate([np.zeros(0, np.int64), *programs])
    times = np.repeat(np.array(weights, float), [len(p) for p in programs])
    single = np.bincount(words, times, vocabulary) if len(words) else np.zeros(vocabulary)
    kinds = max(int(np.count_nonzero(single)), 1)
    single = (single + kinds / vocabulary) / (single.sum() + kinds)
    levels = []
    context = np.zeros(len(words), np.int64)
    for back in range(1, ORDER):
        shifted = [np.concatenate([np.full(back, vocabulary), p])[: len(p)] for p in programs]
        place = (vocabulary + 1) ** (back - 1)
        context += place * np.concatenate([np.zeros(0, np.int64), *shifted])
        levels.append(_level(context, words, times, vocabulary))
    rounded = single.astype(np.float32).astype(np.float64)
    return Ngrams(vocabulary, rounded, tuple(levels))


def _level(context: Ints, words: Ints, times: Doubles, vocabulary: int) -> Level:
    pairs: Ints = context * vocabulary + words
    both: Ints = np.unique(pairs)
    inverse = np.searchsorted(both, pairs)
    counts = np.bincount(inverse, times, len(both))
    before: Ints = both // vocabulary
    contexts, starts = np.unique(before, return_index=True)
    rounded = np.minimum(counts, 60_000).astype(np.float16).astype(np.float32)
    return Level(contexts, np.append(starts, len(both)), both % vocabulary, rounded)
