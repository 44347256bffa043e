"""How a library of convolutions for GPUs takes one: which of its three it is, what is padded before, what is turned.

cuDNN has a convolution, the gradient of its filter and the gradient of its input. Each pads both ends
of a dimension alike and sees no holes in its input, so XLA pads the input before or cuts the result after.
The rules are those of XLA's `ConvRewriter` and `ConvPaddingLegalization`, held against compiled programs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any

from flint.ir.builder import ProgramBuilder
from flint.ir.op_class import OpClass
from flint.ir.program import Flag, Kind
from flint.passes.hlo import shapes
from flint.passes.hlo.module import HloModule, Instruction, location, scope_and_phase


class CudnnCall(Enum):
    """Which of a library's convolutions one is."""

    FORWARD = 0
    FILTER_GRADIENT = 1
    INPUT_GRADIENT = 2


@dataclass(frozen=True, slots=True)
class Padded:
    """The shapes of an input with its padding, of a filter with its holes, and of a result that is cut;
    none where nothing is done.

    `turned_over` says that a filter is read backwards, which the gradient of an input does by itself.
    """

    operand: tuple[int, ...] | None = None
    filter: tuple[int, ...] | None = None
    result: tuple[int, ...] | None = None
    turned_over: bool = False


def role_of(i: Instruction, operands: Sequence[Instruction]) -> CudnnCall:
    """Which of a library's convolutions an HLO convolution is."""
    windows = i.window.dimensions
    if any(w.window_reversal or _stride(w) != 1 for w in windows) or i.feature_group_count > 1:
        return CudnnCall.FORWARD
    if _is_filter_gradient(i, windows):
        return CudnnCall.FILTER_GRADIENT
    is_one = all(w.size == 1 for w in windows) and any(_holes(w) > 1 for w in windows)
    plain = all(max(w.window_dilation, 1) == 1 for w in windows)
    if plain and (is_one or _is_turned_over(i, operands[1])) and _fits(i, operands[0]):
        return CudnnCall.INPUT_GRADIENT
    return CudnnCall.FORWARD


def padded(i: Instruction, operands: Sequence[Instruction]) -> Padded:
    """What is padded before a convolution, and what is cut after it."""
    role, shape, result = role_of(i, operands), list(operands[0].shape.dimensions), i.shape
    numbers, windows = i.convolution_dimension_numbers, i.window.dimensions
    if role is CudnnCall.INPUT_GRADIENT:
        cut = list(result.dimensions)
        for d, read, w in zip(
            numbers.output_spatial_dimensions,
            numbers.input_spatial_dimensions,
            windows,
            strict=True,
        ):
            low, high = _gradient_padding(w, shape[read], cut[d])
            cut[d] += abs(low - high)
        is_cut, backwards = cut != list(result.dimensions), _is_turned_over(i, operands[1])
        return Padded(result=tuple(cut) if is_cut else None, turned_over=backwards)
    before = list(shape)
    if role is CudnnCall.FILTER_GRADIENT:
        sizes = [result.dimensions[d] for d in numbers.output_spatial_dimensions]
        for d, w, size in zip(numbers.input_spatial_dimensions, windows, sizes, strict=True):
            low, high = _filter_padding(w, shape[d], size)
            before[d] += abs(low - high)
    elif not all(w.padding_low == w.padding_high >= 0 and _holes(w) == 1 for w in windows):
        for d, w in zip(numbers.input_spatial_dimensions, windows, strict=True):
            before[d] = (shape[d] - 1) * _holes(w) + 1 + w.padding_low + w.padding_high
        return Padded(tuple(before), _with_holes(i, operands[1]))
    return Padded(None if before == shape else tuple(before))


def turned_in_convolution(
    i: Instruction, operands: Sequence[Instruction], deps: Sequence[int]
) -> Flag:
    """Which operands of a convolution, and whether its result, are copied into another order.

    A library reads filters as (out, spatial, in), and inputs and results as (batch, spatial,
    features) or (batch, features, spatial). The gradient of a filter has a filter as its result.
    """
    numbers = i.convolution_dimension_numbers
    spatial, batch = list(numbers.output_spatial_dimensions), numbers.output_batch_dimension
    found = Flag(0)
    if not _is_image(batch, spatial, numbers.output_feature_dimension):
        found |= Flag.TURNED_RESULT
    if role_of(i, operands) is CudnnCall.FILTER_GRADIENT or len(deps) < 2:
        return found
    first = Flag.TURNED_FIRST if deps[0] == min(deps[:2]) else Flag.TURNED_LAST
    last = Flag.TURNED_LAST if first == Flag.TURNED_FIRST else Flag.TURNED_FIRST
    read = list(numbers.input_spatial_dimensions)
    if not _is_image(numbers.input_batch_dimension, read, numbers.input_feature_dimension):
        found |= first
    filters = [
        numbers.kernel_output_feature_dimension,
        *numbers.kernel_spatial_dimensions,
        numbers.kernel_input_feature_dimension,
    ]
    filters = [d for d in filters if operands[1].shape.dimensions[d] > 1]
    return found if filters == sorted(filters) else found | last


@dataclass(frozen=True)
class Windows:
    """What a convolution sees of the values that it reads and makes, as views that move nothing.

    Where a library cannot see it like that, a kernel stands for a view
    (`passes/rewrites/library_convolutions.py`).
    """

    builder: ProgramBuilder
    module: HloModule
    convolution: Instruction
    read: list[Instruction]

    @cached_property
    def _padded(self) -> Padded:
        return padded(self.convolution, self.read)

    def operands(self, rows: list[int]) -> list[int]:
        """The rows that a convolution reads, with views for those of `rows` that it sees otherwise."""
        known, (image, kernel, *others) = self._padded, rows
        if known.operand:
            image = self._see(OpClass.PAD, image, known.operand)
        if known.filter:
            kernel = self._see(OpClass.PAD, kernel, known.filter)
        if known.turned_over:
            kernel = self._see(OpClass.REVERSE, kernel, self.read[1].shape.dimensions)
        return [image, kernel, *others]

    def result(self, row: int) -> int:
        """The row of a convolution, or a view of the part that is kept."""
        whole = self._padded.result
        if whole is None:
            return row
        kept = self.convolution.shape.dimensions
        return self._see(OpClass.SLICE, self._see(OpClass.PAD, row, whole), kept)

    def _see(self, op: OpClass, row: int, shape: Sequence[int]) -> int:
        i = self.convolution
        scope, phase = scope_and_phase(i)
        element_bytes = shapes.num_bytes(i.shape) // max(math.prod(i.shape.dimensions), 1)
        return self.builder.add(
            f"hlo.{op.name.lower()}", Kind.VALUE, op=op, deps=[row], alias=row, flags=Flag.VIEW,
            dtype=shapes.first(i.shape)[0], shape=tuple(shape), scope=scope, phase=phase,
            result_bytes=element_bytes * math.prod(shape), location=location(i, self.module),
        )  # fmt: skip


def _is_image(batch: int, spatial: list[int], features: int) -> bool:
    orders = ([batch, *spatial, features], [batch, features, *spatial])
    return any(order == sorted(order) for order in orders)


def _is_filter_gradient(i: Instruction, windows: Any) -> bool:
    """A window as large as an image slides over the positions of a filter."""
    numbers, sizes = i.convolution_dimension_numbers, i.shape.dimensions
    spatial = list(numbers.output_spatial_dimensions)
    if any(_holes(w) != 1 or w.padding_low < 0 for w in windows):
        return False
    if any(w.size < sizes[d] for w, d in zip(windows, spatial, strict=True)):
        return False
    is_image = _is_image(numbers.output_batch_dimension, spatial, numbers.output_feature_dimension)
    return not is_image or any(w.window_dilation > 1 for w in windows)


def _is_turned_over(i: Instruction, kernel: Instruction) -> bool:
    """Whether a filter is read backwards in all its spatial dimensions."""
    spatial = sorted(i.convolution_dimension_numbers.kernel_spatial_dimensions)
    return kernel.opcode == "reverse" and sorted(kernel.dimensions) == spatial


def _with_holes(i: Instruction, kernel: Instruction) -> tuple[int, ...] | None:
    """The shape of a filter that is dilated, or none."""
    shape = list(kernel.shape.dimensions)
    spatial = i.convolution_dimension_numbers.kernel_spatial_dimensions
    for d, w in zip(spatial, i.window.dimensions, strict=True):
        shape[d] = (shape[d] - 1) * max(w.window_dilation, 1) + 1
    return None if shape == list(kernel.shape.dimensions) else tuple(shape)


def _fits(i: Instruction, read: Instruction) -> bool:
    """Whether no padding of the convolution that this is the gradient of is negative."""
    numbers = i.convolution_dimension_numbers
    inputs = [read.shape.dimensions[d] for d in numbers.input_spatial_dimensions]
    results = [i.shape.dimensions[d] for d in numbers.output_spatial_dimensions]
    pads = map(_gradient_padding, i.window.dimensions, inputs, results)
    return all(low >= 0 <= high for low, high in pads)


def _gradient_padding(w: Any, inputs: int, results: int) -> tuple[int, int]:
    """The padding of the convolution of which a window computes the gradient of the input."""
    low, stride = w.size - 1 - w.padding_low, _holes(w)
    return low, _high(low, w.size + stride * (inputs - 1) - results - low, stride)


def _filter_padding(w: Any, inputs: int, results: int) -> tuple[int, int]:
    """The padding of the convolution of which a window computes the gradient of the filter."""
    low, stride = w.padding_low, max(w.window_dilation, 1)
    return low, _high(low, results + stride * (w.size - 1) - inputs - low, stride)


def _high(low: int, least: int, stride: int) -> int:
    """Padding at the end: as at the start if a stride leaves the choice."""
    return min(max(low, least), least + stride - 1)


def _stride(w: Any) -> int:
    return max(int(w.stride), 1)


def _holes(w: Any) -> int:
    return max(int(w.base_dilation), 1)
