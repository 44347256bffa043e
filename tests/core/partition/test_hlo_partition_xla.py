"""The xla partitioner in its child process, and the dumps that XLA writes before and after it."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jax", reason="programs to partition are traced with JAX")

from flint.errors import FlintError
from flint.frontends.files.hlo import is_partitioned, load_hlo, read_hlo
from flint.ir.mesh import AxisRef, Group, Mesh
from flint.ir.program import Collective, Flag, Kind, Phase, Program, RegionKind
from flint.passes.partition import xla_child
from flint.passes.partition.worker import the_worker, why_it_died
from flint.passes.partition.xla import partition_xla, run_xla
from flint.steps.captured import Captured
from tests.auto_mesh import auto_mesh

MESH = Mesh.parse("data=2,model=4")
LAYERS = 3
DATA, MODEL = Group(axes=(AxisRef("data"),)), Group(axes=(AxisRef("model"),))


def lower() -> Any:
    """Gradient of a two-matrix block scanned over layers, data and tensor parallel."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    mesh = auto_mesh(MESH.sizes, MESH.names)

    def block(x: Any, w: Any) -> tuple[Any, None]:
        with jax.named_scope("mlp"):
            return jnp.tanh(x @ w["up"]) @ w["down"], None

    def step(w: Any, x: Any) -> Any:
        return jax.value_and_grad(lambda w: jax.lax.scan(block, x, w)[0].sum())(w)

    def array(shape: tuple[int, ...], *spec: Any) -> Any:
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, P(*spec)))

    weights = {
        "up": array((LAYERS, 32, 64), None, None, "model"),
        "down": array((LAYERS, 64, 32), None, "model", None),
    }
    traced = jax.jit(step, donate_argnums=0).trace(weights, array((16, 32), "data", None))
    return traced.lower(lowering_platforms=("cpu",))


@pytest.fixture(scope="module")
def captured() -> Captured:
    module = lower().compiler_ir("stablehlo")
    out = io.BytesIO()
    module.operation.write_bytecode(out)
    return Captured(out.getvalue(), MESH, "step", "test")


COMPILE = """
import sys, numpy as np
from jaxlib import xla_client as xc
options = xc.CompileOptions()
options.num_partitions = 8
options.executable_build_options.use_spmd_partitioning = True
options.executable_build_options.use_shardy_partitioner = True
options.device_assignment = xc.DeviceAssignment.create(np.zeros((1, 8), dtype=np.int64))
client = xc.make_cpu_client()
client.compile_and_load(
    sys.stdin.buffer.read(), xc.DeviceList(tuple(client.devices()[:1])), options)
"""


@pytest.fixture(scope="module")
def optimised(captured: Captured, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """XLA's dumps after all of its CPU passes, as text and protobuf.

    The process fails afterwards, for want of eight devices: what it wrote by then is what counts.
    """
    dumps = {}
    for kind in ("text", "proto"):
        folder = tmp_path_factory.mktemp(kind)
        flags = f"--xla_dump_to={folder} --xla_dump_hlo_as_{kind}"
        subprocess.run(
            [sys.executable, "-c", COMPILE],
            input=captured.module,
            capture_output=True,
            env={**os.environ, "XLA_FLAGS": flags},
            check=False,
        )
        pattern = "*after_optimizations.txt" if kind == "text" else "*after_optimizations.hlo.pb"
        (path,) = Path(folder).glob(pattern)
        dumps[kind] = path.read_bytes()
    return dumps


def collectives(p: Program) -> list[tuple[Collective, Group | None, int, int]]:
    """(kind, group, times per step, bytes of all of them) of collectives, sorted."""
    totals: dict[tuple[Collective, Group | None], tuple[int, int]] = {}
    for i in range(len(p)):
        row = p.row(i)
        if row.kind == Kind.COLLECTIVE:
            times, size = totals.get((row.collective, row.group), (0, 0))
            trips = int(p.trips[i])
            totals[row.collective, row.group] = (times + trips, size + trips * row.comm_bytes)
    return sorted(((k, g, n, b) for (k, g), (n, b) in totals.items()), key=str)


def test_a_scanned_block_is_partitioned(captured: Captured) -> None:
    p = partition_xla(captured)
    p.verify()
    layer, weight = 8 * 32 * 4, 32 * 16 * 4  # bytes of x's shard, and of a weight's
    assert collectives(p) == [
        # gradients of two weights in each layer, and the loss
        (Collective.ALL_REDUCE, DATA, 2 * LAYERS + 1, 2 * LAYERS * weight + 4),
        # one after each second matrix, forward and backward
        (Collective.ALL_REDUCE, MODEL, 2 * LAYERS, 2 * LAYERS * layer),
    ]
    dots = [p.row(i) for i in range(len(p)) if p.row(i).opcode == "hlo.dot"]
    assert {d.flops for d in dots} == {2 * 8 * 32 * 16}
    assert {d.scope for d in dots} == {"mlp"}
    assert {d.phase for d in dots} == {Phase.FORWARD, Phase.BACKWARD}
    assert [(r.kind, r.trip_count) for r in p.regions] == [(RegionKind.LOOP, LAYERS)] * 2
    names = [p.row(i).name for i in range(len(p)) if p.row(i).kind == Kind.PARAMETER]
    assert names == ["w['down']", "w['up']", "x"]
    donated = [p.row(i).name for i in range(len(p)) if p.row(i).flags & Flag.DONATED]
    assert donated == names[:2]
    assert not (p.flags & Flag.UNPRICED).any()


@pytest.mark.parametrize("kind", ["text", "proto"])
def test_optimised_dumps_do_the_same_work(
    captured: Captured, optimised: dict[str, bytes], kind: str
) -> None:
    before = partition_xla(captured)
    after = read_hlo(optimised[kind], MESH, name="dump")
    assert isinstance(after, Program)
    after.verify()
    assert [r.trip_count for r in after.regions] == [LAYERS] * 2
    assert any(after.row(i).opcode == "hlo.fusion" for i in range(len(after)))
    assert {(k, g) for k, g, _, _ in collectives(after)} == {
        (k, g) for k, g, _, _ in collectives(before)
    }
    sizes = [sum(size for _, _, _, size in collectives(p)) for p in (before, after)]
    assert sizes[0] == sizes[1]
    flops = [int((p.flops * p.trips).sum()) for p in (before, after)]
    assert flops[1] == pytest.approx(flops[0], rel=0.05)  # XLA simplifies a little


def test_text_and_protobuf_of_one_compilation_agree(optimised: dict[str, bytes]) -> None:
    one, two = (read_hlo(optimised[kind], MESH) for kind in ("text", "proto"))
    assert isinstance(one, Program) and isinstance(two, Program)
    assert collectives(one) == collectives(two)
    assert sorted(one.flops.tolist()) == sorted(two.flops.tolist())
    assert sorted(one.operand_bytes.tolist()) == sorted(two.operand_bytes.tolist())


def test_a_dump_from_before_partitioning_is_captured(captured: Captured) -> None:
    data = lower().compiler_ir("hlo").as_serialized_hlo_module_proto()
    assert not is_partitioned(load_hlo(data))
    again = read_hlo(data, None, name="before.pb")
    assert isinstance(again, Captured)
    assert again.mesh == MESH
    assert collectives(partition_xla(again)) == collectives(partition_xla(captured))


def lower_shard_map(*, constrain: bool) -> bytes:
    """A shard_map with a psum, and after it a constraint; as HLO from before partitioning."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    mesh = auto_mesh(MESH.sizes, MESH.names)

    def body(x: Any) -> Any:
        return jax.lax.psum(x @ x.T, "model")

    def step(x: Any) -> Any:
        y = jax.shard_map(body, mesh=mesh, in_specs=P("data", "model"), out_specs=P("data"))(x)
        if constrain:
            y = jax.lax.with_sharding_constraint(jnp.exp(y), NamedSharding(mesh, P(None, "model")))
        return y

    x = jax.ShapeDtypeStruct((16, 32), jnp.float32, sharding=NamedSharding(mesh, P("data")))
    module = jax.jit(step).trace(x).lower(lowering_platforms=("cpu",)).compiler_ir("hlo")
    return bytes(module.as_serialized_hlo_module_proto())


@pytest.mark.parametrize("constrain", [False, True])
def test_shard_map_and_constraints_survive_hlo(constrain: bool) -> None:
    made = read_hlo(lower_shard_map(constrain=constrain), None)
    assert isinstance(made, Captured)
    p = partition_xla(made)
    p.verify()
    found = collectives(p)
    assert (Collective.ALL_REDUCE, MODEL, 1, 8 * 8 * 4) in found
    assert (len(found) > 1) == constrain
    assert sum(p.flops) >= 2 * 8 * 8 * 8


def test_shardings_of_gspmd_stay_for_xla() -> None:
    text = b"""HloModule m, num_partitions=8
    ENTRY e { x = f32[16,32] parameter(0), sharding={devices=[2,1,4]<=[8] last_tile_dim_replicate}
    w = f32[32,64] parameter(1), sharding={devices=[1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate}
    p = f32[16,64] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
    ROOT y = f32[16,64] custom-call(p), custom_call_target="Sharding", sharding={devices=[2,1,4]<=[8] last_tile_dim_replicate}
    }"""
    made = read_hlo(text, MESH)
    assert isinstance(made, Captured) and made.is_gspmd
    program = partition_xla(made)
    assert int(program.flops.sum()) == 2 * 8 * 32 * 64  # 8 of 16 rows, all columns
    # the result is not sharded by columns, so that XLA gathers the weight over model
    assert collectives(program) == [(Collective.ALL_GATHER, MODEL, 1, 32 * 16 * 4)]


def test_shardings_that_nothing_reads_are_refused() -> None:
    text = b"""HloModule m, num_partitions=8
    ENTRY e { x = f32[8,8] parameter(0)
    ROOT y = f32[8,8] custom-call(x), custom_call_target="Sharding",
      frontend_attributes={xla.sdy.sharding="#sdy.sharding_per_value<[<@mesh, [{\"a\"}, {}]>]>"}, sharding={devices=[8,1]<=[8]}
    z = f32[8,8] custom-call(y), custom_call_target="xla.sdy.FuncResultSharding"
    }"""
    with pytest.raises(FlintError) as error:
        read_hlo(text, MESH)
    assert error.value.code in ("FL303", "FL305")


def test_output_is_the_same_each_time(captured: Captured) -> None:
    one, two = partition_xla(captured), partition_xla(captured)
    assert [one.row(i) for i in range(len(one))] == [two.row(i) for i in range(len(two))]


def test_an_abort_of_the_compiler_is_an_error() -> None:
    with pytest.raises(FlintError, match=r"XLA died in 'abort' \(SIGABRT\)") as error:
        run_xla("abort", {}, b"")
    assert error.value.code == "FL401"
    assert error.value.help and "report" in error.value.help


def test_a_compiler_that_does_not_end_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("FLINT_CHILD_SECONDS", "0.1")
    the_worker().request("sleep", b"", {"length": 0}, seconds=60)  # it has started
    with pytest.raises(FlintError, match="did not finish in 0.1 seconds in 'sleep") as error:
        run_xla("sleep", {"length": 30}, b"")
    assert error.value.code == "FL401"
    assert not list(tmp_path.iterdir())


def test_folders_with_spaces_and_without_room(
    captured: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "my files"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    assert len(partition_xla(captured))
    assert [path.name for path in tmp_path.iterdir()] == ["my files"]
    monkeypatch.setattr(xla_child, "compile_for_cpus", lambda *_, **__: None)
    monkeypatch.setattr(xla_child, "simplified_by_xla", lambda module, **_: module)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XLA_FLAGS", "")
    with pytest.raises(FlintError, match="could not write the partitioned module") as error:
        xla_child.run_spmd(b"", 8, str(folder))
    assert "free space" in (error.value.help or "")
    assert "is probably full" in why_it_died(-6, "dump.cc:266] Could not write XLA debug data")


def test_flags_for_other_programs_do_not_matter(
    captured: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = collectives(partition_xla(captured))
    monkeypatch.setenv("XLA_FLAGS", "--xla_no_such_flag=1")
    assert collectives(partition_xla(captured)) == expected


def test_a_module_that_xla_refuses_is_an_error() -> None:
    with pytest.raises(FlintError, match="XLA does not partition this program") as error:
        partition_xla(Captured(b"no module", MESH, "x", "x"))
    assert error.value.code == "FL402"


@pytest.mark.parametrize(("write", "additions"), [("add", 0), ("max", 1), ("read twice", 1)])
def test_the_gradient_of_a_tied_table_is_written_into_that_of_the_product(
    write: str, additions: int
) -> None:
    """XLA adds a product to a scatter into zeros by starting from the product: two sums over devices.

    Found by compiling (`python -m benchmarks.compilers --only "gpt2 data"`).
    """
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    import flint

    def step(x: Any, dy: Any, places: Any) -> Any:
        written = jnp.zeros((64, 32)).at[places]
        scattered = (written.max if write == "max" else written.add)(dy)
        total = x.T @ dy + scattered
        return total * scattered if write == "read twice" else total

    mesh = auto_mesh((8,), ("data",))
    shapes = (((16, 64), "float32"), ((16, 32), "float32"), ((16,), "int32"))
    of = NamedSharding(mesh, P("data"))
    given = (jax.ShapeDtypeStruct(shape, t, sharding=of) for shape, t in shapes)
    program = flint.trace(step, Mesh.parse("data=8"), *given).program
    rows = [program.row(number) for number in range(len(program))]
    reduced = [row.comm_bytes for row in rows if row.collective == Collective.ALL_REDUCE]
    assert reduced == [64 * 32 * 4] * 2, (
        "compilers keep both where the one is written into the other"
    )
    assert sum(row.opcode == "hlo.add" and row.shape == (64, 32) for row in rows) == additions
