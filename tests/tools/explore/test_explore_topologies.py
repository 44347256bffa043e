"""Topologies as changes of a cluster: what is faster on which, and the files of simulators for them."""

import json

import pytest

import flint
from flint.io.processes import Patience
from flint.ir.mesh import AxisRef, Group, Mesh
from flint.ir.program import Collective, Kind
from flint.ir.workload import Workload
from flint.tools.explore.evaluation.evaluate import Evaluator
from flint.tools.explore.evaluation.simulated import simulate_best, simulated_table, write_point
from flint.tools.explore.machine.cluster_changes import machine_of
from flint.tools.explore.point import Point
from flint.tools.explore.result import Result, Status
from flint.tools.explore.subject import Subject
from flint.tools.simulators.astra_sim import AstraSim
from flint.tools.simulators.process import Limits
from tests.program_rows import ProgramBuilder
from tests.stand_in_simulator import make_binary

#: Nodes of 4, racks of 16, a spine.
FABRIC = """
name = "fabric"
title = "fabric"
base = "h100-dgx"
[[network]]
name = "nvlink"
size = 4
[[network]]
name = "rail"
replaces = "ib"
kind = "switch"
size = 16
bandwidth_bytes_per_s = { value = 50e9, kind = "assumed", source = "x" }
latency_ns = { value = 2500, kind = "assumed", source = "x" }
[[network]]
name = "spine"
kind = "switch"
size = 64
bandwidth_bytes_per_s = { value = 50e9, kind = "assumed", source = "x" }
latency_ns = { value = 2500, kind = "assumed", source = "x" }
"""


#: Nothing inside of the spine: it connects nodes of one chip with 16 members.
INNERMOST = (("nvlink.size", "2"), ("rail.size", "4"))


def _workload(collective, mesh):
    b = ProgramBuilder(Mesh.parse(mesh))
    last = b.add("param", Kind.PARAMETER, dtype="f32", shape=(1 << 26,), result_bytes=1 << 28)
    b.add(
        collective.name.lower(),
        Kind.COLLECTIVE,
        deps=[last],
        collective=collective,
        group=Group(tuple(AxisRef(name) for name in Mesh.parse(mesh).names)),
        comm_bytes=1 << 28,
    )
    return Workload.single(b.build())


@pytest.fixture
def fabric(tmp_path):
    (tmp_path / "fabric.toml").write_text(FABRIC, encoding="utf-8")
    return str(tmp_path / "fabric.toml")


@pytest.fixture
def step_ms(fabric):
    """Milliseconds of a collective of 256 MiB over 64 devices with changes of the fabric."""

    def step(collective, *changes):
        point = Point("data=64", fabric, changes=tuple(sorted(changes)))
        trace = flint.Trace(_workload(collective, "data=64"))
        return trace.estimate(machine_of(point)).step_time_ns / 1e6

    return step


@pytest.mark.parametrize("collective", [Collective.ALL_REDUCE, Collective.ALL_TO_ALL])
def test_thinner_tiers_take_longer_and_full_rails_take_less_than_thin_ones(step_ms, collective):
    full, rails, thin = (
        step_ms(collective, ("rail.oversubscription", rail), ("spine.oversubscription", spine))
        for rail, spine in (("1", "1"), ("1", "8"), ("8", "8"))
    )
    assert full < rails < thin * 1.001
    times = [step_ms(collective, ("spine.oversubscription", str(s))) for s in (1, 2, 4, 8, 16)]
    assert times == sorted(times)
    assert 1.8 < times[-1] / times[-2] < 2  # by then the spine is all that counts


def test_of_equal_chips_a_switch_beats_a_torus_beats_a_ring_where_all_talk_to_all(step_ms):
    def spine(kind):
        return step_ms(Collective.ALL_TO_ALL, *INNERMOST, ("spine.kind", kind))

    switch = spine("switch")
    full = spine("fully-connected")
    square, line = (spine(f"torus:{shape}") for shape in ("4x4", "16"))
    assert switch == pytest.approx(full, rel=0.01)
    assert 1.5 * full < square < line / 1.5
    assert line == pytest.approx(spine("ring"), rel=1e-6)


def test_a_ring_reduces_as_fast_as_a_switch_with_the_same_bandwidth(step_ms):
    """A ring of reductions uses all its links: no topology is better by its assumptions."""
    times = [
        step_ms(Collective.ALL_REDUCE, *INNERMOST, ("spine.kind", kind))
        for kind in ("switch", "ring", "torus:4x4")
    ]
    assert max(times) < 1.1 * min(times)


def test_groups_of_groups_as_in_a_dragonfly(step_ms):
    """Groups connected each to each, with thin links between the groups."""

    def dragonfly(over):
        groups = (("rail.kind", "fully-connected"), ("spine.kind", "fully-connected"))
        return step_ms(Collective.ALL_TO_ALL, *groups, ("spine.oversubscription", over))

    flat = step_ms(Collective.ALL_TO_ALL)
    rings = step_ms(Collective.ALL_TO_ALL, ("spine.kind", "ring"), ("rail.kind", "ring"))
    assert dragonfly("1") == pytest.approx(flat, rel=0.01)
    assert 3 < dragonfly("4") / dragonfly("1") < 4 < dragonfly("16") / dragonfly("1")
    assert dragonfly("1") < rings


def test_a_point_is_written_with_its_own_network(tmp_path, fabric):
    changes = (("spine.bandwidth", "25GB/s"), ("spine.latency", "8us"))
    point = Point(
        "data=16,model=4", fabric, changes=changes, estimate=(("mapping", "model=spine"),)
    )
    workload = _workload(Collective.ALL_REDUCE, point.mesh)
    write_point(flint.Trace(workload), Subject("model.py"), point, tmp_path / "point")
    assert _row(tmp_path / "point", "bandwidth")[0] == pytest.approx(25e9 / 2**30, rel=1e-5)
    assert _row(tmp_path / "point", "latency")[0] == 4000  # one hop in, one hop out
    assert "spine.bandwidth=25GB/s" in (tmp_path / "point/network.yml").read_text()

    ring = (("spine.kind", "torus"), ("spine.torus_shape", "4"))
    point = Point("data=4,model=16", fabric, changes=ring)
    workload = _workload(Collective.ALL_REDUCE, point.mesh)
    write_point(flint.Trace(workload), Subject("model.py"), point, tmp_path / "ring")
    assert "Ring ]" in (tmp_path / "ring/network.yml").read_text()
    assert _row(tmp_path / "ring", "npus_count") == [16, 4]


def _row(folder, key):
    (line,) = (t for t in (folder / "network.yml").read_text().splitlines() if t.startswith(key))
    return json.loads(line.partition(":")[2])


MODEL = """
import jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P
import flint

@flint.entry(axes=("data", "model"))
def step(mesh, *, width: int = 1024):
    def array(shape, *spec):
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, P(*spec)))

    def loss(w, x):
        return jnp.sum(x @ w @ w.T)

    return flint.Step(jax.grad(loss), (array((width, width), None, "model"), array((512, width), "data")))
"""


def test_points_are_estimated_on_their_own_machines(tmp_path, fabric):
    (tmp_path / "model.py").write_text(MODEL)
    slow = (("rail.bandwidth", "10GB/s"),)
    points = [Point("data=2,model=4", fabric, changes=c) for c in ((), slow)]
    points.append(Point("data=2,model=4", fabric, changes=(("rail.bandwith", "10GB/s"),)))
    evaluator = Evaluator(Subject(str(tmp_path / "model.py")))
    plain, changed, wrong = evaluator.evaluate(points)
    estimate = evaluator.trace(points[1]).estimate(machine_of(points[1]))
    evaluator.close()
    assert changed.step_time_ns == estimate.step_time_ns > plain.step_time_ns
    assert (plain.price_per_hour, plain.power_w) == (0, 700)
    assert (wrong.status, wrong.code) == (Status.REFUSED, "FL868")


def test_the_best_points_are_simulated_on_their_own_machines(tmp_path, monkeypatch):
    (tmp_path / "model.py").write_text(MODEL)
    subject = Subject(str(tmp_path / "model.py"))
    slow = (("nvlink.bandwidth", "10GB/s"),)
    points = [Point("data=2,model=4", "h100-dgx", changes=c) for c in ((), slow)]
    large = Point("data=64,model=32", "h100-dgx")
    ranked = [Result(p, Status.FITS, 8, step_time_ns=1e4) for p in points]
    ranked = [ranked[0], Result(large, Status.TOO_LARGE, 2048), ranked[1]]
    ranked.append(Result(large, Status.FITS, 2048, step_time_ns=1e4))

    found = list(simulate_best(subject, ranked, 3, tmp_path / "traces"))
    assert [f.result for f in found] == [ranked[0], ranked[2], ranked[3]]
    assert found[0].rules_ns and found[1].rules_ns > 2 * found[0].rules_ns
    assert found[1].ratio == found[1].rules_ns / 1e4
    assert "2,048 ranks are more than the limit of 1,024" in found[2].reason
    assert not found[2].folder.exists()
    rows = simulated_table(found).splitlines()[1:]
    assert [r.split()[:2] for r in rows] == [
        [str(n), f.result.point.mesh] for n, f in enumerate(found, 1)
    ]
    assert f"{found[1].ratio:.2f}" in rows[1] and "2,048 ranks are more" in rows[2]
    networks = [(f.folder / "network.yml").read_text() for f in found[:2]]
    assert "nvlink.bandwidth=10GB/s" in networks[1] and networks[0] != networks[1]

    monkeypatch.setenv("STAND_IN_PIDS", str(tmp_path / "pids"))
    binary = make_binary(tmp_path / "simulator", "fine")
    simulator = AstraSim(binary, Limits(Patience(60, 60), 1 << 30))
    (run,) = simulate_best(subject, ranked, 1, tmp_path / "again", simulator=simulator)
    assert run.simulator_ns == 1003 and not run.rules_ns and not run.reason
