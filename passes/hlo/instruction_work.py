"""The sizes of single HLO instructions that their work depends on (`flint.passes.work.formulas`)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from flint.ir.product_types import by_block, grouped
from flint.passes.hlo import shapes
from flint.passes.hlo.module import Computation, HloModule, Instruction
from flint.passes.hlo.precision import product_of
from flint.passes.work import formulas
from flint.passes.work.sliding import Sliding, reduced_elements, used_taps
from flint.passes.work.work import Work


@dataclass(frozen=True, slots=True)
class HloOperation:
    """An instruction with its operands, and the module that both are in."""

    instruction: Instruction
    operands: list[Instruction]
    module: HloModule

    @property
    def called(self) -> Computation:
        """The first computation that the instruction runs."""
        return self.module.called(self.instruction)[0]


def dot(o: HloOperation) -> Work:
    """2 x batch x m x n x k."""
    return product_with(o, o.instruction.dot_dimension_numbers)


def scaled_dot(o: HloOperation) -> Work:
    """A product of operands with scales for blocks of k."""
    found = dot(o)
    return replace(found, product=by_block(found.product))


def ragged_dot(o: HloOperation) -> Work:
    """Each row of the left side meets one group's matrix: 2 x m x n x k."""
    lhs = list(o.operands[0].shape.dimensions)
    numbers = o.instruction.ragged_dot_dimension_numbers.dot_dimension_numbers
    k = math.prod(lhs[d] for d in numbers.lhs_contracting_dimensions)
    result = list(o.instruction.shape.dimensions)
    m = math.prod(lhs) // max(k, 1)
    groups = list(o.operands[2].shape.dimensions)[-1]
    sums = len(result) == len(lhs) + 1  # k is ragged: a result for each group, of its part of k
    n = math.prod(result) // max(m * (groups if sums else 1), 1)
    name = grouped(product_of(o), groups, sums=sums)
    return formulas.product(1, m, n, k, product=name)


def product_with(o: HloOperation, numbers: Any) -> Work:
    """The product of the first two operands by its dimension numbers."""
    lhs, rhs = list(o.operands[0].shape.dimensions), list(o.operands[1].shape.dimensions)
    batch = math.prod(lhs[d] for d in numbers.lhs_batch_dimensions)
    k = math.prod(lhs[d] for d in numbers.lhs_contracting_dimensions)
    m = math.prod(lhs) // max(batch * k, 1)
    n = math.prod(rhs) // max(batch * k, 1)
    return formulas.product(batch, m, n, k, product=product_of(o))


def convolution(o: HloOperation) -> Work:
    """`formulas.convolution`, with the window elements that meet an element."""
    used, taps = used_taps(_slidings(o))
    shape, kernel = o.instruction.shape, o.operands[1].shape
    return convolution_with(o, shape, kernel, used=used, taps=taps)


def _slidings(o: HloOperation) -> list[Sliding]:
    """The spatial dimensions of a convolution."""
    numbers, instruction = o.instruction.convolution_dimension_numbers, o.instruction
    inputs, outputs = o.operands[0].shape.dimensions, instruction.shape.dimensions
    return [
        _sliding(window, inputs[i], outputs[r])
        for window, i, r in zip(
            instruction.window.dimensions,
            numbers.input_spatial_dimensions,
            numbers.output_spatial_dimensions,
            strict=False,
        )
    ]


def _sliding(window: Any, inputs: int, outputs: int) -> Sliding:
    return Sliding(
        window.size,
        inputs,
        outputs,
        max(window.stride, 1),
        window.padding_low,
        window.padding_high,
        max(window.base_dilation, 1),
        max(window.window_dilation, 1),
    )


def convolution_with(
    o: HloOperation, result: Any, kernel: Any, *, used: int = 1, taps: int = 1
) -> Work:
    """The convolution with a kernel of this shape; `used` of `taps` meet an element."""
    numbers = o.instruction.convolution_dimension_numbers
    sizes, out = list(kernel.dimensions), list(result.dimensions)
    k = math.prod(sizes[d] for d in numbers.kernel_spatial_dimensions)
    k *= sizes[numbers.kernel_input_feature_dimension]
    features = out[numbers.output_feature_dimension]
    positions = math.prod(out) // max(features, 1)
    groups = max(o.instruction.feature_group_count, 1) * max(o.instruction.batch_group_count, 1)
    return formulas.convolution(
        positions, features, k, groups, product=product_of(o), used=used, taps=taps
    )


def reduce(o: HloOperation) -> Work:
    """The body runs for each input element."""
    rows = math.prod(shapes.first(o.instruction.shape)[1])
    return formulas.reduction(shapes.num_elements(o.operands[0].shape), rows, _body_operations(o))


def reduce_window(o: HloOperation) -> Work:
    """The body runs for each element of a window that its neighbors do not know."""
    result = shapes.first(o.instruction.shape)[1]
    inputs = shapes.first(o.operands[0].shape)[1]
    reduced = reduced_elements(map(_sliding, o.instruction.window.dimensions, inputs, result))
    return formulas.windows(math.prod(result), *reduced, _body_operations(o))


def select_and_scatter(o: HloOperation) -> Work:
    """The source is the second operand."""
    window = math.prod(d.size for d in o.instruction.window.dimensions)
    return formulas.select_and_scatter(shapes.num_elements(o.operands[1].shape), window)


def batch_norm(o: HloOperation) -> Work:
    """Training, inference and the gradient."""
    return formulas.batch_norm(shapes.num_elements(o.operands[0].shape))


def sort(o: HloOperation) -> Work:
    """Along the sorted dimension."""
    sizes = shapes.first(o.operands[0].shape)[1]
    dimensions = list(o.instruction.dimensions)
    length = sizes[dimensions[0]] if dimensions and sizes else 1
    return formulas.sort(math.prod(sizes), length)


def top_k(o: HloOperation) -> Work:
    """Along the last dimension."""
    sizes = shapes.first(o.operands[0].shape)[1]
    return formulas.top_k(math.prod(sizes), sizes[-1] if sizes else 1, o.instruction.k)


def fft(o: HloOperation) -> Work:
    """Of real numbers the side that has more of them is counted."""
    sides = (o.operands[0].shape, o.instruction.shape)
    return formulas.fft(max(map(shapes.num_elements, sides)), o.instruction.fft_length)


def cholesky(o: HloOperation) -> Work:
    """Of each matrix of the batch."""
    *batch, n, _ = o.operands[0].shape.dimensions
    return formulas.cholesky(math.prod(batch), n)


def triangular_solve(o: HloOperation) -> Work:
    """Of all right-hand sides."""
    n = o.operands[0].shape.dimensions[-1]
    return formulas.triangular_solve(shapes.num_elements(o.operands[1].shape), n)


def rng(o: HloOperation) -> Work:
    """All results together."""
    return formulas.random(shapes.num_bytes(o.instruction.shape))


def gather(o: HloOperation) -> Work:
    """Indices are the second operand."""
    result, indices = o.instruction.shape, o.operands[1].shape
    numbers = o.instruction.gather_dimension_numbers
    row = math.prod(result.dimensions[d] for d in numbers.offset_dims)
    elements = shapes.num_elements(result)
    return formulas.gather(shapes.num_bytes(result), shapes.num_bytes(indices), elements, row)


def slice_(o: HloOperation) -> Work:
    """What it returns."""
    return formulas.slice_(shapes.num_bytes(o.instruction.shape))


def dynamic_update_slice(o: HloOperation) -> Work:
    """The update is the second operand."""
    return formulas.update_slice(shapes.num_bytes(o.operands[1].shape))


def scatter(o: HloOperation) -> Work:
    """A scatter without arithmetic in its body adds nothing."""
    results = len(shapes.leaves(o.instruction.shape))
    updates = [u.shape for u in o.operands[results + 1 :]]
    windows = o.instruction.scatter_dimension_numbers.update_window_dims
    row = math.prod(updates[0].dimensions[d] for d in windows)
    elements, written = (sum(map(f, updates)) for f in (shapes.num_elements, shapes.num_bytes))
    adds = elements if _body_operations(o, least=0) else 0
    indices = shapes.num_bytes(o.operands[results].shape)
    whole = sum(shapes.num_bytes(array.shape) for array in o.operands[:results])
    return formulas.scatter(adds, written, indices, whole, elements, row)


def _body_operations(o: HloOperation, least: int = 1) -> int:
    idle = ("parameter", "constant", "tuple", "get-tuple-element")
    count = sum(i.opcode not in idle for i in o.called.instructions)
    return max(count, least)
