"""ASTRA-sim's network.yml and system.json, written from clusters and read as clusters."""

import json

import pytest

from flint.backends.chakra.reading.trace_files import read_network
from flint.backends.chakra.writing.simulator_files import (
    network_file,
    placeholder_hardware,
    simulator_files,
    system_file,
)
from flint.backends.cost.astrasim.files import simulated_hardware
from flint.backends.cost.network.placement import NetworkPlacement
from flint.cluster.astrasim.files import GB, read_astrasim
from flint.cluster.models import Cluster, NetworkKind, SourceKind
from flint.errors import FlintError
from flint.ir.mesh import AxisRef, Mesh

NETWORK = """\
# three kinds
topology: [ Ring, FullyConnected, Switch ]  # inner first
npus_count: [ 2, 8, 4 ]
bandwidth: [ 200.0, 10, 50 ]  # GB/s

latency: [ 50, 500.0, 2000 ]
"""
SYSTEM = {"peak-perf": 900, "local-mem-bw": 3350.0, "roofline-enabled": 1}


def _placed(mesh, cluster="h100-dgx", mapping=None):
    return NetworkPlacement(Mesh.parse(mesh), Cluster.load(cluster), mapping)


def _dimensions(placement):
    return [
        (d.axis, d.topology, d.size, d.bandwidth_gb_per_s, d.latency_ns)
        for d in simulated_hardware(placement).dimensions
    ]


@pytest.fixture
def files(tmp_path):
    (tmp_path / "network.yml").write_text(NETWORK)
    (tmp_path / "system.json").write_text(json.dumps(SYSTEM))
    return tmp_path


def _read(folder):
    return read_astrasim(folder / "network.yml", folder / "system.json")


def test_every_axis_is_a_dimension_the_last_one_first():
    gb = 1e9 / GB
    assert _dimensions(_placed("data=64,model=8")) == [
        ("model", "Switch", 8, pytest.approx(450 * gb, rel=1e-5), 500.0),
        ("data", "Switch", 64, pytest.approx(50 * gb, rel=1e-5), 1250.0),
    ]


def test_a_network_of_one_device_has_a_dimension(tmp_path):
    text = network_file(simulated_hardware(_placed("data=1,model=1")))
    (tmp_path / "network.yml").write_text(text)
    assert read_network(tmp_path / "network.yml") == (1,)


def test_an_axis_in_two_tiers_has_the_numbers_of_the_outer_one():
    gb = 1e9 / GB
    assert [d[2:4] for d in _dimensions(_placed("data=64,model=4"))] == [
        (4, pytest.approx(450 * gb, rel=1e-5)),
        (64, pytest.approx(50 * gb, rel=1e-5)),
    ]


def _written(placed):
    """network.yml and system.json of a mesh on a cluster."""
    hardware = simulated_hardware(placed)
    return {
        "network.yml": network_file(hardware).encode(),
        "system.json": system_file(hardware).encode(),
    }


def test_an_axis_on_two_dimensions_of_a_torus_has_the_links_of_both():
    gb = 1e9 / GB
    assert _dimensions(_placed("data=64,pipe=1,model=8", "v5p")) == [
        ("model", "Ring", 8, pytest.approx(100 * gb, rel=1e-5), 1000.0),
        ("data", "Ring", 64, pytest.approx(200 * gb, rel=1e-5), 1000.0),
    ]


def test_the_files_are_what_astrasim_reads(tmp_path):
    files = _written(_placed("data=64,model=8"))
    assert sorted(files) == ["network.yml", "system.json"]
    (tmp_path / "network.yml").write_bytes(files["network.yml"])
    assert read_network(tmp_path / "network.yml") == (8, 64)
    assert "are from cluster h100-dgx" in files["network.yml"].decode()
    system = json.loads(files["system.json"])
    assert (system["peak-perf"], system["local-mem-bw"]) == (989.4, 3350.0)
    assert system["all-reduce-implementation"] == ["ring", "ring"]


def test_the_peak_is_of_an_element_type_and_derated():
    placed = _placed("8")
    assert simulated_hardware(placed, "f8E4M3FN").peak_tflops == 1978.9
    slow = placed.cluster.derate.model_copy(update={"value": 0.5})
    derated = NetworkPlacement(placed.mesh, placed.cluster.model_copy(update={"derate": slow}))
    assert simulated_hardware(derated).peak_tflops == 494.7
    with pytest.raises(FlintError, match="no peak for f4") as caught:
        simulated_hardware(placed, "f4")
    assert caught.value.code == "FL705"


def test_files_beside_traces_say_whose_numbers_they_hold():
    mesh = Mesh.parse("4x8")
    generic = simulator_files(mesh, "p")
    assert generic == simulator_files(mesh, "p", placeholder_hardware(mesh))
    assert b"placeholders" in generic["README.txt"]
    of_cluster = simulator_files(mesh, "p", simulated_hardware(_placed("4x8")))
    assert of_cluster["network.yml"] == _written(_placed("4x8"))["network.yml"]
    said = of_cluster["README.txt"].split()
    assert b"h100-dgx" in said[said.index(b"local-mem-bw") :][:10]


def test_a_cluster_is_read_with_a_tier_for_each_dimension(files):
    cluster = _read(files)
    ring, mesh, switch = cluster.network
    assert [n.kind for n in cluster.network] == [
        NetworkKind.RING,
        NetworkKind.MESH,
        NetworkKind.SWITCH,
    ]
    assert ([n.size for n in cluster.network], cluster.members) == ([2, 16, 64], (2, 8, 4))
    assert ring.bandwidth_bytes_per_s.value == 2 * 200 * GB  # of both its links
    assert mesh.bandwidth_bytes_per_s.value == 7 * 10 * GB
    assert switch.bandwidth_bytes_per_s.value == 50 * GB
    assert [n.latency_ns.value for n in cluster.network] == [50, 500, 4000]  # a switch is two hops
    assert ring.latency_ns.kind is SourceKind.ASSUMED
    assert ring.latency_ns.source == "network.yml"
    assert cluster.chip.peak_flops_per_s["bf16"].value == 900e12
    assert cluster.chip.memory_bandwidth_bytes_per_s.value == 3350e9


def test_reading_what_was_written_gives_the_same_files_again(files):
    cluster = _read(files)
    placed = NetworkPlacement(Mesh.parse("a=4,b=8,c=2"), cluster)
    assert [(s.tier, s.size) for s in placed.spans([AxisRef("b")])] == [(1, 8)]
    (files / "again.yml").write_bytes(_written(placed)["network.yml"])
    (files / "again.json").write_bytes(_written(placed)["system.json"])
    again = read_astrasim(files / "again.yml", files / "again.json")
    for one, other in zip(cluster.network, again.network, strict=True):
        assert (one.kind, one.size, one.links) == (other.kind, other.size, other.links)
        assert one.bandwidth_bytes_per_s.value == pytest.approx(other.bandwidth_bytes_per_s.value)
        assert one.latency_ns.value == pytest.approx(other.latency_ns.value)
    assert (files / "again.yml").read_text().count("FullyConnected") == 1
    assert json.loads((files / "again.json").read_text())["all-reduce-implementation"] == [
        "ring",
        "direct",
        "ring",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "%YAML 1.2\n---\n" + NETWORK,
        NETWORK.replace("Ring, FullyConnected, Switch", """'Ring', "FullyConnected", Switch,"""),
        NETWORK.replace(" FullyConnected,", "\n  FullyConnected,  # a line of its own\n "),
        NETWORK.replace("npus_count: [ 2, 8, 4 ]", "npus_count:\n  - 2\n  - 8\n  - 4"),
    ],
)
def test_other_ways_to_write_the_same_lists(files, text):
    cluster = _read(files)
    assert text != NETWORK
    (files / "network.yml").write_text(text)
    assert _read(files) == cluster


def test_a_chip_may_be_given_instead_of_a_system_file(files):
    chip = Cluster.load("h100").chip
    assert read_astrasim(files / "network.yml", chip=chip).chip is chip
    with pytest.raises(FlintError, match="does not describe the chip") as caught:
        read_astrasim(files / "network.yml")
    assert caught.value.code == "FL706"


@pytest.mark.parametrize(
    ("old", "new", "line", "said"),
    [
        ("npus_count", "npu_count", 3, "npu_count is unknown; did you mean 'npus_count'?"),
        ("npus_count: [ 2, 8, 4 ]\n", "", 0, "npus_count is missing"),
        ("latency:", "bandwidth:", 6, "bandwidth is given twice"),
        ("[ 2, 8, 4 ]", "[ 2, 8 ]", 0, "the lists differ in length"),
        ("[ 2, 8, 4 ]", "64", 3, "is not a list"),
        ("Ring,", "Torus,", 2, "topology 'Torus' is unknown"),
        ("200.0", "tbd", 4, "bandwidth 'tbd' is not a number"),
        ("200.0", "nan", 4, "bandwidth is nan"),
        ("200.0", "0", 4, "bandwidth is 0"),
        ("[ 50,", "[ -1,", 6, "latency is -1"),
        ("[ 2,", "[ 1,", 3, "npus_count is 1"),
        ("[ 2,", "[ 2.5,", 3, "npus_count '2.5' is not a number"),
        ("[ 2,", "[ 9999999999999999,", 3, "npus_count is 9999999999999999"),
        ("200.0", "1e300", 0, "does not describe a system: value should be a finite number"),
    ],
)
def test_network_files_that_cannot_be_read(files, old, new, line, said):
    assert old in NETWORK
    (files / "network.yml").write_text(NETWORK.replace(old, new, 1))
    with pytest.raises(FlintError) as caught:
        _read(files)
    assert (caught.value.code, said in caught.value.message) == ("FL706", True), caught.value
    assert caught.value.place == str(files / "network.yml") + (f":{line}" if line else "")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON"),
        ("[]", "is not an object"),
        ('{"peak-perf": 900}', "local-mem-bw is missing"),
        ('{"local-mem-bw": 50}', "peak-perf is missing"),
        ('{"peak-perf": "900", "local-mem-bw": 50}', 'peak-perf is "900"'),
        ('{"peak-perf": 0, "local-mem-bw": 50}', "peak-perf is 0"),
        ('{"peak-perf": true, "local-mem-bw": 50}', "peak-perf is true"),
        ('{"peak-perf": 1e300, "local-mem-bw": 50}', "peak-perf is 1e+300"),
        ('{"peak-perf": 1' + "0" * 400 + ', "local-mem-bw": 50}', "peak-perf is 1000"),
        (
            '{"peak-perf": 1e-300, "local-mem-bw": 50}',
            "does not describe a system: value should be 0 or",
        ),
        ("[" * 50000, "is not JSON: it is nested too deeply"),
        ('{"peak-perf": NaN, "local-mem-bw": 50}', "is not JSON: NaN is not a JSON number"),
        ('{"peak-perf": 9, "local-mem-bw": 5, "endpoint-delay": -1}', "endpoint-delay is -1, it"),
        ('{"peak-perf": 9, "local-mem-bw": 5, "endpoint-delay": "x"}', 'endpoint-delay is "x", it'),
        ('{"peak-perf": 9, "local-mem-bw": 5, "scheduling-policy": "x"}', 'policy is "x", it'),
        ('{"peak-perf": 9, "local-mem-bw": 5, "boost-mode": 7}', "boost-mode is 7, it"),
    ],
)
def test_system_files_that_cannot_be_read(files, text, said):
    (files / "system.json").write_text(text)
    with pytest.raises(FlintError) as caught:
        _read(files)
    assert (caught.value.code, said in caught.value.message) == ("FL706", True), caught.value


def test_files_that_are_not_there_or_no_text(files):
    with pytest.raises(FlintError, match="No such file") as caught:
        read_astrasim(files / "none.yml", files / "system.json")
    assert caught.value.code == "FL706"
    (files / "network.yml").write_bytes(b"\xff\xfe")
    with pytest.raises(FlintError, match="is not text"):
        _read(files)


def test_dimensions_that_are_alike_are_one_for_the_congestion_aware_backend() -> None:
    mesh = Mesh.parse("data=2,model=4")
    alike = simulated_hardware(_placed("2x4"))
    assert len({d.bandwidth_gb_per_s for d in alike.dimensions}) == 1  # both in one node
    files = simulator_files(mesh, "p", alike)
    assert b"npus_count: [ 8 ]" in files["network-1d.yml"]
    assert json.loads(files["system-1d.json"])["all-reduce-implementation"] == ["ring"]
    assert b"--network-configuration=$TRACES/network-1d.yml" in files["README.txt"]
    assert "network-1d.yml" not in simulator_files(mesh, "p", alike, names_dimensions=True)
    apart = simulated_hardware(_placed("4x8"))
    assert "network-1d.yml" not in simulator_files(Mesh.parse("4x8"), "p", apart)
    single = simulator_files(Mesh.parse("data=8"), "p", simulated_hardware(_placed("data=8")))
    assert b"takes the same arguments" in single["README.txt"]
