"""ASTRA-sim's network.yml and system.json: written for a mesh on a cluster, read as a cluster."""

from __future__ import annotations

from pathlib import Path

from flint.backends.chakra.writing.simulator_files import SimulatedHardware, SimulatorDimension
from flint.backends.cost.astrasim.ring import Dimension, Fabric
from flint.backends.cost.network.placement import NetworkPlacement
from flint.backends.cost.network.torus import AxisPart, is_torus
from flint.cluster.astrasim.files import GB, TOPOLOGIES, read_network
from flint.cluster.astrasim.memory import USUAL_GB_PER_S
from flint.cluster.models import Cluster, NetworkKind
from flint.errors import FlintError


def simulated_hardware(placement: NetworkPlacement, dtype: str = "bf16") -> SimulatedHardware:
    """What ASTRA-sim is told of a cluster: one network dimension for each mesh axis, last first.

    Ranks are then numbered as those of the mesh. An axis that lies in several tiers gets the
    numbers of the outermost one; lines of a torus are rings to ASTRA-sim, and an axis on several
    of them has their bandwidth together. Its peak is that of `dtype`, times the derate. Switches
    that reduce cannot be told. Raises FlintError FL705 if the chip has no peak for `dtype`.
    """
    cluster = placement.cluster
    peak = cluster.chip.peak_flops_per_s.get(dtype)
    if peak is None:
        raise FlintError(
            "FL705",
            f"chip '{cluster.chip.name}' has no peak for {dtype}",
            help=f"it has one for {', '.join(cluster.chip.peak_flops_per_s)}",
        )
    names = [n for n, size in placement.mesh.shape.items() if size > 1]
    return SimulatedHardware(
        tuple(_dimension(placement, name) for name in reversed(names)) or (_one_device(cluster),),
        _rounded(peak.value * cluster.derate.value / 1e12),
        _rounded(cluster.chip.memory_bandwidth_bytes_per_s.value / 1e9),
        f"from cluster {cluster.name}",
        remote_gb_per_s=_link_gb_per_s(cluster),
    )


def read_fabric(network: Path) -> Fabric:
    """The network that ASTRA-sim's file describes, as it calculates with it. Raises FlintError FL706."""
    rows = read_network(network)
    kinds = [TOPOLOGIES[t] for t in rows["topology"]]
    hops = [2 if kind is NetworkKind.SWITCH else 1 for kind in kinds]
    links = zip(rows["bandwidth"], rows["latency"], hops, strict=True)
    return Fabric(
        tuple(rows["topology"]),
        tuple(rows["npus_count"]),
        tuple(Dimension(bandwidth, latency, n) for bandwidth, latency, n in links),
    )


def settings_beside(network: Path) -> Path:
    """The settings that go with a network: system-1d.json with network-1d.yml, else system.json."""
    own = network.with_name(f"{network.stem.replace('network', 'system')}.json")
    return own if own.exists() else network.with_name("system.json")


def _link_gb_per_s(cluster: Cluster) -> int:
    """The link of a chip to its host in whole GB/s, as ASTRA-sim counts."""
    link = cluster.chip.host_link_bytes_per_s
    return USUAL_GB_PER_S if link is None else max(1, round(link.value / 1e9))


def _one_device(cluster: Cluster) -> SimulatorDimension:
    """A network of one: files without a dimension are none."""
    inner = cluster.network[0]
    bandwidth = _rounded(inner.bandwidth_bytes_per_s.value / GB)
    return SimulatorDimension("devices", "Switch", 1, bandwidth, _rounded(inner.latency_ns.value))


def _dimension(placement: NetworkPlacement, name: str) -> SimulatorDimension:
    parts = [p for p in placement.parts if p.axis == name]
    tier = max(p.tier for p in parts)
    network = placement.cluster.network[tier]
    bandwidth = network.bandwidth_bytes_per_s.value / network.oversubscription / GB
    latency, topology = network.latency_ns.value, "Ring"
    if is_torus(network):
        bandwidth *= _links([p for p in parts if p.tier == tier])
        bandwidth /= 2 if network.kind is NetworkKind.RING else 1
    elif network.kind is NetworkKind.MESH:
        topology = "FullyConnected"
        bandwidth /= max(1, placement.cluster.members[tier] - 1)
    else:
        topology, latency = "Switch", latency / 2  # it counts one hop in and one hop out
    size = placement.mesh.shape[name]
    return SimulatorDimension(name, topology, size, _rounded(bandwidth), _rounded(latency))


def _links(parts: list[AxisPart]) -> float:
    """Links of one direction that an axis has on a torus: shared where groups are interleaved."""
    return sum(1 / p.line.stride for p in parts if p.line is not None)


def _rounded(value: float) -> float:
    """Six significant digits: files that people read."""
    return float(f"{value:.6g}")
