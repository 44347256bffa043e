"""From one division of a tensor to another in the steps that XLA's partitioner takes.

What XLA (jaxlib 0.10.2) does was read from its modules after partitioning, on a mesh of x=2, y=4.
"""

from __future__ import annotations

import pytest

from flint.passes.partition.as_xla.layouts import Axis, Layout
from flint.passes.partition.as_xla.reshard_plan import way

X, Y = ("x", 1, 2), ("y", 1, 4)
AXES: dict[str, Axis] = {"x": X, "y": Y, "a": ("y", 1, 2), "b": ("y", 2, 2)}


def _layout(text: str) -> Layout:
    return tuple(tuple(AXES[c] for c in dim if c != "-") for dim in text.split("|"))


@pytest.mark.parametrize(
    ("source", "steps"),
    [
        ("x|-", "x|y"),  # a slice
        ("x|y", "x|-"),  # a gather
        ("xy|-", "y|-"),  # a permute and a gather, which Shardy does itself
        ("xy|-", "x|y"),  # an exchange
        ("xy|-", "-|xy -|yx"),  # and a permute
        ("xy|-", "xa|b y|x"),
        ("x|y", "xb|a y|x"),
        ("x|-", "x|y -|yx -|xy"),  # all replicas take a part first
        ("y|-", "y|x a|xb x|y"),
        ("-|y", "y|- y|x"),
        ("x|y", "-|y y|-"),  # a dimension in as many parts as replicas are wanted goes first
        ("y|x", "y|- -|y"),
        ("x|-", "-|- -|y"),  # gathered whole and cut
        ("xy|-", "-|- -|x"),
        ("-|x|y", "y|x|-"),
        ("-|y|x", "y|-|x y|x|-"),  # one dimension after the other
    ],
)
def test_steps(source: str, steps: str) -> None:
    layouts = tuple(map(_layout, steps.split()))
    assert way(_layout(source), layouts[-1], (X, Y)) == layouts
