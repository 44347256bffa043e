"""A cluster as an InfraGraph document: hosts of accelerators and adapters, and switches between them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flint.cluster.load import PRESETS, find_cluster_file
from flint.cluster.models import Cluster, Network, NetworkKind
from flint.cluster.named import is_astrasim, load_cluster
from flint.errors import FlintError
from flint.tools.interop.infragraph.document import package
from flint.tools.interop.infragraph.read import CLUSTER, SIZE, UNLIMITED, read_cluster

_Edge = dict[str, Any]


def write_cluster(name: str, folder: Path | None = None) -> str:
    """The document of a preset or of a TOML file, for a file in `folder`: it names where the chip is from.

    Raises FlintError FL511 without the package, FL519 for a cluster that no graph says.
    """
    package()
    cluster, where = load_cluster(name), folder or Path()
    if is_astrasim(name):
        _refuse(name, "it is a file of another program", "give a preset or a TOML file")
    file = find_cluster_file(name)
    is_preset = file.parent == PRESETS
    reference = file.stem if is_preset else os.path.relpath(file.resolve(), where.resolve())
    text = _text(_document(cluster, reference if is_preset else f"./{reference}"))
    read = read_cluster(where / f"{cluster.name}.yaml", text.encode())
    if read != cluster:
        told = [n.name for n in cluster.network if n not in read.network] or ["its name"]
        help_ = "tiers between hosts have switches, and are no faster than those inside them"
        _refuse(name, f"what is read from it differs in {', '.join(told)}", help_)
    return text


def _refuse(name: str, said: str, help_: str) -> None:
    raise FlintError("FL519", f"{name} cannot be written as an InfraGraph: {said}", help=help_)


def _text(document: dict[str, Any]) -> str:
    import yaml

    return str(yaml.safe_dump(document, sort_keys=False))


def _document(cluster: Cluster, reference: str) -> dict[str, Any]:
    sizes = [n.size for n in cluster.network]
    is_open = not sizes[-1]
    if is_open:
        sizes[-1] = 2 * (sizes[-2] if len(sizes) > 1 else 1)
    first, *outer = cluster.network
    notes = {CLUSTER: reference, **({SIZE: UNLIMITED} if is_open else {})}
    return {
        "name": cluster.name,
        "description": cluster.title,
        "devices": [_host(cluster, first, sizes[0]), *([_switch()] if outer else [])],
        "links": [_between(cluster.network, i, sizes) for i in range(1, len(sizes))],
        "instances": [
            {"name": "host", "device": "host", "count": sizes[-1] // sizes[0]},
            *(
                {"name": tier.name, "device": "switch", "count": sizes[-1] // size}
                for tier, size in zip(outer, sizes[1:], strict=True)
            ),
        ],
        "edges": [e for i in range(1, len(sizes)) for e in _uplinks(cluster.network, i, sizes)],
        "annotations": {"graph": [{"attribute": k, "value": v} for k, v in notes.items()]},
    }


def _host(cluster: Cluster, tier: Network, count: int) -> dict[str, Any]:
    parts = [("xpu", cluster.chip.name, count, "xpu")]
    links, edges = [_link(tier, *_inside(tier, count))], list(_own_edges(tier, count))
    if tier.kind is NetworkKind.SWITCH:
        parts.append(("fabric", f"switch of {tier.name}", 1, "switch"))
    if len(cluster.network) > 1:
        parts.append(("nic", "adapter", count, "nic"))
        links.append({"name": "bus", "description": "to the adapter"})
        edges.append(_edge({"component": "xpu"}, {"component": "nic"}, "bus", "one2one"))
    return {
        "name": "host",
        "description": cluster.title,
        "components": [
            {"name": n, "description": text, "count": c, "choice": kind}
            for n, text, c, kind in parts
        ],
        "links": links,
        "edges": edges,
    }


def _switch() -> dict[str, Any]:
    part = {"name": "asic", "description": "all ports", "count": 1, "choice": "switch"}
    return {
        "name": "switch",
        "description": "switch",
        "components": [part],
        "links": [],
        "edges": [],
    }


# Links.


def _link(tier: Network, speed: float, latency: float) -> dict[str, Any]:
    physical = {
        "bandwidth": {"choice": "gigabytes_per_second", "gigabytes_per_second": speed / 1e9},
        "latency": {"choice": "ns", "ns": latency},
    }
    return {"name": tier.name, "description": tier.name, "physical": physical}


def _inside(tier: Network, count: int) -> tuple[float, float]:
    """Bandwidth and latency of one link of the innermost tier."""
    speed, latency = tier.bandwidth_bytes_per_s.value / tier.oversubscription, tier.latency_ns.value
    links = {NetworkKind.MESH: count - 1, NetworkKind.RING: min(2, count - 1)}.get(tier.kind, 1)
    return speed / max(1, links), latency / (2 if tier.kind is NetworkKind.SWITCH else 1)


def _between(tiers: tuple[Network, ...], i: int, sizes: list[int]) -> dict[str, Any]:
    """The link from what a switch of tier `i` connects: an adapter of one chip, or a switch below."""
    tier, is_first = tiers[i], i == 1
    below = 0.0 if is_first else tiers[i - 1].latency_ns.value
    speed = tier.bandwidth_bytes_per_s.value / tier.oversubscription
    latency = max(0.0, tier.latency_ns.value - below) / 2
    return _link(tier, speed * (1 if is_first else sizes[i - 1]), latency)


def _uplinks(tiers: tuple[Network, ...], i: int, sizes: list[int]) -> Iterator[_Edge]:
    many = sizes[i] // sizes[i - 1]
    for domain in range(sizes[-1] // sizes[i]):
        part = f"[{domain * many}:{(domain + 1) * many}]"
        low = {"instance": f"host{part}", "component": "nic"}
        if i > 1:
            low = {"instance": f"{tiers[i - 1].name}{part}", "component": "asic"}
        high = {"instance": f"{tiers[i].name}[{domain}]", "component": "asic"}
        yield _edge(low, high, tiers[i].name, "many2many")


def _edge(a: dict[str, str], b: dict[str, str], link: str, scheme: str) -> _Edge:
    return {"ep1": a, "ep2": b, "scheme": scheme, "link": link}


def _own_edges(tier: Network, count: int) -> Iterator[_Edge]:
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
