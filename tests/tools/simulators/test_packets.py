"""Links and switches of clusters, and the files that simulators of packets read."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import networkx
import pytest
from typer.testing import CliRunner, Result

from flint.backends.chakra import write
from flint.backends.cost.network.placement import NetworkPlacement
from flint.backends.cost.network.torus import is_torus
from flint.cli import app
from flint.cluster.load import preset_names
from flint.cluster.models import Cluster, NetworkKind
from flint.errors import FlintError
from flint.ir.mesh import Mesh
from flint.ir.workload import Workload
from flint.tools.simulators.backends import Backend, Cabling
from flint.tools.simulators.packets import packet_files
from flint.tools.simulators.physical import LEAF_PORTS, PhysicalNetwork, physical_network
from tests.chakra_traces import layered_program

MESHES = ("data=8", "data=4,model=8", "data=12,model=8", "data=64,model=16")


def placed(
    mesh: str, cluster: str | Cluster = "h100-dgx", mapping: str | None = None
) -> NetworkPlacement:
    on = cluster if isinstance(cluster, Cluster) else Cluster.load(cluster)
    return NetworkPlacement(Mesh.parse(mesh), on, mapping)


def graph(network: PhysicalNetwork) -> networkx.MultiGraph:
    found = networkx.MultiGraph()
    for k in network.links:
        found.add_edge(k.one, k.other, speed=k.bytes_per_s)
    return found


#: On one mesh each preset, on all of them a network of each kind: switches, one domain of many, a torus.
PLACED = [("data=12,model=8", preset) for preset in preset_names()]
PLACED += [(m, p) for m in MESHES for p in ("h100-dgx", "gb200-nvl72", "v5p") if "12" not in m]


@pytest.mark.parametrize(("mesh", "preset"), PLACED)
def test_each_chip_sends_what_its_cluster_says(mesh: str, preset: str) -> None:
    placement = placed(mesh, preset)
    used = {p.tier for p in placement.parts if p.size > 1}
    for topology in Cabling:
        network = physical_network(placement, topology)
        found = graph(network)
        assert networkx.is_connected(found)
        assert sorted(found) == list(range(network.devices + network.switches))
        for tier in (placement.cluster.network[t] for t in used):
            if is_torus(tier):
                continue
            speed = tier.bandwidth_bytes_per_s.value
            links = Counter[int]()
            for one, other, told in found.edges(data="speed"):
                if tier.kind is not NetworkKind.SWITCH or told == pytest.approx(speed):
                    links.update((one, other))
            assert all(links[d] for d in range(network.devices)), tier.name


def test_links_above_leaves_carry_what_their_chips_send() -> None:
    cluster = Cluster.load("h100-dgx")
    outer = replace_network(cluster, 1, oversubscription=2.0)
    for topology in Cabling:
        network = physical_network(placed("data=64,model=16", outer), topology)
        leaves = {k.other for k in network.links if k.one < 1024 and k.bytes_per_s < 100e9}
        above = Counter[int]()
        for k in network.links:
            if k.one >= network.devices and k.other >= network.devices:
                for leaf in {k.one, k.other} & leaves:
                    above[leaf] += round(k.bytes_per_s)
        speed = cluster.network[1].bandwidth_bytes_per_s.value
        assert set(above) == leaves and len(leaves) == 32
        assert all(v == pytest.approx(LEAF_PORTS * speed / 2, rel=1e-6) for v in above.values())


def replace_network(cluster: Cluster, tier: int, **changes: object) -> Cluster:
    networks = list(cluster.network)
    networks[tier] = networks[tier].model_copy(update=changes)
    return cluster.model_copy(update={"network": tuple(networks)})


def test_rails_join_chips_with_the_same_place_in_their_nodes() -> None:
    network = physical_network(placed("data=16,model=8"), Cabling.RAIL)
    leaf_of = {k.one: k.other for k in network.links if k.one < 128 and k.bytes_per_s < 100e9}
    for one in range(128):
        for other in range(128):
            assert (leaf_of[one] == leaf_of[other]) == (one % 8 == other % 8)
    near = physical_network(placed("data=16,model=8"), Cabling.FAT_TREE)
    leaf_of = {k.one: k.other for k in near.links if k.one < 128 and k.bytes_per_s < 100e9}
    assert len({leaf_of[d] for d in range(LEAF_PORTS)}) == 1
    turned = placed(
        "data=8,model=16", mapping="data=nvlink,model=ib"
    )  # the slower axis is in nodes
    near = physical_network(turned, Cabling.FAT_TREE)
    leaf_of = {k.one: k.other for k in near.links if k.one < 128 and k.bytes_per_s < 100e9}
    assert all(leaf_of[d] == leaf_of[d % 16] for d in range(128))


def test_a_slice_of_a_torus_has_its_rings() -> None:
    network = physical_network(placed("data=64", "v5p"), Cabling.RAIL)
    assert network.switches == 0 and len(network.links) == 3 * 64  # 4x4x4, each dimension a ring
    assert set(dict(graph(network).degree()).values()) == {6}
    line = graph(physical_network(placed("data=8", "v5p"), Cabling.RAIL))
    assert sorted(d for _, d in line.degree()) == [3] * 8  # 2x2x2: a link to each neighbor, once


def test_ns3_reads_the_graph_and_has_marks_for_each_speed() -> None:
    """By the rules of its reader: counts, numbers of switches, links; a map entry for each rate."""
    made = packet_files(Backend.NS3, placed("data=4,model=8"))
    words = made.files["topology.txt"].split()
    nodes, switches, links = map(int, words[:3])
    assert nodes == 32 + switches and sorted(map(int, words[3 : 3 + switches])) == list(
        range(32, nodes)
    )
    rows = [words[i : i + 5] for i in range(3 + switches, len(words), 5)]
    assert len(rows) == links and all(max(int(r[0]), int(r[1])) < nodes for r in rows)
    config = dict(line.split(" ", 1) for line in made.files["config.txt"].splitlines())
    for key in ("KMAX_MAP", "KMIN_MAP", "PMAX_MAP"):
        count, *pairs = config[key].split()
        assert len(pairs) == 2 * int(count)
        assert {f"{rate}bps" for rate in pairs[::2]} == {r[2] for r in rows}
    assert json.loads(made.files["logical.json"]) == {"logical-dims": ["8", "4"]}
    assert {config[k] for k in ("TOPOLOGY_FILE", "FLOW_FILE", "TRACE_FILE")} <= set(made.files)


@pytest.mark.parametrize(
    ("mesh", "mapping", "share"),
    [("data=8", None, 1.0), ("data=64", "data=ib", 1.0), ("data=64", "data=ib", 4.0)],
)
def test_htsim_accepts_the_fat_tree(mesh: str, mapping: str | None, share: float) -> None:
    """What `set_custom_params` of its fat tree requires."""
    cluster = replace_network(Cluster.load("h100-dgx"), 1, oversubscription=share)
    text = packet_files(Backend.HTSIM, placed(mesh, cluster, mapping)).files["htsim.topo"]
    parts = [
        dict(line.split(" ") for line in part.splitlines()) for part in text.strip().split("\n\n")
    ]
    top, low, high = ({k: int(v) for k, v in part.items()} for part in parts)
    nodes, over = top["Nodes"], low["Oversubscribed"]
    assert top["Tiers"] == 2 and top["Podsize"] % low["Radix_Down"] == 0 == nodes % top["Podsize"]
    assert low["Radix_Down"] // low["Radix_Up"] == over
    up = nodes * low["Downlink_speed_Gbps"] / (high["Downlink_speed_Gbps"] * over)
    assert up == int(up) and up % high["Radix_Down"] == 0
    assert up / high["Radix_Down"] == low["Radix_Up"]


@pytest.mark.parametrize(
    ("backend", "mesh", "cluster", "said"),
    [
        (Backend.HTSIM, "data=4,model=8", "h100-dgx", "links of several tiers"),
        (Backend.HTSIM, "data=64", "v5p", "uses a torus"),
        (Backend.NS3, "data=32768", "h100-dgx", "too many"),
    ],
)
def test_networks_that_cannot_be_told(backend: Backend, mesh: str, cluster: str, said: str) -> None:
    with pytest.raises(FlintError, match=said) as error:
        packet_files(backend, placed(mesh, cluster))
    assert error.value.code == "FL733"


@pytest.mark.parametrize(("mesh", "share"), [("data=64", 1.5), ("data=64", 3.0), ("data=40", 1.0)])
def test_leaves_of_a_fat_tree_are_full_and_have_whole_links(mesh: str, share: float) -> None:
    cluster = replace_network(Cluster.load("h100-dgx"), 1, oversubscription=share)
    with pytest.raises(FlintError, match="full leaves with whole links up"):
        packet_files(Backend.HTSIM, placed(mesh, cluster, "data=ib"))


def test_outer_tiers_that_are_no_switches_cannot_be_told() -> None:
    cluster = replace_network(Cluster.load("h100-dgx"), 1, kind=NetworkKind.MESH)
    with pytest.raises(FlintError, match="outer tiers must be"):
        physical_network(placed("data=4,model=8", cluster), Cabling.RAIL)


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("of") / "traces"
    write(Workload.single(layered_program("data=2,model=2", layers=1)), folder)
    return folder


def simulate(traces: Path, *options: str) -> Result:
    return CliRunner().invoke(app, ["simulate", str(traces), "--with", "astra-sim", *options])


def test_a_build_is_given_its_files(traces: Path, tmp_path: Path) -> None:
    """A program of that name that says what it was given, and that all ranks finished."""
    seen = tmp_path / "seen"
    binary = tmp_path / Backend.NS3.binary
    binary.write_text(
        f"#!{sys.executable}\nimport os, sys\n"
        f"open({str(seen)!r}, 'w').write(repr((sys.argv[1:], sorted(os.listdir('.')))))\n"
        "for r in range(4): print(f'sys[{r}] finished, 9 cycles, exposed communication 5 cycles.')\n"
    )
    binary.chmod(0o755)
    found = simulate(traces, "--network", "ns3", "-c", "h100-dgx", "--binary", str(binary))
    assert found.exit_code == 0 and "all ranks finished" in found.stdout, found.output
    text = seen.read_text()
    for word in (
        "--network-configuration=config.txt",
        "logical-topology-configuration",
        "topology.txt",
    ):
        assert word in text
    tree = tmp_path / Backend.HTSIM.binary
    binary.rename(tree)
    found = simulate(traces, "-c", "h100-dgx", "--binary", str(tree))  # known by its name
    assert found.exit_code == 0, found.output
    assert "'--htsim_opts', '-topo', 'htsim.topo'" in seen.read_text()
    other = simulate(traces, "--network", "ns3", "-c", "h100-dgx", "--binary", str(tree))
    assert other.exit_code == 2 and "FL710" in other.output


def test_files_alone(traces: Path, tmp_path: Path) -> None:
    folder = tmp_path / "files"
    asked = (
        "--network",
        "ns3",
        "-c",
        "h100-dgx",
        "--topology",
        "dragonfly",
        "--files",
        str(folder),
    )
    found = simulate(traces, *asked)
    assert found.exit_code == 0 and "--network-configuration=config.txt" in found.stdout
    assert {p.name for p in folder.iterdir()} >= {"config.txt", "topology.txt", "logical.json"}
    again = simulate(traces, *asked)
    assert again.exit_code == 2 and "FL501" in again.output


def test_the_rules_have_no_builds(traces: Path) -> None:
    found = CliRunner().invoke(app, ["simulate", str(traces), "--network", "ns3"])
    assert found.exit_code == 2 and "--network does not apply" in found.output


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--files", "x"), "--files needs --network htsim or ns3"),
        (("--network", "congestion-aware", "--files", "x"), "--files needs --network"),
        (("--network", "ns3", "--network", "network.yml", "--files", "x"), "a build and more"),
        (("--network", "htsim", "--topology", "rail", "--files", "x"), "--topology does not apply"),
        (("--network", "ns3", "--binary", "/nowhere"), "FL710"),
    ],
)
def test_options_that_do_not_go_together(
    traces: Path,
    options: tuple[str, ...],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    found = simulate(traces, "-c", "h100-dgx", *options)
    assert found.exit_code == 2 and said in found.output, found.output
    assert not list(tmp_path.iterdir())
