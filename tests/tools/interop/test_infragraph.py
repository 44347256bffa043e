"""Clusters as InfraGraph documents and back, and graphs that its own package makes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx
import pytest
from typer.testing import CliRunner

import flint
from flint.cli import app
from flint.cluster.models import Cluster, Network
from flint.cluster.named import load_cluster
from flint.errors import FlintError
from tests.jax_pipelines import MESH, pipeline
from tests.long import long_but
from tests.measured_programs import two_ranks
from tests.zoo import mixtures

pytest.importorskip("infragraph")
import yaml
from infragraph.blueprints.devices.amd.mi300x import MI300X
from infragraph.blueprints.devices.dell.xe9685L import Dellxe9685L
from infragraph.blueprints.devices.generic.generic_switch import Switch
from infragraph.blueprints.devices.generic.server import Server
from infragraph.blueprints.devices.ironwood_rack import IronwoodRack
from infragraph.blueprints.devices.nvidia.cx5 import Cx5
from infragraph.blueprints.devices.nvidia.dgx import NvidiaDGX
from infragraph.blueprints.fabrics.clos_fat_tree_fabric import ClosFatTreeFabric
from infragraph.blueprints.fabrics.closfabric import ClosFabric
from infragraph.blueprints.fabrics.dragonfly_fabric import DragonflyFabric
from infragraph.blueprints.fabrics.hybrid_debruijn_fabric import HybridDeBruijnFabric
from infragraph.blueprints.fabrics.single_tier_fabric import SingleTierFabric
from infragraph.infragraph_service import InfraGraphService

from flint.tools.interop.infragraph.document import read_document
from flint.tools.interop.infragraph.write import write_cluster

OURS = """name = "ours"
title = "ours: racks, behind a thinner network"
base = "h100-dgx"
[[network]]
name = "rail"
replaces = "ib"
kind = "switch"
size = 64
bandwidth_bytes_per_s = { value = 5e10, kind = "datasheet", source = "a test" }
latency_ns = { value = 2500, kind = "assumed", source = "a test" }
[[network]]
name = "spine"
kind = "switch"
size = 256
oversubscription = 4.0
bandwidth_bytes_per_s = { value = 5e10, kind = "datasheet", source = "a test" }
latency_ns = { value = 4000, kind = "assumed", source = "a test" }
"""
HALF = """name = "h100-dgx"
title = "DGX H100, 8 x H100-SXM5-80GB"
base = "h100-dgx"
[[network]]
name = "ib"
bandwidth_bytes_per_s = { value = 25e9, kind = "assumed", source = "half.yaml: link ib" }
"""


def as_yaml(document: Any) -> str:
    """Without aliases for what is there twice, which are refused."""
    return str(yaml.safe_dump(json.loads(json.dumps(document))))


def said(document: Any, path: Path, **notes: str) -> Cluster:
    """The cluster that a document of the package, or a dictionary, is read as, with annotations."""
    found = document if isinstance(document, dict) else yaml.safe_load(document.serialize())
    graph = [{"attribute": name, "value": value} for name, value in notes.items()]
    path.write_text(as_yaml({"infrastructure": found, "annotations": {"graph": graph}}))
    return load_cluster(str(path))


#: Of tori of three dimensions and thousands of chips; v4, which runs always, is the smallest.
LARGE = {"v5p", "v7"}


@pytest.mark.parametrize("name", long_but({*Cluster.names()} - LARGE, Cluster.names()))
def test_what_is_written_is_read_as_the_same_cluster(name: str, tmp_path: Path) -> None:
    path = tmp_path / "graph.yaml"
    path.write_text(write_cluster(name, tmp_path))
    assert load_cluster(path) == Cluster.load(name)


@pytest.mark.parametrize("name", ["h100-dgx", "v6e"])
def test_what_a_document_says_of_a_link_is_read(name: str, tmp_path: Path) -> None:
    path = tmp_path / "graph.yaml"
    document = yaml.safe_load(write_cluster(name, tmp_path))
    document["links"][-1]["physical"]["bandwidth"]["gigabytes_per_second"] *= 2
    path.write_text(as_yaml(document))
    outer = load_cluster(path).network[-1].bandwidth_bytes_per_s.value
    assert outer == pytest.approx(2 * Cluster.load(name).network[-1].bandwidth_bytes_per_s.value)


@pytest.mark.parametrize("name", ["pipeline", "experts", "recorded"])
def test_estimates_are_those_of_the_preset_and_of_the_file(name: str, tmp_path: Path) -> None:
    if name == "pipeline":
        trace = flint.trace(pipeline(schedule="1f1b"), MESH)
    elif name == "experts":
        experts = next(e for e in mixtures() if e.name == "moe_all_to_all")
        trace = flint.trace(experts.step(), experts.mesh)
    else:
        trace = flint.Trace(two_ranks())
    (tmp_path / "ours.toml").write_text(OURS)
    (tmp_path / "half.toml").write_text(HALF)
    text = write_cluster("h100-dgx").replace("second: 50.0", "second: 25.0")
    (tmp_path / "half.yaml").write_text(text)
    pairs = {"h100-dgx": "preset.yaml", str(tmp_path / "ours.toml"): "ours.yaml"}
    for other, file in pairs.items():
        (tmp_path / file).write_text(write_cluster(other, tmp_path))
    for other, file in {**pairs, str(tmp_path / "half.toml"): "half.yaml"}.items():
        on, graph = trace.estimate(other), trace.estimate(str(tmp_path / file))
        assert graph.step_time_ns == on.step_time_ns > 0
        assert (graph.classes, graph.cluster.network) == (on.classes, on.cluster.network)


def tiers(cluster: Cluster) -> list[tuple[object, ...]]:
    def one(n: Network) -> tuple[object, ...]:
        speed = round(n.bandwidth_bytes_per_s.value / 1e9, 3)
        return n.name, n.kind.value, n.size, speed, n.oversubscription

    return [one(n) for n in cluster.network]


XGMI, NVLINK = (
    ("infinity_fabric", "fully-connected", 8, 448.0, 1.0),
    ("xpu_fabric", "switch", 8, 450.0, 1.0),
)
#: What each blueprint is, and the tiers that it has by its own sources; Gb/s of its links are divided by 8.
BLUEPRINTS: dict[str, tuple[Callable[[], Any], str, list[tuple[object, ...]]]] = {
    "MI300X": (MI300X, "", [XGMI]),
    "DGX": (lambda: NvidiaDGX("dgx_h100"), "", [NVLINK]),
    "XE9685L": (Dellxe9685L, "b200-dgx", [("nvlink_4", "switch", 8, 900.0, 1.0)]),
    "servers": (lambda: SingleTierFabric(MI300X(), 4, 200), "", [XGMI, ("switch-link", "switch", 32, 25.0, 1.0)]),
    "Ironwood": (  # two chips share an adapter
        lambda: SingleTierFabric(IronwoodRack(), 2, 200),
        "",
        [("ici", "torus", 64, 175.0, 1.0), ("switch-link", "switch", 128, 12.5, 1.0)],
    ),
    "Clos": (ClosFabric, "h100-dgx", [("nvlink", "switch", 2, 450.0, 1.0), ("spine-link", "switch", 8, 12.5, 1.0)]),
    "fat tree": (  # a leaf has one host, and uplinks of half the speed; both further levels have one name
        lambda: ClosFatTreeFabric(Switch(16), NvidiaDGX("dgx_h100"), 3, [400, 200, 200]),
        "",
        [NVLINK, ("tier_1_link", "switch", 64, 25.0, 1.0), ("tier_1_link#2", "switch", 1024, 25.0, 1.0)],
    ),
    "racks": (  # 4 hosts of 2 adapters at a leaf: 8 links of 400 Gb/s, and as many of 100 Gb/s further up
        lambda: ClosFatTreeFabric(Switch(16), Server(1), 2, [400, 100]),
        "h100-dgx",
        [
            ("nvlink", "switch", 2, 450.0, 1.0),
            *[("tier_0_link", "switch", 8, 50.0, 1.0), ("tier_1_link", "switch", 128, 50.0, 4.0)],
        ],
    ),
    "dragonfly": (  # a router has 2 chips, 3 links of 100 Gb/s to its group, 2 to others
        lambda: DragonflyFabric(Switch(16), Server(1), 4, 2, 2, [400, 100, 100]),
        "h100-dgx",
        [
            ("nvlink", "switch", 2, 450.0, 1.0),
            ("intra_switch_link", "fully-connected", 8, 18.75, 1.0),
            ("inter_switch_link", "fully-connected", 72, 12.5, 1.0),
        ],
    ),
    "De Bruijn": (  # an uplink of 200 Gb/s for 8 chips
        lambda: HybridDeBruijnFabric(Switch(16), MI300X(), 3),
        "",
        [XGMI, ("fabric-link", "switch", 64, 3.125, 1.0)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BLUEPRINTS)
def test_blueprints_of_the_package(name: str, tmp_path: Path) -> None:
    make, chip, expected = BLUEPRINTS[name]
    found = said(make(), tmp_path / "graph.yaml", **({"flint_cluster": chip} if chip else {}))
    assert tiers(found) == expected
    assert all(t.latency_ns.source.startswith("as ") for t in found.network)  # no blueprint says it
    assert "Not in the graph, as " in found.notes


@pytest.mark.filterwarnings("ignore:Infrastructure has nodes that are not connected")
def test_the_graph_is_the_one_that_the_package_makes(tmp_path: Path) -> None:
    """Also of devices in devices; nobody else reads what Flint writes."""
    nic = Cx5("cx5_100g_dual")
    composed = SingleTierFabric(MI300X(), 3)
    composed.devices.append(NvidiaDGX("dgx_h100", nic)).append(nic)
    composed.instances.add(name="more", device="dgx_h100", count=2)
    for text in (composed.serialize(), write_cluster("trn2"), write_cluster("mi300x")):
        service = InfraGraphService()
        service.set_graph(text)
        theirs, ours = service.get_networkx_graph(), read_document(tmp_path, text.encode()).graph
        assert networkx.utils.graphs_equal(networkx.Graph(theirs.edges), networkx.Graph(ours.edges))
        assert dict(ours.nodes(data="type")) == dict(theirs.nodes(data="type"))


def hosts(**changes: Any) -> dict[str, Any]:
    """Two hosts of two chips, whose adapters a switch connects."""
    link = {"bandwidth": {"choice": "gigabits_per_second", "gigabits_per_second": 400}}
    ours = {"name": "h", "physical": {**link, "latency": {"choice": "us", "us": 1.5}}}
    parts = [{"name": n, "choice": n, "count": 2, "description": "H200"} for n in ("xpu", "nic")]
    own = [("xpu", "xpu", "own", "many2many"), ("xpu", "nic", "bus", "one2one")]
    edges = [
        {"ep1": {"component": a}, "ep2": {"component": b}, "link": link, "scheme": s}
        for a, b, link, s in own
    ]
    host = {
        "name": "box",
        "components": parts,
        "links": [{"name": "own", "physical": link}, {"name": "bus"}],
        "edges": edges,
    }
    switch = {
        **host,
        "name": "sw",
        "components": [{"name": "asic", "choice": "switch", "count": 1}],
        "edges": [],
    }
    ends = {
        "ep1": {"instance": "box", "component": "nic"},
        "ep2": {"instance": "sw", "component": "asic"},
    }
    return {
        "name": "two",
        "devices": [host, {**switch, "links": []}],
        "links": [ours],
        "instances": [{"name": "box", "device": "box", "count": 2}, {"name": "sw", "device": "sw", "count": 1}],
        "edges": [{**ends, "link": "h", "scheme": "many2many"}],
        **changes,
    }  # fmt: skip


def test_latencies_ranks_and_what_lends(tmp_path: Path) -> None:
    path = tmp_path / "two.yaml"
    found = said({**hosts(), "links": [{**hosts()["links"][0]}]}, path)
    assert found.base == "h200-dgx" and found.chip == Cluster.load("h200-dgx").chip
    assert found.network[1].latency_ns.value == 3000  # both ways through the switch
    assert found.network[0].constants == {}  # each with each: nothing of NVSwitches applies
    assert "own have the constants that docs/clusters.md assumes" in found.notes
    assert said(hosts(), path, flint_size="unlimited").network[1].size == 0
    document = yaml.safe_load(path.read_text())
    ranks = {"box[0]xpu[0]": 0, "box[0]xpu[1]": 2, "box[1]xpu[0]": 1, "box.1.xpu.1": 3}
    document["annotations"]["nodes"] = [
        {"name": name, "attributes": [{"attribute": "rank", "value": str(rank)}]}
        for name, rank in ranks.items()
    ]
    path.write_text(as_yaml(document))
    with pytest.raises(FlintError, match="FL514.*ranks of one domain"):
        load_cluster(path)
    document["annotations"]["nodes"][0]["attributes"][0]["value"] = "first"
    path.write_text(as_yaml(document))
    with pytest.raises(FlintError, match="FL514.*not 0 to 3"):
        load_cluster(path)


def broken(change: Callable[[dict[str, Any]], object]) -> str:
    document = hosts()
    change(document)
    return as_yaml(document)


@pytest.mark.parametrize(
    ("text", "code", "words", "line"),
    [
        ("devices: 3", "FL510", "shall be of type DeviceIter", 0),
        ("devices: [", "FL510", "is not an InfraGraph", 0),
        ("devices: &a [*a]", "FL510", "aliases", 0),
        (broken(lambda d: d["edges"][0].update(scheme="ring")), "FL510", "scheme ring", 0),
        (broken(lambda d: d["instances"][1].update(name="box")), "FL510", "have one name", 0),
        (broken(lambda d: d["devices"][0]["components"][1].update(name="sw", choice="device")), "FL512", "xpu", 1),
        (broken(lambda d: d["edges"][0].update(link="x")), "FL512", "no link called x", 1),
        (broken(lambda d: d["edges"][0]["ep1"].update(component="nci")), "FL512", "did you mean 'nic'", 1),
        (broken(lambda d: d["edges"][0]["ep1"].update(instance="box[2]")), "FL512", "part of 2 called box[2]", 1),
        (broken(lambda d: d["devices"][0]["components"][0].update(choice="cpu")), "FL513", "choice: xpu): 0", 0),
        (broken(lambda d: d["edges"][0]["ep1"].update(instance="box[0]")), "FL513", "accelerator 'box.1.xpu.0'", 0),
        (broken(lambda d: d["devices"][0]["components"][0].update(description="x")), "FL515", "no chip that", 1),
        (broken(lambda d: d["devices"][0]["components"][0].update(description="H100 H200")), "FL515", "may be", 1),
        (broken(lambda d: d["devices"][0]["links"][0].pop("physical")), "FL516", "'own' states no bandwidth", 1),
        (broken(lambda d: d["instances"][0].update(count=10**9)), "FL518", "more than 250,000", 0),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_error(
    text: str, code: str, words: str, line: int, tmp_path: Path
) -> None:
    path = tmp_path / "graph.yaml"
    path.write_text(text)
    done = CliRunner().invoke(app, ["clusters", "show", str(path)])
    assert done.exit_code == 2 and f"error[{code}]" in done.stderr and words in done.stderr
    assert done.stderr.count("help: ") == 1 and (f"--> {path}:" in done.stderr) == bool(line)


def test_parts_that_are_not_alike(tmp_path: Path) -> None:
    other = {**hosts()["devices"][0], "name": "b100"}
    other["components"] = [{**c, "count": 4, "description": "B200"} for c in other["components"]]
    mixed = hosts(devices=[*hosts()["devices"], other])
    mixed["instances"] += [{"name": "b", "device": "b100", "count": 1}]
    mixed["edges"] += [{**mixed["edges"][0], "ep1": {"instance": "b", "component": "nic"}}]
    with pytest.raises(FlintError, match="FL514.*2 or 4 accelerators"):
        said(mixed, tmp_path / "mixed.yaml")
    other["components"] = [{**c, "count": 2} for c in other["components"]]
    with pytest.raises(FlintError, match="FL514.*not alike.*b200-dgx"):
        said(mixed, tmp_path / "mixed.yaml")
    with pytest.raises(FlintError, match="FL517.*no ring"):
        said(NvidiaDGX("dgx1"), tmp_path / "dgx1.yaml", flint_cluster="a100")


def test_files_are_written_as_others_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, torus = tmp_path / "graph.yaml", tmp_path / "torus.toml"
    export = ["clusters", "export", "--infragraph"]
    assert CliRunner().invoke(app, [*export, "h100-dgx", "-o", str(path), "--json"]).exit_code == 0
    assert "FL508" in CliRunner().invoke(app, [*export, "v4", "-o", str(path)]).stderr
    assert load_cluster(path) == Cluster.load("h100-dgx")
    torus.write_text(
        OURS.replace('kind = "switch"\nsize = 256', 'kind = "fully-connected"\nsize = 256')
    )
    assert "FL519" in CliRunner().invoke(app, [*export, str(torus)]).stderr
    monkeypatch.setitem(sys.modules, "infragraph", None)
    assert "FL511" in CliRunner().invoke(app, [*export, "h100-dgx"]).stderr
