"""A cluster as an InfraGraph document: hosts of accelerators and adapters, and switches between them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from flint.cluster.formats import ClusterFormat
from flint.cluster.load import PRESETS, find_cluster_file
from flint.cluster.models import Cluster, Network, NetworkKind
from flint.cluster.named import is_yaml
from flint.errors import FlintError
from flint.tools.interop.infragraph.document import Said, package
from flint.tools.interop.infragraph.read import CLUSTER, SIZE, UNLIMITED, read_cluster


def write_cluster(name: str, folder: Path | None = None) -> str:
    """The document of a preset or of a TOML file, for a file in `folder`: it names where the chip is from.

    Raises FlintError FL511 without the package, FL519 for a cluster that no graph says.
    """
    package()
    if is_yaml(name):
        raise _unwritable(name, "it is a file of another program", "give a preset or a TOML file")
    file, where = find_cluster_file(name), folder or Path()
    cluster = Cluster.load(file)
    reference = file.stem
    if file.parent != PRESETS:
        reference = os.path.join(".", os.path.relpath(file.resolve(), where.resolve()))
    text = _text(_document(cluster, reference))
    read = read_cluster(where / f"{cluster.name}.yaml", text.encode())
    if read != cluster:
        other = [n.name for n in cluster.network if n not in read.network] or ["its name"]
        said = f"what is read from it differs in {', '.join(other)}"
        help_ = "tiers between hosts are switches, and those further out neither faster nor nearer"
        raise _unwritable(name, said, help_)
    return text


def _unwritable(name: str, said: str, help_: str) -> FlintError:
    return FlintError("FL519", f"{name} cannot be written as an InfraGraph: {said}", help=help_)


def _text(document: Said) -> str:
    import yaml

    return str(yaml.safe_dump(document, sort_keys=False))


def _document(cluster: Cluster, reference: str) -> Said:
    """What is without limit has two domains, and an annotation."""
    tiers, sizes = cluster.network, [n.size for n in cluster.network]
    notes = {CLUSTER: reference}
    if not sizes[-1]:
        sizes[-1], notes[SIZE] = 2 * (sizes[-2] if len(sizes) > 1 else 1), UNLIMITED
    names = ["host", *(tier.name for tier in tiers[1:])]
    outer = range(1, len(tiers))
    return {
        "name": cluster.name,
        "description": cluster.title,
        "devices": [_host(cluster, sizes[0])]
        + [_device("switch", [("asic", "switch", 1, "")])] * bool(outer),
        "links": [_between(tiers, i, sizes) for i in outer],
        "instances": [
            {"name": name, "device": "switch" if i else "host", "count": sizes[-1] // sizes[i]}
            for i, name in enumerate(names)
        ],
        "edges": [edge for i in outer for edge in _uplinks(names, i, sizes)],
        "annotations": {"graph": [{"attribute": k, "value": v} for k, v in notes.items()]},
    }


def _host(cluster: Cluster, count: int) -> Said:
    tier, parts = cluster.network[0], [("xpu", "xpu", count, cluster.chip.name)]
    speed, latency = tier.bandwidth_bytes_per_s.value / tier.oversubscription, tier.latency_ns.value
    if tier.kind is NetworkKind.SWITCH:
        latency /= 2
        parts.append(("fabric", "switch", 1, ""))
    elif tier.kind is not NetworkKind.TORUS:
        speed /= count - 1 if tier.kind is NetworkKind.MESH else 2
    links, edges = [_link(tier.name, speed, latency)], list(_own_edges(tier, count))
    if len(cluster.network) > 1:
        parts.append(("nic", "nic", count, ""))
        links.append({"name": "bus"})
        edges.append(_edge({"component": "xpu"}, {"component": "nic"}, "bus", "one2one"))
    return {**_device("host", parts), "links": links, "edges": edges}


def _device(name: str, parts: list[tuple[str, str, int, str]]) -> Said:
    components = [
        {"name": part, "choice": choice, "count": count} | ({"description": said} if said else {})
        for part, choice, count, said in parts
    ]
    return {"name": name, "components": components, "links": [], "edges": []}


def _link(name: str, speed: float, latency: float) -> Said:
    bandwidth = {"choice": "gigabytes_per_second", "gigabytes_per_second": speed / 1e9}
    return {
        "name": name,
        "physical": {"bandwidth": bandwidth, "latency": {"choice": "ns", "ns": latency}},
    }


def _edge(a: Said, b: Said, link: str, scheme: str) -> Said:
    return {"ep1": a, "ep2": b, "scheme": scheme, "link": link}


def _between(tiers: tuple[Network, ...], i: int, sizes: list[int]) -> Said:
    """The link from what a switch of tier `i` connects: the adapter of one chip, or a switch below."""
    tier, below = tiers[i], tiers[i - 1].latency_ns.value if i > 1 else 0.0
    speed = tier.bandwidth_bytes_per_s.value / tier.oversubscription
    latency = max(0.0, tier.latency_ns.value - below) / 2
    return _link(tier.name, speed * (sizes[i - 1] if i > 1 else 1), latency)


def _uplinks(names: list[str], i: int, sizes: list[int]) -> Iterator[Said]:
    many = sizes[i] // sizes[i - 1]
    for domain in range(sizes[-1] // sizes[i]):
        inside = f"{names[i - 1]}[{domain * many}:{(domain + 1) * many}]"
        low = {"instance": inside, "component": "asic" if i > 1 else "nic"}
        high = {"instance": f"{names[i]}[{domain}]", "component": "asic"}
        yield _edge(low, high, names[i], "many2many")


def _own_edges(tier: Network, count: int) -> Iterator[Said]:
    """Links of accelerators to their switch, or to each other."""
    if tier.kind in (NetworkKind.SWITCH, NetworkKind.MESH):
        other = "fabric" if tier.kind is NetworkKind.SWITCH else "xpu"
        yield _edge({"component": "xpu"}, {"component": other}, tier.name, "many2many")
        return
    stride = 1
    for size in reversed(tier.torus_shape or (count,)):
        for a, b in _ring(size, stride, count) if size > 1 else ():
            yield _edge(
                {"component": f"xpu[{a}]"}, {"component": f"xpu[{b}]"}, tier.name, "one2one"
            )
        stride *= size


def _ring(size: int, stride: int, count: int) -> Iterator[tuple[str, str]]:
    """Slices that pair the chips of a torus with their next ones in one dimension."""
    if stride == 1:
        for at in range(size):
            yield f"{at}:{count}:{size}", f"{(at + 1) % size}:{count}:{size}"
        return
    for start in range(0, count, size * stride):
        end = start + size * stride
        yield f"{start}:{end - stride}", f"{start + stride}:{end}"
        yield f"{end - stride}:{end}", f"{start}:{start + stride}"


#: Keys that only InfraGraph's documents have.
_KEYS = re.compile(
    rb'^[\s{]*"?(infragraph|infrastructure|devices|instances|components)"?\s*:', re.MULTILINE
)
FORMAT = ClusterFormat(lambda data: bool(_KEYS.search(data)), read_cluster, write_cluster)
