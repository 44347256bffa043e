"""Kernels that find the place of each element: rules by strides against names of real kernels."""

from __future__ import annotations

import re

import numpy as np
import pytest

from benchmarks.trace_kernels import files
from flint.frontends.torch_world.program.operands import is_indexed
from flint.frontends.torch_world.record.recording import GAPS, Event, TensorInfo, order_of
from flint.ir.op_class import OpClass
from flint.ir.program import Flag, Kind
from flint.tools.measure.profiles.build import workload_of
from flint.tools.measure.profiles.formats import read_profiles

#: PyTorch's kernels that take 16 bytes at once, and those that take elements one by one.
AT_ONCE = re.compile(r"(?<!unrolled_)vectorized_elementwise_kernel")
ONE_BY_ONE = re.compile(
    r"native::(elementwise_kernel<|unrolled_elementwise_kernel)|CatArrayBatchedCopy<"
)


@pytest.mark.parametrize(
    ("shape", "strides", "order"),
    [
        ((2, 3, 4), (12, 4, 1), ()),
        ((2, 3, 4), (12, 1, 3), (0, 2, 1)),
        ((2, 3, 4), (24, 8, 2), GAPS),
        ((2, 3, 4), (24, 8, 1), GAPS),
        ((2, 3, 4), (0, 4, 1), GAPS),
        ((1, 3, 4), (7, 4, 1), ()),
        ((3, 1, 4), (4, 99, 1), ()),
        ((), (), ()),
        ((2, 3), (), ()),
    ],
)
def test_the_order_of_elements(
    shape: tuple[int, ...], strides: tuple[int, ...], order: tuple[int, ...]
) -> None:
    assert order_of(shape, strides) == order


def info(storage: int, *shape: int, dtype: str = "bf16", order: tuple[int, ...] = ()) -> TensorInfo:
    return TensorInfo(storage, shape, dtype, 2 * int(np.prod(shape)), order)


def event(op: str, *tensors: TensorInfo) -> Event:
    """The last tensor is the result."""
    return Event(f"aten.{op}.default", tensors[:-1], tensors[-1:])


X, Y, Z = (info(i, 8, 16) for i in range(3))
IMAGE, PATCHES, GRID = info(0, 4, 3, 32, 32), info(1, 8, 3, 16, 16), info(2, 4, 8, 2, 2)


@pytest.mark.parametrize(
    ("said", "op", "indexed"),
    [
        (event("add", X, Y, Z), OpClass.ADD, False),
        (event("convolution", IMAGE, PATCHES, GRID), OpClass.CONVOLUTION, True),
        (event("convolution", X, info(1, 8, 64, 3, 3), GRID), OpClass.CONVOLUTION, False),
        (event("convolution", IMAGE, info(1, 8, 3, 1, 1), GRID), OpClass.CONVOLUTION, False),
        (event("convolution_backward", GRID, IMAGE, PATCHES, PATCHES), OpClass.CONVOLUTION_BACKWARD, True),
        (event("add", X, info(1), Z), OpClass.ADD, False),  # a scalar
        (event("add", X, info(1, 16), Z), OpClass.ADD, True),
        (event("add", X, info(1, 8, 16, order=(1, 0)), Z), OpClass.ADD, True),
        (event("neg", info(0, 8, 16, order=(1, 0)), info(1, 8, 16, order=(1, 0))), OpClass.NEGATE, False),
        (event("neg", info(0, 8, 16, order=GAPS), Z), OpClass.NEGATE, True),
        (event("_to_copy", X, info(1, 8, 16, dtype="f32")), OpClass.CONVERT, True),
        (event("_to_copy", info(0, 8, 16, dtype="f32"), Z), OpClass.CONVERT, False),
        (event("clone", info(0, 8, 16, order=(1, 0)), Z), OpClass.COPY, True),
        (event("clone", X, Z), OpClass.COPY, False),
        (event("cat", X, Y, info(2, 16, 16)), OpClass.CONCATENATE, True),
        (event("_foreach_add", X, info(1, 16), Z), OpClass.ADD, False),
        (event("sum", X, info(1, 8)), OpClass.REDUCE, False),
        (event("embedding", X, info(1, 4), Z), OpClass.GATHER, False),
    ],
)  # fmt: skip
def test_where_arrays_lie_differently(said: Event, op: OpClass, indexed: bool) -> None:
    assert is_indexed(said, op) is indexed


def test_kernels_of_another_maker_are_not_told() -> None:
    one = Event("_C.rotary_embedding.default", (X, info(1, 16)), (Z,))
    assert not is_indexed(one, OpClass.ADD)


def test_profiles_have_the_kernels_that_strides_say() -> None:
    """Of all element-wise kernels and copies of more than a thousand elements in real profiles."""
    seen = {True: 0, False: 0}
    for path, _ in files():
        program = workload_of(read_profiles(path)).programs[0]
        elements = np.array([int(np.prod(s)) for s in program.shapes])[program.shape]
        works = (program.kind == Kind.COMPUTE) & (elements > 1000) & (program.op != OpClass.OTHER)
        for at in np.flatnonzero(works).tolist():
            name, opcode = program.strings[program.name[at]], program.opcodes[program.opcode[at]]
            one_by_one = bool(ONE_BY_ONE.search(name))
            if opcode.startswith("aten.") and (one_by_one or AT_ONCE.search(name)):
                if program.op[at] == OpClass.CONVOLUTION:
                    continue
                indexed = bool(program.flags[at] & Flag.INDEXED)
                assert indexed is one_by_one, (path.name, opcode, name)
                seen[indexed] += 1
    assert seen[True] > 500
    assert seen[False] > 500
