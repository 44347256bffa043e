"""Alignments of sequences: what is inserted, removed or moved disturbs nothing else."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from flint.tools.change.diff.align import align

tokens = st.lists(st.integers(0, 5), max_size=40)


def one(a: list[int], b: list[int]) -> list[tuple[int, int]]:
    return align([(a, b)])


@given(tokens)
def test_equal_sequences_pair_place_by_place(a: list[int]) -> None:
    assert one(a, a) == [(i, i) for i in range(len(a))]


@given(tokens, tokens)
def test_pairs_are_equal_and_of_each_entry_there_is_one(a: list[int], b: list[int]) -> None:
    pairs = one(a, b)
    assert all(a[i] == b[j] for i, j in pairs)
    assert len({i for i, _ in pairs}) == len({j for _, j in pairs}) == len(pairs)
    # nothing is left that has a partner: the same number of each token is paired, as many as both have
    assert len(pairs) == sum(min(a.count(t), b.count(t)) for t in set(a))


@given(tokens, tokens, tokens)
def test_what_is_inserted_moves_nothing(a: list[int], new: list[int], rest: list[int]) -> None:
    """Entries around an insertion of other tokens keep their partners."""
    inserted = [t + 10 for t in new]
    pairs = one(a + rest, a + inserted + rest)
    places = [*range(len(a)), *(len(a) + len(new) + k for k in range(len(rest)))]
    assert pairs == list(enumerate(places))


def test_what_was_swapped_is_found_at_its_new_place() -> None:
    assert sorted(one([1, 2, 3, 4], [1, 3, 2, 4])) == [(0, 0), (1, 2), (2, 1), (3, 3)]


def test_finer_tokens_decide_between_equals_of_a_coarser_level() -> None:
    """Two equal products, of `gate` and of `up`, in the other order."""
    fine = (["x", "gate", "up", "y"], ["x", "up", "gate", "y"])
    coarse = (["x", "dot", "dot", "y"], ["x", "dot", "dot", "y"])
    assert align([fine, coarse]) == [(0, 0), (1, 2), (2, 1), (3, 3)]
    assert align([coarse]) == [(i, i) for i in range(4)]


def test_coarser_tokens_pair_what_has_new_names_but_moves_nothing() -> None:
    fine = (["a", "b", "c"], ["a", "B", "c", "b2"])
    coarse = ([1, 2, 3], [1, 2, 3, 2])
    assert align([fine, coarse]) == [(0, 0), (1, 1), (2, 2)]


def test_many_equal_tokens_end_soon() -> None:
    """`difflib` alone takes minutes for this."""
    a, b = [k % 3 for k in range(20_000)], [(k * 7) % 3 for k in range(20_500)]
    began = time.process_time()
    assert len(one(a, b)) > 19_000
    assert time.process_time() - began < 5
