"""What is simplified before it is partitioned has the same values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

pytest.importorskip("jax")
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from flint.passes.mlir import make_context, operations_named
from flint.passes.partition.prepare.by_xla import simplified_by_xla
from flint.passes.partition.prepare.prepared import prepared

X = np.arange(96, dtype=np.float32).reshape(8, 12)
ROWS, ROW, COLUMN = -X[:3], -X[0], -X[:, 0]
Step = Callable[[Any, Any, Any], Any]
WHOLE = lax.GatherDimensionNumbers(
    offset_dims=(0, 1), collapsed_slice_dims=(), start_index_map=(0,)
)
UPDATE = lax.ScatterDimensionNumbers((0, 1), (), (1, 0))
INDEXED = ("gather", "scatter")


#: Name to the step, what it writes, and whether its gathers and scatters become slices.
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
    "a known row outside": (lambda x, u, i: x.at[20].set(u), ROW, True),
    "by bytes": (lambda x, u, i: x.at[i.astype(jnp.uint8)].set(u), ROW, True),
    "two numbers": (lambda x, u, i: lax.scatter(
        x, jnp.stack([i, i - 1]), u, UPDATE), ROWS[:, :4], True),
    "a function of both": (lambda x, u, i: x.at[2:5].apply(jnp.sin) + u[0, 0], ROWS, False),
    "several rows": (lambda x, u, i: x.at[jnp.array([1, 5, i])].set(u), ROWS, False),
    "read": (lambda x, u, i: jnp.take(x, i, axis=0) + u, ROW, True),
    "read one of a list": (lambda x, u, i: x[jnp.array([3])] + u, ROW, True),
    "read past the end": (
        lambda x, u, i: lax.gather(x, i[None] + 6, WHOLE, (3, 12), mode="clip") + u, ROWS, True),
    "read several": (lambda x, u, i: x[jnp.array([1, 5, i])] + u, ROWS, False),
}  # fmt: skip


def simplified(step: Any, arguments: Sequence[Any]) -> tuple[bytes, dict[str, int]]:
    """The module of a step as XLA's partitioner gets it, and how many operations of each name it has."""
    from jaxlib.mlir import ir

    text = jax.jit(step, keep_unused=True).lower(*arguments).as_text()
    module = simplified_by_xla(prepared(text.encode()), is_shardy=True)
    with make_context():
        parsed = ir.Module.parse(module)
        names = ("dynamic_slice", "reshape", "transpose", "concatenate", "add", "while", *INDEXED)
        return module, {n: len(operations_named(parsed, f"stablehlo.{n}")) for n in names}


def compiled(module: bytes) -> Callable[[list[Any]], Any]:
    """What a module makes of values."""
    from jaxlib import xla_client

    [device] = jax.devices("cpu")[:1]
    options = xla_client.CompileOptions()
    devices = xla_client.DeviceList((device,))
    program = device.client.compile_and_load(module, devices, options)

    def run(values: list[Any]) -> Any:
        found = program.execute_sharded([jax.device_put(v, device) for v in values])
        return np.asarray(found.disassemble_into_single_device_arrays()[0][0])

    return run


@pytest.mark.parametrize("name", STEPS)
def test_slices_hold_the_same_values(name: str) -> None:
    step, update, is_expanded = STEPS[name]
    module, left = simplified(step, (X, update, jnp.int32(4)))
    assert (not any(left[n] for n in INDEXED)) == is_expanded
    run, whole = compiled(module), jax.jit(step)
    for place in (4, 0, 7):
        expected = np.asarray(whole(X, update, jnp.int32(place)))
        np.testing.assert_array_equal(run([X, update, np.int32(place)]), expected)


#: Name to the step, an operation, and how many of it are left (jaxlib 0.10.2).
SIMPLER: dict[str, tuple[Callable[[Any], Any], str, int]] = {
    "there and back": (lambda x: jnp.tanh(x.reshape(96) * 2).reshape(8, 12), "reshape", 0),
    "two of one shape": (
        lambda x: (x.reshape(96) + (-x).reshape(96)).reshape(8, 12), "reshape", 0),
    "a slice at a known place": (
        lambda x: lax.dynamic_slice_in_dim(x, 20, 3), "dynamic_slice", 0),
    "a transposed product": (lambda x: jnp.einsum("ik,jk->ij", x, x[:3]).T, "transpose", 0),
    "a number beside it": (
        lambda x: jnp.concatenate([jnp.full((8, 3), 2.5), x], axis=1), "concatenate", 0),
    "nothing added": (lambda x: sum([x, jnp.zeros_like(x)], 0.0), "add", 0),
    "a loop of one turn": (
        lambda x: lax.fori_loop(0, 1, lambda _, c: c * 2, x), "while", 0),
    "a loop of two": (
        lambda x: lax.fori_loop(0, 2, lambda _, c: jnp.sin(c @ c.T @ c), x), "while", 1),
}  # fmt: skip


@pytest.mark.parametrize("name", SIMPLER)
def test_simpler_programs_hold_the_same_values(name: str) -> None:
    step, operation, count = SIMPLER[name]
    module, left = simplified(step, (X,))
    assert left[operation] == count
    np.testing.assert_allclose(compiled(module)([X]), np.asarray(jax.jit(step)(X)), rtol=1e-6)
