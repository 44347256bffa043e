"""A changed cluster is what a file on top of it would say, and what follows from a change follows."""

import time
from pathlib import Path

import pytest

from flint.cluster.models import Cluster
from flint.errors import FlintError
from flint.tools.explore.machine.cluster_changes import changed
from flint.tools.explore.machine.text import cluster_text
from flint.tools.explore.point import Point
from flint.tools.explore.study.fingerprint import Fingerprints
from tests.estimates import zoo

H100 = Cluster.load("h100-dgx")


def _file(tmp_path, text):
    path = tmp_path / "ours.toml"
    path.write_text(f'name = "ours"\ntitle = "ours"\nbase = "h100-dgx"\n{text}', encoding="utf-8")
    return Cluster.load(path)


def _numbers(cluster):
    """All that prices may depend on: values and kinds, with sources of what was not changed."""
    found = cluster.model_dump()
    for key in ("name", "title", "base", "notes", "aliases", "price_per_hour"):
        del found[key]
    del found["chip"]["name"]
    return _without_own(found)


def _without_own(value):
    if isinstance(value, dict) and set(value) == {"value", "kind", "source"}:
        ours = value["source"] == "x" or value["source"].startswith("explore: ")
        return {**value, "source": ""} if ours else value
    if isinstance(value, dict):
        return {k: _without_own(v) for k, v in value.items()}
    return [_without_own(v) for v in value] if isinstance(value, (list, tuple)) else value


def _q(value):
    return f'{{ value = {value}, kind = "assumed", source = "x" }}'


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            [("ib.bandwidth", "800Gb/s")],
            f'[[network]]\nname = "ib"\nbandwidth_bytes_per_s = {_q(100e9)}',
        ),
        (
            [("network.ib.bandwidth_bytes_per_s", "1e11"), ("ib.oversubscription", "2")],
            f'[[network]]\nname = "ib"\noversubscription = 2.0\nbandwidth_bytes_per_s = {_q(1e11)}',
        ),
        (
            [("nvlink.kind", "ring"), ("nvlink.size", "16")],
            '[[network]]\nname = "nvlink"\nkind = "ring"\nsize = 16',
        ),
        (
            [("ib.constants.efficiency", "0.5")],
            f'[[network]]\nname = "ib"\n[network.constants]\nefficiency = {_q(0.5)}',
        ),
        ([("chip.memory", "96GiB")], f"[chip]\nmemory_bytes = {_q(96 * 2**30)}"),
        (
            [("chip.memory_bandwidth", "4.8TB/s")],
            f"[chip]\nmemory_bandwidth_bytes_per_s = {_q(4.8e12)}",
        ),
        (
            [("chip.gpu.constants.gemm.efficiency", "0.7")],
            f'[chip.gpu.constants]\n"gemm.efficiency" = {_q(0.7)}',
        ),
        ([("chip.peak.f64", "1PFLOP/s")], f"[chip.peak_flops_per_s]\nf64 = {_q(1e15)}"),
        (
            [("derate", "0.9"), ("host_launch", "6us")],
            f"derate = {_q(0.9)}\nhost_launch_ns = {_q(6000.0)}",
        ),
    ],
)
def test_it_is_what_a_file_on_top_of_it_says(tmp_path, changes, text):
    found = changed(H100, tuple(sorted(changes)))
    assert _numbers(found) == _numbers(_file(tmp_path, text))
    assert found.checked() is found
    assert _numbers(found) != _numbers(H100)


def test_what_changed_says_so_and_the_rest_is_the_same_object():
    found = changed(H100, (("ib.bandwidth", "2x"),))
    ib = found.network[1]
    assert (found.name, found.base) == ("h100-dgx (ib.bandwidth=2x)", "h100-dgx")
    assert ib.bandwidth_bytes_per_s.value == 2 * H100.network[1].bandwidth_bytes_per_s.value
    assert ib.bandwidth_bytes_per_s.kind == "assumed"
    assert ib.bandwidth_bytes_per_s.source == "explore: ib.bandwidth=2x"
    assert ib.constants["efficiency"].value == H100.network[1].constants["efficiency"].value
    assert ib.constants["efficiency"].source.startswith("as ib of h100-dgx: ")
    assert found.chip is H100.chip
    assert found.network[0] is H100.network[0]
    assert changed(H100, ()) is H100


def test_steps_take_the_difference_of_the_latency():
    before = H100.network[1].constants["a1_ns"].value
    found = changed(H100, (("ib.latency", "12.5us"),)).network[1]
    assert found.constants["a1_ns"].value == before + 10_000
    assert "12500 ns instead of 2500" in found.constants["a1_ns"].source
    nvlink = changed(H100, (("nvlink.latency", "500ns"),)).network[0]
    step = H100.network[0].constants["a1_ns"].value  # less than the latency of 1 us
    assert nvlink.constants["a1_ns"].value == step / 2
    own = changed(H100, (("ib.constants.a1_ns", "1us"), ("ib.latency", "9us"))).network[1]
    assert own.constants["a1_ns"].value == 1000


def test_peaks_go_with_units_and_clock_and_work_of_a_unit_against_its_peak():
    twice = changed(H100, (("chip.gpu.clock", "2x"),)).chip
    assert twice.peak_flops_per_s["bf16"].value == 2 * H100.chip.peak_flops_per_s["bf16"].value
    before = H100.chip.gpu.constants["gemm.step_ns"].value
    assert twice.gpu.constants["gemm.step_ns"].value == before / 2
    assert (
        twice.gpu.constants["gemm.launch_ns"].value
        == H100.chip.gpu.constants["gemm.launch_ns"].value
    )
    wider = changed(H100, (("chip.gpu.sms", "2x"),)).chip
    assert wider.peak_flops_per_s["f32"].value == 2 * H100.chip.peak_flops_per_s["f32"].value
    assert wider.gpu.constants["gemm.step_ns"].value == before
    given = changed(H100, (("chip.gpu.sms", "2x"), ("chip.peak.bf16", "1PFLOP/s"))).chip
    assert given.peak_flops_per_s["bf16"].value == 1e15
    assert given.peak_flops_per_s["f32"] == H100.chip.peak_flops_per_s["f32"]


def test_a_chip_that_is_another_one_was_never_measured():
    trace = zoo("llama_fsdp_tp")
    spreads = [
        {
            s.part: s.trust
            for s in trace.estimate(c, stack="composer", profile="torch").interval.parts
        }
        for c in (H100, changed(H100, (("chip.memory_bandwidth", "4TB/s"),)))
    ]
    assert (spreads[0]["step"], spreads[1]["step"]) == ("own", "borrowed")
    assert spreads[1]["products"] == "borrowed"
    assert changed(H100, (("chip.memory", "96GiB"),)).chip.name == H100.chip.name


def test_a_torus_keeps_what_a_chip_sends_and_its_shape_says_its_size():
    as_torus = (("ib.kind", "torus"), ("ib.torus_shape", "4x4x8"))
    found = changed(H100, as_torus).network[1]
    assert (found.size, found.torus_dimensions, found.links) == (8 * 128, 3, 6)
    assert found.bandwidth_bytes_per_s.value == H100.network[1].bandwidth_bytes_per_s.value / 6
    assert changed(H100, (("ib.kind", "torus:4x4x8"),)).network[1].torus_shape == (4, 4, 8)
    given = changed(H100, (("ib.bandwidth", "50GB/s"), *as_torus)).network[1]
    assert given.bandwidth_bytes_per_s.value == 50e9
    v5p = Cluster.load("v5p")
    flat = changed(v5p, (("ici.kind", "switch"),)).network[0]
    assert flat.bandwidth_bytes_per_s.value == 6 * v5p.network[0].bandwidth_bytes_per_s.value
    assert (flat.size, flat.torus_shape) == (8960, ())


def test_a_chip_or_a_network_of_another_cluster():
    b200 = Cluster.load("b200-dgx")
    found = changed(H100, (("chip", "b200-dgx"), ("ib.bandwidth", "100GB/s")))
    assert found.chip == b200.chip
    assert found.network[0] == H100.network[0]
    rack = changed(H100, (("network", "gb200-nvl72"), ("nvlink.size", "36")))
    assert rack.network[0].size == 36
    assert rack.chip is H100.chip
    assert {q.kind for q in rack.network[0].constants.values()} == {"assumed"}


def test_a_price_is_of_the_machine_that_it_was_asked_for(tmp_path):
    priced = _file(tmp_path, f"price_per_hour = {_q(2.5)}".replace("assumed", "datasheet"))
    more = changed(priced, (("chip.memory", "2x"),))
    assert (more.price_per_hour.value, more.price_per_hour.kind) == (2.5, "assumed")
    assert changed(priced, (("derate", "0.9"),)).price_per_hour == priced.price_per_hour
    assert changed(priced, (("chip", "b200-dgx"),)).price_per_hour is None
    said = changed(priced, (("chip", "b200-dgx"), ("price_per_hour", "4")))
    assert said.price_per_hour.value == 4


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ([("ib.bandwith", "1GB/s")], "did you mean 'ib.bandwidth'?"),
        ([("ib.bandwidth", "100")], "a number without its unit"),
        ([("ib.bandwidth", "100us")], "should be a number of bytes_per_s"),
        ([("ib.bandwidth", "0GB/s")], "should be greater than 0"),
        ([("ib.bandwidth", "1e40GB/s")], "should be 0 or between"),
        ([("host_launch", "2x")], "has no value there to multiply"),
        ([("ib.kind", "toruss")], "did you mean 'torus'?"),
        ([("ib.kind", "torus")], "a torus needs a shape"),
        ([("ib.kind", "ring:4x4")], "should be one of"),
        ([("ib.kind", "torus:4x4"), ("ib.torus_shape", "8x2")], "give two shapes"),
        ([("ib.torus_shape", "4x4")], "is a switch, which has no shape"),
        ([("ib.size", "12")], "which is not a multiple of the 8 chips inside it"),
        ([("nvlink.size", "0")], "is not the outermost network"),
        ([("derate", "1.5")], "should be greater than 0 and at most 1"),
        ([("chip.gpu.sms", "131.5")], "whole number"),
        ([("chip.gpu.constants.gemm.efficiency", "0.99")], "at most 0.95"),
        ([("chip.systolic.rows", "128")], "has nothing to change at"),
        ([("ib.bandwidth", "1GB/s"), ("network.ib.bandwidth", "2GB/s")], "change the same number"),
    ],
)
def test_what_cannot_be_is_one_error(changes, said):
    with pytest.raises(FlintError, match="FL868") as error:
        changed(H100, tuple(changes))
    assert said in str(error.value)


def test_a_cluster_that_is_not_there_is_the_error_of_clusters():
    with pytest.raises(FlintError, match="FL702"):
        changed(H100, (("network", "gb200-nvl73"),))


def test_thousands_take_seconds():
    began = time.process_time()
    for n in range(500):
        changed(H100, (("chip.peak.bf16", f"{n + 1}TFLOP/s"), ("ib.latency", f"{n + 1}ns")))
    assert time.process_time() - began < 2.0  # 0.3 s here


@pytest.mark.parametrize(
    ("base", "changes", "is_whole"),
    [
        ("h100-dgx", [("ib.bandwidth", "2x"), ("ib.latency", "1us")], False),
        ("h100-dgx", [("chip.memory_bandwidth", "4TB/s"), ("chip.memory", "96GiB")], False),
        ("h100-dgx", [("chip.gpu.clock", "1.1x")], True),
        ("h100-dgx", [("ib.kind", "torus"), ("ib.torus_shape", "4x4")], False),
        ("v5p", [("ici.kind", "switch")], True),
        ("h100-dgx", [("chip", "b200-dgx"), ("price_per_hour", "5")], True),
        ("l40s", [("network", "h200-dgx"), ("derate", "0.9")], True),
    ],
)
def test_a_point_s_machine_is_a_file_that_can_be_used(tmp_path, base, changes, is_whole):
    path = tmp_path / "found.toml"
    path.write_text(cluster_text(base, tuple(changes), "found"), encoding="utf-8")
    read, found = Cluster.load(path), changed(Cluster.load(base), tuple(changes))
    assert _only_values(read) == _only_values(found)
    assert read.price_per_hour == found.price_per_hour
    assert (read.base == "") is is_whole
    assert len(path.read_text().splitlines()) < 60 or is_whole


def test_a_machine_s_file_finds_its_base_from_where_it_lies(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("out").mkdir()
    Path("own.toml").write_text('name = "o"\ntitle = "o"\nbase = "h100-dgx"\n', encoding="utf-8")
    Path("out/own.toml").write_text('name = "other"\ntitle = "o"\nbase = "v5p"\n', encoding="utf-8")
    change = (("ib.bandwidth", "7GB/s"),)
    path = Path("out/found.toml")
    path.write_text(cluster_text("own.toml", change, "found", path.parent), encoding="utf-8")
    read = Cluster.load(path)
    assert read.base == "../own.toml"
    assert _only_values(read) == _only_values(changed(Cluster.load(Path("own.toml")), change))


def _only_values(cluster):
    def plain(value):
        if isinstance(value, dict):
            return value["value"] if "value" in value else {k: plain(v) for k, v in value.items()}
        return [plain(v) for v in value] if isinstance(value, (list, tuple)) else value

    found = cluster.model_dump()
    for key in ("name", "title", "base", "notes", "aliases", "price_per_hour"):
        del found[key]
    return plain(found)


def test_a_network_of_a_file_counts_with_what_it_stands_on(tmp_path):
    base, own = tmp_path / "base.toml", tmp_path / "own.toml"

    def write(path, below):
        text = f'name = "n"\ntitle = "t"\nbase = "{below}"\nderate = {_q(0.9)}\n'
        path.write_text(text, encoding="utf-8")

    write(base, "h100-dgx")
    write(own, "base.toml")
    point = Point("data=8", "h100-dgx", changes=(("network", str(own)), ("ib.size", "64")))
    before = Fingerprints().of(point)
    assert Fingerprints().of(point) == before
    write(base, "h200-dgx")
    assert Fingerprints().of(point) != before
