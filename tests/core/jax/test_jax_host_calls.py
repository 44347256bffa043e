"""Callbacks into Python, infeed and outfeed: copies over the host link, and nothing on the device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import flint
from flint.ir.program import Flag, Kind
from flint.tracing import Trace, trace_file
from tests import jax_pipelines
from tests.auto_mesh import auto_mesh

MESH = auto_mesh((8, 4), ("data", "model"))
W = jax.ShapeDtypeStruct((256, 512), jnp.bfloat16, sharding=NamedSharding(MESH, P(None, "model")))
X = jax.ShapeDtypeStruct((64, 256), jnp.bfloat16, sharding=NamedSharding(MESH, P("data", None)))
#: Bytes of the whole result of `X @ W`, and of what one device has of it.
WHOLE, PART = 64 * 512 * 2, 8 * 128 * 2
RESULT = jax.ShapeDtypeStruct((64, 512), jnp.bfloat16)


def ignore(*_: Any) -> None:
    return None


def pure(w: Any, x: Any) -> Any:
    return jax.pure_callback(lambda v: v, RESULT, x @ w)


def both_ways(w: Any, x: Any) -> Any:
    return io_callback(lambda v: v, RESULT, x @ w)


def printing(w: Any, x: Any) -> Any:
    jax.debug.print("{}", jnp.float32(1) * (x @ w).sum())
    return x @ w


def parts(w: Any, x: Any) -> Any:
    y = x @ w
    jax.debug.callback(ignore, y, partitioned=True)
    return y


def by_hand(w: Any, x: Any) -> Any:
    def body(w: Any, x: Any) -> Any:
        jax.debug.callback(ignore, x @ w)
        return x @ w

    specs = (P(None, "model"), P("data", None))
    return jax.shard_map(
        body, mesh=MESH, in_specs=specs, out_specs=P("data", "model"), check_vma=False
    )(w, x)


def looped(w: Any, x: Any) -> Any:
    def body(carry: Any, _: Any) -> Any:
        seen = io_callback(lambda: np.float32(1), jax.ShapeDtypeStruct((), jnp.float32))
        return carry * seen.astype(carry.dtype), None

    return lax.scan(body, x @ w, None, length=5)[0]


def looked_at(w: Any, x: Any) -> Any:
    y = x @ w
    jax.debug.inspect_array_sharding(y, callback=ignore)
    return y


#: Bytes to the host and from it, and those that are gathered for it.
CASES: list[tuple[Callable[..., Any], int, int, int]] = [
    (pure, WHOLE, WHOLE, PART + 4 * PART),  # over "model", then over "data"
    (both_ways, WHOLE, WHOLE, PART + 4 * PART),
    (printing, 4, 0, 0),
    (parts, PART, 0, 0),
    (by_hand, PART, 0, 0),
    (looped, 0, 5 * 4, 0),
    (looked_at, 0, 0, 0),
]


def total(trace: Trace, opcode: str, column: str = "result_bytes") -> int:
    program = trace.program
    rows = [program.row(i) for i in range(len(program))]
    found = [i for i, row in enumerate(rows) if row.opcode == opcode]
    return sum(int(getattr(program, column)[i]) * int(program.trips[i]) for i in found)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0].__name__)
@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_what_is_copied(case: tuple[Callable[..., Any], int, int, int], platform: str) -> None:
    fn, stored, loaded, gathered = case
    if platform == "tpu" and fn is parts:
        return  # JAX has none there
    if fn is parts:
        with pytest.raises(flint.FlintError, match="FL402.*must have sharding"):
            flint.trace(fn, MESH, W, X, platform=platform)
        return
    trace = flint.trace(fn, MESH, W, X, platform=platform)
    assert total(trace, "host.store", "operand_bytes") == stored
    assert total(trace, "host.load") == loaded
    assert total(trace, "hlo.all-gather", "comm_bytes") == gathered
    assert not (trace.program.flags & Flag.UNPRICED).any()
    said = [w for w in trace.warnings if "calls back into Python" in w]
    if fn is looked_at:
        assert not said
    else:
        assert len(said) == 1 and "test_jax_host_calls.py:" in said[0]
    kept = trace.rewritten("xla-gpu").program
    called = [kept.row(i) for i in range(len(kept)) if kept.row(i).opcode == "host.callback"]
    assert len(called) == (fn is not looked_at)
    assert all(row.kind == Kind.VALUE and row.flops == 0 for row in called)


def test_the_link_takes_time_and_the_device_none() -> None:
    plain = flint.trace(lambda w, x: x @ w, MESH, W, X).estimate("h100-dgx")
    called = flint.trace(pure, MESH, W, X).estimate("h100-dgx")
    assert called.step_time_ns > plain.step_time_ns
    assert called.executed_flops == plain.executed_flops


_FED = """
func.func @main(%x: tensor<64x32xf32>) -> (tensor<64x32xf32>, tensor<8xf32>) {
  %t = stablehlo.create_token : !stablehlo.token
  %in:2 = "stablehlo.infeed"(%t) {infeed_config = "", layout = [[0, 1]]} :
    (!stablehlo.token) -> (tensor<64x32xf32>, !stablehlo.token)
  %y = stablehlo.add %x, %in#0 : tensor<64x32xf32>
  %z = stablehlo.slice %y [0:16, 0:32] : (tensor<64x32xf32>) -> tensor<16x32xf32>
  %o = "stablehlo.outfeed"(%z, %in#1) {outfeed_config = ""} :
    (tensor<16x32xf32>, !stablehlo.token) -> !stablehlo.token
  %c = stablehlo.custom_call @xla_ffi_python_gpu_callback(%y) {has_side_effect = true} :
    (tensor<64x32xf32>) -> tensor<8xf32>
  return %y, %c : tensor<64x32xf32>, tensor<8xf32>
}"""


def test_infeed_outfeed_and_callbacks_of_files(tmp_path: Path) -> None:
    (tmp_path / "fed.mlir").write_text(_FED)
    trace = trace_file(tmp_path / "fed.mlir", "1")
    assert total(trace, "host.load") == 64 * 32 * 4 + 8 * 4
    assert total(trace, "host.store", "operand_bytes") == 16 * 32 * 4 + 64 * 32 * 4
    assert not (trace.program.flags & Flag.UNPRICED).any()
    with pytest.raises(flint.FlintError, match="FL402.*must have sharding"):
        trace_file(
            tmp_path / "fed.mlir", "4"
        )  # XLA's partitioner does not say what each device gets


def test_stages_of_a_pipeline_may_print() -> None:
    def printing_loss(logits: Any, targets: Any) -> Any:
        jax.debug.print("{}", logits.max())
        return jax_pipelines.loss(logits, targets)

    trace = flint.trace(jax_pipelines.pipeline(loss=printing_loss), jax_pipelines.MESH)
    assert [w for w in trace.warnings if "debug_print at test_jax_host_calls.py:" in w]


def says(x: Any) -> Any:
    jax.debug.print("{}", x[0, 0])
    return x * 2


@pytest.mark.parametrize("mesh", ["1", "2"])
def test_ordered_calls_in_loops(mesh: str) -> None:
    def step(x: Any) -> Any:
        def body(_: Any, x: Any) -> Any:
            return x + io_callback(lambda v: v, x, x, ordered=True)

        return lax.fori_loop(0, 7, body, x)

    program = flint.trace(step, mesh, jax.ShapeDtypeStruct((4,), jnp.float32)).program
    assert [r.trip_count for r in program.regions] == [7]
    assert "host.callback" in program.opcodes and "token" not in program.dtypes


def test_calls_of_a_program_without_shardings_and_beside_axes_that_are_free() -> None:
    def by_data(x: Any) -> Any:
        mesh = jax.sharding.get_abstract_mesh()
        part = P("data")
        return jax.shard_map(says, mesh=mesh, in_specs=part, out_specs=part, axis_names={"data"})(x)

    x = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    plain = flint.trace(says, "8", x).program
    assert "host.callback" in plain.opcodes and not (plain.kind == Kind.COLLECTIVE).any()
    sharded = jax.ShapeDtypeStruct(
        x.shape, x.dtype, sharding=NamedSharding(MESH, P("data", "model"))
    )
    program = flint.trace(by_data, MESH, sharded).program
    assert "host.callback" in program.opcodes
    sent = np.flatnonzero(program.kind == Kind.COLLECTIVE).tolist()
    assert [str(program.row(r).group) for r in sent] == ["model"]  # its one element
