"""What the JAX frontend accepts, each with work, trip counts and communication worked out by hand.

The mesh is data=4, model=2 unless a test says otherwise; float32 takes 4 bytes.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import pytest

pytest.importorskip("jax")
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import flint
from flint.errors import FlintError
from flint.ir.program import Collective, Flag, Kind, Phase, Program, RegionKind, Row
from tests.auto_mesh import auto_mesh

MESH = auto_mesh((4, 2), ("data", "model"))
F32 = jnp.float32


def shaped(shape: tuple[int, ...], *spec: Any, dtype: Any = F32) -> jax.ShapeDtypeStruct:
    """An abstract array on MESH."""
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(MESH, P(*spec)))


def captured(function: Any, *args: Any, mesh: object = MESH, **options: Any) -> Program:
    """The verified program of a step."""
    program = flint.trace(function, mesh, *args, **options).program
    program.verify()
    return program


def rows(program: Program, opcode: str) -> list[Row]:
    """Rows of one opcode."""
    return [r for r in map(program.row, range(len(program))) if r.opcode == opcode]


def communication(program: Program) -> list[tuple[Collective, str, int, int]]:
    """(kind, group or route, input bytes, executions) of every collective, in program order."""
    found = []
    for row in map(program.row, range(len(program))):
        if row.kind is Kind.COLLECTIVE:
            where = str(row.group if row.group is not None else row.route)
            times = int(program.trips[row.number])
            found.append((row.collective, where, row.comm_bytes, times))
    return found


def total_flops(program: Program) -> int:
    """Flops of one step."""
    return int((program.flops * program.trips).sum())


# loops ----------------------------------------------------------------------------------------


def matmul_scan(x: Any, w: Any) -> Any:
    return lax.scan(lambda c, w: (jnp.tanh(c @ w), c.sum()), x, w)


def test_scan_stays_a_loop() -> None:
    program = captured(matmul_scan, shaped((8, 16), "data"), shaped((5, 16, 16)))
    (loop,) = program.regions
    assert (loop.kind, loop.trip_count, loop.location) == (
        RegionKind.LOOP,
        5,
        rows(program, "hlo.dot")[0].location,
    )
    (dot,) = rows(program, "hlo.dot")
    assert dot.dims == (1, 2, 16, 16) and dot.flops == 2 * 2 * 16 * 16
    assert dot.operand_bytes == (2 * 16 + 16 * 16) * 4 and dot.result_bytes == 2 * 16 * 4
    # tanh 32, sum 32, dot 1024, five times
    assert total_flops(program) == 5 * (1024 + 32 + 32)
    assert communication(program) == [(Collective.ALL_REDUCE, "data", 4, 5)]


def count_up(x: Any) -> Any:
    return lax.while_loop(lambda s: s[0] < 20, lambda s: (s[0] + 3, jnp.sin(s[1])), (1, x))[1]


def count_down(x: Any) -> Any:
    return lax.while_loop(lambda s: s[0] > 0, lambda s: (s[0] - 2, jnp.sin(s[1])), (9, x))[1]


def count_until_equal(x: Any) -> Any:
    return lax.while_loop(lambda s: s[0] != 12, lambda s: (s[0] + 4, jnp.sin(s[1])), (0, x))[1]


def reversed_scan(x: Any) -> Any:
    return lax.scan(lambda c, _: (jnp.sin(c), None), x, None, length=6, reverse=True)[0]


def carried_bound(x: Any) -> Any:
    state = (0, 8, x)
    return lax.while_loop(lambda s: s[0] < s[1], lambda s: (s[0] + 1, s[1], jnp.sin(s[2])), state)


@pytest.mark.parametrize(
    ("step", "trips"),
    [
        (count_up, 7),  # 1, 4, ..., 19
        (count_down, 5),  # 9, 7, 5, 3, 1
        (count_until_equal, 3),
        (reversed_scan, 6),
        (carried_bound, 8),
        (lambda x: lax.fori_loop(3, 10, lambda _, c: jnp.sin(c), x), 7),
        (lambda x: lax.map(jnp.sin, x), 8),
    ],
    ids=["up", "down", "until-equal", "reversed", "carried-bound", "fori", "map"],
)
def test_static_trip_counts(step: Any, trips: int) -> None:
    program = captured(step, shaped((8, 16), None, "model"))
    assert [r.trip_count for r in program.regions] == [trips]
    (sine,) = rows(program, "hlo.sine")
    assert int(program.trips[sine.number]) == trips
    assert total_flops(program) == trips * int(np.prod(sine.shape))


def test_nested_loops_multiply() -> None:
    def inner(i: Any, c: Any) -> Any:
        return lax.fori_loop(0, 4, lambda _, d: jnp.sin(d) * i, c)

    program = captured(lambda x: lax.fori_loop(3, 10, inner, x), shaped((8, 16), "data"))
    assert [(r.trip_count, r.parent) for r in program.regions] == [(7, -1), (4, 0)]
    assert total_flops(program) == 7 * 4 * (32 + 32)  # sine and product of 2x16


def test_a_loop_that_never_runs_is_gone() -> None:
    def never(x: Any) -> Any:
        return lax.while_loop(lambda s: s[0] < 5, lambda s: (s[0] + 1, jnp.sin(s[1])), (7, x))[1]

    program = captured(never, shaped((8, 16), None, "model"))
    assert not program.regions and not rows(program, "hlo.sine")


def test_trip_count_of_a_loop_on_data_is_asked_for() -> None:
    def decode(x: Any) -> Any:
        with jax.named_scope("decode"):
            return lax.while_loop(lambda s: s.sum() < 20.0, jnp.sin, x)

    x = shaped((8, 16), "data")
    with pytest.raises(flint.FlintError) as caught:
        captured(decode, x)
    line = decode.__code__.co_firstlineno + 2
    assert str(caught.value) == (
        "error[FL403]: the trip count of loop loop0 in decode depends on data\n"
        f"  --> test_jax_frontend.py:{line}\n"
        f"  help: give its trip count with --trip-count test_jax_frontend.py:{line}=N "
        f'(in Python: trip_counts={{"test_jax_frontend.py:{line}": N}})'
    )
    for name in ("decode", "loop0", f"test_jax_frontend.py:{line}"):
        program = captured(decode, x, trip_counts={name: 7})
        assert [r.trip_count for r in program.regions] == [7]
        # each test sums over the batch: one all-reduce of a float per iteration
        assert communication(program) == [(Collective.ALL_REDUCE, "data", 4, 7)]
    with pytest.raises(flint.FlintError, match="did you mean 'decode'"):
        captured(decode, x, trip_counts={"decoed": 7})
    for name in ("while", "while__4.4"):  # XLA's names before it partitions and after
        with pytest.raises(flint.FlintError) as caught:
            captured(decode, x, trip_counts={name: 7})
        assert "while" not in str(caught.value)


# branches -------------------------------------------------------------------------------------


def test_the_heaviest_branch_is_taken() -> None:
    def step(i: Any, x: Any, w: Any) -> Any:
        return lax.switch(i, [lambda x: x @ w, lambda x: x @ w @ w, lambda x: x], x)

    program = captured(
        step, jax.ShapeDtypeStruct((), jnp.int32), shaped((8, 16), "data"), shaped((16, 16))
    )
    assert [r.kind for r in program.regions] == [RegionKind.BRANCH] * 3
    assert [r.trip_count for r in program.regions] == [0, 1, 0]
    assert len(rows(program, "hlo.dot")) == 3
    assert total_flops(program) == 2 * (2 * 2 * 16 * 16)


def test_cond_inside_scan() -> None:
    def body(c: Any, _: Any) -> Any:
        return lax.cond(c.sum() > 0, lambda c: jnp.sin(c), lambda c: c, c), None

    program = captured(
        lambda x: lax.scan(body, x, None, length=3)[0], shaped((8, 16), "data", "model")
    )
    # the other branch holds nothing
    assert [r.kind for r in program.regions] == [RegionKind.LOOP, RegionKind.BRANCH]
    # 2x8 shards: the sum takes 16 operations, the sine 16
    assert total_flops(program) == 3 * (16 + 16)
    assert communication(program) == [(Collective.ALL_REDUCE, "data,model", 4, 3)]


# differentiation ------------------------------------------------------------------------------


def remat_loss(params: Any, x: Any) -> Any:
    @jax.checkpoint
    def layer(x: Any, w: Any) -> Any:
        return jnp.tanh(x @ w)

    with jax.named_scope("layers"):
        y, _ = lax.scan(lambda x, w: (layer(x, w), None), x, params["w"])
    return jnp.mean(y * y)


def train_step(params: Any, x: Any) -> Any:
    loss, grads = jax.value_and_grad(remat_loss)(params, x)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss


def test_phases_names_and_donation() -> None:
    program = captured(
        train_step, {"w": shaped((3, 16, 16))}, shaped((8, 16), "data"), donate_argnums=(0,)
    )
    names = {r.name: r.flags for r in rows(program, "hlo.parameter")}
    assert names == {"params['w']": Flag.DONATED, "x": Flag(0)}
    dots = {(r.phase, r.scope) for r in rows(program, "hlo.dot")}
    assert dots == {(p, "layers") for p in (Phase.FORWARD, Phase.REMAT, Phase.BACKWARD)}
    by_phase = {
        phase: sum(
            r.flops * int(program.trips[r.number])
            for r in rows(program, "hlo.dot")
            if r.phase is phase
        )
        for phase in Phase
    }
    one = 2 * 2 * 16 * 16  # one (2, 16) @ (16, 16)
    assert by_phase[Phase.FORWARD] == by_phase[Phase.REMAT] == 3 * one
    assert by_phase[Phase.BACKWARD] == 2 * 3 * one
    updates = [r for r in rows(program, "hlo.subtract") if r.phase is Phase.OPTIMIZER]
    assert [u.shape for u in updates] == [(3, 16, 16)]
    # data parallel: each layer's gradient is summed inside the backward loop, the loss once
    assert sorted(communication(program)) == [
        (Collective.ALL_REDUCE, "data", 4, 1),
        (Collective.ALL_REDUCE, "data", 16 * 16 * 4, 3),
    ]


def test_custom_vjp_uses_the_users_rule() -> None:
    @jax.custom_vjp
    def f(x: Any) -> Any:
        return jnp.sin(x)

    f.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (jnp.exp(x) * ct,))
    program = captured(lambda x: jax.grad(lambda x: f(x).sum())(x), shaped((8, 16), "data"))
    (exponential,) = rows(program, "hlo.exponential")
    assert exponential.phase is Phase.BACKWARD and exponential.shape == (2, 16)
    assert not rows(program, "hlo.cosine")


# collectives in shard_map ---------------------------------------------------------------------


def manual(body: Any, in_specs: Any, out_specs: Any, **options: Any) -> Any:
    return jax.shard_map(
        body, mesh=MESH, in_specs=in_specs, out_specs=out_specs, check_vma=False, **options
    )


def test_every_manual_collective() -> None:
    def body(x: Any) -> Any:  # x is (2, 32): 256 bytes
        a = lax.psum(x, "model")
        b = lax.all_gather(a, "data", axis=0, tiled=True)  # (8, 32)
        c = lax.psum_scatter(b, "data", scatter_dimension=0, tiled=True)  # (2, 32)
        d = lax.all_to_all(c, "data", split_axis=1, concat_axis=0, tiled=True)  # (8, 8)
        e = lax.ppermute(d, "data", [(i, (i + 1) % 4) for i in range(4)])
        return lax.pmean(e, "model") + lax.pmax(e, ("data", "model")) + lax.pmin(e, "model")

    program = captured(manual(body, P("data", None), P("data")), shaped((8, 32), "data"))
    assert communication(program) == [
        (Collective.ALL_REDUCE, "model", 256, 1),
        (Collective.ALL_GATHER, "data", 256, 1),
        (Collective.REDUCE_SCATTER, "data", 1024, 1),
        (Collective.ALL_TO_ALL, "data", 256, 1),
        (Collective.PERMUTE, "data+1", 256, 1),
        (Collective.ALL_REDUCE, "model", 256, 1),
        (Collective.ALL_REDUCE, "data,model", 256, 1),
        (Collective.ALL_REDUCE, "model", 256, 1),
    ]
    sums = [o for o in program.opcodes if o.startswith("hlo.all-reduce")]
    assert len(sums) == 3, "of sums, largest and smallest numbers"


def test_psum_of_a_tree_is_counted_leaf_by_leaf() -> None:
    def body(tree: Any) -> Any:
        return lax.psum(tree, "data")

    tree = {"a": shaped((4, 8), "data"), "b": shaped((4,), "data", dtype=jnp.bfloat16)}
    program = captured(manual(body, P("data"), P()), tree)
    found = communication(program)
    assert sum(size for _, _, size, _ in found) == 1 * 8 * 4 + 1 * 2
    assert {kind for kind, *_ in found} == {Collective.ALL_REDUCE}


def test_partial_manual_axes() -> None:
    def body(x: Any, w: Any) -> Any:  # data is manual, model is Shardy's
        return lax.psum(jnp.tanh(x @ w), "data")

    step = manual(body, (P("data", None), P()), P(), axis_names={"data"})
    program = captured(step, shaped((8, 16), "data"), shaped((16, 32), None, "model"))
    (dot,) = rows(program, "hlo.dot")
    assert dot.dims == (1, 2, 16, 16)
    assert communication(program) == [(Collective.ALL_REDUCE, "data", 2 * 16 * 4, 1)]


def test_ragged_all_to_all_runs_over_its_axis_only() -> None:
    def body(x: Any, out: Any, starts: Any, sizes: Any, to: Any, got: Any) -> Any:
        return lax.ragged_all_to_all(x, out, starts[0], sizes[0], to[0], got[0], axis_name="data")

    each = shaped((4, 4), "data", dtype=jnp.int32)
    program = captured(
        manual(body, (P("data"),) * 6, P("data")),
        shaped((64, 8), "data"),
        shaped((128, 8), "data"),
        each,
        each,
        each,
        each,
    )
    assert communication(program) == [(Collective.ALL_TO_ALL, "data", 16 * 8 * 4, 1)]


# kernels --------------------------------------------------------------------------------------


def dot_product_attention(q: Any, k: Any, v: Any, **options: Any) -> Any:
    return jax.nn.dot_product_attention(q, k, v, implementation="cudnn", **options)


def test_cudnn_attention_with_grouped_heads() -> None:
    q = shaped((8, 128, 8, 64), "data", None, "model", dtype=jnp.bfloat16)
    kv = shaped((8, 256, 2, 64), "data", None, "model", dtype=jnp.bfloat16)
    program = captured(dot_product_attention, q, kv, kv)
    (call,) = rows(program, "custom_call.__cudnn$fmhaSoftmax")
    # local: 2 sequences, 4 of 8 heads, 128 queries, 256 keys, head size 64
    assert call.flops == 2 * 2 * (2 * 4 * 128) * 256 * 64
    assert call.operand_bytes == 2 * (2 * 128 * 4 * 64) + 2 * 2 * (2 * 256 * 1 * 64)
    assert communication(program) == []


@pytest.mark.parametrize("heads", [2, 1])
@pytest.mark.parametrize("by_hand", [False, True])
def test_cudnn_attention_with_one_key_head_per_rank(heads: int, by_hand: bool) -> None:
    """One key head on each of 2 devices; or one for both, whose gradients come from both."""
    q = shaped((8, 128, 8, 64), "data", None, "model", dtype=jnp.bfloat16)
    spec = ("data", None, "model") if heads == 2 else ("data",)
    kv = shaped((8, 256, heads, 64), *spec, dtype=jnp.bfloat16)
    function = dot_product_attention
    if by_hand:
        in_specs = (P("data", None, "model"), P(*spec), P(*spec))
        function = manual(dot_product_attention, in_specs, P("data", None, "model"))

    def loss(q: Any, k: Any, v: Any) -> Any:
        return function(q, k, v).astype(F32).sum()

    program = captured(jax.grad(loss, argnums=(0, 1, 2)), q, kv, kv)
    (call,) = rows(program, "custom_call.__cudnn$fmhaSoftmax")
    assert call.flops == 2 * 2 * (2 * 4 * 128) * 256 * 64
    one_gradient = 2 * 256 * 64 * 2  # 2 sequences, 256 keys of 64 bf16
    both = [(Collective.ALL_REDUCE, "model", one_gradient, 1)] * 2
    assert communication(program) == ([] if heads == 2 else both)


def test_cudnn_attention_backward_and_sequence_sharding() -> None:
    q = shaped((8, 128, 8, 64), "data", "model", dtype=jnp.bfloat16)

    def loss(q: Any, k: Any, v: Any) -> Any:
        return dot_product_attention(q, k, v, is_causal=True).astype(F32).sum()

    program = captured(jax.grad(loss, argnums=(0, 1, 2)), q, q, q)
    (forward,) = rows(program, "custom_call.__cudnn$fmhaSoftmax[causal]")
    (backward,) = rows(program, "custom_call.__cudnn$fmhaSoftmaxBackward[causal]")
    assert 2 * backward.flops == 5 * forward.flops
    assert (forward.phase, backward.phase) == (Phase.FORWARD, Phase.BACKWARD)
    # the sequence must be whole: q, k and v are brought together or resharded over heads
    assert {c[:2] for c in communication(program)} <= {
        (Collective.ALL_GATHER, "model"),
        (Collective.ALL_TO_ALL, "model"),
    }
    assert communication(program)


def test_cudnn_attention_layouts() -> None:
    """Keys are counted along the sequence, wherever it is, not along the longer dimension."""
    from jax._src.cudnn.fused_attention_stablehlo import dot_product_attention as cudnn

    def flops(layout: str, q: tuple[int, ...], k: tuple[int, ...]) -> int:
        program = captured(
            partial(cudnn, qkv_layout=layout),
            shaped(q, "data", dtype=jnp.bfloat16),
            shaped(k, "data", dtype=jnp.bfloat16),
            shaped(k, "data", dtype=jnp.bfloat16),
        )
        (call,) = rows(program, "custom_call.__cudnn$fmhaSoftmax")
        return call.flops

    expected = 2 * 2 * (1 * 32 * 8) * 16 * 64  # 32 heads, 8 queries, 16 keys
    assert flops("BTNH", (4, 8, 32, 64), (4, 16, 32, 64)) == expected
    assert flops("BNTH", (4, 32, 8, 64), (4, 32, 16, 64)) == expected


def add_kernel(x: Any, y: Any, o: Any) -> None:
    o[...] = x[...] + y[...]


@pytest.mark.parametrize("backend", ["tpu", "triton", "mosaic_gpu"])
def test_pallas_kernels(backend: str) -> None:
    from jax.experimental import pallas as pl

    options: dict[str, Any] = {}
    if backend == "triton":
        from jax.experimental.pallas import triton

        options["compiler_params"] = triton.CompilerParams()

    def body(x: Any, y: Any) -> Any:
        block = pl.BlockSpec((64, 128), lambda i: (i, 0))
        estimate = pl.CostEstimate(flops=12_345, bytes_accessed=0, transcendentals=0)
        return pl.pallas_call(
            add_kernel,
            out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
            grid=(x.shape[0] // 64,),
            in_specs=[block, block],
            out_specs=block,
            cost_estimate=estimate,
            name="add_kernel",
            **options,
        )(x, y)

    x = shaped((512, 128), "data")
    program = captured(
        manual(body, (P("data"), P("data")), P("data")),
        x,
        x,
        platform="tpu" if backend == "tpu" else "cuda",
    )
    (call,) = rows(program, "custom_call.pallas.add_kernel")
    assert (call.flops, call.shape) == (12_345, (128, 128))
    assert (call.operand_bytes, call.result_bytes) == (2 * 65_536, 65_536)
    assert not call.flags & Flag.UNPRICED


def test_pallas_without_an_estimate_is_unpriced() -> None:
    from jax.experimental import pallas as pl

    def step(x: Any) -> Any:
        def kernel(x: Any, o: Any) -> None:
            turns = x[0, 0].astype(jnp.int32)  # how often, only the data say
            o[...] = lax.fori_loop(0, turns, lambda _, c: c @ x[...], x[...])

        return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    (call,) = rows(captured(step, shaped((128, 128))), "custom_call.pallas.kernel")
    assert call.flags & Flag.UNPRICED and call.flops == 0 and call.operand_bytes == 128 * 128 * 4


# element types --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("left", "right", "result", "bits"),
    [
        (jnp.bfloat16, jnp.bfloat16, jnp.float32, 16),
        (jnp.float32, jnp.float32, jnp.float32, 32),
        (jnp.float8_e4m3fn, jnp.float8_e5m2, jnp.float32, 8),
        (jnp.int8, jnp.int8, jnp.int32, 8),
        (jnp.int4, jnp.int4, jnp.int32, 4),
    ],
)
def test_element_types(left: Any, right: Any, result: Any, bits: int) -> None:
    def step(a: Any, b: Any) -> Any:
        return lax.dot_general(a, b, (((1,), (0,)), ((), ())), preferred_element_type=result)

    program = captured(step, shaped((8, 16), "data", dtype=left), shaped((16, 4), dtype=right))
    (dot,) = rows(program, "hlo.dot")
    assert dot.flops == 2 * 2 * 16 * 4
    assert dot.operand_bytes == (2 * 16 + 16 * 4) * bits // 8
    assert dot.result_bytes == 2 * 4 * 4
    names = [p.dtype for p in rows(program, "hlo.parameter")]
    assert names == [jnp.dtype(left).name, jnp.dtype(right).name]


def test_python_scalars_stay_weak() -> None:
    program = captured(lambda x, s: x * s, shaped((8, 16), "data", dtype=jnp.bfloat16), 2.0)
    (product,) = rows(program, "hlo.multiply")
    assert product.dtype == "bfloat16"


# arguments ------------------------------------------------------------------------------------


def test_keyword_arguments_and_paths() -> None:
    def step(params: Any, *, extra: Any) -> Any:
        return params["a"][0] @ extra["w"]

    program = captured(
        step, {"a": [shaped((8, 16), "data")]}, extra={"w": shaped((16, 4), None, "model")}
    )
    assert [(p.name, p.shape, p.cause) for p in rows(program, "hlo.parameter")] == [
        ("params['a'][0]", (2, 16), '[{"data"}, {}]'),
        ("extra['w']", (16, 2), '[{}, {"model"}]'),
    ]


def test_shardings_as_prefixes_and_bare_specs() -> None:
    bare = jax.ShapeDtypeStruct((8, 16), F32)

    def step(p: Any, x: Any) -> Any:
        return p["a"]["b"] + x

    def shapes(**options: Any) -> list[tuple[int, ...]]:
        program = captured(step, {"a": {"b": bare}}, bare, **options)
        return [p.shape for p in rows(program, "hlo.parameter")]

    assert shapes(in_shardings=P("data")) == [(2, 16), (2, 16)]
    assert shapes(in_shardings=({"a": P("data")}, P())) == [(2, 16), (8, 16)]
    assert shapes(in_shardings=(NamedSharding(MESH, P(None, "model")), P())) == [(8, 8), (8, 16)]
    spec = jax.ShapeDtypeStruct((8, 16), F32, sharding=P("data", "model"))
    program = captured(lambda x: x + 1, spec, mesh="4x2")
    assert [p.shape for p in rows(program, "hlo.parameter")] == [(2, 8)]


def test_bare_spec_in_a_constraint() -> None:
    def step(x: Any) -> Any:
        return lax.with_sharding_constraint(x * 2, P("data", "model")).sum(axis=0)

    program = captured(step, jax.ShapeDtypeStruct((8, 16), F32))
    assert communication(program) == [(Collective.ALL_REDUCE, "data", 8 * 4, 1)]


def test_a_jitted_function_keeps_its_own_options() -> None:
    @partial(jax.jit, donate_argnums=0, static_argnums=1)
    def step(x: Any, n: int) -> Any:
        return lax.fori_loop(0, n, lambda _, c: jnp.sin(c), x)

    program = captured(step, shaped((8, 16), "data"), 3)
    assert [r.trip_count for r in program.regions] == [3]
    assert rows(program, "hlo.parameter")[0].flags == Flag.DONATED
    named = jax.jit(lambda x, n: x * n, static_argnames=("n",))
    assert len(rows(captured(named, shaped((8, 16), "data"), n=3), "hlo.parameter")) == 1


def test_out_shardings() -> None:
    x = shaped((8, 16), "data")
    assert communication(captured(lambda x: x + 1, x, out_shardings=P())) == [
        (Collective.ALL_GATHER, "data", 2 * 16 * 4, 1)
    ]


@pytest.mark.parametrize("mesh", ["4x2", {"data": 4, "model": 2}, "data=4,model=2", MESH])
def test_mesh_spellings(mesh: object) -> None:
    program = captured(lambda x: x + 1, jax.ShapeDtypeStruct((8, 16), F32), mesh=mesh,
                       in_shardings=(P("data"),))  # fmt: skip
    assert str(program.mesh) == "data=4,model=2"
    assert rows(program, "hlo.parameter")[0].shape == (2, 16)


def test_a_mesh_of_real_devices() -> None:
    devices = np.array(jax.devices()[:1]).reshape(1, 1)
    mesh = jax.sharding.Mesh(devices, ("data", "model"))
    program = captured(lambda x: x + 1, shaped((8, 16), "data"), mesh=mesh)
    assert program.mesh.size == 1 and rows(program, "hlo.parameter")[0].shape == (8, 16)


def test_explicit_axes() -> None:
    mesh = AbstractMesh((4, 2), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
    program = captured(
        lambda x, w: jax.nn.relu(x @ w),
        jax.ShapeDtypeStruct((8, 16), F32, sharding=NamedSharding(mesh, P("data"))),
        jax.ShapeDtypeStruct((16, 32), F32, sharding=NamedSharding(mesh, P(None, "model"))),
        mesh=mesh,
    )
    assert rows(program, "hlo.dot")[0].shape == (2, 16)


def test_arguments_of_10_gb_are_shapes() -> None:
    big = np.zeros(2_500_000_000, np.float32)  # the system allocates pages when they are touched
    started = time.process_time()
    program = captured(lambda b: b.sum(), big, in_shardings=(P("data"),))
    assert time.process_time() - started < 10  # CPU seconds: it is not read
    assert rows(program, "hlo.parameter")[0].result_bytes == 2_500_000_000
    assert communication(program) == [(Collective.ALL_REDUCE, "data", 4, 1)]


def test_small_things() -> None:
    empty = captured(lambda: jnp.zeros((4, 4)) @ jnp.ones((4, 4)))
    assert total_flops(empty) == 2 * 4**3 and not rows(empty, "hlo.parameter")
    scalar = captured(lambda x: x + 1, jax.ShapeDtypeStruct((), F32))
    assert rows(scalar, "hlo.parameter")[0].shape == ()
    zero = captured(
        lambda x: (x @ jnp.ones((16, 4))).sum(),
        jax.ShapeDtypeStruct((0, 16), F32),
        in_shardings=(P("data"),),
    )
    assert total_flops(zero) == 0 and not rows(zero, "hlo.dot")
    assert captured(lambda x: None, shaped((8,), "data")) is not None
    # jit drops what nothing reads, as XLA does
    unused = captured(lambda x, y: x + 1, shaped((8, 16), "data"), shaped((1024, 16), "data"))
    assert [p.name for p in rows(unused, "hlo.parameter")] == ["x"]


def test_constants_have_no_place_in_flint() -> None:
    program = captured(lambda x: x * np.arange(16, dtype=np.float32), shaped((8, 16), "data"))
    places = {r.location.split(":")[0] for r in map(program.row, range(len(program)))}
    assert places <= {"", "test_jax_frontend.py"}


# refusals -------------------------------------------------------------------------------------


def refused(function: Any, *args: Any, **options: Any) -> flint.FlintError:
    with pytest.raises(flint.FlintError) as caught:
        captured(function, *args, **options)
    return caught.value


def test_a_sharding_that_does_not_divide() -> None:
    def train(params: Any) -> Any:
        return params["w1"].sum()

    mesh = auto_mesh((64, 8), ("data", "model"))
    w1 = jax.ShapeDtypeStruct((1024, 500), F32, sharding=NamedSharding(mesh, P(None, "model")))
    place = f"test_jax_frontend.py:{train.__code__.co_firstlineno}"
    assert str(refused(train, {"w1": w1}, mesh="64x8")).splitlines() == [
        "error[FL103]: mesh axis 'model' (8) does not divide dimension 1 (500) of params['w1']",
        f"  --> {place}  float32[1024,500], sharding P(None, 'model')",
        "  help: pad the dimension to 504, or leave it unsharded",
    ]
    both = refused(train, {"w1": jax.ShapeDtypeStruct((1000, 2), F32)}, mesh=mesh,
                   in_shardings=(P(("data", "model")),))  # fmt: skip
    assert both.message == (
        "mesh axes 'data' (64) and 'model' (8) do not divide dimension 0 (1000) of params['w1']"
    )
    assert both.help == "pad the dimension to 1024, or leave it unsharded"


@pytest.mark.parametrize(
    ("spec", "code", "message"),
    [
        (("dat", None), "FL102", "did you mean 'data'?"),
        ((("data", "mode"),), "FL102", "mesh has no axis 'mode'"),
        (("data", "data"), "FL106", "uses mesh axis 'data' twice"),
    ],
)
def test_what_jax_says_of_axes_in_a_step(spec: Any, code: str, message: str) -> None:
    error = refused(
        lambda x: jax.lax.with_sharding_constraint(x, NamedSharding(MESH, P(*spec))),
        shaped((8, 16), "data"),
    )
    assert error.code == code and message in error.message
    assert error.help and error.place and error.place.startswith("test_jax_frontend.py:")


def test_a_missing_axis() -> None:
    error = refused(lambda x: x, jax.ShapeDtypeStruct((8, 16), F32), in_shardings=(P("dat"),))
    assert (error.code, error.message) == ("FL102", "mesh has no axis 'dat'; did you mean 'data'?")
    assert error.help == "the mesh is data=4,model=2"
    assert error.place is not None and error.place.endswith("float32[8,16], sharding P('dat')")
    assert refused(lambda x: x, shaped((8, 16), "data"), mesh="a=4,b=2").code == "FL102"
    out = refused(lambda x: x, shaped((8, 16), "data"), out_shardings=P("dat"))
    assert (out.code, out.message) == ("FL102", "mesh has no axis 'dat'; did you mean 'data'?")


def test_an_axis_used_twice_and_too_many_dimensions() -> None:
    x = jax.ShapeDtypeStruct((8, 16), F32)
    error = refused(lambda x: x, x, in_shardings=(P("data", "data"),))
    assert (error.code, error.message) == ("FL106", "sharding of x uses mesh axis 'data' twice")
    assert refused(lambda x: x, x, in_shardings=(P(None, None, "data"),)).code == "FL103"


def test_arguments_that_do_not_fit() -> None:
    x = jax.ShapeDtypeStruct((8, 16), F32)
    assert refused(lambda x: x, "hello").message == "argument x is str, not an array"
    assert refused(lambda x: x, x, in_shardings=(P(), P())).code == "FL104"
    assert refused(lambda x: x, {"a": x}, in_shardings=({"b": P()},)).code == "FL104"
    missing = refused(lambda x, y: x, x)
    assert missing.code == "FL203" and "missing 1 required positional argument" in missing.message
    assert missing.place is not None and missing.place.startswith("test_jax_frontend.py:")


def test_an_exception_of_the_users_function() -> None:
    def step(x: Any) -> Any:
        raise RuntimeError("no such luck")

    error = refused(step, shaped((8, 16), "data"))
    place = f"test_jax_frontend.py:{step.__code__.co_firstlineno + 1}"
    assert str(error).splitlines() == [
        "error[FL203]: tracing step raised RuntimeError: no such luck",
        f'  --> {place}  raise RuntimeError("no such luck")',
        "  help: run it under plain JAX to see the same error with its full traceback",
    ]


def test_a_huge_closed_over_array_is_refused_at_once() -> None:
    big = np.zeros(2_500_000_000, np.float32)

    def nested(x: Any) -> Any:
        return lax.scan(lambda c, _: (c + jnp.sum(big), None), x, None, length=3)[0]

    inner = jax.jit(lambda x: x + jnp.sum(big))
    for step in (lambda x: x + jnp.sum(big), inner, nested, lambda x: inner(x) * 2):
        started = time.process_time()
        error = refused(step, shaped((8, 16), "data"))
        assert time.process_time() - started < 5  # CPU seconds: it is not read
        assert error.code == "FL205"
        assert error.message == (
            "the step closes over a concrete array float32[2500000000] of 10.0 GB"
        )


def test_symbolic_dimensions_and_unknown_platforms() -> None:
    (b,) = jax.export.symbolic_shape("b")
    error = refused(lambda x: x + 1, jax.ShapeDtypeStruct((b, 16), F32))
    assert (error.code, error.message) == ("FL208", "argument x has a symbolic dimension (b)")
    error = refused(lambda x: x + 1, shaped((8,), "data"), platform="gpux")
    assert error.message == "there is no platform 'gpux'; did you mean 'gpu'?"
    assert captured(lambda x: x + 1, shaped((8,), "data"), platform="gpu") is not None


def test_without_a_gpu_jax_is_left_as_it_was() -> None:
    from jax._src import dispatch
    from jax._src.cudnn import fused_attention_stablehlo as attention

    before = (attention.cuda_versions, set(dispatch.prim_requires_devices_during_lowering))
    captured(lambda x: x + 1, shaped((8,), "data"))
    with pytest.raises(flint.FlintError):
        captured(lambda x: x + y, shaped((8,), "data"))  # type: ignore[name-defined]  # noqa: F821
    after = (attention.cuda_versions, set(dispatch.prim_requires_devices_during_lowering))
    assert after == before


def test_keywords_are_options_or_arguments() -> None:
    x = jax.ShapeDtypeStruct((8, 8), jnp.float32)

    def step(x: jax.Array, chip: jax.Array | None = None) -> jax.Array:
        return x if chip is None else x * chip

    with pytest.raises(
        FlintError, match="chip is an option of flint.trace and cannot be"
    ) as caught:
        flint.trace(step, "8", x, chip=x)
    assert caught.value.code == "FL219"
    with pytest.raises(TypeError, match="'compilr'; did you mean 'compiler'"):
        flint.trace(jax.jit(step), "8", x, compilr="xla-gpu")
    assert len(flint.trace(step, "8", x, x).program) > len(flint.trace(step, "8", x).program)
    free = flint.trace(lambda **named: named["chips"] * 2, "8", chips=x)
    assert len(free.program)
