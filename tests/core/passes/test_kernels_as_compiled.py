"""Bytes that kernels move, against XLA's compiled programs: operations, each alone on one device.

Figures are those of jax 0.10.2 with `--compiler xla-gpu` for H100, and with `xla-tpu` (libtpu
0.0.42.1) for v5p; where a plugin is installed, tests/compat/test_compilers.py compiles its table again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import flint
from flint.backends.cost.chips.kernel_table import kernels_of
from flint.ir.op_class import OpClass
from flint.ir.workload import Workload
from flint.passes.profiles import kernels_for

jax = pytest.importorskip("jax")
jnp, lax = jax.numpy, jax.lax
BF16, F32, I32 = jnp.bfloat16, jnp.float32, jnp.int32
of = jax.ShapeDtypeStruct
CACHE, TOKEN = of((8, 1024, 8, 128), BF16), of((8, 1, 8, 128), BF16)
WIDE = of((1024, 1024), BF16)
IMAGE, FILTER, BIAS = of((32, 64, 64, 128), BF16), of((3, 3, 128, 128), BF16), of((128,), BF16)
ROWS, TAPS = of((8, 2048, 2048), BF16), of((4, 1, 2048), BF16)
STACK, LAYER = of((16, 512, 512), BF16), of((512, 512), BF16)


def update(cache: Any, token: Any, at: Any) -> Any:
    """A token of each sequence."""
    return lax.dynamic_update_slice(cache, token, (at * 0, at, at * 0, at * 0))


def twice(stack: Any, layer: Any) -> Any:
    return stack.at[0].set(layer), stack.at[1].set(layer)


def flat(stack: Any, layer: Any) -> Any:
    """An update of what is seen with other dimensions."""
    return stack.reshape(16, -1).at[0].set(layer.reshape(-1)).reshape(16, 512, 512)


def layers(carried: Any, weights: Any) -> Any:
    return lax.fori_loop(0, 4, lambda _, c: jnp.tanh(c) * weights[0], carried)


def rotary(x: Any, cos: Any, sin: Any) -> Any:
    low, high = x[..., :64], x[..., 64:]
    return jnp.concatenate([low * cos - high * sin, low * sin + high * cos], -1)


def of_labels(logits: Any, labels: Any) -> Any:
    wide = jax.nn.log_softmax(logits.astype(F32))
    return -jnp.take_along_axis(wide, labels[:, None], 1).mean()


def convolution(
    stride: int, padding: Any, groups: int = 1, dilation: int = 1
) -> Callable[..., Any]:
    """A convolution of images or rows, features last."""

    def of_two(x: Any, w: Any) -> Any:
        numbers = ("NHWC", "HWIO", "NHWC") if x.ndim == 4 else ("NWC", "WIO", "NWC")
        strides, dilations = (stride,) * (x.ndim - 2), (dilation,) * (x.ndim - 2)
        return lax.conv_general_dilated(
            x, w, strides, padding, None, dilations, numbers, feature_group_count=groups
        )

    return of_two


def gradients(function: Callable[..., Any]) -> Callable[..., Any]:
    """Of a sum of squares, for both operands."""
    return jax.grad(lambda x, w: (function(x, w).astype(F32) ** 2).sum(), (0, 1))


def residual(x: Any, w: Any, bias: Any, other: Any) -> Any:
    """A residual block."""
    one = convolution(1, "SAME")
    return jax.nn.relu(x + one(jax.nn.relu(one(x, w) + bias), other) + bias)


def rms(x: Any, weight: Any) -> Any:
    wide = x.astype(F32)
    return (wide * lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-6) * weight).astype(x.dtype)


def norm_over(axes: Any) -> Callable[[Any], Any]:
    """Less the mean and by the deviation over some dimensions."""

    def norm(x: Any) -> Any:
        wide = x.astype(F32)
        less = wide - wide.mean(axes, keepdims=True)
        return (less * lax.rsqrt(wide.var(axes, keepdims=True) + 1e-5)).astype(x.dtype)

    return norm


def attended(q: Any, k: Any, v: Any) -> Any:
    scores = (q @ k.swapaxes(-1, -2)).astype(F32)
    return ((jax.nn.softmax(scores, -1).astype(BF16) @ v).astype(F32) ** 2).sum()


def weights_and_sums(x: Any) -> Any:
    weights = jax.nn.softmax(x.astype(F32), -1)
    return weights.astype(BF16), (weights * weights).sum(-1), weights.max(-1)


def standardized(x: Any) -> Any:
    less = x - x.mean(-1, keepdims=True)
    return less / x.std(-1, keepdims=True), jnp.abs(less).mean(-1)


BAG = of((100000, 512), F32), of((8192,), I32)
#: What is computed, on what, what is donated, and megabytes that XLA's kernels read and write.
CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], tuple[int, ...], float]] = {
    "an update of a cache that is kept": (update, (CACHE, TOKEN, of((), I32)), (), 33.587),
    "an update of a donated cache": (update, (CACHE, TOKEN, of((), I32)), (0,), 0.0328),
    "two updates of a kept array": (twice, (STACK, LAYER), (), 35.652),
    "two updates of a donated array": (twice, (STACK, LAYER), (0,), 18.874),
    "an update of another shape": (flat, (STACK, LAYER), (0,), 1.0486),
    "a kept start of a loop": (layers, (of((512, 512), F32), of((1, 512, 512), F32)), (), 5.243),
    "a donated start of a loop": (layers, (of((512, 512), F32), of((1, 512, 512), F32)), (0,), 3.146),
    "both halves, rotated": (
        rotary, (of((2, 512, 8, 128), BF16), *[of((512, 1, 64), BF16)] * 2), (), 4.325,
    ),
    "softmax of 16,384": (jax.nn.softmax, (of((64, 16384), F32),), (), 8.389),
    "softmax of 32,768": (jax.nn.softmax, (of((64, 32768), F32),), (), 33.687),
    "gradients of attention": (
        jax.grad(attended, (0, 1, 2)), (of((32, 1024, 64), BF16),) * 3, (), 864.420,
    ),
    "a softmax that three kernels read": (weights_and_sums, (of((8192, 2048), BF16),), (), 134.283),
    "rows less their mean, twice": (standardized, (of((8192, 2048), F32),), (), 201.359),
    "norm of 32,768": (rms, (of((64, 32768), BF16), of((32768,), F32)), (), 12.780),
    "loss of 8,192 classes": (of_labels, (of((512, 8192), BF16), of((512,), I32)), (), 25.174),
    "loss of 32,000 classes": (of_labels, (of((512, 32000), BF16), of((512,), I32)), (), 66.602),
    "two halves": (lambda x: jnp.multiply(*jnp.split(jnp.tanh(x), 2, 1)), (WIDE,), (), 3.1457),
    "a part": (lambda x, y: jnp.tanh((x * y)[:, :100]), (WIDE, WIDE), (), 0.6144),
    "two of 64 experts": (lambda x: lax.top_k(x, 2), (of((4096, 64), F32),), (), 3.2768),
    "32 of 2,048": (lambda x: lax.top_k(x, 32), (of((64, 2048), F32),), (), 1.6056),
    "8 of 2,048": (lambda x: lax.top_k(x, 8), (of((64, 2048), F32),), (), 0.5284),
    "shifts by pads": (
        lambda a, w: sum(jnp.pad(a, ((0, 0), (3 - i, i), (0, 0)))[:, :4096] * w[i] for i in range(4)),
        (of((2, 4096, 512), F32), of((4, 512), F32)), (), 33.563,
    ),
    "sums of messages": (
        lambda x, s, d: jax.ops.segment_sum(jnp.tanh(x[s]), d, num_segments=10000),
        (of((10000, 128), F32), *[of((50000,), I32)] * 2), (), 41.360,
    ),
    "rows that are computed, added": (
        lambda w, i, u: w.at[i].add(jnp.tanh(u)), (*BAG, of((8192, 512), F32)), (0,), 50.364,
    ),
    "rows that are computed, added to a copy": (
        lambda w, i, u: (w.at[i].add(jnp.tanh(u)), u * 2), (*BAG, of((8192, 512), F32)), (), 493.519,
    ),
    "gradient of a bag": (
        lambda w, i, g: jax.grad(lambda w: (w[i].sum(1) * g).sum())(w),
        (BAG[0], of((1024, 26), I32), of((1024, 512), F32)), (), 316.056,
    ),
    "a norm of columns, as many as rows": (norm_over(1), (of((2, 512, 512), F32),), (), 12.599),
    "a norm of few columns": (norm_over(1), (of((4, 1000, 320), BF16),), (), 23.060),
    "a norm of many columns": (norm_over(1), (of((8, 1024, 512), F32),), (), 67.224),
    "a norm of groups": (norm_over((1, 3)), (of((4, 1024, 32, 8), BF16),), (), 18.893),
    "rows of a table": (lambda w, i: w[i], (of((4096, 512), F32), of((2048,), I32)), (), 8.397),
    "a stride of two": (convolution(2, "SAME"), (IMAGE, FILTER), (), 112.050),
    "gradients of a stride of two": (gradients(convolution(2, "SAME")), (IMAGE, FILTER), (), 283.116),
    "the same in groups": (
        gradients(convolution(2, "SAME", 4)), (IMAGE, of((3, 3, 32, 128), BF16)), (), 284.844,
    ),
    "a convolution of what was before": (
        convolution(1, [(3, 0)], 2048), (ROWS, TAPS), (), 268.681,
    ),
    "gradients of the same": (
        gradients(convolution(1, [(3, 0)], 2048)), (ROWS, TAPS), (), 805.945,
    ),
    "gradients with dilation": (gradients(convolution(1, "SAME", 1, 2)), (IMAGE, FILTER), (), 371.753),
    "gradients of more padding behind": (
        gradients(convolution(1, [(1, 2), (1, 2)])), (IMAGE, FILTER), (), 555.975,
    ),
    "filters as large as images": (
        lambda x, w, g: jax.vjp(convolution(1, "SAME"), x, w)[1](g),
        (of((32, 4, 4, 128), BF16), of((5, 5, 128, 128), BF16), of((32, 4, 4, 128), BF16)), (), 6.226,
    ),
    "a transposed convolution": (
        lambda x, w: lax.conv_transpose(x, w, (2, 2), "SAME"),
        (of((32, 32, 32, 128), BF16), FILTER), (), 114.196,
    ),
    "a residual block of convolutions": (residual, (IMAGE, FILTER, BIAS, FILTER), (), 169.542),
    "a convolution and its scale": (
        lambda x, w, s, b: convolution(1, "SAME")(x, w) * s + b, (IMAGE, FILTER, BIAS, BIAS), (), 135.103,
    ),
    "a convolution, one thing for each image": (
        lambda x, w, t: convolution(1, "SAME")(x, w) + t[:, None, None],
        (IMAGE, FILTER, of((32, 128), BF16)), (), 135.112,
    ),
    "a convolution in 32 bits": (
        lambda x, w, b: jax.nn.relu(convolution(1, "SAME")(x, w) + b),
        (of((32, 64, 64, 128), F32), of((3, 3, 128, 128), F32), of((128,), F32)), (), 135.988,
    ),
    "a convolution that becomes narrower": (
        lambda x, w: convolution(1, "SAME")(x, w).astype(BF16),
        (of((32, 64, 64, 128), F32), of((3, 3, 128, 128), F32)), (), 236.650,
    ),
}  # fmt: skip

H, G, P = of((8192, 2048), BF16), of((2048,), F32), of((8192, 2048), F32)


def norm(x: Any, scale: Any) -> Any:
    y = x.astype(F32) - x.astype(F32).mean(-1, keepdims=True)
    return (y * lax.rsqrt((y * y).mean(-1, keepdims=True) + 1e-5) * scale).astype(x.dtype)


def flat_norm(x: Any, scale: Any) -> Any:
    """A variance by the mean of squares, as flax has it."""
    y = x.astype(F32)
    mean, square = y.mean(-1), (y * y).mean(-1)
    return ((y - mean[:, None]) * lax.rsqrt(square - mean * mean)[:, None] * scale).astype(x.dtype)


def softmax(x: Any) -> Any:
    return jax.nn.softmax(x.astype(F32), -1)


def logs(x: Any) -> Any:
    return jax.nn.log_softmax(x.astype(F32), -1)


def summed(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *given: jnp.tanh(function(*given).astype(F32)).sum()


def distance(x: Any, y: Any) -> Any:
    a = logs(x)
    return (jnp.exp(a) * (a - logs(y))).sum(-1).mean()


def soft(x: Any, t: Any) -> Any:
    return -(logs(x) * t).sum(-1).mean()


def focal(x: Any, t: Any) -> Any:
    return -(((1 - jnp.exp(logs(x))) ** 2) * logs(x) * t).sum(-1).mean()


def both_ways(dtype: Any) -> Callable[..., Any]:
    """A softmax and its gradient."""

    def of_scores(x: Any, late: Any) -> Any:
        made, back = jax.vjp(lambda x: jax.nn.softmax(x.astype(dtype), -1).astype(BF16), x)
        return made, back(late)[0]

    return of_scores


#: Reductions along rows: what reads them is one kernel for each result, which computes them again.
CASES |= {
    "a norm for two": (
        lambda x, g: (jnp.tanh(norm(x, g)), norm(x, g) * 2 + x), (H, G), (), 134.234,
    ),
    "gradient of a norm": (jax.grad(summed(norm)), (H, G), (), 67.117),
    "means of values and squares": (flat_norm, (H, G), (), 100.934),
    "a softmax, stored and reduced": (
        lambda x: (softmax(x).astype(BF16), (softmax(x) ** 2).sum(-1), softmax(x).max(-1)), (H,), (), 134.283,
    ),
    "a length for two": (
        lambda x: (x / jnp.linalg.norm(x, axis=-1, keepdims=True), jnp.tanh(x / jnp.linalg.norm(x, axis=-1, keepdims=True))),
        (P,), (), 268.435,
    ),
    "a loss of soft labels": (soft, (H, H), (), 201.359),
    "its gradient": (jax.grad(soft), (H, H), (), 100.663),
    "gradient of a focal loss": (jax.grad(focal), (H, H), (), 100.663),
    "gradients of a distance": (jax.grad(distance, (0, 1)), (H, H), (), 268.632),
    "gradient of a softmax that was kept": (
        lambda p, g: (p.astype(F32) * (g - (p.astype(F32) * g).sum(-1, keepdims=True))).astype(BF16),
        (H, H), (), 167.838,
    ),
    "a softmax and its gradient in 16 bits": (both_ways(BF16), (H, H), (), 167.772),
    "in 32 bits": (both_ways(F32), (H, H), (), 201.425),
    "of a small array": (both_ways(F32), (of((2048, 128), BF16),) * 2, (), 2.621),
    "sums of rows of one array": (
        lambda x: (x.astype(F32).sum(-1), jnp.square(x.astype(F32)).sum(-1)), (H,), (), 33.620,
    ),
    "of a product": (
        lambda x, w: ((x @ w).astype(F32).sum(-1), jnp.square((x @ w).astype(F32)).sum(-1)),
        (H, of((2048, 2048), BF16)), (), 142.672,
    ),
}  # fmt: skip

X = of((4096, 1024), BF16)
#: The same on TPUs.
TPU_CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], tuple[int, ...], float]] = {
    "a product": (lambda a, b: a @ b, (X, of((1024, 1024), BF16)), (), 18.874),
    "gradient of a loss": (jax.grad(of_labels), (of((2048, 8192), BF16), of((2048,), I32)), (), 134.312),
    "gradients of two losses": (
        jax.grad(lambda a, b, i, j: of_labels(a, i) + of_labels(b, j), (0, 1)),
        (*[of((2048, 8192), BF16)] * 2, *[of((2048,), I32)] * 2), (), 268.624,
    ),
    "sums of rows and columns": (
        lambda a, b: (a.sum(-1), (a * b).sum(0)), (*[of((2048, 1024), F32)] * 2,), (), 16.789,
    ),
    "gradient of one a column": (
        lambda a, i, g: jax.vjp(lambda a: jnp.take_along_axis(a, i, 0), a)[1](g)[0],
        (of((512, 4096), F32), of((1, 4096), I32), of((1, 4096), F32)), (), 8.454,
    ),
    "computed parts, put together": (
        lambda a, b: jnp.concatenate([jnp.tanh(a), jnp.exp(b)], -1), (X, X), (), 67.109,
    ),
    "a computed array, padded": (
        lambda a, b: jnp.pad(jnp.tanh(a), ((0, 0), (128, 128))) * b,
        (of((2048, 512), F32), of((2048, 768), F32)), (), 25.166,
    ),
    "shifts by pads": (
        lambda a, w: sum(jnp.pad(a, ((0, 0), (3 - i, i), (0, 0)))[:, :4096] * w[i] for i in range(4)),
        (of((2, 4096, 512), F32), of((4, 512), F32)), (), 33.579,
    ),
    "an array and the token before": (
        lambda a, m: a * m + jnp.pad(a, ((0, 0), (1, 0), (0, 0)))[:, :-1] * (1 - m),
        (of((8, 1024, 1024), BF16), of((1024,), BF16)), (), 33.563,
    ),
}  # fmt: skip


def megabytes(workload: Workload) -> float:
    """What kernels read and write."""
    found = (kernels_of(program)[0].moved_bytes.sum() for program in workload.programs)
    return float(sum(found)) / 1e6


@pytest.mark.parametrize("name", CASES)
def test_bytes_are_those_of_the_compiled_program(name: str) -> None:
    function, given, donated, compiled = CASES[name]
    trace = flint.trace(function, {"data": 1}, *given, donate_argnums=donated)
    assert megabytes(kernels_for(trace.workload, "xla-gpu")) == pytest.approx(compiled, rel=0.002)


@pytest.mark.parametrize("name", TPU_CASES)
def test_bytes_are_those_of_the_program_compiled_for_tpus(name: str) -> None:
    function, given, donated, compiled = TPU_CASES[name]
    trace = flint.trace(function, {"data": 1}, *given, donate_argnums=donated)
    assert megabytes(kernels_for(trace.workload, "xla-tpu")) == pytest.approx(compiled, rel=0.002)


def test_two_elements_of_each_row_are_scattered_on_tpus() -> None:
    def gradient(array: Any, places: Any, given: Any) -> Any:
        return jax.vjp(lambda a: jnp.take_along_axis(a, places, 1), array)[1](given)[0]

    shapes = (of((4096, 64), F32), of((4096, 2), I32), of((4096, 2), F32))
    trace = flint.trace(gradient, {"data": 1}, *shapes)
    (program,) = kernels_for(trace.workload, "xla-tpu").programs
    assert (program.op == OpClass.SCATTER).sum() == 1
