"""A stage's joint function in parts: work, communication and what is kept, against the whole."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import pytest

pytest.importorskip("jax")
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from flint.ir.columns import is_any
from flint.ir.mesh import AxisRef, Group
from flint.ir.op_class import OpClass
from flint.ir.program import Collective, Kind, Program, RegionKind
from flint.passes.pipeline.split.parts import (
    Partial,
    PartitionedBody,
    Saved,
    StageParts,
    StageProgram,
)
from flint.passes.pipeline.split.split import split
from flint.passes.rewrites.reduce_scatter import FormReduceScatter
from flint.steps.captured import Port, Role
from tests.pipeline_bodies import MESH, Model, partitioned, stage_of
from tests.program_rows import ProgramBuilder

#: Elements of a layer's weights, on one device of data=4 x model=2 when gathered over data.
WEIGHT = 32 * 32
MODELS = [
    Model(place=place, sharding=sharding, remat=remat, scan=scan)
    for place in ("first", "middle", "last")
    for sharding in ("tp", "both")
    for remat in ("none", "full")
    for scan in (True, False)
    if scan or sharding == "tp"
]


@cache
def body_of(model: Model) -> PartitionedBody:
    """The partitioned body of a model."""
    return partitioned(model)


@cache
def parts_of(model: Model, **options: bool) -> StageParts:
    """Its parts, verified."""
    parts = split(body_of(model), **options)
    for part in each(parts):
        part.program.verify()
    return parts


def each(parts: StageParts) -> list[StageProgram]:
    """The parts that are there."""
    found = (parts.gather, parts.forward, parts.backward, parts.weights, parts.reduce)
    return [part for part in found if part is not None]


def flops(program: Program) -> int:
    """Flops of one run."""
    return int((program.flops * program.trips).sum())


def communication(*programs: Program, axis: str = "") -> Counter[tuple[str, str, int]]:
    """How often each (kind, axes, bytes) runs, over groups that have `axis`."""
    found: Counter[tuple[str, str, int]] = Counter()
    for program in programs:
        for i in range(len(program)):
            row = program.row(i)
            if row.kind is Kind.COLLECTIVE and axis in str(row.group):
                found[row.collective.name, str(row.group), row.comm_bytes] += int(program.trips[i])
    return found


def saved(part: StageProgram) -> dict[Saved, int]:
    """Bytes of what a part reads from earlier ones."""
    p = part.program
    return {k: int(p.result_bytes[r]) for k, r in part.inputs.items() if isinstance(k, Saved)}


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_parts_are_programs_of_their_own(model: Model) -> None:
    parts = parts_of(model)
    for part in each(parts):
        kinds = part.program.kind
        assert list(part.inputs.values()) == list(range(len(part.inputs)))
        assert (kinds[: len(part.inputs)] == Kind.PARAMETER).all()
        assert (kinds[len(part.inputs) :] != Kind.PARAMETER).all()
        assert "func.return" not in part.program.opcodes
    assert parts.backward is not None
    assert parts.reduce is not None
    ports = {p for p in body_of(model).results if p.role is Role.GRADIENT}
    assert set(parts.reduce.outputs) == ports
    assert {Partial(p.name) for p in ports} == set(parts.reduce.inputs)
    kept = {k for k in parts.forward.outputs if isinstance(k, Saved)}
    assert kept == set(saved(parts.backward))


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_work_and_what_activations_communicate_are_as_before(model: Model) -> None:
    programs, whole = [p.program for p in each(parts_of(model))], body_of(model).program
    assert sum(map(flops, programs)) == flops(whole)
    assert communication(*programs, axis="model") == communication(whole, axis="model")


@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_full_remat_keeps_the_inputs_of_layers(place: str) -> None:
    parts = parts_of(Model(place=place, remat="full", sharding="tp"))
    assert parts.backward is not None
    layer = 2 * 16 * 32 * 2  # of bfloat16, on a device
    stacks = [b for b in saved(parts.backward).values() if b == 3 * layer]
    assert len(stacks) == 1
    if place == "middle":
        assert list(saved(parts.backward).values()) == [3 * layer]


def test_gradients_are_reduced_once_in_a_step() -> None:
    parts = parts_of(Model(place="middle", sharding="tp"))
    assert parts.backward is not None
    assert parts.reduce is not None
    assert not communication(parts.backward.program, axis="data")
    assert communication(parts.reduce.program) == {
        ("ALL_REDUCE", "data", 2 * WEIGHT): 2 * 3,
        ("ALL_REDUCE", "data", 4 * 32): 3,  # the scale, in float32
    }
    (loop,) = parts.reduce.program.regions
    assert (loop.kind, loop.trip_count) == (RegionKind.LOOP, 3)


def test_a_partial_gradient_is_as_large_as_what_a_device_computes() -> None:
    parts = parts_of(Model(place="middle", sharding="both"))
    assert parts.reduce is not None
    p = parts.reduce.program
    for name in ("w1", "w2"):
        assert p.result_bytes[parts.reduce.inputs[Partial(name)]] == 3 * WEIGHT * 2
        out = p.row(parts.reduce.outputs[Port(Role.GRADIENT, name)])
        assert out.result_bytes == WEIGHT * 2 // 4  # a slice of what data shards


def test_inference_is_a_forward_part() -> None:
    parts = parts_of(Model(inference=True))
    assert each(parts) == [parts.forward]
    assert not any(isinstance(k, Saved) for k in parts.forward.outputs)
    kinds = {Collective(int(c)) for c in parts.forward.program.collective}
    assert kinds == {Collective.NONE, Collective.ALL_GATHER, Collective.ALL_REDUCE}


def dots(program: Program) -> Counter[tuple[int, int, int, int]]:
    """How often products of each (batch, m, n, k) run."""
    found: Counter[tuple[int, int, int, int]] = Counter()
    for i in range(len(program)):
        row = program.row(i)
        if row.op is OpClass.MATMUL:
            found[row.dims] += int(program.trips[i])
    return found


@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_zero_bubble_divides_the_backward_pass(place: str) -> None:
    model = Model(place=place, sharding="tp")
    whole, cut = parts_of(model), parts_of(model, zero_bubble=True)
    assert whole.backward is not None
    assert cut.backward is not None
    assert cut.weights is not None
    both = flops(cut.backward.program) + flops(cut.weights.program)
    assert both == flops(whole.backward.program)
    tokens = 2 * 16  # on a device
    rows = dots(cut.weights.program)
    head = {(1, 32, 64, tokens): 1} if place == "last" else {}
    assert rows == Counter({(1, 32, 32, tokens): 2 * 3}) + Counter(head)
    assert not communication(cut.weights.program)


def test_zero_bubble_keeps_a_slice_for_each_iteration() -> None:
    parts = parts_of(Model(sharding="tp", remat="full"), zero_bubble=True)
    assert parts.backward is not None
    assert parts.weights is not None
    trips = {
        r.trip_count for r in (*parts.backward.program.regions, *parts.weights.program.regions)
    }
    assert trips == {3}
    activation = 2 * 16 * 32
    assert set(saved(parts.weights).values()) <= {3 * activation * 2, 3 * activation * 4}
    p = parts.backward.program
    for key in saved(parts.weights):
        row = p.row(parts.backward.outputs[key])
        assert row.opcode == "stack"
        assert p.result_bytes[row.alias] == saved(parts.weights)[key]
    p = parts.weights.program
    slices = [p.row(i) for i in range(len(p)) if p.row(i).alias in parts.weights.inputs.values()]
    assert len(slices) == len(saved(parts.weights))
    assert all(s.kind is Kind.VALUE and s.shape == (2, 16, 32) for s in slices)


def test_the_first_stage_awaits_what_two_gradients_need() -> None:
    parts = parts_of(Model(place="first", sharding="tp"), zero_bubble=True)
    assert parts.backward is not None
    assert all(isinstance(key, Saved) for key in parts.backward.outputs)
    assert communication(parts.backward.program) == {("ALL_REDUCE", "model", 2048): 3}


@pytest.mark.parametrize("remat", ["none", "full"])
def test_whole_weights_are_gathered_by_each_pass(remat: str) -> None:
    parts = parts_of(Model(remat=remat))
    gathers = {("ALL_GATHER", "data", 2 * WEIGHT // 4): 2 * 3}
    for part in (parts.forward, parts.backward):
        assert part is not None
        assert communication(part.program, axis="data") == gathers
        assert len(part.program.regions) == 1  # not in a loop of their own
    assert (3, 32, 32) not in parts.forward.program.shapes  # a stack of them


@pytest.mark.parametrize("remat", ["none", "full"])
@pytest.mark.parametrize("zero_bubble", [False, True])
def test_kept_weights_are_gathered_once(remat: str, zero_bubble: bool) -> None:
    parts = parts_of(Model(remat=remat), keep_gathered=True, zero_bubble=zero_bubble)
    assert parts.gather is not None
    assert parts.backward is not None
    gathers = {("ALL_GATHER", "data", 2 * WEIGHT // 4): 2 * 3}
    assert communication(parts.gather.program) == gathers
    assert all(k.role is Role.PARAMETER for k in parts.gather.inputs if isinstance(k, Port))
    whole = set(parts.gather.outputs)
    for part in (parts.forward, parts.backward, parts.weights):
        if part is not None:
            assert not communication(part.program, axis="data")
    assert {saved(parts.forward)[k] for k in whole if isinstance(k, Saved)} == {3 * WEIGHT * 2}
    assert whole <= set(parts.backward.inputs)


def test_inference_keeps_weights_gathered_too_and_nothing_to_gather_is_no_part() -> None:
    assert parts_of(Model(sharding="tp"), keep_gathered=True).gather is None
    parts = parts_of(Model(inference=True), keep_gathered=True)
    assert parts.gather is not None
    assert not communication(parts.forward.program, axis="data")


def test_one_microbatch_reduces_where_it_computes() -> None:
    model = Model(sharding="tp")
    parts = parts_of(model, accumulates=False)
    assert parts.backward is not None
    assert parts.reduce is not None
    assert not communication(parts.reduce.program)
    both = communication(parts.forward.program, parts.backward.program)
    assert both == communication(body_of(model).program)


@pytest.mark.parametrize("sharding", ["tp", "both"])
def test_slices_of_one_parameter_are_reduced_together(sharding: str) -> None:
    parts = parts_of(Model(scan=False, sharding=sharding))
    assert parts.backward is not None
    assert parts.reduce is not None
    assert not parts.undeferred
    assert "ALL_REDUCE" not in {k for k, _, _ in communication(parts.backward.program, axis="data")}
    assert communication(parts.reduce.program) == {
        ("ALL_REDUCE", "data", 3 * WEIGHT * 2): 2,
        ("ALL_REDUCE", "data", 3 * 32 * 4): 1,
    }


W = (32, 32)


def product(x: Any, w: Any) -> Any:
    """x times a weight that is gathered first."""
    return jnp.tanh(x @ lax.with_sharding_constraint(w, P(None, None)))


def reduced(parts: StageParts) -> Counter[tuple[str, str, int]]:
    """Communication of the part that runs once."""
    assert parts.backward is not None
    assert parts.reduce is not None
    for part in each(parts):
        part.program.verify()
    return communication(parts.reduce.program)


def test_a_weight_of_all_iterations_is_reduced_after_them() -> None:
    def function(p: Any, x: Any) -> Any:
        return lax.scan(lambda x, _: (product(x, p["w"]), None), x, None, length=4)[0]

    parts = split(stage_of(function, {"w": (W, P("data", None))}))
    assert reduced(parts) == {("ALL_REDUCE", "data", 4 * WEIGHT): 1}
    assert parts.reduce is not None
    assert not parts.reduce.program.regions
    assert parts.backward is not None
    p = parts.backward.program
    (total,) = (
        row
        for row in map(p.row, range(len(p)))
        if row.op is OpClass.ADD and row.kind is Kind.COMPUTE and row.shape == (32, 32)
    )
    assert (total.operand_bytes, total.result_bytes) == (2 * 4 * WEIGHT, 4 * WEIGHT)
    assert parts.backward.outputs[Partial("w")] == total.number
    (carried,) = (kept for kept, made in p.regions[0].carries if made == total.number)
    (begin,) = p.dependencies(carried).tolist()
    assert carried in total.deps
    assert {(p.row(r).shape, p.row(r).result_bytes) for r in (carried, begin)} == {
        ((32, 32), 4 * WEIGHT)
    }


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_sums_read_both_of_what_they_add(model: Model) -> None:
    """Whether they were in the body or are of what is not reduced yet."""
    for part in each(parts_of(model)):
        p = part.program
        adds = is_any(p, OpClass.ADD) & (p.kind == Kind.COMPUTE)
        sums = [r for r in map(p.row, np.flatnonzero(adds).tolist()) if r.shape]
        for row in sums:
            if all(p.row(d).shape == row.shape and p.row(d).dtype == row.dtype for d in row.deps):
                assert row.operand_bytes == 2 * row.result_bytes > 0


def test_loops_in_loops_are_reduced_slice_by_slice() -> None:
    def function(p: Any, x: Any) -> Any:
        def group(x: Any, w: Any) -> Any:
            return lax.scan(lambda x, w: (product(x, w), None), x, w)[0], None

        return lax.scan(group, x, p["w"])[0]

    body = stage_of(function, {"w": ((2, 3, *W), P(None, None, "data", None))})
    parts = split(body, zero_bubble=True, keep_gathered=True)
    assert reduced(parts) == {("ALL_REDUCE", "data", 4 * WEIGHT): 6}
    assert parts.gather is not None
    assert communication(parts.gather.program) == {("ALL_GATHER", "data", WEIGHT): 6}
    assert parts.weights is not None
    assert dots(parts.weights.program) == {(1, 32, 32, 32): 6}
    assert parts.reduce is not None
    assert [r.trip_count for r in parts.reduce.program.regions] == [2, 3]


@pytest.mark.parametrize("turned", [False, True])
def test_a_weight_that_is_used_twice_is_reduced_once(turned: bool) -> None:
    def function(p: Any, x: Any) -> Any:
        return product(product(x, p["w"]), p["w"].T if turned else p["w"])

    parts = split(stage_of(function, {"w": (W, P("data", None))}))
    assert reduced(parts) == {("ALL_REDUCE", "data", 4 * WEIGHT): 1}
    assert not parts.undeferred


def test_a_reduction_inside_of_a_branch_stays() -> None:
    def function(p: Any, x: Any) -> Any:
        return lax.cond(x.sum() > 0, lambda x: product(x, p["w"]), lambda x: x, x)

    parts = split(stage_of(function, {"w": (W, P("data", None))}), zero_bubble=True)
    assert not reduced(parts)
    assert parts.undeferred == ("w",)


def test_a_gradient_without_a_sum_passes_through() -> None:
    parts = split(stage_of(lambda p, x: x, {"w": (W, P("data", None))}))
    assert not reduced(parts)
    assert parts.reduce is not None
    assert parts.reduce.outputs[Port(Role.GRADIENT, "w")] == parts.reduce.inputs[Partial("w")]
    assert parts.forward.outputs[Port(Role.OUTPUT)] == parts.forward.inputs[Port(Role.INPUT)]


def test_slices_come_right_after_what_they_slice() -> None:
    parts = parts_of(Model())
    assert parts.reduce is not None
    p = parts.reduce.program
    slices = [p.row(i) for i in range(len(p)) if p.row(i).op is OpClass.ALL_SLICE]
    assert len(slices) == 2
    assert {p.row(s.deps[0]).collective for s in slices} == {Collective.ALL_REDUCE}
    scattered = FormReduceScatter().apply(p)
    assert communication(scattered) == {
        ("REDUCE_SCATTER", "data", 2 * WEIGHT): 2 * 3,
        ("ALL_REDUCE", "data", 4 * 32): 3,
    }


@pytest.mark.parametrize("scaled", [True, False])
def test_a_scaled_sum_is_reduced_later_and_a_square_is_not(scaled: bool) -> None:
    of: dict[str, Any] = {"dtype": "float32", "shape": (8,), "result_bytes": 32}
    b = ProgramBuilder(MESH)
    weight = b.add("parameter", Kind.PARAMETER, name="w", **of)
    given = b.add("parameter", Kind.PARAMETER, **of)
    half = b.add("stablehlo.constant", Kind.VALUE, **of)
    local = b.add("stablehlo.sine", deps=(weight, given), **of)
    group = Group((AxisRef("data"),))
    total = b.add(
        "sdy.all_reduce",
        Kind.COLLECTIVE,
        deps=(local,),
        collective=Collective.ALL_REDUCE,
        group=group,
        comm_bytes=32,
        operand_bytes=32,
        **of,
    )
    result = b.add("stablehlo.multiply", deps=(half, total) if scaled else (total,), **of)
    ports = (Port(Role.PARAMETER, "w"), Port(Role.COTANGENT))
    gradient = (Port(Role.GRADIENT, "w"),)
    parts = split(PartitionedBody(b.build(), ports, gradient, (weight, given), (result,)))
    moved = Counter({("ALL_REDUCE", "data", 32): 1})
    assert reduced(parts) == (moved if scaled else Counter())
    assert parts.undeferred == (() if scaled else ("w",))


def test_what_was_drawn_is_kept_for_the_backward_pass() -> None:
    def function(p: Any, x: Any) -> Any:
        key = jax.random.wrap_key_data(jnp.zeros(4, jnp.uint32), impl="unsafe_rbg")
        return jnp.where(jax.random.bernoulli(key, 0.9, x.shape), product(x, p["w"]), 0)

    parts = split(stage_of(function, {"w": (W, P(None, None))}))
    assert parts.backward is not None
    assert "hlo.rng-bit-generator" in parts.forward.program.opcodes
    assert "hlo.rng-bit-generator" not in parts.backward.program.opcodes
    kept = parts.backward.program
    assert "bool" in {
        kept.row(r).dtype for k, r in parts.backward.inputs.items() if k in saved(parts.backward)
    }
