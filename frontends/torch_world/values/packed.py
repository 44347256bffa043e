"""Attention of sequences that lie one after the other: how many scores it has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from itertools import pairwise
from typing import Any, NamedTuple

#: What a tensor of a recorded program holds, as a list; None where that does not follow from the program.
KNOWN_LIST: ContextVar[Callable[[Any], Any] | None] = ContextVar("KNOWN_LIST", default=None)
#: PyTorch's names of the ends of sequences, 0 first: of queries, and of keys.
_ENDS = (("cum_seq_q", "cum_seq_k"), ("cu_seqlens_q", "cu_seqlens_k"), ("cu_seq_q", "cu_seq_k"))


class PackedScores(NamedTuple):
    """`heads` times `queries` x `keys`: as many scores and queries as all sequences have in all heads.

    `scores` are those of one of the heads where their product is only about their number, else 0.
    `assumed` says that the sequences are taken to be equally long, "" where their lengths are known.
    """

    heads: int
    queries: int
    keys: int
    scores: int
    assumed: str


def packed(heads: int, queries: int, keys: int, ends: Any, ends_of_keys: Any) -> PackedScores:
    """The scores of packed sequences of `queries` and `keys` tokens in all, each with `heads` heads.

    A query meets the keys of its own sequence: a head has the sum of the products of lengths. Tensors
    `ends` hold where each sequence ends, after a 0.
    """
    ask = KNOWN_LIST.get()
    known: list[Any] = [ask(t) if ask is not None else None for t in (ends, ends_of_keys)]
    count = max(int(ends.shape[0]) - 1, 1)
    if not all(isinstance(numbers, list) for numbers in known):
        each = -(-queries // count)
        assumed = (
            f"{count} sequences of packed attention are assumed to be equally long: {each} tokens"
        )
        return PackedScores(count * heads, each, -(-keys // count), 0, assumed if count > 1 else "")
    lengths = ([b - a for a, b in pairwise(numbers)] for numbers in known)
    scores = sum(q * k for q, k in zip(*lengths, strict=False))
    alike = max(round(heads * queries * keys / max(scores, 1)), 1)
    each, of_keys = -(-scores // max(keys, 1)), -(-scores // max(queries, 1))
    exact = alike * each * of_keys == heads * scores
    return PackedScores(alike, each, of_keys, 0 if exact else round(heads * scores / alike), "")


def packed_call(
    names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> PackedScores | None:
    """The scores of a call of one of PyTorch's operators, None if it packs no sequences."""
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    ends, ends_of_keys = next(
        ((given[q], given.get(k)) for q, k in _ENDS if given.get(q) is not None), (None, None)
    )
    if ends is None or ends_of_keys is None:
        return None
    q, k = given["query"], given["key"]
    return packed(int(q.shape[-2]), int(q.shape[-3]), int(k.shape[-3]), ends, ends_of_keys)
