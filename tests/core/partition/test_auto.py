"""The partitioner that nobody has to name, and what XLA's program says of places."""

from __future__ import annotations

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
from flint.errors import FlintError
from flint.ir.mesh import AxisRef, Mesh
from flint.ir.program import Collective
from flint.passes.hlo.module import decode_module, message_class
from flint.passes.hlo.places import KnownPlaces, kept_part
from flint.passes.hlo.tidy import tidy
from flint.passes.partition import auto
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


def test_gradients_are_scattered_whoever_partitions() -> None:
    shardys, xlas = (
        traffic(flint.trace(fsdp, MESH, *FSDP, partitioner=by).rewritten("xla-gpu"))
        for by in ("shardy", "xla")
    )
    assert shardys == xlas and ("REDUCE_SCATTER", "data", 64 * 128 * 2) in xlas


def test_where_both_agree_the_program_is_shardys() -> None:
    found = flint.trace(fsdp, MESH, *FSDP)
    assert found.workload.metadata["partitioner"] == "shardy" and not found.warnings


def rolled(x):
    """Shardy's rules gather both terms of the sum, XLA's partitioner what they add up to."""
    h = jnp.tanh(x)
    h = h + jnp.roll(h, 3, axis=1)
    return jax.lax.with_sharding_constraint(h, NamedSharding(MESH, P("data"))) * 2


def test_where_they_differ_it_is_xlas_and_a_warning_says_by_what() -> None:
    x = sds((64, 64), ("data", "model"))
    found, xlas, shardys = (
        flint.trace(rolled, MESH, x, partitioner=by) for by in ("auto", "xla", "shardy")
    )
    assert traffic(xlas) != traffic(shardys)
    assert found.workload.metadata["partitioner"] == "xla" and traffic(found) == traffic(xlas)
    (told,) = [w for w in found.warnings if "XLA's own partitioner" in w]
    assert "by Shardy's rules" in told and "--partitioner shardy" in told


def my_custom_call_of(x):
    return rolled(x)


def test_names_of_functions_are_no_calls_of_kernels() -> None:
    x = sds((64, 64), ("data", "model"))
    found, calls = (
        flint.trace(step, MESH, x)
        for step in (my_custom_call_of, lambda x: rolled(x) + jnp.linalg.cholesky(x.astype("f")))
    )
    assert found.workload.metadata["partitioner"] == "xla"
    assert calls.workload.metadata["partitioner"] == "shardy"


def test_what_xla_refuses_shardy_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(captured, seconds):
        raise FlintError("FL402", "no")

    monkeypatch.setattr(auto, "partitioned_by_xla", refuse)
    assert flint.trace(fsdp, MESH, *FSDP).workload.metadata["partitioner"] == "shardy"


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
