"""Extraction: numbers per operation, and the same bytes whenever the same program is captured."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax")
import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import flint
from flint.ir.op_class import OpClass
from flint.ir.program import Collective, Flag, Kind, Phase, Program, Row
from flint.passes.locations import split_name_stack
from flint.passes.tensors import dtype_name
from tests.auto_mesh import auto_mesh

MESH = auto_mesh((4, 2), ("data", "model"))
TURNED = Flag.TURNED_FIRST | Flag.TURNED_LAST


def shaped(shape: tuple[int, ...], *spec: Any, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(MESH, P(*spec)))


def the_row(opcode: str, function: Any, *args: Any) -> Row:
    """The only row of an opcode. (For GPUs JAX lowers linear algebra to calls of cuSOLVER.)"""
    program = flint.trace(function, MESH, *args, platform="tpu").program
    (row,) = (r for r in map(program.row, range(len(program))) if r.opcode == opcode)
    return row


def convolve(x: Any, k: Any, **options: Any) -> Any:
    return lax.conv_general_dilated(
        x, k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), **options
    )


# (opcode, function, arguments) and the flops, dims, bytes read and bytes written by one device
WORK = {
    "batched product": (
        ("hlo.dot", lambda a, b: jnp.einsum("bij,bjk->bik", a, b)),
        (shaped((8, 3, 5), "data"), shaped((8, 5, 7), "data")),
        (2 * 2 * 3 * 5 * 7, (2, 3, 7, 5), 4 * 2 * (15 + 35), 4 * 2 * 21),
    ),
    "convolution": (
        ("hlo.convolution", convolve),
        (shaped((8, 6, 6, 3), "data"), shaped((3, 3, 3, 4))),
        (2 * (2 * 36 * 4) * 27, (1, 72, 4, 27), 4 * (2 * 36 * 3 + 108), 4 * 2 * 36 * 4),
    ),
    "sum": (
        ("hlo.reduce", lambda x: x.sum(axis=1)),
        (shaped((8, 16), "data"),),
        (2 * 16, (1, 2, 1, 16), 4 * 32 + 4, 4 * 2),
    ),
    "sort": (
        ("hlo.sort", lambda x: jnp.sort(x, axis=1)),
        (shaped((8, 16), "data"),),
        (2 * 16 * 4, (1, 2, 1, 16), 4 * 32, 4 * 32),
    ),
    "cholesky": (
        ("hlo.cholesky", lambda x: lax.linalg.cholesky(x, symmetrize_input=False)),
        (shaped((8, 6, 6), "data"),),
        (2 * 6**3 // 3, (0, 0, 0, 0), 4 * 72, 4 * 72),
    ),
    "rows of a table": (
        ("hlo.gather", lambda t, i: t.at[i].get(mode="clip")),
        (shaped((100, 16)), shaped((8,), "data", dtype=jnp.int32)),
        (0, (1, 2, 1, 16), 4 * 32 + 4 * 2, 4 * 32),
    ),
    "update in place": (
        ("hlo.dynamic-update-slice", lambda x, u: lax.dynamic_update_slice(x, u, (0, 3))),
        (shaped((8, 64), "data"), shaped((8, 2), "data")),
        (0, (0, 0, 0, 0), 4 * 4, 4 * 4),
    ),
    "slice": (
        ("hlo.slice", lambda x: x[:, 2:6]),
        (shaped((8, 64), "data"),),
        (0, (0, 0, 0, 0), 4 * 8, 4 * 8),
    ),
    "addition to rows": (
        ("hlo.scatter", lambda x, i, u: x.at[i].add(u, mode="drop")),
        (shaped((100, 16)), shaped((6,), dtype=jnp.int32), shaped((6, 16))),
        (6 * 16, (1, 6, 1, 16), 2 * 4 * 96 + 4 * 6, 4 * 96),
    ),
    "largest of windows": (
        ("hlo.reduce-window", lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 4),
                                                                (1, 4), "VALID")),
        (shaped((8, 16), "data"),),
        (2 * 4 * 4, (1, 8, 1, 4), 4 * 32 + 4, 4 * 8),
    ),
    "triangular solve": (
        ("hlo.triangular-solve", lambda a, b: lax.linalg.triangular_solve(
            a, b, left_side=True)),
        (shaped((6, 6)), shaped((6, 4))),
        (6 * 4 * 6, (0, 0, 0, 0), 4 * (36 + 24), 4 * 24),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", list(WORK))
def test_work_of_one_operation(name: str) -> None:
    (opcode, function), args, expected = WORK[name]
    row = the_row(opcode, function, *args)
    assert (row.flops, row.dims, row.operand_bytes, row.result_bytes) == expected
    assert not row.flags & Flag.UNPRICED


def test_factorizations_are_priced_on_every_platform() -> None:
    """Two matrices of 6 x 6 on each device: Cholesky n^3 / 3, LU 2 n^3 / 3, QR 4 n^3 / 3."""

    def cholesky(x: Any) -> Any:
        return lax.linalg.cholesky(x, symmetrize_input=False)

    for function, calls, flops in (
        (cholesky, ("cusolver_potrf_ffi", "hipsolver_potrf_ffi", None), 72),
        (lax.linalg.lu, ("cusolver_getrf_ffi", "hipsolver_getrf_ffi", "LuDecomposition"), 144),
        (lax.linalg.qr, ("cusolver_geqrf_ffi", "hipsolver_geqrf_ffi", "Qr"), 288),
    ):
        for platform, call in zip(("cuda", "rocm", "tpu"), calls, strict=True):
            program = flint.trace(
                function, MESH, shaped((8, 6, 6), "data"), platform=platform
            ).program
            opcode = f"custom_call.{call}" if call else "hlo.cholesky"
            found = [r for r in map(program.row, range(len(program))) if r.opcode == opcode]
            assert [(r.flops, bool(r.flags & Flag.UNPRICED)) for r in found] == [(2 * flops, False)]


def test_an_unknown_custom_call_is_unpriced_and_keeps_its_bytes() -> None:
    def step(x: Any) -> Any:
        shape = jax.ShapeDtypeStruct((8, 16), jnp.float32)
        return jax.ffi.ffi_call("my_kernel", shape)(x)

    row = the_row("custom_call.my_kernel", step, shaped((8, 16)))
    assert row.flags & Flag.UNPRICED and row.flops == 0
    assert row.operand_bytes == row.result_bytes == 8 * 16 * 4


@pytest.mark.parametrize(
    ("stack", "scope", "phase"),
    [
        ("jit(step)/jvp(layers)/while/body/attention/dot_general", "layers/attention", "FORWARD"),
        ("jit(step)/transpose(jvp(layers))/while/body/dot_general", "layers", "BACKWARD"),
        (
            "jit(step)/transpose(jvp(layers))/while/body/checkpoint/rematted_computation/mlp/tanh",
            "layers/mlp",
            "REMAT",
        ),
        ("jit(step)/optimizer/mul", "optimizer", "UNKNOWN"),
        ("add", "", "UNKNOWN"),
        ("", "", "UNKNOWN"),
    ],
)
def test_scopes_and_phases(stack: str, scope: str, phase: str) -> None:
    assert split_name_stack(stack) == (scope, Phase[phase])


@pytest.mark.parametrize(
    ("element", "name"),
    [
        ("f32", "float32"),
        ("bf16", "bfloat16"),
        ("i1", "bool"),
        ("i4", "int4"),
        ("ui8", "uint8"),
        ("f8E4M3FN", "float8_e4m3fn"),
        ("complex<f32>", "complex64"),
        ("!quant.uniform<i8:f32, 0.5>", "!quant.uniform<i8:f32, 0.5>"),
    ],
)
def test_element_type_names(element: str, name: str) -> None:
    assert dtype_name(element) == name


def test_a_function_that_is_called_often_is_walked_once() -> None:
    """Layers under jax.jit stay calls; their copies depend on their own inputs only."""

    @jax.jit
    def layer(x: Any, w: Any) -> Any:
        for _ in range(40):  # big enough to stay a call
            x = jnp.tanh(x @ w) + x
        return x

    def step(x: Any, weights: list[Any]) -> Any:
        for w in weights:
            x = layer(x, w)
        return x

    program = flint.trace(
        *(step, MESH, shaped((8, 16), "data"), [shaped((16, 16), None, "model")] * 3),
    ).program
    program.verify()
    dots = [i for i in range(len(program)) if program.row(i).opcode == "hlo.dot"]
    assert len(dots) == 120
    weights = [i for i in range(len(program)) if program.row(i).name.startswith("weights")]
    for number, weight in enumerate(weights):
        reached = reachable(program, weight)
        mine = dots[40 * number : 40 * number + 40]
        assert set(mine) <= reached
        assert not reached & set(dots[: 40 * number])


def test_rows_of_a_repeated_function_have_the_phase_of_its_call() -> None:
    @jax.jit
    def layer(x: Any, w: Any) -> Any:
        for _ in range(60):  # too long to be inlined at every call
            x = jnp.sin(x) * jnp.cos(x)
        return x @ w

    def loss(weights: Any, x: Any) -> Any:
        for w in weights:
            x = layer(x, w)
        return jnp.sum(x)

    weights = [shaped((8, 8)) for _ in range(4)]
    program = flint.trace(jax.grad(loss), MESH, weights, shaped((8, 8))).program
    found = set(program.phase[program.kind == Kind.COMPUTE].tolist())
    assert found == {Phase.FORWARD, Phase.BACKWARD}


def reachable(program: Program, row: int) -> set[int]:
    """Rows that depend on `row`, directly or not."""
    found = {row}
    for i in range(row + 1, len(program)):
        if found & set(program.dependencies(i).tolist()):
            found.add(i)
    return found


def test_program_rows_are_where_the_source_is() -> None:
    def step(x: Any) -> Any:
        with jax.named_scope("head"):
            return jnp.exp(x)

    row = the_row("hlo.exponential", step, shaped((8, 16), "data"))
    assert row.scope == "head"
    assert row.location == f"test_extract.py:{step.__code__.co_firstlineno + 2}"


CAPTURE = """
import sys
import jax, jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec as P
import flint
mesh = AbstractMesh((4, 2), ("data", "model"), (AxisType.Auto,) * 2)
def shaped(shape, *spec):
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, P(*spec)))
def loss(params, x):
    def body(x, w):
        return jnp.tanh(x @ w["in"]) @ w["out"], None
    y, _ = jax.lax.scan(jax.checkpoint(body), x, params)
    return jnp.mean(y ** 2) + jax.nn.logsumexp(y)
params = {"in": shaped((3, 16, 32), None, "data", "model"),
          "out": shaped((3, 32, 16), None, "model", "data")}
trace = flint.trace(jax.value_and_grad(loss), mesh, params, shaped((8, 16), "data"))
sys.stdout.buffer.write(trace.workload.to_bytes())
"""


def test_two_processes_give_the_same_bytes(tmp_path: Path) -> None:
    def capture(seed: str) -> bytes:
        environment = {
            **os.environ,
            "PYTHONHASHSEED": seed,
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        file = tmp_path / f"dir{seed}" / "model.py"
        file.parent.mkdir()
        file.write_text(CAPTURE)
        run = subprocess.run(
            [sys.executable, str(file)], env=environment, capture_output=True, check=True
        )
        return run.stdout

    first = capture("0")
    assert capture("12345") == first
    workload = flint.Workload.from_bytes(first)
    workload.verify()
    kinds = np.unique(workload.programs[0].kind)
    assert Kind.COLLECTIVE in kinds and Kind.COMPUTE in kinds
    assert workload.to_bytes() == first


def test_loops_with_an_optimization_barrier_say_so() -> None:
    """Checkpointing sets one in the backward pass, unless it is told that loops need none."""

    def barriers(**options: bool) -> list[bool]:
        layer = jax.checkpoint(lambda x, w: (jnp.tanh(x @ w), None), **options)

        def loss(x: Any, w: Any) -> Any:
            return lax.scan(layer, x, w)[0].sum()

        weights = shaped((3, 8, 8))
        program = flint.trace(jax.grad(loss), MESH, shaped((8, 8)), weights).program
        return [region.barrier for region in program.regions]

    assert barriers() == [False, True]
    assert barriers(prevent_cse=False) == [False, False]


def test_what_is_calculated_again_waits_for_the_gradient() -> None:
    """Layers that are written out: weights are gathered again when the backward pass is there, not before."""
    layer = jax.checkpoint(lambda x, w: jnp.tanh(x @ w))

    def loss(x: Any, v: Any, w: Any) -> Any:
        return (layer(layer(x, v), w) ** 2).sum()

    weights = shaped((8, 8), "data")
    program = flint.trace(
        jax.grad(loss, (1, 2)), MESH, shaped((8, 8), "data"), weights, weights
    ).program
    gathers = np.flatnonzero(program.collective == Collective.ALL_GATHER).tolist()
    products = np.flatnonzero(program.op == OpClass.MATMUL).tolist()
    behind = []
    for gather in gathers:
        before, pending = set[int](), [gather]
        while pending:
            new = set(program.dependencies(pending.pop()).tolist()) - before
            before |= new
            pending += new
        behind.append(before & set(products))
    forward, again = behind[:2], behind[2:]
    assert forward == [set(), set()]
    assert len(again) == 2
    assert again[0] == set(products[:2])  # the loss
    assert again[1] > again[0]  # the gradient of the layer behind


def test_marks_of_what_is_saved_are_no_work() -> None:
    """JAX reduces what checkpointing saves to the precision that it has; a real reduction stays."""
    saved = jax.checkpoint_policies.dots_saveable
    layer = jax.checkpoint(lambda x, w: jnp.tanh(x @ w), policy=saved)
    made = jax.grad(lambda x, w: layer(x, w).sum(), 1)
    rounded = lambda x, w: lax.reduce_precision(made(x, w), 8, 7)
    for function, count in ((made, 0), (rounded, 1)):
        program = flint.trace(function, MESH, shaped((8, 8)), shaped((8, 8))).program
        assert (program.op == OpClass.REDUCE_PRECISION).sum() == count


def test_a_function_that_is_called_in_another_loop_has_its_barrier_there_too() -> None:
    inner = jax.jit(lambda x: lax.optimization_barrier(jnp.sin(x)))

    def step(x: Any) -> Any:
        first = lax.fori_loop(0, 3, lambda _, y: inner(y), x)
        return lax.fori_loop(
            0, 2, lambda _, y: inner(y), lax.fori_loop(0, 4, lambda _, y: y * 2, first)
        )

    program = flint.trace(step, MESH, shaped((8, 8))).program
    assert [(r.trip_count, r.barrier) for r in program.regions] == [
        (3, True),
        (4, False),
        (2, True),
    ]


@pytest.mark.parametrize(
    ("lhs", "rhs", "contracted", "batch", "flags"),
    [
        ((2, 8, 4), (2, 4, 6), (2, 1), 0, Flag(0)),
        ((2, 4, 8), (2, 6, 4), (1, 2), 0, Flag(0)),  # a matrix seen from its other side
        ((2, 8, 4), (2, 6, 5, 4), (2, 3), 0, Flag.TURNED_LAST),
        ((8, 2, 4), (2, 4, 6), (2, 1), 1, Flag.TURNED_FIRST | Flag.SEEN_FIRST),
    ],
)
def test_products_say_which_operands_are_in_another_order(
    lhs: tuple[int, ...],
    rhs: tuple[int, ...],
    contracted: tuple[int, int],
    batch: int,
    flags: Flag,
) -> None:
    dims = (((contracted[0],), (contracted[1],)), ((batch,), (0,)))
    function = partial(lax.dot_general, dimension_numbers=dims)
    row = the_row("hlo.dot", function, shaped(lhs), shaped(rhs))
    assert row.flags & (TURNED | Flag.SEEN_FIRST | Flag.SEEN_LAST) == flags


def test_convolutions_say_that_filters_and_their_gradients_are_in_another_order() -> None:
    def convolved(w: Any, x: Any) -> Any:
        return lax.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    x, w = shaped((2, 8, 8, 4)), shaped((3, 3, 4, 6))
    row = the_row("hlo.convolution", convolved, w, x)
    assert row.flags & (TURNED | Flag.TURNED_RESULT) in (Flag.TURNED_FIRST, Flag.TURNED_LAST)
    gradient = jax.grad(lambda w, x: convolved(w, x).sum())
    row = the_row("hlo.convolution", gradient, w, x)
    assert row.flags & (TURNED | Flag.TURNED_RESULT) == Flag.TURNED_RESULT
