"""The default route against what XLA's whole GPU compiler made of the same programs.

The figures were measured by `python -m benchmarks.compilers.kernels --examples --write-json`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("jax")
from benchmarks.compilers.kernels import Done, captured_side, difference
from benchmarks.compilers.programs import samples
from flint.cluster.named import load_cluster
from flint.passes.partition.xla import partitioned
from tests.long import long_but

MEASURED = json.loads(Path(__file__).with_name("compiled_kernels_xla_gpu.json").read_text())
#: Bars: bytes, kernels. Step times in the file are of the prices of its day: they are compared when both
#: sides are priced again (docs/compiled.md).
BARS = (0.10, 0.10)
#: Programs that take less than a second, one of each kind. The last two have more kernels: arrays
#: that loops carry in the order of products, masks of one position (docs/compiled.md).
FAST = {
    "llama fsdp, remat full": BARS,
    "llama tp, remat full": BARS,
    "llama fsdp+tp, remat none": BARS,
    "mixtral einsum": BARS,
    "llama 70B": BARS,
    "ring attention": (0.14, 0.18),
    "decode": (0.16, 0.15),
}


@pytest.mark.parametrize(
    "name", long_but(FAST.keys() - {"llama tp, remat full", "llama 70B"}, FAST)
)
def test_kernels_and_bytes_are_those_of_the_compiled_program(name: str) -> None:
    compiled = Done(**MEASURED["programs"][name])
    (sample,) = (s for s in samples() if s.name == name)
    program = partitioned(sample.capture("cuda")).program
    found = Done.of(captured_side(program, load_cluster(MEASURED["cluster"])))
    assert found.product_flops == compiled.product_flops
    moved, kernels = FAST[name]
    assert abs(difference(found.moved_bytes, compiled.moved_bytes)) <= moved
    assert abs(difference(found.kernels, compiled.kernels)) <= kernels
