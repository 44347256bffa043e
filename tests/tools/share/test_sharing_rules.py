"""Strict rules: captured programs keep them all, and programs with one thing wrong do not."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import flint
from benchmarks.sharing.program_mutants import CHANGES, mutants
from flint.ir.mesh import AxisRef, Mesh, Route
from flint.ir.program import Kind, Program
from flint.ir.rank_class import RankClass
from flint.ir.workload import Workload
from flint.tools.share.rules import ALL_RULES, broken_rules, is_valid
from tests.auto_mesh import auto_mesh
from tests.program_rows import ProgramBuilder

ROOT = Path(__file__).resolve().parents[3]
RECORDED = sorted((ROOT / "benchmarks" / "compare_models").glob("*.flint"))


@cache
def captured() -> Workload:
    """A small step with layers in a loop, sharded over two axes."""
    mesh = auto_mesh((4, 2), ("data", "model"))

    def shaped(shape, *spec, dtype=jnp.bfloat16):
        sharding = NamedSharding(mesh, PartitionSpec(*spec))
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    def layer(x, weights):
        up, down, scale = weights
        x = x * scale / jnp.sqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True))
        hidden = jax.nn.softmax(x @ up, axis=-1)
        return x + hidden @ down, None

    def loss(weights, tokens, table):
        x, _ = jax.lax.scan(layer, table[tokens], weights)
        return jnp.sum(jnp.concatenate([x, -x], axis=1).astype(jnp.float32))

    def step(weights, tokens, table):
        value, gradients = jax.value_and_grad(loss)(weights, tokens, table)
        return value, jax.tree.map(lambda w, g: w - 0.1 * g.astype(w.dtype), weights, gradients)

    weights = (
        shaped((6, 64, 128), None, "data", "model"),
        shaped((6, 128, 64), None, "model", "data"),
        shaped((6, 64), None, None),
    )
    tokens = shaped((8, 32), "data", dtype=jnp.int32)
    table = shaped((512, 64), "model")
    return flint.trace(flint.Step(step, (weights, tokens, table)), mesh="data=4,model=2").workload


@pytest.mark.parametrize("name", ["captured", *(p.stem for p in RECORDED)])
def test_captured_programs_keep_every_rule(name):
    # rules are those of real programs: of JAX with collectives in loops, and as PyTorch runs them
    paths = {p.stem: p for p in RECORDED}
    workload = captured() if name == "captured" else Workload.load(paths[name])
    assert list(map(str, broken_rules(workload))) == []
    assert is_valid(workload)


def _on_axis():
    return NamedSharding(auto_mesh((8,), ("x",)), PartitionSpec(None, "x"))


def _halves(x):
    a, b = jnp.split(x, 2, axis=-1)  # every device reads the whole shard of another one
    return a * b


def _first(x):
    # one element over eight devices: a gather of it is as large as what each device has
    one = jax.lax.with_sharding_constraint(jnp.tanh(x[:, :1]), _on_axis())
    return jnp.pad(one, ((0, 0), (0, 63)))


def _cut(x):
    # the gradient of a shift pads at one end and cuts at the other
    return jax.grad(lambda y: jnp.sum(jnp.tanh(jnp.pad(y, ((1, 0), (0, 0)))[:-1])))(x)


def _real(x):
    spectrum = jnp.fft.fft(x, axis=0)
    return jnp.fft.ifft(spectrum @ spectrum.T @ spectrum, axis=0).real


def _turned(x):
    return jnp.roll(x, 3, axis=1)  # slices of a part of the shards are as long as one, rounded up


def _turned_whole(x):
    # each device has one element, and sends it
    return jnp.roll(jax.lax.with_sharding_constraint(x[:, ::8], _on_axis()), 2, axis=1)


def _by_algorithm(x):
    return jax.lax.dot(x.astype(jnp.bfloat16), x.T.astype(jnp.bfloat16),
                       precision=jax.lax.DotAlgorithmPreset.BF16_BF16_F32,
                       preferred_element_type=jnp.float32)  # fmt: skip


def _bits(x):
    # a generator of random bits sees its key as half as many numbers of 64 bits
    key = jax.lax.bitcast_convert_type(x[0, :4], jnp.uint32)
    return x + jax.lax.rng_bit_generator(key, x.shape, jnp.uint32)[1].astype(jnp.float32)


@pytest.mark.parametrize(
    ("function", "needed"),
    [
        (_halves, "implied.collective_permute"),
        (_first, "stablehlo.pad"),
        (_cut, "stablehlo.pad"),
        (_real, "stablehlo.real"),
        (_bits, "stablehlo.bitcast_convert"),
        (_turned, "stablehlo.concatenate"),
        (_turned_whole, "stablehlo.concatenate"),
        (_by_algorithm, "stablehlo.dot_general"),
    ],
)
def test_rows_that_few_models_have_keep_every_rule(function, needed):
    # values beside what other devices send of them, padding that cuts, parts of complex numbers
    x = jax.ShapeDtypeStruct((16, 64), jnp.float32, sharding=_on_axis())
    workload = flint.trace(flint.Step(function, (x,)), mesh="x=8", partitioner="shardy").workload
    assert needed in workload.programs[0].opcodes
    assert list(map(str, broken_rules(workload))) == []


def test_rules_are_about_rows():
    # no rule holds because it is about nothing: a small training step has rows for most of them
    from flint.tools.share.rules.view import ProgramView

    view = ProgramView(captured().programs[0])
    silent = {rule.name for rule in ALL_RULES if not rule.tell(view).about.any()}
    assert len(silent) < len(ALL_RULES) / 3, silent
    assert len({rule.name for rule in ALL_RULES}) == len(ALL_RULES)


def test_mutants_are_found():
    # of programs with one thing wrong, nine tenths break a rule, and of each kind more than half
    program = captured().programs[0]
    made = mutants(program, 200, seed=7)
    assert len(made) == 200
    killed = Counter(m.kind for m in made if not is_valid(Workload.single(m.program)))
    every = Counter(m.kind for m in made)
    assert set(every) == set(CHANGES)
    assert sum(killed.values()) >= 180
    assert [kind for kind in every if killed[kind] < every[kind] / 2] == []


def test_a_broken_row_is_named_with_the_rule():
    # the message says which row, its type, and what rows of its class keep
    program = captured().programs[0]
    row = int(np.flatnonzero(program.flops > 0)[0])
    flops = program.flops.copy()
    flops[row] += 1
    found = broken_rules(Workload.single(program.with_rows(flops=flops)))
    assert [(b.row, b.program) for b in found] == [(row, 0)]
    assert f"row {row} (" in str(found[0])
    assert "FLOPs" in found[0].message


def _stages(sent: int, received: int | None) -> Workload:
    mesh = Mesh.parse("pipe=2")
    route = Route((AxisRef("pipe"),), 1, wrap=False)
    first, last = ProgramBuilder(mesh), ProgramBuilder(mesh)
    x = first.add("parameter", Kind.PARAMETER, dtype="f32", shape=(sent,), result_bytes=4 * sent)
    first.add("send", Kind.SEND, deps=[x], route=route, channel=3, comm_bytes=4 * sent)
    if received is not None:
        size = 4 * received
        last.add(
            "recv", Kind.RECV, route=route, channel=3, comm_bytes=size, dtype="f32",
            shape=(received,), result_bytes=size,
        )  # fmt: skip
    classes = tuple(RankClass(f"stage{i}", i, {"pipe": (i,)}) for i in range(2))
    programs: tuple[Program, ...] = (first.build(), last.build())
    return Workload(mesh, programs, classes)


@pytest.mark.parametrize(
    ("received", "wrong"), [(8, ""), (16, "differ"), (None, "sent and never received")]
)
def test_messages_match_between_programs(received, wrong):
    # what one program sends another one receives: as many bytes, along the same route
    found = broken_rules(_stages(8, received))
    assert bool(found) == bool(wrong)
    assert all(wrong in str(b) and b.rule == "messages" for b in found)
