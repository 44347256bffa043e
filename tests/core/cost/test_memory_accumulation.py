"""Gradients that are added up over microbatches: the peak does not grow with how many there are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count

import numpy as np
import pytest

from flint.backends.cost.memory.liveness import buffers
from flint.backends.cost.memory.memory import stored_programs
from flint.frontends.torch_world.program.build import build_program
from flint.frontends.torch_world.record.recording import Event, TensorInfo
from flint.ir.mesh import Mesh
from flint.ir.op_class import OpClass
from flint.ir.program import Collective, Phase
from flint.tracing import trace_step
from tests.jax_pipelines import HIDDEN, LAYERS, WIDTH, pipeline
from tests.recordings import event, recording, tensor, update

SUMS = (tensor(1, 256, 256), tensor(2, 256, 256))
FLAT = tensor(3, 2 * 256 * 256)
PRODUCT_BYTES = 256 * 256 * 4


def microbatches(way: str, number: int) -> Iterator[Event]:
    """Products of weights' gradients, added to sums by the kernel that `way` names."""
    new = (tensor(n, 1024, 256) for n in count(100))
    for _ in range(number):
        x, gradients = next(new), []
        yield event("aten.randn", [], [x])
        for total in SUMS:
            dy, part = next(new), replace(total, storage=FLAT.storage)
            made = replace(next(new), shape=(256, 256), num_bytes=PRODUCT_BYTES)
            empty = TensorInfo(next(new).storage, (0,), "f32", 0)
            yield event("aten.relu", [x], [dy])
            if way == "of a flat buffer":
                yield event("te.wgrad_", [dy, x, part], [part, empty], writes=(FLAT.storage,))
            elif way == "in the product":
                yield event("apex.wgrad_gemm_accum", [dy, x, total], writes=(total.storage,))
            elif way == "addmm":
                yield update("aten.addmm_", [total, dy, x])
            else:
                yield event("aten.mm", [dy, x], [made])
                gradients.append(made)
            if way == "one by one":
                yield update("aten.add_.Tensor", [total, made])
        if way == "as lists":
            yield event("aten._foreach_add_.List", [*SUMS, *gradients], writes=(1, 2))
        if way == "grouped":
            yield event("te.grouped_wgrad_", [dy, x, *SUMS], [empty], writes=(1, 2))


def peak_bytes(way: str, number: int) -> int:
    before = [event("aten.zeros", [], [t]) for t in (*SUMS, FLAT)]
    after = [event("aten.mul", [t], [tensor(50 + i, 256, 256)]) for i, t in enumerate(SUMS)]
    made = recording(*before, *microbatches(way, number), *after)
    return int(buffers(build_program(made, Mesh(("dp",), (4,))).program).live_bytes.max())


@pytest.mark.parametrize(
    "way", ["of a flat buffer", "in the product", "addmm", "one by one", "as lists", "grouped"]
)
def test_the_peak_is_that_of_two_microbatches(way: str) -> None:
    assert peak_bytes(way, 1) <= peak_bytes(way, 2) == peak_bytes(way, 8) == peak_bytes(way, 64)


def test_a_pipeline_adds_up_and_reduces_gradients_where_they_lie() -> None:
    """Nothing else is ever as large as the gradients of all layers: neither those of one microbatch,
    nor what replicas made of them together."""
    mesh = Mesh(("pipe", "data", "model"), (1, 2, 1))
    (program,) = stored_programs(trace_step(pipeline(mesh), mesh).workload)
    layout = buffers(program)
    stacked = LAYERS * WIDTH * HIDDEN * 4
    made = np.isin(program.phase[layout.first], (Phase.BACKWARD, Phase.OPTIMIZER))
    alike = made & (layout.num_bytes == stacked)
    assert layout.of(alike).live_bytes.max() == 2 * stacked, "sums for the two products of a layer"
    sums = program.op[layout.first] == OpClass.ACCUMULATOR
    assert (program.collective == Collective.ALL_REDUCE).any() and sums.sum() == 5
