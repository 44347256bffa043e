"""A stage's joint function in parts: work, communication and what is kept, against the whole."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

pytest.importorskip("jax")
from flint.passes.pipeline.parts import Part, Partial, PartitionedBody, Saved, StageParts
from flint.passes.pipeline.split import split
from flint.program import Collective, Kind, Program, RegionKind
from flint.staged import Port, Role
from tests.pipeline_bodies import Model, partitioned

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


def each(parts: StageParts) -> list[Part]:
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


def saved(part: Part) -> dict[Saved, int]:
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
def test_no_work_is_lost_or_added(model: Model) -> None:
    parts = parts_of(model)
    assert sum(flops(p.program) for p in each(parts)) == flops(body_of(model).program)


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_activations_are_communicated_as_before(model: Model) -> None:
    parts = parts_of(model)
    programs = [p.program for p in each(parts)]
    whole = communication(body_of(model).program, axis="model")
    assert communication(*programs, axis="model") == whole


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
