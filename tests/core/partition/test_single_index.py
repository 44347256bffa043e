"""What is simplified before it is partitioned has the same values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

pytest.importorskip("jax")
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from flint.passes.mlir import functions_of, make_context, operations_named, write_bytecode
from flint.passes.partition.prepare.inline import inline_calls
from flint.passes.partition.prepare.move_reshapes import move_reshapes
from flint.passes.partition.prepare.single_index import expand_single_indices
from flint.passes.partition.prepare.transposed import exchange_operands
from flint.passes.partition.prepare.zeros import (
    drop_empty_results,
    join_reshapes,
    pad_with_constants,
)

X = np.arange(96, dtype=np.float32).reshape(8, 12)
ROWS, ROW, COLUMN = -X[:3], -X[0], -X[:, 0]
Step = Callable[[Any, Any, Any], Any]
WHOLE = lax.GatherDimensionNumbers(
    offset_dims=(0, 1), collapsed_slice_dims=(), start_index_map=(0,)
)
UPDATE = lax.ScatterDimensionNumbers((0, 1), (), (1, 0))


#: Name to the step, what it writes, and whether it becomes slices.
STEPS: dict[str, tuple[Step, Any, bool]] = {
    "rows": (lambda x, u, i: x.at[2:5].set(u), ROWS, True),
    "rows added": (lambda x, u, i: x.at[2:5].add(u), ROWS, True),
    "rows multiplied": (lambda x, u, i: x.at[2:5].multiply(u), ROWS, True),
    "one row": (lambda x, u, i: x.at[3].set(u), ROW, True),
    "the last row": (lambda x, u, i: x.at[-1].max(u), ROW, True),
    "one column": (lambda x, u, i: x.at[:, 3].set(u), COLUMN, True),
    "one element": (lambda x, u, i: x.at[i, 3].add(u[0]), ROW, True),
    "a row of the program": (lambda x, u, i: x.at[i].set(u), ROW, True),
    "a row, added": (lambda x, u, i: x.at[i].add(u), ROW, True),
    "a row outside is dropped": (lambda x, u, i: x.at[i + 20].set(u), ROW, True),
    "a row outside, clipped": (lambda x, u, i: x.at[i + 20].set(u, mode="clip"), ROW, True),
    "a known row outside": (lambda x, u, i: x.at[20].set(u), ROW, False),
    "two numbers": (lambda x, u, i: lax.scatter(
        x, jnp.stack([i, i - 1]), u, UPDATE), ROWS[:, :4], True),
    "a function of both": (lambda x, u, i: x.at[2:5].apply(jnp.sin) + u[0, 0], ROWS, False),
    "several rows": (lambda x, u, i: x.at[jnp.array([1, 5, i])].set(u), ROWS, False),
    "read": (lambda x, u, i: jnp.take(x, i, axis=0) + u, ROW, True),
    "read one of a list": (lambda x, u, i: x[jnp.array([3])] + u, ROW, True),
    "read past the end": (
        lambda x, u, i: lax.gather(x, i[None] + 6, WHOLE, (3, 12), mode="clip") + u, ROWS, True),
    "read, known and past the end": (
        lambda x, u, i: lax.gather(x, jnp.array([7]), WHOLE, (3, 12), mode="clip") + u, ROWS, True),
    "read several": (lambda x, u, i: x[jnp.array([1, 5, i])] + u, ROWS, False),
}  # fmt: skip


@contextmanager
def rewritten(step: Any, arguments: Sequence[Any], *passes: Callable[[Any], None]) -> Iterator[Any]:
    """The module of a step after some passes, in its context."""
    from jaxlib.mlir import ir

    text = jax.jit(step, keep_unused=True).lower(*arguments).as_text()
    with make_context():
        module = ir.Module.parse(text)
        for one in (inline_calls, *passes):
            one(module)
        assert functions_of(module)["main"].verify()
        yield module


def left_in(module: Any, *names: str) -> int:
    return sum(len(operations_named(module, name)) for name in names)


#: Name to the step, and how many slices at places of the program are left.
SLICES: dict[str, tuple[Step, int]] = {
    "known": (lambda x, u, i: lax.dynamic_slice_in_dim(x, 2, 3) + u, 0),
    "past the end": (lambda x, u, i: lax.dynamic_slice_in_dim(x, 20, 3) + u, 0),
    "before the start": (lambda x, u, i: lax.dynamic_slice(x, (-3, 0), (3, 12)) + u, 0),
    "clipped": (lambda x, u, i: lax.dynamic_slice_in_dim(
        x, jnp.maximum(jnp.minimum(jnp.int32(20), 6), -2), 3) + u, 0),
    "all of a dimension": (lambda x, u, i: lax.dynamic_slice(x, (2, i), (3, 12)) + u, 0),
    "of the program": (lambda x, u, i: lax.dynamic_slice_in_dim(x, i, 3) + u, 1),
    "largest 0": (lambda x, u, i: jnp.concatenate([lax.top_k(x, 0)[0], x], axis=1)[2:5] + u, 0),
}  # fmt: skip


@pytest.mark.parametrize("name", SLICES)
def test_slices_at_known_places_hold_the_same_values(name: str) -> None:
    step, left = SLICES[name]
    arguments = (X, ROWS, jnp.int32(4))
    with rewritten(step, arguments, expand_single_indices, drop_empty_results) as module:
        assert left_in(module, "stablehlo.dynamic_slice") == left
        assert not left_in(module, "chlo.top_k")
        made = write_bytecode(module)
    for place in (4, -1, 7):
        expected = np.asarray(jax.jit(step)(X, ROWS, jnp.int32(place)))
        np.testing.assert_array_equal(run(made, [X, ROWS, np.int32(place)]), expected)


def run(module: bytes, values: list[Any]) -> Any:
    from jaxlib import xla_client

    [device] = jax.devices("cpu")[:1]
    options = xla_client.CompileOptions()
    devices = xla_client.DeviceList((device,))
    program = device.client.compile_and_load(module, devices, options)
    found = program.execute_sharded([jax.device_put(v, device) for v in values])
    return np.asarray(found.disassemble_into_single_device_arrays()[0][0])


@pytest.mark.parametrize("name", STEPS)
def test_slices_hold_the_same_values(name: str) -> None:
    step, update, is_expanded = STEPS[name]
    with rewritten(step, (X, update, jnp.int32(4)), expand_single_indices) as rewritten_module:
        left = left_in(rewritten_module, "stablehlo.gather", "stablehlo.scatter")
        module = write_bytecode(rewritten_module)
    assert (not left) == is_expanded
    for place in (4, 0, 7):
        expected = np.asarray(jax.jit(step)(X, update, jnp.int32(place)))
        found = run(module, [X, update, np.int32(place)])
        np.testing.assert_array_equal(found, expected)


#: Name to the step, and how many reshapes are left (ReshapeMover, jaxlib 0.10.2).
MOVED: dict[str, tuple[Callable[[Any], Any], int]] = {
    "there and back": (lambda x: jnp.tanh(x.reshape(96) * 2).reshape(8, 12), 0),
    "two of one shape": (lambda x: (x.reshape(96) + (-x).reshape(96)).reshape(8, 12), 0),
    "one of two": (lambda x: x.reshape(96) * jnp.arange(96.0), 1),
    "one read elsewhere": (lambda x: (jnp.sin(r := x.reshape(96)) + r.sum()).reshape(8, 12), 2),
    "another shape": (lambda x: x.reshape(4, 24) + x[:2].reshape(1, 24), 2),
}


@pytest.mark.parametrize("name", MOVED)
def test_reshapes_move_behind_operations_on_elements(name: str) -> None:
    step, left = MOVED[name]
    with rewritten(step, (X,), move_reshapes, join_reshapes) as module:
        assert left_in(module, "stablehlo.reshape") == left
        made = write_bytecode(module)
    np.testing.assert_array_equal(run(made, [X]), np.asarray(jax.jit(step)(X)))


# products -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("subscripts", "order", "becomes"),
    [
        ("ik,kj->ij", (1, 0), True),
        ("bik,bkj->bij", (0, 2, 1), True),
        ("abk,kj->abj", (2, 0, 1), True),
        ("abk,kj->abj", (1, 0, 2), False),
        ("bik,bkj->bij", (2, 1, 0), False),
    ],
)
def test_a_transposed_product_has_its_operands_exchanged(subscripts, order, becomes) -> None:
    lhs, rhs = (
        np.random.default_rng(n).normal(size=[2 + "ijkab".index(c) for c in part])
        for n, part in enumerate(subscripts.split("->")[0].split(","))
    )
    lhs, rhs = lhs.astype(np.float32), rhs.astype(np.float32)

    def step(a, b):
        return jnp.einsum(subscripts, a, b, precision=("default", "highest")).transpose(order)

    with rewritten(step, (lhs, rhs), exchange_operands) as module:
        assert bool(left_in(module, "stablehlo.transpose")) != becomes, str(module)
        assert ("precision = [HIGHEST, DEFAULT]" in str(module)) == becomes, str(module)
        made = write_bytecode(module)
    np.testing.assert_allclose(run(made, [lhs, rhs]), step(lhs, rhs), rtol=1e-5)


@pytest.mark.parametrize("number", [0.0, 2.5])
@pytest.mark.parametrize("first", [True, False])
def test_a_concatenation_with_copies_of_a_number_is_a_pad(number: float, first: bool) -> None:
    def step(x: Any) -> Any:
        copies = jnp.full((8, 3), number)
        return jnp.concatenate([copies, x] if first else [x, copies], axis=1)

    with rewritten(step, (X,), pad_with_constants) as module:
        assert not left_in(module, "stablehlo.concatenate")
        made = write_bytecode(module)
    np.testing.assert_array_equal(run(made, [X]), step(X))
