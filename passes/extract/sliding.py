"""The work of StableHLO operations whose windows slide: convolutions, and reductions of windows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from flint.passes.extract.products import product_of
from flint.passes.extract.tensors import Operation
from flint.passes.mlir import body_operations
from flint.passes.work import formulas
from flint.passes.work.sliding import Sliding, reduced_elements, used_taps
from flint.passes.work.work import Work


def convolution(o: Operation) -> Work:
    """`formulas.convolution`, with the window elements that meet an element."""
    from jaxlib.mlir.dialects import stablehlo

    numbers = stablehlo.ConvDimensionNumbers(o.op.attributes["dimension_numbers"])
    kernel, result = o.operands[1].shape, o.results[0].shape
    groups = int(o.op.attributes["feature_group_count"].value)
    batch_groups = int(o.op.attributes["batch_group_count"].value)
    window = math.prod(kernel[d] for d in numbers.kernel_spatial_dimensions)
    k = window * kernel[numbers.kernel_input_feature_dimension]
    features = result[numbers.output_feature_dimension]
    positions = math.prod(result) // max(features, 1)
    used, taps = used_taps(_slidings(o, numbers))
    return formulas.convolution(
        positions, features, k, groups * batch_groups, product=product_of(o), used=used, taps=taps
    )


def _slidings(o: Operation, numbers: Any) -> list[Sliding]:
    """The spatial dimensions of a convolution, whole: a shard's share is the same."""
    count = len(numbers.input_spatial_dimensions)
    inputs, kernel = o.operands[0].global_shape, o.operands[1].global_shape
    outputs = o.results[0].global_shape
    strides, base, dilation = (
        _integers(o.op, name, [1] * count)
        for name in ("window_strides", "lhs_dilation", "rhs_dilation")
    )
    padding = _integers(o.op, "padding", [0] * 2 * count)
    return [
        Sliding(
            kernel[numbers.kernel_spatial_dimensions[d]],
            inputs[numbers.input_spatial_dimensions[d]],
            outputs[numbers.output_spatial_dimensions[d]],
            strides[d],
            padding[2 * d],
            padding[2 * d + 1],
            base[d],
            dilation[d],
        )
        for d in range(count)
    ]


def reduce_window(o: Operation) -> Work:
    """The body runs for each element of a window that its neighbors do not know."""
    reduced = reduced_elements(_reduced_windows(o))
    return formulas.windows(o.results[0].num_elements, *reduced, body_operations(o.op))


def _reduced_windows(o: Operation) -> list[Sliding]:
    inputs, outputs = o.operands[0].global_shape, o.results[0].global_shape
    sizes, strides, base, dilation = (
        _integers(o.op, name, [1] * len(inputs))
        for name in ("window_dimensions", "window_strides", "base_dilations", "window_dilations")
    )
    padding = _integers(o.op, "padding", [0] * 2 * len(inputs))
    low, high = padding[::2], padding[1::2]
    return list(map(Sliding, sizes, inputs, outputs, strides, low, high, base, dilation))


def _integers(op: Any, name: str, default: list[int]) -> list[int]:
    """An attribute that holds integers, flat; `default` where it is omitted."""
    from jaxlib.mlir import ir

    if name not in op.attributes:
        return default
    attribute = op.attributes[name]
    try:
        return [int(v) for v in ir.DenseI64ArrayAttr(attribute)]
    except ValueError:
        return [int(v) for v in np.array(ir.DenseIntElementsAttr(attribute)).ravel()]
