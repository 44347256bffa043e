"""What an instruction has to have for its work and its message to be read: operands and dimensions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from flint.errors import Malformed
from flint.passes.hlo import shapes
from flint.passes.hlo.collectives import collective_kind
from flint.passes.hlo.module import Instruction

#: Positions of one window, and how far its elements are apart: all of them are looked at.
_MOST_POSITIONS, _MOST_DILATION = 1 << 26, 1 << 20
#: Opcode to the fewest operands, and the fewest computations that it calls.
_LEAST: dict[str, tuple[int, int]] = {
    **dict.fromkeys(("dot", "scaled-dot", "convolution", "gather", "dynamic-update-slice"), (2, 0)),
    **dict.fromkeys(("add", "subtract", "compare"), (2, 0)),
    **dict.fromkeys(
        ("copy", "bitcast", "convert", "reshape", "opt-barrier", "optimization-barrier", "topk",
         "bitcast-convert", "domain",
         "get-tuple-element", "fft", "cholesky", "async-update", "batch-norm-training",
         "batch-norm-grad", "batch-norm-inference"),
        (1, 0),
    ),
    **dict.fromkeys(("reduce", "reduce-window"), (1, 1)),
    "sort": (1, 0),
    "ragged-dot": (3, 0),
    "select-and-scatter": (2, 0),
    "triangular-solve": (2, 0),
    "scatter": (3, 1),
    "send": (1, 0),
    "while": (1, 2),
    "conditional": (2, 1),
    "call": (0, 1),
    "async-start": (0, 1),
    "fusion": (0, 1),
}  # fmt: skip


def check_operation(i: Instruction, operands: Sequence[Instruction], called: int) -> None:
    """Raise Malformed, with what is wrong of the instruction."""
    least, computations = _LEAST.get(i.opcode, (0, 0))
    if i.opcode.endswith("-done") or collective_kind(i.opcode):
        least = 1
    if len(operands) < least:
        raise Malformed(f"has {len(operands)} operands of at least {least}")
    if called < computations:
        raise Malformed(f"calls {called} computations of at least {computations}")
    for window in i.window.dimensions:
        _check_window(window)
    check = _CHECKS.get(i.opcode)
    if check is not None:
        check(i, [o.shape for o in operands])


def _check_window(window: Any) -> None:
    if not 0 <= window.size <= _MOST_POSITIONS:
        raise Malformed(f"has a window of {window.size} elements")
    if not all(0 <= n <= _MOST_DILATION for n in (window.window_dilation, window.base_dilation)):
        raise Malformed("has a window with an impossible dilation")
    moves = (window.stride, abs(window.padding_low), abs(window.padding_high))
    if not all(0 <= n <= 1 << 32 for n in moves):
        raise Malformed("has a window with an impossible stride or padding")


def _inside(numbers: Iterable[int], shape: Any) -> None:
    """The numbers are of dimensions of a shape."""
    rank = len(shape.dimensions)
    wrong = next((n for n in numbers if not 0 <= n < rank), None)
    if wrong is not None:
        raise Malformed(f"names dimension {wrong} of an array of {rank}")


def _dot(i: Instruction, operands: Sequence[Any]) -> None:
    ragged = i.opcode == "ragged-dot"
    numbers = i.ragged_dot_dimension_numbers if ragged else i
    of = numbers.dot_dimension_numbers
    _inside((*of.lhs_contracting_dimensions, *of.lhs_batch_dimensions), operands[0])
    if ragged:
        _inside((0,), operands[2])


def _convolution(i: Instruction, operands: Sequence[Any]) -> None:
    numbers, result = i.convolution_dimension_numbers, i.shape
    kernel = (numbers.kernel_input_feature_dimension, *numbers.kernel_spatial_dimensions)
    _inside(numbers.input_spatial_dimensions, operands[0])
    _inside(kernel, operands[1])
    _inside((numbers.output_feature_dimension, *numbers.output_spatial_dimensions), result)
    _positions(result.dimensions[d] for d in numbers.output_spatial_dimensions)


def _windows(i: Instruction, operands: Sequence[Any]) -> None:
    for leaf in shapes.leaves(i.shape)[:1]:
        windows = zip(i.window.dimensions, leaf.dimensions, strict=False)
        _positions(positions for w, positions in windows if _slides(w))


def _slides(window: Any) -> bool:
    """Whether windows of a dimension hold more, or something else, than one element each."""
    grows = (window.base_dilation > 1, window.padding_low > 0, window.padding_high > 0)
    return window.size != 1 or any(grows)


def _positions(found: Iterable[int]) -> None:
    most = max(found, default=0)
    if most > _MOST_POSITIONS:
        raise Malformed(f"has windows at {most:,} positions")


def _sort(i: Instruction, operands: Sequence[Any]) -> None:
    for leaf in shapes.leaves(operands[0])[:1]:
        if leaf.dimensions:
            _inside(i.dimensions, leaf)


def _top_k(i: Instruction, operands: Sequence[Any]) -> None:
    if i.k < 0:
        raise Malformed(f"takes the largest {i.k}")


def _fft(i: Instruction, operands: Sequence[Any]) -> None:
    if not i.fft_length or min(i.fft_length) < 1:
        raise Malformed("transforms no elements")


def _matrices(i: Instruction, operands: Sequence[Any]) -> None:
    _inside((1,), operands[0])


def _gather(i: Instruction, operands: Sequence[Any]) -> None:
    _inside(i.gather_dimension_numbers.offset_dims, i.shape)


def _scatter(i: Instruction, operands: Sequence[Any]) -> None:
    results = len(shapes.leaves(i.shape))
    if len(operands) < results + 2:
        raise Malformed("has no updates")
    _inside(i.scatter_dimension_numbers.update_window_dims, operands[results + 1])


def _receive(i: Instruction, operands: Sequence[Any]) -> None:
    if not i.shape.tuple_shapes and not i.is_host_transfer:
        raise Malformed("receives nothing")


_CHECKS: dict[str, Callable[[Instruction, Sequence[Any]], None]] = {
    "dot": _dot,
    "scaled-dot": _dot,
    "ragged-dot": _dot,
    "convolution": _convolution,
    "reduce-window": _windows,
    "sort": _sort,
    "topk": _top_k,
    "fft": _fft,
    "cholesky": _matrices,
    "triangular-solve": _matrices,
    "gather": _gather,
    "scatter": _scatter,
    "recv": _receive,
}
