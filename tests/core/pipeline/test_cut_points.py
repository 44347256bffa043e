"""What `cut` says, and how layers are shared out among stages."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flint.errors import FlintError
from flint.frontends.stages.cut_points import (
    LayerCuts,
    ScopeCuts,
    balanced_sizes,
    even_sizes,
    layer_starts,
    parse_cut,
)


@pytest.mark.parametrize(
    ("text", "stages", "cut"),
    [
        ("", 4, LayerCuts("layers")),
        ("layers", 4, LayerCuts("layers")),
        ("layers", 2, LayerCuts("layers")),
        ("model/layers", 2, LayerCuts("model/layers")),
        ("blocks", 4, LayerCuts("blocks")),
        ("layers:balanced", 4, LayerCuts("layers", balanced=True)),
        ("layers:8, 16,24", 4, LayerCuts("layers", (8, 16, 24))),
        ("encoder/3,decoder", 3, ScopeCuts(("encoder/3", "decoder"))),
        ("decoder", 2, ScopeCuts(("decoder",))),
    ],
)
def test_cuts_are_read(text: str, stages: int, cut: LayerCuts | ScopeCuts) -> None:
    assert parse_cut(text, stages) == cut


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("layers:8", "has 1 cut points, which make 2 stages, but the pipeline has 3"),
        ("encoder,decoder,head", "has 3 cut points, which make 4 stages, but the pipeline has 3"),
        ("layers:8,8", "do not ascend"),
        ("layers:", "cannot read cut"),
        ("layers:8,-1", "cannot read cut"),
        (":8,9", "cannot read cut"),
        ("layers:balance", "cannot read cut"),
        ("encoder,,decoder", "empty name"),
    ],
)
def test_cuts_that_cannot_be_read(text: str, message: str) -> None:
    with pytest.raises(FlintError, match=message) as caught:
        parse_cut(text, 3)
    assert caught.value.code == "FL241"


def test_starts_of_even_balanced_and_given_stages() -> None:
    assert layer_starts(LayerCuts("layers"), 10, 4) == (3, 6, 8)
    assert layer_starts(LayerCuts("layers", (1, 9)), 10, 3) == (1, 9)
    # The part after the last layer is worth two layers, the one before the first is worth one.
    balanced = LayerCuts("layers", balanced=True)
    assert layer_starts(balanced, 9, 3, [10] * 9, 10, 20) == (3, 7)


@pytest.mark.parametrize(("indices", "code"), [((5,), "FL241"), ((0,), "FL241"), ((), "FL242")])
def test_starts_that_do_not_fit(indices: tuple[int, ...], code: str) -> None:
    with pytest.raises(FlintError) as caught:
        layer_starts(LayerCuts("layers", indices), 5, 2 if indices else 6)
    assert caught.value.code == code


@given(st.integers(1, 12), st.integers(0, 30))
def test_even_stages_differ_by_one_layer_at_most(stages: int, more: int) -> None:
    sizes = even_sizes(stages + more, stages)
    assert sum(sizes) == stages + more
    assert max(sizes) - min(sizes) <= 1
    assert list(sizes) == sorted(sizes, reverse=True)


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=7),
    st.integers(1, 7),
    st.integers(0, 20),
    st.integers(0, 20),
)
def test_no_other_stages_have_a_smaller_largest_one(
    flops: list[int], stages: int, before: int, after: int
) -> None:
    stages = min(stages, len(flops))

    def loads(sizes: tuple[int, ...]) -> list[int]:
        edges = [0, *itertools.accumulate(sizes)]
        found = [sum(flops[a:b]) for a, b in itertools.pairwise(edges)]
        found[0] += before
        found[-1] += after
        return found

    every = [
        tuple(b - a for a, b in itertools.pairwise((0, *edges, len(flops))))
        for edges in itertools.combinations(range(1, len(flops)), stages - 1)
    ]
    found = balanced_sizes(flops, stages, before, after)
    assert found in every
    best = min((max(loads(s)), sum(x * x for x in loads(s))) for s in every)
    assert (max(loads(found)), sum(x * x for x in loads(found))) == best
