"""The partitioner that nobody has to name, and what XLA's program says of places."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("jax")
import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import flint
from flint.ir.mesh import AxisRef, Mesh
from flint.ir.op_class import OpClass
from flint.ir.program import Collective, Flag, Kind, Phase
from flint.passes.hlo import tidy as tidy_module
from flint.passes.hlo.causes import is_written
from flint.passes.hlo.module import decode_module, message_class
from flint.passes.hlo.places import KnownPlaces, kept_part
from flint.passes.hlo.program_order import restore
from flint.passes.hlo.tidy import tidy
from flint.passes.partition import xla
from flint.passes.partition.xla_child import parse_text
from tests.auto_mesh import auto_mesh

MESH = auto_mesh((4, 2), ("data", "model"))


def sds(shape, *spec):
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(MESH, P(*spec)))


def loss(w, v, x):
    return (jnp.tanh(x @ w) @ v).astype(jnp.float32).sum()


def fsdp(w, v, x):
    return jax.tree.map(lambda p, g: p - g, (w, v), jax.grad(loss, (0, 1))(w, v, x))


FSDP = (sds((64, 128), "data"), sds((128, 64), None, "data"), sds((32, 64), ("data", "model")))


def traffic(trace):
    kinds, groups = trace.program.collective, trace.program.groups
    return sorted(
        (
            Collective(kinds[r]).name,
            str(groups[trace.program.group[r]]),
            int(trace.program.comm_bytes[r]),
        )
        for r in np.flatnonzero(trace.program.group >= 0)
        if kinds[r]
    )


def test_gradients_are_scattered() -> None:
    found = traffic(flint.trace(fsdp, MESH, *FSDP).rewritten("xla-gpu"))
    assert ("REDUCE_SCATTER", "data", 64 * 128 * 2) in found


def rolled(x):
    h = jnp.tanh(x)
    h = h + jnp.roll(h, 3, axis=1)
    return jax.lax.with_sharding_constraint(h, NamedSharding(MESH, P("data"))) * 2


def test_more_devices_than_their_lists_take_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xla, "MOST_DEVICES", 7)
    with pytest.raises(flint.FlintError, match="has more than 7") as caught:
        flint.trace(fsdp, MESH, *FSDP)
    assert caught.value.code == "FL258"


def test_calls_keep_the_functions_that_they_compare_by() -> None:
    program = flint.trace(lambda x: jax.lax.approx_max_k(x, 2), MESH, sds((16, 32), "data")).program
    assert (program.op == OpClass.SORT).any() and not (program.kind > Kind.COMPUTE).any()


def test_collectives_say_what_they_are_for() -> None:
    program = flint.trace(fsdp, MESH, *FSDP).program
    rows = [program.row(int(r)) for r in np.flatnonzero(program.kind == Kind.COLLECTIVE)]
    assert all(r.flags & Flag.PARTITIONED for r in rows)
    said = {(r.collective.name, r.cause) for r in rows}
    assert ("ALL_GATHER", "dimension 0 whole for dot bfloat16[4,128]") in said
    assert ("REDUCE_SCATTER", "each device has a part of the sum: dot bfloat16[64,128]") in said


def test_what_the_program_writes_itself_has_no_cause() -> None:
    by_hand = jax.shard_map(
        lambda x, w: jax.lax.psum(x @ w, "data"),
        mesh=MESH, in_specs=(P(None, "data"), P("data")), out_specs=P(), axis_names={"data"},
    )  # fmt: skip
    x, w, v = sds((16, 64), None, "data"), sds((64, 32), "data"), sds((32, 8), "model")
    program = flint.trace(lambda x, w, v: by_hand(x, w) @ v, MESH, x, w, v).program
    rows = [program.row(int(r)) for r in np.flatnonzero(program.kind == Kind.COLLECTIVE)]
    assert [(str(r.group), bool(r.cause)) for r in rows] == [("data", False), ("model", True)]


@pytest.mark.parametrize(
    "name", ["pbroadcast", "psum_invariant_start", "all_gather_reduced", "psum"]
)
def test_collectives_of_jax_are_known_by_name(name: str) -> None:
    assert is_written(f"jit(f)/shard_map/{name}[axis]") and not is_written(f"jit(f)/{name}/dot")


def test_rows_are_in_the_order_of_the_program() -> None:
    """XLA lists what only results need behind all else: here the gradients of weights."""

    def deep(ws, x):
        for number, w in enumerate(ws):
            with jax.named_scope(f"layer{number}"):
                x = jnp.tanh(x @ w)
        return x.astype(jnp.float32).sum()

    args = [sds((64, 64), "data")] * 3, sds((32, 64), "data")
    program = flint.trace(jax.grad(deep), MESH, *args).program
    rows = map(program.row, np.flatnonzero(program.op == OpClass.MATMUL).tolist())
    found = [(r.phase, r.scope) for r in rows]
    forward = [(Phase.FORWARD, f"layer{n}") for n in range(3)]
    backward = [(Phase.BACKWARD, f"layer{n}") for n in (2, 2, 1, 1, 0)]
    assert found == forward + backward
    assert not any("~#" in text for text in program.strings)


# places ---------------------------------------------------------------------------------------------


def instruction(opcode, number, operands=(), shape=(), values=()):
    made = message_class("Instruction")(opcode=opcode, id=number, operand_ids=list(operands))
    made.shape.element_type = 4
    made.shape.dimensions[:] = shape
    made.literal.s32s[:] = values
    return made


@given(
    st.sampled_from([(8,), (4, 2), (2, 3, 4), (6, 4)]),
    st.data(),
    st.integers(1, 5),
)
def test_the_axes_of_a_slice_are_those_its_offsets_follow(sizes, data, part) -> None:
    mesh = Mesh(tuple("abc"[: len(sizes)]), sizes)
    names = data.draw(st.lists(st.sampled_from(mesh.names), unique=True, min_size=1))
    axes = mesh.canonical(map(AxisRef, names))
    groups = mesh.groups(axes)
    index = np.empty(mesh.size, dtype=np.int64)
    index[groups] = np.arange(groups.shape[1])
    swapped = data.draw(st.booleans()) and groups.shape[1] > 1
    table = (groups.shape[1] - 1 - index if swapped else index) * part
    places = KnownPlaces(mesh.size)
    whole = instruction("parameter", 1, shape=(7, part * groups.shape[1]))
    for i in (
        instruction("partition-id", 2),
        instruction("constant", 3, shape=(mesh.size,), values=table.tolist()),
        instruction("dynamic-slice", 4, (3, 2), shape=(1,)),
        instruction("reshape", 5, (4,)),
        instruction("constant", 6, values=[0]),
    ):
        assert places.see(i)
    assert not places.see(instruction("add", 7, (5, 99)))
    found = kept_part(instruction("dynamic-slice", 8, (1, 6, 5), (7, part)), whole, places, mesh)
    assert (found and found.axes) == (None if swapped else axes)


# what is alike ---------------------------------------------------------------------------------------

LARGEST = """{name} {{ a = f32[] parameter(0)
 b = f32[] parameter(1)
 c = pred[] compare(a, b), direction={direction}
 ROOT v = f32[] select(c, a, b) }}
"""
ALIKE = f"""HloModule m
{LARGEST.format(name="first", direction="GT")}{LARGEST.format(name="again", direction="GT")}
{LARGEST.format(name="least", direction="LT")}ENTRY e {{ x = f32[8,8] parameter(0)
 z = f32[] constant(0)
 y = f32[] constant(0)
 o = f32[] constant(1)
 low = f32[4,8] slice(x), slice={{[0:4], [0:8]}}
 high = f32[4,8] slice(x), slice={{[4:8], [0:8]}}
 twin = f32[4,8] slice(x), slice={{[4:8], [0:8]}}
 before = f32[9,8] pad(x, z), padding=1_0x0_0
 after = f32[9,8] pad(x, y), padding=0_1x0_0
 most = f32[8] reduce(x, z), dimensions={{1}}, to_apply=first
 same = f32[8] reduce(x, y), dimensions={{1}}, to_apply=again
 fewest = f32[8] reduce(x, z), dimensions={{1}}, to_apply=least
 copied = f32[8,8] copy(x)
 ROOT all = (f32[], f32[4,8], f32[4,8], f32[4,8], f32[9,8], f32[9,8], f32[8], f32[8], f32[8], f32[8,8])
  tuple(o, low, high, twin, before, after, most, same, fewest, copied) }}
"""


def test_what_merges_does_the_same() -> None:
    module = decode_module(parse_text(ALIKE.encode()))
    tidy(module)
    names = {i.id: i.name for i in module.entry.instructions}
    reads = " ".join(names[o] for o in module.root(module.entry).operand_ids)
    assert reads == "o low high high before after most most fewest x"


def test_products_of_two_algorithms_are_two() -> None:
    def both(a, b):
        presets = jax.lax.DotAlgorithmPreset
        kinds = presets.BF16_BF16_F32, presets.F32_F32_F32
        first, second = (jax.lax.dot(a, b, precision=kind) for kind in kinds)
        return first - second

    program = flint.trace(both, "1", *[jax.ShapeDtypeStruct((64, 64), jnp.float32)] * 2).program
    rows = map(program.row, np.flatnonzero(program.op == OpClass.MATMUL).tolist())
    assert [r.product for r in rows] == ["bf16:1", "f32:highest"]


def test_what_many_are_alike_in_is_said_once_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[int]()
    says = tidy_module._says
    monkeypatch.setattr(tidy_module, "_says", lambda i, m: asked.append(i.id) or says(i, m))
    many = "\n".join(f"c{n} = s32[] constant({n})" for n in range(40))
    tidy(
        decode_module(
            parse_text(f"HloModule m\nENTRY e {{ {many}\nROOT x = s32[] constant(40) }}".encode())
        )
    )
    assert len(asked) < 3 * 40


def test_what_two_operations_share_is_made_for_the_first() -> None:
    """XLA names it after the later one, for which the earlier does not wait."""
    text = b"""HloModule m
    ENTRY e {
      p = f32[8] parameter(0)
      shared = f32[8] negate(p), metadata={op_name="late~#9"}
      between = f32[8] exponential(p), metadata={op_name="between~#5"}
      early = f32[8] add(p, shared), metadata={op_name="early~#2"}
      late = f32[8] multiply(between, shared), metadata={op_name="late~#9"}
      ROOT t = (f32[8], f32[8]) tuple(early, late)
    }"""
    module = decode_module(parse_text(text))
    restore(module)
    names = [i.name for i in module.proto.computations[0].instructions]
    assert names == ["p", "shared", "early", "between", "late", "t"]


def test_a_loop_gets_the_fills_that_it_reads_from_before_it() -> None:
    """As for GPUs; XLA's compiler for CPUs, which partitions, would make them in each turn."""

    def step(x, y):
        fill = jnp.full((32, 64), -1e9, jnp.bfloat16)
        return jax.lax.scan(lambda c, _: (jnp.where(c > 0, c @ y, fill), None), x, length=3)[0]

    program = flint.trace(step, MESH, sds((32, 64), "data"), sds((64, 64))).program
    (loop,) = program.regions
    fills = np.flatnonzero((program.op == OpClass.BROADCAST) & (program.region == -1))
    given = [row for row, made in loop.carries if row == made]
    assert set(fills) & {d for row in given for d in program.dependencies(row)}
    assert not loop.barrier


def test_programs_of_pytorch_keep_phases_scopes_and_lines() -> None:
    """XLA cuts names at the sign that theirs have."""
    torch = pytest.importorskip("torch")

    class Model(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)

        def forward(self, x: Any) -> Any:
            return self.down(torch.relu(self.up(x)))

    arguments = (torch.randn(8, 8),)
    step = flint.TorchStep(Model(), arguments, loss=lambda y: y.sum(), optimizer="adamw")
    p = flint.trace(step, {"d": 2}).program
    found = {(r.scope, r.phase) for r in map(p.row, np.flatnonzero(p.flops).tolist())}
    for scope in ("up", "down"):
        assert {(scope, Phase.FORWARD), (scope, Phase.BACKWARD)} <= found
    assert {phase for _, phase in found} == {Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER}
