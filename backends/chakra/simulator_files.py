"""Files beside the traces that let ASTRA-sim's analytical backend run them on the same mesh.

Without a cluster, bandwidths and latencies are placeholders of the order of an NVLink domain (inner
dimension) and a 400 Gb/s network (the others): replace them by those of the cluster in question.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from flint.backends.chakra.groups import network_dimensions
from flint.mesh import Mesh

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

    `peak_tflops` is in 1e12 FLOP/s and `memory_gb_per_s` in 1e9 bytes/s. Where the traces say how
    long kernels take (`has_durations`), its roofline is off and those times count.
    """

    dimensions: tuple[SimulatorDimension, ...]
    peak_tflops: float
    memory_gb_per_s: float
    origin: str
    has_durations: bool = False


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
    mesh: Mesh, prefix: str, hardware: SimulatedHardware | None = None
) -> dict[str, bytes]:
    """File name -> content of network.yml, system.json, memory.json and README.txt."""
    told = hardware or placeholder_hardware(mesh)
    return {
        "network.yml": network_file(told).encode(),
        "system.json": system_file(told).encode(),
        "memory.json": b'{ "memory-type": "NO_MEMORY_EXPANSION" }\n',
        "README.txt": _readme(mesh, prefix, told).encode(),
    }


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


def _readme(mesh: Mesh, prefix: str, told: SimulatedHardware) -> str:
    times = "num_ops and tensor_size drive its roofline, durations are 0."
    if told.has_durations:
        times = "kernels take their\nduration_micros, communication what the network says."
    alone = "\nASTRA-sim does not run a network of one device.\n" if mesh.size == 1 else ""
    return f"""Chakra execution traces of {mesh.size} ranks, mesh {mesh}

{prefix}.<rank>.et   one trace per rank (MLCommons Chakra 1.0.0, not compressed)
comm_group.json   communicator groups, named by pg_name in the traces
workload.flint    the program that the traces were written from
manifest.json     what was written: options, ranks, nodes, bytes, SHA-256 of each class's first file
network.yml, system.json, memory.json
                  a configuration of ASTRA-sim for this mesh; bandwidth, latency, peak-perf and
                  local-mem-bw in them are {told.origin}

Run ASTRA-sim's analytical backend in this directory:

  AstraSim_Analytical_Congestion_Unaware \\
    --workload-configuration={prefix} \\
    --comm-group-configuration=comm_group.json \\
    --system-configuration=system.json \\
    --network-configuration=network.yml \\
    --remote-memory-configuration=memory.json

It keeps every trace open: `ulimit -n` must be above {mesh.size}. Its exit status is 0 even when
ranks never end: count the {mesh.size} lines "sys[i] finished". `flint check` proves beforehand that
the ranks agree. Times are in ns; {times}
{alone}
comm_size is the bytes of one rank's input, for all collectives. A broadcast is written as an
all-gather of its parts, a permutation as one send and one receive. Where ranks may differ (messages,
several rank classes) collectives and sends wait for each other in program order, so that no two
ranks can take their communication slots for different ones.
"""
