"""Layers over stages, and the FLOPs that balance them."""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import Any

import pytest

pytest.importorskip("jax")
import jax
import jax.numpy as jnp

from flint import FlintError
from flint.frontends.jax_pipeline import capture_jax_pipeline
from flint.frontends.jax_stages.cut.jaxprs import Flops
from flint.frontends.stages.cut_points import split_layers
from tests.jax_pipelines import MESH, pipeline


def test_uniform() -> None:
    """As even as can be, earlier stages first."""
    assert split_layers(10, 4, "uniform", "layers") == [3, 3, 2, 2]
    assert split_layers(8, 4, "uniform", "layers") == [2, 2, 2, 2]
    assert split_layers(5, 2, [1, 4], "layers") == [1, 4]


def best(count: int, stages: int, before: int, each: int, after: int) -> int:
    """The smallest largest stage of all splits."""
    sizes = []
    for cuts in combinations(range(1, count), stages - 1):
        ends = (0, *cuts, count)
        loads = [each * (b - a) for a, b in pairwise(ends)]
        loads[0] += before
        loads[-1] += after
        sizes.append(max(loads))
    return min(sizes)


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
@pytest.mark.parametrize("around", [(0, 10, 0), (0, 10, 35), (25, 10, 5), (90, 10, 90), (1, 10, 9)])
def test_balanced_is_the_best_split(stages: int, around: tuple[int, int, int]) -> None:
    """No other split of nine layers has a smaller largest stage."""
    numbers = split_layers(9, stages, "balanced", "layers", around)
    loads = [around[1] * n for n in numbers]
    loads[0] += around[0]
    loads[-1] += around[2]
    assert sum(numbers) == 9 and min(numbers) >= 1
    assert max(loads) == best(9, stages, *around)


def test_of_equally_good_splits_earlier_stages_have_fewer_layers() -> None:
    """They hold more activations. The largest stage has the work of six layers in any case."""
    assert split_layers(17, 4, "balanced", "layers", (300, 100, 100)) == [2, 5, 5, 5]
    assert split_layers(10, 4, "balanced", "layers") == [2, 2, 3, 3]


def test_layers_without_flops_are_split_evenly() -> None:
    """Nothing to balance by."""
    assert split_layers(8, 4, "balanced", "layers", (0, 0, 0)) == [2, 2, 2, 2]


def test_flops() -> None:
    """Products and convolutions count, in a scan as often as it runs."""

    def function(x: Any, w: Any, image: Any, kernel: Any) -> Any:
        y, _ = jax.lax.scan(lambda y, _: (jnp.tanh(y @ w), None), x, length=5)
        same = jax.lax.conv_general_dilated(image, kernel, (1, 1), "SAME")
        z = jax.lax.cond(y[0, 0] > 0, lambda v: v @ w @ w, lambda v: v @ w, y)
        return jax.jit(lambda v: v @ w)(z), same

    shapes = [(3, 4), (4, 4), (2, 6, 8, 8), (5, 6, 3, 3)]
    args = [jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes]
    product, convolution = 2 * 3 * 4 * 4, 2 * (2 * 5 * 8 * 8) * 6 * 9
    assert Flops().of(jax.make_jaxpr(function)(*args).eqns) == (5 + 2 + 1) * product + convolution


def test_balanced_pipeline_counts_the_head() -> None:
    """The head is 2 * 32 * 128 FLOPs for a token, a layer 2 * 2 * 32 * 64: it counts as one."""
    found = capture_jax_pipeline(pipeline(split="balanced"), MESH)
    assert found.labels == ("embed, layers 0-1", "layers 2-3, head")
    wide = pipeline(split="balanced", loss=lambda y, t: jnp.mean(y @ y.swapaxes(1, 2) @ y))
    assert capture_jax_pipeline(wide, MESH).labels == ("embed, layers 0-2", "layers 3, head")


def test_more_stages_than_layers() -> None:
    """A stage without layers is refused, whatever the split."""
    for split in ("uniform", "balanced", [1, 1, 1]):
        with pytest.raises(FlintError) as found:
            split_layers(2, 3, split, "blocks")
        assert found.value.code == "FL242" and "3 stages for 2 layers" in str(found.value)
