"""Replay of measured workloads: spans, other hardware, changes of parts, attribution, options."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flint.backends.cost.collectives import duration_ns
from flint.backends.cost.collectives.algorithm import CollectiveCall
from flint.backends.cost.estimate import Estimate
from flint.backends.cost.network.torus import Span
from flint.cluster.devices import cluster_of_device, preset_of_device
from flint.cluster.models import Cluster
from flint.errors import FlintError
from flint.ir.op_class import Collective, OpClass
from flint.ir.workload import Workload
from flint.tracing import Trace
from tests.estimates import zoo
from tests.measured_programs import Recorded, one_rank, two_ranks, workload


def replayed(found: Workload, cluster: str | None = None, **options: object) -> Estimate:
    return Trace(found).estimate(cluster, **options)  # type: ignore[arg-type]


def starts(e: Estimate, number: int = 0) -> list[tuple[str, float]]:
    track = e.timeline.classes[number]
    p = track.work.program
    return [
        (p.opcodes[p.opcode[r]], s)
        for r, s in zip(track.work.nodes.row.tolist(), track.start_ns.tolist(), strict=True)
        if p.op[r] != OpClass.HOST
    ]


def test_measured_starts_come_again() -> None:
    e = replayed(one_rank())
    assert e.step_time_ns == 116_500
    assert (e.profile, e.policy.name, e.cluster.name) == ("recorded", "recorded", "h100-dgx")
    assert starts(e) == [
        ("aten.mm", 1_000), ("aten.mm", 3_000), ("aten.mm", 6_000), ("kernel", 6_500),
        ("nccl.all_reduce", 6_500), ("aten.mm", 106_500),
    ]  # fmt: skip
    assert set(e.timeline.streams) == {"compute", "host", "stream 9", "stream 20"}


def test_ranks_meet_in_a_collective() -> None:
    e = replayed(two_ranks())
    assert e.measured is not None
    early, late = (c.attribution for c in e.measured.classes)
    assert e.step_time_ns == 111_000
    assert (early.waiting_ns, late.waiting_ns) == (30_000, 0)
    assert (early.wire_ns, early.compute_ns, early.launch_ns, early.unknown_ns) == (
        50_000, 30_000, 1_000, 0,
    )  # fmt: skip
    assert [c.error for c in e.measured.classes] == [0, 0]


def test_a_rank_alone_waits_for_what_the_model_does_not_say() -> None:
    r = Recorded()
    r.launch(1_000)
    r.all_reduce(1_000_000, stream="compute")
    r.launch(1_000)
    r.mm(5_000)
    e = replayed(workload(r.build(), spans=(1_006_000.0,)))
    assert e.measured is not None
    found = e.measured.classes[0].attribution
    model = replayed(workload(r.build()), timing="model").step_time_ns - 1_000
    assert found.wire_ns < 100_000 < found.waiting_ns
    assert found.wire_ns + found.waiting_ns == 1_000_000
    assert abs(model - found.wire_ns) < 20_000  # the same price, beside the product's
    assert found.launch_ns == 1_000


@st.composite
def programs(draw: st.DrawFn) -> Workload:
    ranks = draw(st.integers(1, 2))
    built = []
    collectives = draw(st.integers(0, 3))
    for _ in range(ranks):
        r = Recorded()
        for _ in range(collectives):
            for _ in range(draw(st.integers(0, 4))):
                r.launch(draw(st.integers(0, 20_000)))
                ns = draw(st.integers(1, 50_000))
                draw(st.sampled_from((r.mm, r.helper, r.unknown)))(
                    ns, stream=draw(st.sampled_from(("compute", "stream 7")))
                )
            r.launch(draw(st.integers(0, 20_000)))
            r.all_reduce(draw(st.integers(1, 90_000)), deps=(len(r.builder) - 2,))
        r.launch(1)
        r.mm(10)
        built.append(r.build())
    return workload(*built)


@given(programs(), st.sampled_from(("h100-dgx", "b200-dgx")))
def test_every_nanosecond_belongs_to_something(found: Workload, cluster: str) -> None:
    e = replayed(found, cluster)
    assert e.measured is not None
    for facts, track in zip(e.measured.classes, e.timeline.classes, strict=True):
        a = facts.attribution
        parts = (a.compute_ns, a.wire_ns, a.waiting_ns, a.launch_ns, a.unknown_ns)
        assert min(parts) >= 0
        assert sum(parts) == pytest.approx(track.total_ns, abs=1e-3)
        assert a.unknown_ns == 0
    for c in e.classes:
        shown = sum(s.exposed_ns for s in c.shares)
        assert shown == pytest.approx(c.end_ns, abs=0.1)


def test_another_chip_scales_what_the_models_price() -> None:
    """A copy of the H100 of half its speed: products take twice as long, the host does not."""
    h100 = Cluster.load("h100-dgx")
    slow = h100.model_copy(update={"derate": h100.derate.model_copy(update={"value": 0.5})})
    chip = slow.chip.model_copy(update={"name": "slow"})
    chip = chip.model_copy(
        update={"memory_bytes": chip.memory_bytes.model_copy(update={"value": 1e9})}
    )
    e = Trace(one_rank()).estimate(slow.model_copy(update={"chip": chip}))
    work = e.timeline.classes[0].work
    measured = work.program.measured_ns
    kinds = [work.program.opcodes[o] for o in work.program.opcode.tolist()]
    ratio = dict(zip(kinds, np.round(work.duration_ns / measured, 6).tolist(), strict=True))
    assert ratio == {
        "host.launch": 1,
        "aten.mm": 2,
        "kernel": 1,
        "nccl.all_reduce": 1,
        "host.wait": 1,
    }
    assert e.measured is not None
    assert [(r.basis, r.count) for r in e.measured.rests] == [("measured", 2), ("scaled", 4)]


def test_a_calibrated_file_of_the_same_chip_scales_nothing() -> None:
    h100 = Cluster.load("h100-dgx")
    tier = h100.network[0]
    constants = {k: q.model_copy(update={"value": q.value / 2}) for k, q in tier.constants.items()}
    mine = h100.model_copy(
        update={
            "name": "mine",
            "network": (tier.model_copy(update={"constants": constants}), *h100.network[1:]),
        }
    )
    assert Trace(one_rank()).estimate(mine).step_time_ns == 116_500


#: The model's time of an all-reduce of 16 MiB between two ranks.
WIRE = duration_ns(
    CollectiveCall(Collective.ALL_REDUCE, 1 << 24, (Span(0, 2),)), Cluster.load("h100-dgx")
)


@pytest.mark.parametrize(
    ("options", "step_ns"),
    [
        ({"scale": ["gemm=2x"]}, 111_500),  # the last product takes 5 us
        ({"scale": ["nvlink=2"]}, 116_500 - WIRE / 2),
        ({"scale": ["network=0.5x"]}, 116_500 + WIRE),
        ({"scale": ["ib=2x"]}, 116_500),
        ({"scale": ["attention=2x"]}, 116_500),
        ({"scale": ["compute=2", "host=2x"]}, 108_250),
        ({"replace": ["host=none"]}, 110_000),
        ({"replace": ["gemm=h100"]}, 116_500),
    ],
)
def test_parts_are_changed(options: dict[str, list[str]], step_ns: float) -> None:
    """Of the all-reduce, whose other rank was not recorded, the rest of its 100 us is waiting."""
    assert replayed(one_rank(), **options).step_time_ns == pytest.approx(step_ns, abs=0.01)


def test_bandwidth_and_latency_are_parts_of_a_collective() -> None:
    """What both leave is the whole: halving both halves it."""
    bandwidth = replayed(one_rank(), scale=["network:bandwidth=2x"]).step_time_ns
    latency = replayed(one_rank(), scale=["network:latency=0.5x"]).step_time_ns
    assert 66_500 < bandwidth < latency < 116_500
    assert (116_500 - bandwidth) + (116_500 - latency) == pytest.approx(WIRE / 2, abs=0.01)


def test_changes_of_a_captured_program() -> None:
    trace = zoo("llama_fsdp_tp")
    plain, faster = trace.estimate("h100-dgx"), trace.estimate("h100-dgx", scale=["gemm=2x"])
    replaced = trace.estimate("h100-dgx", replace=["compute=b200", "network=b200"])
    b200 = trace.estimate("b200-dgx")
    assert faster.step_time_ns < plain.step_time_ns
    assert replaced.step_time_ns == pytest.approx(b200.step_time_ns, rel=1e-6)
    assert "changed: gemm=2x" in "\n".join(faster.notes)
    with pytest.raises(FlintError, match="does not say how often"):
        trace.estimate("h100-dgx", scale=["host=2x"])


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"scale": ["gem=2x"]}, "FL830"),
        ({"scale": ["gemm"]}, "FL830"),
        ({"scale": ["gemm=0"]}, "FL830"),
        ({"scale": ["gemm:bandwidth=2"]}, "FL830"),
        ({"replace": ["host=h100"]}, "FL830"),
        ({"replace": ["gemm=h1000"]}, "FL702"),
        ({"profile": "eager"}, "FL832"),
        ({"policy": "fsdp"}, "FL832"),
        ({"timing": "compiler"}, "FL832"),
        ({"timing": "modl"}, "FL703"),
    ],
)
def test_what_cannot_be(options: dict[str, object], code: str) -> None:
    with pytest.raises(FlintError) as caught:
        replayed(one_rank(), **options)
    assert caught.value.code == code


def test_unknown_devices_need_a_cluster() -> None:
    r = Recorded()
    r.launch(10)
    r.mm(100)
    found = workload(r.build(), device="NVIDIA H900")
    with pytest.raises(FlintError, match="H900") as caught:
        replayed(found)
    assert caught.value.code == "FL831"
    assert replayed(found, "b200-dgx").step_time_ns == 110  # what it was is what is named
    with pytest.raises(FlintError) as caught:
        zoo("llama_fsdp_tp").estimate("h100-dgx", timing="measured")
    assert caught.value.code == "FL832"


@pytest.mark.parametrize(
    ("device", "preset"),
    [
        ("NVIDIA H100 80GB HBM3", "h100-dgx"),
        ("NVIDIA B200", "b200-dgx"),
        ("NVIDIA A100-SXM4-80GB", "a100-80-dgx"),
        ("NVIDIA A100-SXM4-40GB", "a100-40-dgx"),
        ("NVIDIA H200", "h200-dgx"),
        ("NVIDIA L40S", "l40s"),
        ("TPU v5 lite", "v5e"),
        ("TPU v6 lite", "v6e"),
        ("TPU v5p", "v5p"),
        ("NVIDIA H100 PCIe", None),
        ("", None),
    ],
)
def test_devices_by_name(device: str, preset: str | None) -> None:
    found = cluster_of_device(device)
    assert preset_of_device(device) == preset == (found.name if found else None)


def test_models_price_what_they_know() -> None:
    """Helpers of a priced product take no time, unknown kernels what was measured."""
    e = replayed(one_rank(), timing="model")
    work = e.timeline.classes[0].work
    by_name = dict(
        zip(
            [work.program.strings[n] for n in work.program.name.tolist()],
            work.duration_ns.tolist(),
            strict=True,
        )
    )
    assert (by_name["splitk"], by_name["mystery"]) == (0, 3_000)
    assert by_name["gemm_kernel"] not in (0, 10_000)


def test_memory_is_what_was_recorded() -> None:
    e = replayed(one_rank())
    assert e.classes[0].memory.peak_bytes == 3 << 30
    assert "3.00 GiB held by the framework's allocator, as recorded" in e.to_text()
    assert "memory     rank 0: not recorded" in replayed(two_ranks()).to_text()
    document = e.to_json()["classes"][0]["memory"]
    assert document["recorded"] is True
    assert not document["curve"]
    assert not document["over_time"]


def test_the_host_is_no_kernel() -> None:
    found = one_rank()
    shown = Trace(found).summary().classes[0]
    assert (shown.ops, shown.executions) == (6, 6)
    e = replayed(found)
    kinds = {s.kind: (s.count, s.busy_ns, s.exposed_ns) for s in e.classes[0].shares}
    assert kinds["host"] == (5, 7_200, 3_500)
    assert kinds["gemm"][0] == 4  # with what the first product launched beside its kernel
    assert kinds["other"] == (1, 3_000, 0)
    assert e.classes[0].compute_ns == 52_500
