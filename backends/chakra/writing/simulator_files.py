"""Files beside the traces that let ASTRA-sim's analytical backend run them on the same mesh.

Without a cluster, bandwidths and latencies are placeholders of the order of an NVLink domain (inner
dimension) and a 400 Gb/s network (the others): replace them by those of the cluster in question.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from flint.cluster.astrasim.memory import NOTHING, USUAL_GB_PER_S, MemoryFile, host_memory
from flint.ir.arrays import Float64s
from flint.ir.mesh import Group, Mesh
from flint.ir.program import Int64s

# Communicator groups: dense numbers for comm_group.json, or flags of network dimensions.


def network_dimensions(mesh: Mesh) -> tuple[tuple[str, int], ...]:
    """Name and size of each network dimension: mesh axes of size > 1, the minor axis first.

    ASTRA-sim numbers ranks with dimension 0 varying fastest; a mesh with its last axis.
    """
    axes = zip(reversed(mesh.names), reversed(mesh.sizes), strict=True)
    return tuple((name, size) for name, size in axes if size > 1)


def involved_dimensions(group: Group, mesh: Mesh) -> tuple[bool, ...] | None:
    """For each network dimension whether `group` spans it; None unless it spans whole axes."""
    axes = mesh.canonical(group.axes)
    if group.is_listed or any(a.size is not None for a in axes):
        return None
    names = {a.name for a in axes}
    return tuple(name in names for name, _ in network_dimensions(mesh))


@dataclass
class GroupNumbers:
    """Gives every set of ranks that communicates, and each copy of it, one number, dense from 1 in order of first use.

    The world has a number too: ASTRA-sim's paper branch knows no other way to name it.
    """

    mesh: Mesh
    members: dict[tuple[tuple[int, ...], int], int] = field(default_factory=dict)

    def of_ranks(self, group: Group) -> Int64s:
        """For each rank, the number of the set in which it takes part, or -1.

        Ranks that are alone in their set have none: a collective of one never ends in ASTRA-sim.
        """
        numbers = np.full(self.mesh.size, -1, dtype=np.int64)
        for ranks in group.members(self.mesh):
            if len(ranks) > 1:
                key = tuple(ranks.tolist()), group.copy
                numbers[ranks] = self.members.setdefault(key, len(self.members) + 1)
        return numbers

    def to_json(self) -> bytes:
        """comm_group.json: decimal number -> ranks in mesh order, which is the ring's order."""
        return comm_group_json({n: ranks for (ranks, _), n in self.members.items()})


def comm_group_json(groups: Mapping[int, Sequence[int]]) -> bytes:
    """The text of a communicator group file, numbers ascending."""
    ordered = {str(n): list(groups[n]) for n in sorted(groups)}
    return (json.dumps(ordered, separators=(",", ":")) + "\n").encode()


#: GB/s as ASTRA-sim counts them (2 ** 30 bytes), innermost dimension, then all others.
BANDWIDTHS = (450.0, 50.0)
#: ns, innermost dimension, then all others.
LATENCIES = (500.0, 2000.0)


@dataclass(frozen=True, slots=True)
class SimulatorDimension:
    """One dimension of ASTRA-sim's network: a mesh axis, with the numbers of one link.

    `topology` is Ring, Switch or FullyConnected. A message through a switch takes `latency_ns`
    twice. GB is 2 ** 30 bytes.
    """

    axis: str
    topology: str
    size: int
    bandwidth_gb_per_s: float
    latency_ns: float


@dataclass(frozen=True, slots=True)
class SimulatedHardware:
    """What ASTRA-sim is told of a cluster, and in `origin` where it is from.

    `peak_tflops` is in 1e12 FLOP/s, `memory_gb_per_s` in 1e9 bytes/s, and so is `remote_gb_per_s`, of
    copies between a device and its host. Where the traces say how
    long kernels take (`has_durations`), its roofline is off and those times count.
    """

    dimensions: tuple[SimulatorDimension, ...]
    peak_tflops: float
    memory_gb_per_s: float
    origin: str
    has_durations: bool = False
    remote_gb_per_s: int = USUAL_GB_PER_S

    @property
    def flat(self) -> SimulatedHardware | None:
        """The same as a network of one dimension; None where that would be another network.

        Dimensions of equal switches or links (axes in one node) are one: a rank reaches each other
        one as fast. Rings are not, nor networks with a slower dimension.
        """
        kinds = {(d.topology, d.bandwidth_gb_per_s, d.latency_ns) for d in self.dimensions}
        if len(kinds) != 1 or (len(self.dimensions) > 1 and "Ring" in next(iter(kinds))):
            return None
        name = " x ".join(d.axis for d in self.dimensions)
        size = math.prod(d.size for d in self.dimensions)
        return replace(self, dimensions=(replace(self.dimensions[0], axis=name, size=size),))


def placeholder_hardware(mesh: Mesh) -> SimulatedHardware:
    """Numbers of the right order, for one dimension for each mesh axis."""
    dims = network_dimensions(mesh) or (("devices", 1),)
    return SimulatedHardware(
        tuple(
            SimulatorDimension(name, "Switch", size, BANDWIDTHS[min(i, 1)], LATENCIES[min(i, 1)])
            for i, (name, size) in enumerate(dims)
        ),
        peak_tflops=900,
        memory_gb_per_s=3350,
        origin="placeholders",
    )


def simulator_files(
    mesh: Mesh,
    prefix: str,
    hardware: SimulatedHardware | None = None,
    *,
    names_dimensions: bool = False,
    moves_memory: bool = False,
) -> dict[str, bytes]:
    """File name -> content of network.yml, system.json, memory.json and README.txt.

    network-1d.yml and system-1d.json too, for the congestion-aware backend, where the network has
    several dimensions that are one. Not where traces name dimensions (`names_dimensions`). With
    `moves_memory` the traces have nodes of remote memory, which is that of the hosts.
    """
    told = hardware or placeholder_hardware(mesh)
    flat = None if names_dimensions and len(told.dimensions) > 1 else told.flat
    found = {"network.yml": network_file(told), "system.json": system_file(told)}
    if len(told.dimensions) > 1 and flat is not None:
        found["network-1d.yml"] = network_file(flat)
        found["system-1d.json"] = system_file(flat)
    memory = host_memory(told.remote_gb_per_s) if moves_memory else MemoryFile(memory_type=NOTHING)
    found["memory.json"] = memory.to_text()
    found["README.txt"] = _readme(mesh, prefix, told, flat, moves_memory)
    return {name: text.encode() for name, text in found.items()}


def network_file(hardware: SimulatedHardware) -> str:
    """ASTRA-sim's network.yml."""
    dims = hardware.dimensions

    def row(key: str, values: Sequence[object]) -> str:
        return f"{key}: [ {', '.join(map(str, values))} ]\n"

    return (
        "# One dimension per mesh axis, the fastest-varying first: "
        f"{', '.join(d.axis for d in dims)}\n"
        f"# bandwidth (GB/s, 2^30 bytes) and latency (ns) are {hardware.origin}.\n"
        + row("topology", [d.topology for d in dims])
        + row("npus_count", [d.size for d in dims])
        + row("bandwidth", [d.bandwidth_gb_per_s for d in dims])
        + row("latency", [d.latency_ns for d in dims])
    )


def system_file(hardware: SimulatedHardware) -> str:
    """ASTRA-sim's system.json."""
    collectives = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
    kinds = ["direct" if d.topology == "FullyConnected" else "ring" for d in hardware.dimensions]
    document = {
        "scheduling-policy": "LIFO",
        "endpoint-delay": 10,
        "active-chunks-per-dimension": 1,
        "preferred-dataset-splits": 1,
        **{f"{c}-implementation": kinds for c in collectives},
        "collective-optimization": "localBWAware",
        "local-mem-bw": hardware.memory_gb_per_s,
        "peak-perf": hardware.peak_tflops,
        "roofline-enabled": int(not hardware.has_durations),
        "boost-mode": 0,
    }
    return json.dumps(document, indent=2) + "\n"


def _aware(told: SimulatedHardware, flat: SimulatedHardware | None) -> str:
    """What README.txt says of the congestion-aware backend."""
    if len(told.dimensions) == 1:
        return """AstraSim_Analytical_Congestion_Aware takes the same arguments: this network has one dimension, as it
wants."""
    if flat is None:
        return f"""AstraSim_Analytical_Congestion_Aware takes networks of one dimension only, this one has
{len(told.dimensions)}, which differ or are named in the traces."""
    return """AstraSim_Analytical_Congestion_Aware takes networks of one dimension only. It takes the same
arguments with

    --system-configuration=$TRACES/system-1d.json \\
    --network-configuration=$TRACES/network-1d.yml

where the dimensions, which are alike, are one."""


def _remote(told: SimulatedHardware) -> str:
    """What README.txt says of remote memory."""
    return f"""
Copies between a device and its host are MEM_LOAD and MEM_STORE nodes. memory.json gives each rank a
link of {told.remote_gb_per_s} GB/s (whole 10^9 bytes/s). ASTRA-sim runs one of them at a time, in the slot of a rank's
communication, and leaves out its statistics.
"""


def _readme(
    mesh: Mesh,
    prefix: str,
    told: SimulatedHardware,
    flat: SimulatedHardware | None,
    moves_memory: bool,
) -> str:
    times = "num_ops and tensor_size drive its roofline, durations are 0."
    if told.has_durations:
        times = "kernels take their\nduration_micros, communication what the network says."
    alone = "\nASTRA-sim does not run a network of one device.\n" if mesh.size == 1 else ""
    return f"""Chakra execution traces of {mesh.size} ranks, mesh {mesh}

{prefix}.<rank>.et   one trace per rank (MLCommons Chakra 1.0.0, not compressed)
comm_group.json   communicator groups, named by pg_name in the traces
workload.flint    the program that the traces were written from
manifest.json     what was written: options, ranks, nodes, size and digest of every file
network.yml, system.json, memory.json
                  a configuration of ASTRA-sim for this mesh; bandwidth, latency, peak-perf and
                  local-mem-bw in them are {told.origin}

Run ASTRA-sim's analytical backend from another directory, because it writes a folder `log` where it
runs, and Flint never replaces a directory that holds other files. Set TRACES to this directory:

  AstraSim_Analytical_Congestion_Unaware \\
    --workload-configuration=$TRACES/{prefix} \\
    --comm-group-configuration=$TRACES/comm_group.json \\
    --system-configuration=$TRACES/system.json \\
    --network-configuration=$TRACES/network.yml \\
    --remote-memory-configuration=$TRACES/memory.json

It keeps every trace open: `ulimit -n` must be above {mesh.size}. Its exit status is 0 even when
ranks never end: count the {mesh.size} lines "sys[i] finished". `flint check` proves beforehand that
the ranks agree. Times are in ns; {times}
`flint estimate . -c network.yml --overlap astra-sim` gives the same time without ASTRA-sim.

{_aware(told, flat)}
{alone}{_remote(told) if moves_memory else ""}
Kernels of one stream wait for each other in program order.
comm_size is the bytes of one rank's input, for all collectives. A broadcast is written as an
all-gather of its parts, a permutation as one send and one receive. Collectives and sends of a rank
wait for each other in one order, the same on all ranks: no two ranks can take their communication
slots for different ones, whatever anything lasts.
"""


# Durations of trace nodes: whole microseconds whose sum stays right.


@dataclass(frozen=True, eq=False)
class Timing:
    """What a cluster says of a workload that is written.

    `duration_ns[i]` has one entry for each row of program i, `of_class[i]` is the same for rank class i
    where that is not as its program; 0 for what has no price, or is
    communication, which simulators time themselves, unless it was measured. `cluster` is "" where
    times are measured and nothing is known of the hardware.
    """

    cluster: str
    duration_ns: tuple[Float64s, ...]
    hardware: SimulatedHardware
    of_class: Mapping[int, Float64s] = field(default_factory=dict)


def whole_micros(duration_ns: Float64s) -> Int64s:
    """Durations of nodes in microseconds, at least 1 where a node has one at all.

    What rounding takes from a node its successors get: sums over nodes from the first differ by
    half a microsecond at most from the exact ones, unless many nodes in a row are below 1 us. Then
    they are longer, and nodes after them shorter, until the sum is right again.
    """
    exact = np.cumsum(duration_ns / 1e3)
    rounded = np.floor(np.concatenate((np.zeros(1), exact)) + 0.5).astype(np.int64)
    micros: Int64s = rounded[1:] - rounded[:-1]
    timed = duration_ns > 0
    if (micros[timed] > 0).all():
        return micros
    given = 0
    for node in np.flatnonzero(timed).tolist():
        micros[node] = max(1, int(rounded[node + 1]) - given)
        given += int(micros[node])
    return micros
