"""No step does more products than its chips can: MFU and HFU are shares."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flint.backends.cost.estimate import estimate
from flint.cluster.models import Cluster
from flint.ir.mesh import Mesh
from flint.ir.program import Kind, Phase
from flint.ir.workload import Workload
from flint.requests.estimate import EstimateRequest
from tests.long import long_but
from tests.program_rows import ProgramBuilder

CLUSTERS = ["a100-80-dgx", "h100-dgx", "h200", "l40s", "mi300x", "b200", "v4", "v5e", "v5p", "v6e"]
ENDS = ("", "[causal]", "[window=100]", "[window=1024]")
LENGTHS = st.sampled_from([1, 2, 8, 9, 64, 127, 1000, 1024, 4096, 16_384, 65_536])
SIZES = st.sampled_from([16, 32, 64, 96, 128, 192, 256, 512])


def attention_row(b: ProgramBuilder, draw: st.DrawFn) -> None:
    heads = draw(st.sampled_from([1, 8, 71, 4096]))
    shared = draw(st.sampled_from([1, 8, 71]))
    queries, keys, size, value = (draw(s) for s in (LENGTHS, LENGTHS, SIZES, SIZES))
    backward = draw(st.booleans())
    sizes = 3 * size + 2 * value if backward else size + value
    name = "custom_call.flint.attention" + ("_backward" if backward else "")
    moved = 2 * heads * queries * (size + value) + 2 * heads // shared * keys * (size + value)
    b.add(
        name + draw(st.sampled_from(ENDS)),
        flops=2 * heads * queries * keys * sizes,
        dims=(heads, queries, keys, size),
        operand_bytes=moved // 2 + 1,
        result_bytes=moved // 2,
        dtype="bfloat16",
        shape=(heads, queries, value),
        phase=Phase.BACKWARD if backward else Phase.FORWARD,
    )


def product_row(b: ProgramBuilder, draw: st.DrawFn) -> None:
    shape = tuple(draw(LENGTHS) for _ in range(3))
    dtype = draw(st.sampled_from(["bfloat16", "float32"]))
    width = 2 if dtype == "bfloat16" else 4
    m, n, k = shape
    operands = [
        b.add("p", Kind.PARAMETER, dtype=dtype, shape=s, result_bytes=width * math.prod(s))
        for s in ((m, k), (k, n))
    ]
    b.add(
        "stablehlo.dot_general",
        deps=operands,
        flops=2 * m * n * k,
        dims=(1, m, n, k),
        operand_bytes=width * (m * k + k * n),
        result_bytes=width * m * n,
        dtype=dtype,
        shape=(m, n),
    )


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    b = ProgramBuilder(Mesh(("data",), (1,)))
    for _ in range(draw(st.integers(1, 4))):
        (attention_row if draw(st.booleans()) else product_row)(b, draw)
    return Workload.single(b.build())


@pytest.mark.parametrize("cluster", long_but({"h100-dgx", "mi300x", "v5p"}, CLUSTERS))
def test_no_step_does_more_than_the_chips_can(cluster: str) -> None:
    chips = Cluster.load(cluster)
    assert chips.derate.value == 1

    @settings(max_examples=25)
    @given(workload=workloads())
    def check(workload: Workload) -> None:
        found = estimate(workload, EstimateRequest(chips))
        utilisation = (found.mfu, found.hfu)
        del found  # whose text is long
        assert 0 < utilisation[0] <= utilisation[1] <= 1

    check()
