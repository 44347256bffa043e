"""Numbers that do not fit, and programs that multiply, are refused where they begin."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from flint.backends.chakra import check, write
from flint.backends.cost.estimate import estimate
from flint.backends.cost.trace_timing import timed_kernels
from flint.cluster.models import Cluster
from flint.errors import FlintError
from flint.ir.mesh import Mesh
from flint.ir.program import Program, RegionKind
from flint.ir.workload import Workload
from flint.passes.base import Pass, apply_pass
from flint.passes.mlir import make_context, write_bytecode
from flint.passes.partition import xla
from flint.requests.estimate import EstimateRequest
from flint.steps.captured import Captured
from flint.tools.report.perfetto import write_perfetto
from tests.program_rows import ProgramBuilder

MESH = Mesh(("x",), (4,))


def refused(caught: pytest.ExceptionInfo[FlintError]) -> str:
    assert caught.value.code == "FL407"
    return caught.value.message


def test_a_product_that_does_not_fit_is_named_with_its_place() -> None:
    b = ProgramBuilder(MESH)
    b.add("stablehlo.add", flops=2**62)
    with pytest.raises(FlintError) as caught:
        b.add(
            "stablehlo.dot_general",
            flops=2**62,
            dtype="float32",
            shape=(2_000_000, 2_000_000),
            location="model.py:41",
        )
    assert refused(caught).startswith("stablehlo.dot_general has flops of 4.61e+18")
    assert caught.value.place == "model.py:41  float32[2000000,2000000]"


def test_the_largest_sum_that_fits_is_kept() -> None:
    b = ProgramBuilder(MESH)
    b.add("stablehlo.add", flops=2**62)
    b.add("stablehlo.add", flops=2**62 - 1)
    b.build().verify()


def test_bytes_and_dims(monkeypatch: pytest.MonkeyPatch) -> None:
    for amounts in ({"result_bytes": 10**24}, {"dims": (1, 1, 2**63, 1)}):
        with pytest.raises(FlintError) as caught:
            ProgramBuilder(MESH).add("parameter", name="w", **amounts)  # type: ignore[arg-type]
        assert caught.value.place is not None and caught.value.place.startswith("w")
        refused(caught)


def test_loops_that_run_too_often_or_nest_too_deeply() -> None:
    b = ProgramBuilder(MESH)
    b.begin_region(RegionKind.LOOP, 2**40)
    with pytest.raises(FlintError) as caught:
        b.begin_region(RegionKind.LOOP, 2**23, name="layers", location="m.py:3")
    assert refused(caught) == "loop 'layers' would run 9.2e+18 times in a step"
    b = ProgramBuilder(MESH)
    with pytest.raises(FlintError, match="is inside 100 other loops"):
        for _ in range(101):
            b.begin_region(RegionKind.LOOP, 1)


TALL, FITS, HUGE = 3037000500, 3037000499, "tensor<4294967296x2147483648xf32>"


def square(n: int) -> str:
    """A product of two vectors: each fits, their product has `n`**2 elements."""
    of = f"tensor<{n}xf32>"
    product = f"stablehlo.dot_general %x, %x, contracting_dims = [] x [] : ({of}, {of})"
    return f"func.func @main(%x: {of}) {{ %0 = {product} -> tensor<{n}x{n}xf32>\n return }}"


TOO_LARGE = {
    f"func.func @main(%x: {HUGE}) {{ return }}": f"an argument is {HUGE}",
    square(TALL): "the result of stablehlo.dot_general is tensor<3037000500x3037000500xf32>",
    f"func.func @main(%x: tensor<f32>) {{ %0 = stablehlo.broadcast_in_dim %x, dims = [] : "
    f"(tensor<f32>) -> {HUGE}\n return }}": "the result of stablehlo.broadcast_in_dim is",
}


def bytecode(text: str) -> bytes:
    from jaxlib.mlir import ir

    with make_context():
        return write_bytecode(ir.Module.parse(text))


@pytest.mark.parametrize("text", TOO_LARGE)
def test_tensors_whose_elements_do_not_fit(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA aborts, and the error is about the tensor all the same."""

    def aborts(*_: object) -> tuple[dict[str, object], bytes]:
        raise FlintError("FL401", "XLA died")

    monkeypatch.setattr(xla, "_asked", aborts)
    module = bytecode(text)
    with pytest.raises(FlintError) as caught:
        xla.partition_xla(Captured(module, MESH, "", ""))
    assert refused(caught).startswith(TOO_LARGE[text])
    with pytest.raises(FlintError, match="XLA died"):
        xla.partition_xla(Captured(bytecode(square(FITS)), MESH, "", ""))


def test_the_largest_tensor_that_fits_is_partitioned() -> None:
    assert len(xla.partition_xla(Captured(bytecode(square(FITS)), MESH, "", "")))


def test_a_step_that_is_too_large_for_one_device_alone_is_partitioned() -> None:
    """2^63 FLOPs together; each of four devices has a quarter, and nothing is said of axes."""
    x, w, y = (
        "tensor<2147483648x32768xbf16>",
        "tensor<32768x32768xbf16>",
        "sdy.sharding = #sdy.sharding",
    )
    steps = "\n".join(
        f"%{n} = stablehlo.dot_general %{n - 1 or 'x'}, %w, contracting_dims = [1] x [0] : ({x}, {w}) -> {x}"
        for n in range(1, 4)
    )
    text = f"""sdy.mesh @m = <["x"=4]>
    func.func @main(%x: {x} {{{y}<@m, [{{"x"}}, {{}}]>}}, %w: {w}) -> {x} {{ {steps}
    return %3 : {x} }}"""
    found = xla.partitioned(Captured(bytecode(text), MESH, "", ""))
    assert int(found.program.flops.sum()) == 3 * 2**31 * 2**15 * 2**15 * 2 // 4
    assert not found.replicated


def timed(num_bytes: int, trips: int) -> Workload:
    b = ProgramBuilder(MESH)
    b.begin_region(RegionKind.LOOP, trips)
    b.add("stablehlo.add", result_bytes=num_bytes, dtype="float32", location="m.py:7")
    b.end_region(())
    return Workload.single(b.build(), {"name": "long"})


def test_a_step_of_centuries_is_refused_and_one_below_is_written(tmp_path: Path) -> None:
    cluster = Cluster.load("h100-dgx")
    for refused_by in (
        lambda w: estimate(w, EstimateRequest(cluster)),
        lambda w: timed_kernels(w, cluster),
    ):
        with pytest.raises(FlintError) as caught:
            refused_by(timed(2**62, 2**20))
        assert caught.value.code == "FL728" and "below 2^63 ns" in caught.value.message
        assert caught.value.place is not None and caught.value.place.startswith("m.py:7")
    longest = timed(2**61, 8000)
    found = estimate(longest, EstimateRequest(cluster))
    assert 1e18 < found.step_time_ns < 2**63
    write_perfetto(found, tmp_path / "p.pftrace")
    kernels, timing = timed_kernels(longest, cluster)
    write(kernels, tmp_path / "t", timing=timing)
    assert check(tmp_path / "t").ok


@dataclass(frozen=True)
class Twice(Pass):
    """Adds `column` of each row to itself, as passes do that compute again."""

    name: ClassVar[str] = "twice"
    column: str = "flops"

    def apply(self, program: Program) -> Program:
        """Return the program with the sums."""
        sums = [2 * x for x in getattr(program, self.column).ravel().tolist()]
        column = np.array(sums, dtype=np.int64).reshape(getattr(program, self.column).shape)
        return program.with_rows(**{self.column: column})


@pytest.mark.parametrize("column", ["flops", "result_bytes", "dims"])
def test_what_passes_make_of_numbers_near_the_limit(column: str) -> None:
    """A pass that has no room is not a bug, as long as the numbers leave none."""
    for size in (2**62, 2**40):
        b = ProgramBuilder(MESH)
        sizes: dict[str, Any] = {column: (size, 1, 1, 1) if column == "dims" else size}
        b.add("stablehlo.add", **sizes)
        if size == 2**40:
            assert getattr(apply_pass(Twice(column), b.build()).program, column).max() == 2**41
            continue
        with pytest.raises(FlintError) as caught:
            apply_pass(Twice(column), b.build())
        assert refused(caught).endswith("too large for the pass twice: its result is beyond 2^63")
    with pytest.raises(AssertionError, match="after pass twice"):  # a bug all the same
        apply_pass(Twice("measured_ns"), replace(b.build(), measured_ns=np.array([-1])))
