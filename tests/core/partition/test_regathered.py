"""Gathers that nobody asked for are told, with the annotation that removes them; others are not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import flint
from flint.frontends.jax_step.program import capture_jax
from flint.ir.mesh import Mesh
from flint.ir.program import Collective, Kind
from flint.ir.workload import Workload
from flint.passes.partition.regathered import LEAST_BYTES, regathered, regathered_warnings
from flint.passes.partition.xla import partitioned
from flint.tracing import Trace
from tests.auto_mesh import auto_mesh
from tests.long import long_but
from tests.program_text import Rows, group
from tests.zoo import zoo

MESH = Mesh.parse("x=4,y=2")
ABSTRACT = auto_mesh(MESH.sizes, MESH.names)
SIDE = 1024
SOURCE = Path(__file__).read_text(encoding="utf-8").splitlines()


def cut(value: Any, *spec: Any) -> Any:
    return lax.with_sharding_constraint(value, NamedSharding(ABSTRACT, P(*spec)))


def resharded(a: Any) -> Any:
    return cut(jnp.sin(cut(jnp.cos(a), "x", None)), None, "y")


def resharded_as_told(a: Any) -> Any:
    between = cut(cut(jnp.cos(a), "x", None), "x", "y")
    return cut(jnp.sin(between), None, "y")


def resharded_at_once(a: Any) -> Any:
    return cut(cut(a, "x", None), None, "y")


def resharded_at_once_as_told(a: Any) -> Any:
    return cut(cut(cut(a, "x", None), "x", "y"), None, "y")


def of_one_axis(a: Any) -> Any:
    return cut(cut(a, ("x", "y"), None), None, "x")


def of_one_axis_as_told(a: Any) -> Any:
    return cut(cut(cut(a, ("x", "y"), None), "y", "x"), None, "x")


def transformed(a: Any) -> Any:
    return jnp.fft.fft(jnp.sin(a), axis=1).real


def transformed_as_told(a: Any) -> Any:
    spec = P(("x", "y"))
    return jax.shard_map(transformed, mesh=ABSTRACT, in_specs=spec, out_specs=spec)(a)


def told(function: Callable[..., Any]) -> tuple[list[str], Trace]:
    sharding = NamedSharding(ABSTRACT, P("x", "y"))
    argument = jax.ShapeDtypeStruct((SIDE, SIDE), jnp.float32, sharding=sharding)
    trace = flint.trace(function, MESH, argument)
    return [w for w in trace.warnings if "gathered whole" in w], trace


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (resharded, "over x (4.00 MiB on every device, 1 time a step) and cut again"),
        (transformed, "over x and y (8.00 MiB on every device, 1 time a step) for fft"),
    ],
)
def test_what_is_gathered_and_cut_again_is_told(function: Callable[..., Any], words: str) -> None:
    (warning,), trace = told(function)
    line = "jnp.sin(cut(jnp.cos(a)" if function is resharded else "jnp.fft.fft("
    number = next(n for n, text in enumerate(SOURCE, 1) if line in text)
    assert warning.startswith(f"test_regathered.py:{number}: ") and words in warning
    if function is resharded:
        assert "with_sharding_constraint(x, P('x', 'y'))" in warning
    (note,) = [n for n in trace.estimate("h100-dgx").notes if "no sharding asked for" in n]
    assert f"test_regathered.py:{number}" in note and note.endswith("us")


@pytest.mark.parametrize(
    ("function", "spec"),
    [(resharded_at_once, "P('x', 'y')"), (of_one_axis, "P('y', 'x')")],
)
def test_the_sharding_that_is_advised_is_one(function: Callable[..., Any], spec: str) -> None:
    (warning,), _ = told(function)
    assert warning.endswith(f"jax.lax.with_sharding_constraint(x, {spec})"), "no axis twice"


@pytest.mark.parametrize(
    "function",
    [resharded_as_told, transformed_as_told, resharded_at_once_as_told, of_one_axis_as_told],
)
def test_what_the_warning_says_removes_it(function: Callable[..., Any]) -> None:
    warnings, trace = told(function)
    assert not warnings
    assert not [n for n in trace.estimate("h100-dgx").notes if "no sharding asked for" in n]


#: Weights that are gathered (FSDP), activations for products (sequence parallelism), and gathers in shard_map.
ASKED = (
    "llama_fsdp",
    "llama_fsdp_unrolled",
    "llama_fsdp_noremat",
    "llama_fsdp_tp",
    "llama_fsdp_2_axes",
    "llama_tp_sp",
    "llama_fsdp_tp_sp_pinned",
    "llama_3_axes",
    "manual",
)


@pytest.mark.parametrize("name", long_but(["llama_fsdp_unrolled", "llama_3_axes", "manual"], ASKED))
def test_what_shardings_ask_for_is_not(name: str) -> None:
    example = zoo()[name]
    program = partitioned(capture_jax(example.step(), example.mesh)).program
    gathers = [r for r in map(program.row, range(len(program))) if "gather" in r.opcode]
    assert gathers and not regathered(program)


def test_small_gathers_and_recorded_programs_are_not_told() -> None:
    for size, warned in ((LEAST_BYTES - 4, False), (LEAST_BYTES, True)):
        rows = Rows()
        value = rows.op("sort", rows.parameter())
        whole = rows.op(
            "sdy.all_gather",
            value,
            kind=Kind.COLLECTIVE,
            collective=Collective.ALL_GATHER,
            group=group("x"),
            comm_bytes=size // 8,
            result_bytes=size,
            shape=(size // 4,),
        )
        rows.result(rows.all_slice(whole, group("x"), part_bytes=size // 8))
        program = rows.build()
        assert bool(regathered_warnings(program)) == warned and len(regathered(program)) == 1
        notes = Trace(Workload.single(program)).estimate("h100-dgx").notes
        assert not [n for n in notes if "no sharding asked for" in n], "no partitioner made it"
