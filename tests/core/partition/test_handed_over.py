"""Whatever is handed over is taken as it is meant, or refused where it is handed over."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jax")
import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, NamedSharding
from jax.sharding import PartitionSpec as P

import flint
from flint.frontends.model_file import Target, importable, load_step
from flint.tracing import trace_file, trace_step

MESH = AbstractMesh((2, 2), ("pipe", "data"))
SMALL = jax.ShapeDtypeStruct((8, 8), jnp.float32)
LARGE = jax.ShapeDtypeStruct((1024, 1024), jnp.float32)
MiB = 2**20


def shaped(spec: Any = P()) -> jax.ShapeDtypeStruct:  # noqa: B008 - immutable
    return jax.ShapeDtypeStruct((8, 8), jnp.float32, sharding=NamedSharding(MESH, spec))


def product(w: Any, x: Any) -> Any:
    return x @ w


def step(**fields: Any) -> flint.Step:
    return flint.Step(**{"fn": lambda x: x @ x, "args": (SMALL,), **fields})


def pipeline(**fields: Any) -> flint.Pipeline:
    stages = [flint.Stage(product, shaped(), name) for name in ("first", "second")]
    given = {"stages": stages, "inputs": (shaped(P("data")),), "microbatches": 2}
    return flint.Pipeline(**{**given, **fields})


def stage(**fields: Any) -> flint.Pipeline:
    first = flint.Stage(**{"fn": product, "params": shaped(), "name": "first", **fields})
    return pipeline(stages=[first, flint.Stage(product, shaped(), "second")])


def layers(**fields: Any) -> flint.Pipeline:
    return pipeline(
        stages=[flint.Layers(**{"fn": product, "params": shaped(), "count": 4, **fields})]
    )


def pools(**fields: Any) -> flint.Disaggregated:
    given = {
        "prefill": flint.Step(lambda x: {"k": x + 1}, (shaped(P("data")),)),
        "decode": flint.Step(lambda c, x: c["k"] @ x, ({"k": shaped(P("data"))}, shaped())),
        "caches": {"result['k']": "c['k']"},
        "axis": "pipe",
    }
    return flint.Disaggregated(**{**given, **fields})


RECORDS: dict[type, Callable[..., Any]] = {
    flint.Step: step,
    flint.Pipeline: pipeline,
    flint.Stage: stage,
    flint.Layers: layers,
    flint.Disaggregated: pools,
}
WRONG = [None, -1, 3, 10**30, 2.5, float("nan"), True, "x", "\x1b[31m", b"b", object(), [], ["x"]]
WRONG += [{"a": "x"}, {1: 2}, {"a": -1}, int, SMALL, P("nope"), P(3), set(), [[]]]


@pytest.mark.long
@pytest.mark.parametrize("record", RECORDS)
def test_any_value_of_any_field_is_taken_or_refused(record: type) -> None:
    make = RECORDS[record]
    flint.trace(make(), MESH)  # as it is, it is fine
    refused = 0
    for field in dataclasses.fields(record):
        for value in WRONG:
            try:
                flint.trace(make(**{field.name: value}), MESH)
            except flint.FlintError as error:
                assert error.place or error.help, (field.name, value, error)
                refused += 1
    assert refused > 10 * len(dataclasses.fields(record))


@pytest.mark.parametrize(
    ("wrong", "code", "message"),
    [
        (lambda: step(fn=3), "FL219", "fn of flint.Step is 3, not a function"),
        (lambda: step(args=SMALL), "FL219", "args of flint.Step is ShapeDtypeStruct, not a list"),
        (lambda: step(donate_argnums="x"), "FL219", "donate_argnums of flint.Step is 'x', not the"),
        (
            lambda: step(donate_argnums=1),
            "FL219",
            "donate_argnums has 1, but the step has 1 positional",
        ),
        (lambda: step(static_argnums=(-2,)), "FL219", "static_argnums has -2, but the step has 1"),
        (lambda: step(in_shardings=3), "FL219", "in_shardings of flint.Step is 3, not a Part"),
        (
            lambda: step(in_shardings=(3,)),
            "FL104",
            "in_shardings of x holds 3, which is not a shard",
        ),
        (
            lambda: step(out_shardings=["x"]),
            "FL104",
            "out_shardings holds 'x', which is not a shard",
        ),
        (
            lambda: step(trip_counts={"a": -1}),
            "FL219",
            "is dict, not a mapping from names of loops",
        ),
        (lambda: step(trip_counts={"a": 1}), "FL403", "no loop uses the trip count 'a'"),
        (lambda: pipeline(microbatches=1_000_000), "FL240", "not a whole number of 1 to 16,384"),
        (lambda: pipeline(chunks=True), "FL240", "chunks of flint.Pipeline is True, not a whole"),
        (
            lambda: pools(prefill=3),
            "FL240",
            "prefill of flint.Disaggregated is 3, not a flint.Step",
        ),
    ],
)
def test_a_field_that_does_not_fit_is_named(
    wrong: Callable[[], Any], code: str, message: str
) -> None:
    with pytest.raises(flint.FlintError) as caught:
        flint.trace(wrong(), MESH)
    assert caught.value.code == code and message in str(caught.value)


def test_an_entry_is_told_where_it_made_the_step(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text(
        "import flint\n@flint.entry(axes=('data',))\ndef step(mesh):\n"
        "    return flint.Step(abs, args=3)\n"
    )
    with importable(tmp_path), pytest.raises(flint.FlintError) as caught:
        load_step(Target(path), "2")
    assert caught.value.code == "FL219"
    assert (caught.value.place or "").startswith("model.py:4")


@pytest.mark.parametrize("axes", ["data", (1,), None])
def test_entry_checks_its_axes(axes: Any) -> None:
    with pytest.raises(flint.FlintError, match="axes of flint.entry is"):
        flint.entry(axes=axes)


def peak(**options: Any) -> float:
    """Bytes of a step's memory at its peak."""

    def update(x: Any, count: Any) -> Any:
        return x + count

    trace = flint.trace(update, "1", LARGE, 2, static_argnums=1, **options)
    return trace.estimate("h100-dgx").classes[0].memory.peak_bytes


def test_positions_are_taken_as_jax_takes_them() -> None:
    kept = peak()
    given = (0, -2, (0,), [0])
    saved = [kept - peak(donate_argnums=positions) for positions in given]
    assert saved == pytest.approx([4 * MiB] * len(given), abs=64)  # and scalars

    def scaled(x: Any, factor: Any) -> Any:
        assert factor == 3  # static: a number of Python, not an array
        return x * factor

    for positions in (1, -1, (1,)):
        flint.trace(scaled, "1", SMALL, 3, static_argnums=positions)


def until_large(x: Any) -> Any:
    return jax.lax.while_loop(lambda x: jnp.sum(x) < 1e9, lambda x: x @ x, x)


def test_trip_counts_are_for_loops_that_are_there(tmp_path: Path) -> None:
    text = jax.jit(until_large).lower(SMALL).as_text()
    path = tmp_path / "loop.mlir"
    path.write_text(text)
    twice = trace_file(path, {"data": 1}, trip_counts={"loop0": 2})
    assert twice.summary().classes[0].matmul_flops == 2 * 2 * 8**3
    for counts in ({"loop1": 2}, {"loop0": 2, "lop": 1}):
        with pytest.raises(flint.FlintError, match="no loop uses") as caught:
            trace_step(
                flint.Step(until_large, (SMALL,), trip_counts={"loop0": 3}),
                flint.Mesh.parse("2"),
                trip_counts=counts,
            )
        assert caught.value.code == "FL403"
        assert "loop0" in (caught.value.help or "")
    both = pools(
        prefill=flint.Step(lambda x: {"k": until_large(x)}, (shaped(P("data")),)),
        decode=flint.Step(lambda c, x: c["k"] @ x, ({"k": shaped(P("data"))}, shaped())),
    )
    flint.trace(both, MESH, trip_counts={"loop0": 2})  # one of the two has such a loop
    with pytest.raises(flint.FlintError, match="no loop uses the trip count 'loop5'"):
        flint.trace(both, MESH, trip_counts={"loop0": 2, "loop5": 2})


@pytest.mark.parametrize(
    "options",
    [
        {"in_shardings": P("data")},
        {"donate_argnums": 0},
        {"shardings": {"x": ("data",)}},
        {"unknown": 1},
    ],
)
def test_what_has_no_effect_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(flint.FlintError, match="is given with a flint.Step, which has its own"):
        flint.trace(step(), "2x2", **options)
    with pytest.raises(flint.FlintError, match="arguments of flint.trace is given with"):
        flint.trace(step(), "2x2", SMALL)


@pytest.mark.parametrize(
    "wrong",
    [{"a": "x"}, {"a": 2.5}, {"a": True}, {1: 2}, {}, None, [2, 2], {"a": {"b": 2}}, {"\x1b": 1}]
    + ["a=4,=2", " =4", "a\x1b[31m=4", "a=4,a=2", "9" * 5000, "", "4x", '{"a":"x"}']
    + [",".join(f"a{i}=1" for i in range(302))],
)
def test_a_mesh_that_is_none(wrong: Any) -> None:
    with pytest.raises(flint.FlintError, match="FL101") as caught:
        flint.Mesh.parse(wrong)
    assert len(str(caught.value)) < 300 and "\x1b" not in str(caught.value)
