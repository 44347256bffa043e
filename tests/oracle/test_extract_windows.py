"""Which elements a shard of a result reads, against what XLA's own results depend on.

An operation is run on ones at one place and zeros elsewhere: where its result is not zero, it read
that place. What a shard reads is told as a range, so that holes between the taps of a dilated
window count as read where there is something in them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax")
import jax
import jax.numpy as jnp
from jax import lax
from jaxlib.mlir.ir import Module

from flint.ir.mesh import AxisRef, Mesh
from flint.passes.extract.tensors import NOTHING, Operation, Tensor
from flint.passes.extract.windows import REACHES, Reach, rotation_of
from flint.passes.mlir import make_context

MESH = Mesh.parse("x=4")
AXIS = (AxisRef("x"),)
LENGTH = 24
Step = Callable[[Any], Any]


def window_sum(size: int, **options: Any) -> Step:
    settings = {"window_strides": (1,), "padding": ((0, 0),), **options}
    return lambda x: lax.reduce_window(x, 0.0, lax.add, (size,), **settings)


def convolved(taps: int, stride: int, low: int, high: int, base: int = 1, wide: int = 1) -> Step:
    return lambda x: lax.conv_general_dilated(
        x[None, :, None], jnp.ones((taps, 1, 1)), (stride,), ((low, high),), (base,), (wide,),
        dimension_numbers=("NWC", "WIO", "NWC"),
    )[0, :, 0]  # fmt: skip


def cases() -> dict[str, tuple[str, Step]]:
    def named(op: str, steps: dict[str, Step]) -> dict[str, tuple[str, Step]]:
        return {f"{op} {name}": (f"stablehlo.{op}", step) for name, step in steps.items()}

    return {
        **named("slice", {
            "whole": lambda x: x[0:20],
            "from the middle": lambda x: x[5:17],
            "every third": lambda x: x[1:24:3],
        }),
        **named("pad", {
            "both sides": lambda x: lax.pad(x, 0.0, [(3, 5, 0)]),
            "with holes": lambda x: lax.pad(x, 0.0, [(2, 1, 1)]),
            "cut off": lambda x: lax.pad(x, 0.0, [(-3, 7, 0)]),
        }),
        **named("reduce_window", {
            "plain": window_sum(5),
            "strided": window_sum(4, window_strides=(2,), padding=((1, 3),)),
            "far back": window_sum(LENGTH, padding=((LENGTH - 1, 0),)),
            "dilated input": window_sum(3, padding=((2, 1),), base_dilation=(2,)),
            "dilated window": window_sum(3, padding=((4, 0),), window_dilation=(2,)),
        }),
        **named("convolution", {
            "same": convolved(3, 1, 1, 1),
            "strided": convolved(4, 3, 2, 1),
            "dilated input": convolved(3, 1, 2, 2, base=2),
            "dilated window": convolved(3, 1, 0, 4, wide=2),
            "strided and dilated": convolved(3, 2, 1, 4, base=3),
        }),
    }  # fmt: skip


def operation(name: str, step: Step) -> Operation:
    """The only operation of a name in a function of one vector, sharded along its results."""
    x = jax.ShapeDtypeStruct((LENGTH,), jnp.float32)
    module: Any = jax.jit(step).lower(x).compiler_ir("stablehlo")
    (found,) = (op for op in operations(module.operation) if op.name == name)

    def tensor(value: Any, *, sharded: bool) -> Tensor:
        shape = tuple(value.type.shape)
        largest = shape.index(max(shape)) if shape else 0
        local = tuple(-(-s // 4) if d == largest and sharded else s for d, s in enumerate(shape))
        sharding = tuple(AXIS if d == largest and sharded else () for d in range(len(shape)))
        return Tensor(local, "float32", 0, shape, sharding)

    operands = tuple(tensor(o, sharded=at == 0) for at, o in enumerate(found.operands))
    return Operation(name, found, operands, tuple(tensor(r, sharded=True) for r in found.results))


def operations(op: Any) -> Any:
    for region in op.regions:
        for block in region:
            for inner in block:
                yield inner.operation
                yield from operations(inner.operation)


def depends(step: Step) -> np.ndarray:
    """Row k: which elements result k depends on."""
    return np.asarray(jax.vmap(jax.jit(step))(jnp.eye(LENGTH))).T != 0


def reach_of(o: Operation) -> Reach:
    """That of the operand's only dimension of interest."""
    (found,) = (r for r in REACHES[o.name](o) if o.operands[0].shape[r.dimension] > 1)
    assert (found.operand, found.readers, found.exactly) == (0, AXIS, False)
    return found


@pytest.mark.parametrize("case", cases())
def test_a_shard_reads_what_its_results_depend_on(case: str) -> None:
    name, step = cases()[case]
    reach, table = reach_of(operation(name, step)), depends(step)
    length = -(-len(table) // 4)
    assert (reach.length, reach.count) == (length, -(-len(table) // length))
    low, high = reach.ranges(MESH)
    for shard in range(4):
        read = np.flatnonzero(table[shard * length : (shard + 1) * length].any(axis=0))
        if len(read) == 0:
            continue
        begin, end = max(int(low[shard]), 0), min(int(high[shard]), LENGTH)
        assert begin <= read[0]
        assert end > read[-1]
        whole = (shard + 1) * length <= len(table)  # the last shard may hold padding
        if "dilated" not in case and whole:
            assert (begin, end) == (read[0], read[-1] + 1)


SCATTER = """func.func @f(%x: tensor<24xf32>, %s: tensor<{count}xf32>, %z: tensor<f32>) {{
  %0 = "stablehlo.select_and_scatter"(%x, %s, %z) ({{
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %c = stablehlo.compare GE, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  }}, {{
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %c = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %c : tensor<f32>
  }}) {{window_dimensions = array<i64: {size}>, window_strides = array<i64: {stride}>,
       padding = dense<[[{low}, {high}]]> : tensor<1x2xi64>}}
    : (tensor<24xf32>, tensor<{count}xf32>, tensor<f32>) -> tensor<24xf32>
  return
}}"""


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize(("stride", "low", "high"), [(1, 0, 0), (2, 0, 3), (2, 1, 0), (3, 2, 2)])
def test_a_scatter_to_the_largest_reads_every_window_that_covers_it(
    size: int, stride: int, low: int, high: int
) -> None:
    """Sources whose windows hold an element of the shard, and the elements of those windows."""
    count = (LENGTH + low + high - size) // stride + 1
    text = SCATTER.format(size=size, stride=stride, low=low, high=high, count=count)
    with make_context():
        module = Module.parse(text)
        (op,) = (o for o in operations(module.operation) if o.name.endswith("select_and_scatter"))
        whole = Tensor((6,), "float32", 0, (LENGTH,), (AXIS,))
        sources = Tensor((-(-count // 4),), "float32", 0, (count,), (AXIS,))
        o = Operation(op.name, op, (whole, sources, NOTHING), (whole,))
        reaches = {reach.operand: reach.ranges(MESH) for reach in REACHES[o.name](o)}
    windows = [set(range(w * stride - low, w * stride - low + size)) for w in range(count)]
    for shard in range(4):
        mine = set(range(shard * 6, shard * 6 + 6))
        covers = [w for w in range(count) if mine & windows[w]]
        begin, end = (int(side[shard]) for side in reaches[1])
        assert [w for w in range(begin, end) if 0 <= w < count] == covers
        read = {e for w in covers for e in windows[w]}  # padding too
        begin, end = (int(side[shard]) for side in reaches[0])
        assert read <= set(range(begin, end))
        if covers[0] > 0 and covers[-1] < count - 1:  # no windows beyond the ends
            assert (begin, end) == (min(read), max(read) + 1)


def test_parts_of_a_concatenation_are_read_where_they_lie() -> None:
    step = lambda x: jnp.concatenate([x[:10], x, x[3:9]])
    o = operation("stablehlo.concatenate", step)
    reaches = list(REACHES[o.name](o))
    assert [(r.operand, r.exactly, r.length) for r in reaches] == [(n, True, 10) for n in range(3)]
    found = [list(zip(*(side.tolist() for side in r.ranges(MESH)), strict=True)) for r in reaches]
    assert found == [
        [(0, 10), (10, 10), (10, 10), (10, 10)],
        [(0, 0), (0, 10), (10, 20), (20, 24)],
        [(0, 0), (0, 0), (0, 0), (0, 6)],
    ]


@pytest.mark.parametrize("flipped", [False, True])
@pytest.mark.parametrize(
    ("stride", "low", "base", "wide"), [(1, 3, 1, 1), (2, 1, 1, 1), (1, 2, 1, 2)]
)
def test_shards_of_a_kernel_read_what_their_taps_meet(
    stride: int, low: int, base: int, wide: int, flipped: bool
) -> None:
    """As in the gradient of a kernel: a shard of 2 of 8 taps."""
    taps, high = 8, 4

    def step(x: Any, kernel: Any) -> Any:
        return lax.conv_general_dilated(
            x[None, :, None], kernel[:, None, None], (stride,), ((low, high),), (base,), (wide,),
            dimension_numbers=lax.ConvDimensionNumbers((0, 2, 1), (2, 1, 0), (0, 2, 1)),
        )[0, :, 0]  # fmt: skip

    x, kernel = jax.ShapeDtypeStruct((LENGTH,), jnp.float32), jnp.zeros(taps)
    text = str(jax.jit(step).lower(x, kernel).as_text())
    if flipped:
        text = text.replace("reverse = [false]", "reverse = [true]")
        assert "reverse = [true]" in text or "window_reversal" in text
    results = -(-(base * (LENGTH - 1) + low + high + 1 - wide * (taps - 1)) // stride)
    with make_context():
        module = Module.parse(text)
        (op,) = (o for o in operations(module.operation) if o.name == "stablehlo.convolution")
        none: tuple[AxisRef, ...] = ()
        image = Tensor((1, 6, 1), "float32", 0, (1, LENGTH, 1), (none, AXIS, none))
        weights = Tensor((2, 1, 1), "float32", 0, (taps, 1, 1), (AXIS, none, none))
        result = Tensor((1, results, 1), "float32", 0, (1, results, 1), (none,) * 3)
        o = Operation(op.name, op, (image, weights), (result,))
        (reach,) = REACHES[o.name](o)
    assert (reach.operand, reach.dimension, reach.length, reach.count) == (0, 1, 2, 4)
    lows, highs = reach.ranges(MESH)
    for shard in range(4):
        mine = [taps - 1 - t if flipped else t for t in (2 * shard, 2 * shard + 1)]
        met = [o * stride + t * wide - low for o in range(results) for t in mine]
        assert (int(lows[shard]), int(highs[shard])) == (min(met), max(met) + 1)


DEFAULTS = {
    "convolution": """
  %0 = "stablehlo.convolution"(%x, %k) {dimension_numbers =
    #stablehlo.conv<[b, 0, f]x[0, i, o]->[b, 0, f]>,
    feature_group_count = 1 : i64, batch_group_count = 1 : i64}
    : (tensor<1x24x1xf32>, tensor<3x1x1xf32>) -> tensor<1x22x1xf32>""",
    "reduce_window": """
  %0 = "stablehlo.reduce_window"(%x, %z) ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %c = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %c : tensor<f32>
  }) {window_dimensions = array<i64: 1, 3, 1>}
    : (tensor<1x24x1xf32>, tensor<f32>) -> tensor<1x22x1xf32>""",
}


@pytest.mark.parametrize("name", DEFAULTS)
@pytest.mark.parametrize("by_kernel", [False, True])
def test_attributes_that_a_file_leaves_out_have_their_defaults(name: str, by_kernel: bool) -> None:
    """Stride 1, no padding, no dilation: results 6 s to 6 s + 5 read two elements more."""
    if by_kernel and name != "convolution":
        return
    text = (
        "func.func @f(%x: tensor<1x24x1xf32>, %k: tensor<3x1x1xf32>, %z: tensor<f32>) {"
        f"{DEFAULTS[name]}\n  return\n}}"
    )
    with make_context():
        module = Module.parse(text)
        (op,) = (o for o in operations(module.operation) if o.name.endswith(name))
        image = Tensor((1, 6, 1), "float32", 0, (1, 24, 1), ((), AXIS, ()))
        kernel = Tensor((1, 1, 1), "float32", 0, (3, 1, 1), (AXIS if by_kernel else (), (), ()))
        result = Tensor((1, 6, 1), "float32", 0, (1, 22, 1), ((), AXIS, ()))
        reaches = {
            r.dimension: r
            for r in REACHES[op.name](Operation(op.name, op, (image, kernel), (result,)))
        }
        low, high = (side.tolist() for side in reaches[1].ranges(MESH))
    if by_kernel:  # tap t meets elements t to t + 21
        assert (low, high) == ([0, 1, 2, 3], [22, 23, 24, 25])
    else:
        assert (low, high) == ([0, 6, 12, 18], [8, 14, 20, 26])


def concatenation(step: Step) -> Any:
    """The concatenation in a function of an array of 6 x 24, and the array."""
    module: Any = jax.jit(step).lower(jax.ShapeDtypeStruct((6, LENGTH), jnp.float32))
    main: Any = module.compiler_ir("stablehlo")
    (op,) = (op for op in operations(main.operation) if op.name == "stablehlo.concatenate")
    return op, main


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (lambda x: jnp.roll(x, 5, axis=1), (1, 5)),
        (lambda x: jnp.roll(x, -5, axis=1), (1, 19)),
        (lambda x: jnp.roll(x, 2, axis=0), (0, 2)),
        (lambda x: jnp.concatenate([x[:, 19:], x[:, :18]], axis=1), None),
        (lambda x: jnp.concatenate([x[:, 19:], x[:, 1:19]], axis=1), None),
        (lambda x: jnp.concatenate([x[:, 18:23], x[:, :18]], axis=1), None),
        (lambda x: jnp.concatenate([x[1:, 19:], x[1:, :19]], axis=1), None),
        (lambda x: jnp.concatenate([x[:5, 19:], x[:5, :19]], axis=1), None),
        (lambda x: jnp.concatenate([x[:, 12::2], x[:, :12:2]], axis=1), None),
        (lambda x: jnp.concatenate([x[:, 19:], (x + 1)[:, :19]], axis=1), None),
        (lambda x: jnp.concatenate([x[:, 19:], x[:, :19], x[:, :1]], axis=1), None),
        (lambda x: jnp.concatenate([x, x[:, :19]], axis=1), None),
    ],
)
def test_a_roll_is_told_from_other_concatenations(
    step: Step, expected: tuple[int, int] | None
) -> None:
    op, _kept = concatenation(step)
    found = rotation_of(op)
    assert (found[1:] if found else None) == expected
