"""Which elements of an operand each shard of a result reads, for operations that shift or slide.

Every function here turns "result elements first..last" into "operand elements [low, high)" along
one dimension, with the arithmetic of the StableHLO specification.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flint.ir.mesh import AxisRef, Mesh
from flint.passes.extract.halo import Indices
from flint.passes.extract.tensors import Operation, Tensor
from flint.passes.mlir import defining_operation, shape_of

#: From first and last element that each shard makes to the range [low, high) that it reads.
Range = Callable[[Indices, Indices], tuple[Indices, Indices]]


@dataclass(frozen=True, slots=True)
class Reach:
    """How shards of some result (or other operand) read one dimension of operand `operand`.

    `readers` are the axes over which the reading dimension is sharded, `length` its local size,
    `count` how many of its shards hold more than padding.
    With `exactly`, only the shards that need something of each other talk.
    """

    operand: int
    dimension: int
    readers: tuple[AxisRef, ...]
    length: int
    count: int
    reads: Range
    exactly: bool = False

    def ranges(self, mesh: Mesh) -> tuple[Indices, Indices]:
        """(low, high) for every shard of the reading dimension."""
        first = np.arange(mesh.group_size(self.readers), dtype=np.int64) * self.length
        return self.reads(first, first + self.length - 1)


def _reach(o: Operation, operand: int, dimension: int, reads: Range, result: int = -1) -> Reach:
    """Reach of result dimension `result` (the same number by default) into an operand."""
    at = dimension if result < 0 else result
    return _read_by(o.results[0], at, operand, dimension, reads)


def _read_by(reader: Tensor, at: int, operand: int, dimension: int, reads: Range) -> Reach:
    length = reader.shape[at]
    count = -(-reader.global_shape[at] // max(length, 1))
    return Reach(operand, dimension, reader.sharding[at], length, count, reads)


def _affine(stride: int, start: int) -> Range:
    return lambda first, last: (start + first * stride, start + last * stride + 1)


def _window(size: int, stride: int, low: int, dilation: int = 1, base_dilation: int = 1) -> Range:
    """A window of `size` taps, `dilation` apart, over an operand with padding `low` before it."""
    span = (size - 1) * dilation

    def reads(first: Indices, last: Indices) -> tuple[Indices, Indices]:
        begin = -((low - first * stride) // base_dilation)
        return begin, (last * stride - low + span) // base_dilation + 1

    return reads


def slice_(o: Operation) -> Iterator[Reach]:
    """Result element k is operand element start + k * stride."""
    starts, strides = _numbers(o.op, "start_indices"), _numbers(o.op, "strides")
    for d in range(len(o.operands[0].shape)):
        yield _reach(o, 0, d, _affine(strides[d], starts[d]))


def pad(o: Operation) -> Iterator[Reach]:
    """Operand element k is result element low + k * (interior + 1); the rest is padding."""
    lows, interiors = _numbers(o.op, "edge_padding_low"), _numbers(o.op, "interior_padding")
    for d in range(len(o.operands[0].shape)):
        yield _reach(o, 0, d, _window(1, 1, lows[d], base_dilation=interiors[d] + 1))


def reduce_window(o: Operation) -> Iterator[Reach]:
    """Windows over every dimension, the same for all inputs."""
    rank = len(o.operands[0].shape)
    sizes = _numbers(o.op, "window_dimensions")
    strides = _numbers(o.op, "window_strides", [1] * rank)
    dilations = _numbers(o.op, "window_dilations", [1] * rank)
    bases = _numbers(o.op, "base_dilations", [1] * rank)
    lows = _numbers(o.op, "padding", [0] * 2 * rank)[::2]
    for operand in range(len(o.results)):
        for d in range(rank):
            reads = _window(sizes[d], strides[d], lows[d], dilations[d], bases[d])
            yield _reach(o, operand, d, reads)


def select_and_scatter(o: Operation) -> Iterator[Reach]:
    """A result element needs the sources of the windows that cover it, and all of those windows."""
    rank = len(o.operands[0].shape)
    sizes = _numbers(o.op, "window_dimensions")
    strides = _numbers(o.op, "window_strides", [1] * rank)
    lows = _numbers(o.op, "padding", [0] * 2 * rank)[::2]
    for d in range(rank):
        size, stride, low = sizes[d], strides[d], lows[d]
        sources = _covering(size, stride, low)
        yield _reach(o, 1, d, sources)
        yield _reach(o, 0, d, _covered(sources, size, stride, low))


def _covering(size: int, stride: int, low: int) -> Range:
    """Windows [low, high) that contain some element of first..last."""
    return lambda first, last: (-((size - 1 - low - first) // stride), (last + low) // stride + 1)


def _covered(windows: Range, size: int, stride: int, low: int) -> Range:
    def reads(first: Indices, last: Indices) -> tuple[Indices, Indices]:
        begin, end = windows(first, last)
        return begin * stride - low, (end - 1) * stride - low + size

    return reads


def convolution(o: Operation) -> Iterator[Reach]:
    """Windows over the spatial dimensions of the left operand.

    In the gradient of the kernel the "kernel" is as large as the image and sharded like it: then
    a shard of the kernel, not of the result, decides what is read.
    """
    from jaxlib.mlir.dialects import stablehlo

    numbers = stablehlo.ConvDimensionNumbers(o.op.attributes["dimension_numbers"])
    spatial = list(numbers.input_spatial_dimensions)
    rank = len(spatial)
    strides = _numbers(o.op, "window_strides", [1] * rank)
    dilations = _numbers(o.op, "rhs_dilation", [1] * rank)
    bases = _numbers(o.op, "lhs_dilation", [1] * rank)
    reversal = _numbers(o.op, "window_reversal", [0] * rank)
    lows = _numbers(o.op, "padding", [0] * 2 * rank)[::2]
    kernel = o.operands[1]
    for n, d in enumerate(spatial):
        tap, out = numbers.kernel_spatial_dimensions[n], numbers.output_spatial_dimensions[n]
        size, results = kernel.global_shape[tap], o.results[0].global_shape[out]
        if kernel.sharding[tap]:
            span = (results - 1) * strides[n]
            reads = _taps(size if reversal[n] else 0, dilations[n], lows[n], span, bases[n])
            yield _read_by(kernel, tap, 0, d, reads)
        else:
            reads = _window(size, strides[n], lows[n], dilations[n], bases[n])
            yield _reach(o, 0, d, reads, out)


def _taps(reversed_size: int, dilation: int, low: int, span: int, base_dilation: int) -> Range:
    """Elements that taps first..last of a kernel meet while its window moves by `span`."""

    def reads(first: Indices, last: Indices) -> tuple[Indices, Indices]:
        if reversed_size:
            first, last = reversed_size - 1 - last, reversed_size - 1 - first
        begin = -((low - first * dilation) // base_dilation)
        return begin, (last * dilation - low + span) // base_dilation + 1

    return reads


def concatenate(o: Operation) -> Iterator[Reach]:
    """Result elements from `start` on are those of operand n, up to its length."""
    dimension = int(o.op.attributes["dimension"].value)
    start = 0
    for operand, tensor in enumerate(o.operands):
        size = tensor.global_shape[dimension]
        reach = _reach(o, operand, dimension, _part(start, size))
        yield replace(reach, exactly=True)
        start += size


def _part(start: int, size: int) -> Range:
    def reads(first: Indices, last: Indices) -> tuple[Indices, Indices]:
        return np.clip(first - start, 0, size), np.clip(last + 1 - start, 0, size)

    return reads


#: Operation name to the reaches of its operands' dimensions.
REACHES: dict[str, Callable[[Operation], Iterator[Reach]]] = {
    "stablehlo.slice": slice_,
    "stablehlo.pad": pad,
    "stablehlo.reduce_window": reduce_window,
    "stablehlo.select_and_scatter": select_and_scatter,
    "stablehlo.convolution": convolution,
    "stablehlo.concatenate": concatenate,
}


def rotation_of(op: Any) -> tuple[Any, int, int] | None:
    """(source value, dimension, amount) if a concatenation is `roll`: x[n-k:] before x[:n-k]."""
    if op.name != "stablehlo.concatenate" or len(op.operands) != 2:
        return None
    dimension = int(op.attributes["dimension"].value)
    first, second = (_slice_along(v, dimension) for v in op.operands)
    if first is None or second is None:
        return None
    (tail, begin, end, size), (head, zero, middle, _) = first, second
    if tail != head or zero != 0 or middle != begin or end != size:
        return None
    return tail, dimension, size - begin


def feeds_only_rotations(op: Any) -> bool:
    """Whether a slice exists only as one part of `roll`, which moves what it needs itself."""
    users = [use.owner.operation for use in op.results[0].uses]
    return bool(users) and all(rotation_of(user) is not None for user in users)


def _slice_along(value: Any, dimension: int) -> tuple[Any, int, int, int] | None:
    """(source, start, limit, size) of a stride-1 slice that is whole in all other dimensions."""
    op = defining_operation(value)
    if op is None or op.name != "stablehlo.slice":
        return None
    shape = list(shape_of(op.operands[0]))
    starts, limits = _numbers(op, "start_indices"), _numbers(op, "limit_indices")
    whole = all(
        starts[d] == 0 and limits[d] == size for d, size in enumerate(shape) if d != dimension
    )
    if not whole or any(s != 1 for s in _numbers(op, "strides")):
        return None
    return op.operands[0], starts[dimension], limits[dimension], shape[dimension]


def _numbers(op: Any, name: str, default: list[int] | None = None) -> list[int]:
    """An array or dense attribute of integers or booleans, flattened."""
    from jaxlib.mlir import ir

    if name not in op.attributes:
        assert default is not None, f"{op.name} without {name}"
        return default
    attribute = op.attributes[name]
    if isinstance(attribute, ir.DenseIntElementsAttr):
        return [int(v) for v in np.array(attribute, dtype=np.int64).ravel()]
    return [int(v) for v in attribute]
