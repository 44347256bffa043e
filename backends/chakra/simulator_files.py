"""Files beside the traces that let ASTRA-sim's analytical backend run them on the same mesh.

Bandwidths and latencies are placeholders of the order of an NVLink domain (inner dimension) and a
400 Gb/s network (the others): replace them by those of the cluster in question.
"""

from __future__ import annotations

import json

from flint.backends.chakra.groups import network_dimensions
from flint.mesh import Mesh

#: GB/s as ASTRA-sim counts them (2 ** 30 bytes), innermost dimension, then all others.
BANDWIDTHS = (450.0, 50.0)
#: ns, innermost dimension, then all others.
LATENCIES = (500.0, 2000.0)


def simulator_files(mesh: Mesh, prefix: str) -> dict[str, bytes]:
    """File name -> content of network.yml, system.json, memory.json and README.txt."""
    dims = network_dimensions(mesh) or (("devices", 1),)
    return {
        "network.yml": _network(dims).encode(),
        "system.json": (json.dumps(_system(len(dims)), indent=2) + "\n").encode(),
        "memory.json": b'{ "memory-type": "NO_MEMORY_EXPANSION" }\n',
        "README.txt": _readme(mesh, prefix).encode(),
    }


def _network(dims: tuple[tuple[str, int], ...]) -> str:
    def inner_then_outer(values: tuple[float, float]) -> str:
        return ", ".join(str(values[min(i, 1)]) for i in range(len(dims)))

    return (
        f"# One dimension per mesh axis, the fastest-varying first: {', '.join(n for n, _ in dims)}\n"
        "# bandwidth (GB/s, 2^30 bytes) and latency (ns) are placeholders.\n"
        f"topology: [ {', '.join('Switch' for _ in dims)} ]\n"
        f"npus_count: [ {', '.join(str(s) for _, s in dims)} ]\n"
        f"bandwidth: [ {inner_then_outer(BANDWIDTHS)} ]\n"
        f"latency: [ {inner_then_outer(LATENCIES)} ]\n"
    )


def _system(dims: int) -> dict[str, object]:
    collectives = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
    return {
        "scheduling-policy": "LIFO",
        "endpoint-delay": 10,
        "active-chunks-per-dimension": 1,
        "preferred-dataset-splits": 1,
        **{f"{c}-implementation": ["ring"] * dims for c in collectives},
        "collective-optimization": "localBWAware",
        "local-mem-bw": 3350,
        "peak-perf": 900,
        "roofline-enabled": 1,
        "boost-mode": 0,
    }


def _readme(mesh: Mesh, prefix: str) -> str:
    alone = "\nASTRA-sim does not run a network of one device.\n" if mesh.size == 1 else ""
    return f"""Chakra execution traces of {mesh.size} ranks, mesh {mesh}

{prefix}.<rank>.et   one trace per rank (MLCommons Chakra 1.0.0, not compressed)
comm_group.json   communicator groups, named by pg_name in the traces
workload.flint    the program that the traces were written from
manifest.json     what was written: options, ranks, nodes, bytes, SHA-256 of each class's first file
network.yml, system.json, memory.json
                  a configuration of ASTRA-sim for this mesh; bandwidth, latency, peak-perf and
                  local-mem-bw in them are placeholders

Run ASTRA-sim's analytical backend in this directory:

  AstraSim_Analytical_Congestion_Unaware \\
    --workload-configuration={prefix} \\
    --comm-group-configuration=comm_group.json \\
    --system-configuration=system.json \\
    --network-configuration=network.yml \\
    --remote-memory-configuration=memory.json

It keeps every trace open: `ulimit -n` must be above {mesh.size}. Its exit status is 0 even when
ranks never end: count the {mesh.size} lines "sys[i] finished". `flint check` proves beforehand that
the ranks agree. Times are in ns; num_ops and tensor_size drive its roofline, durations are 0.
{alone}
comm_size is the bytes of one rank's input, for all collectives. A broadcast is written as an
all-gather of its parts, a permutation as one send and one receive. Where ranks may differ (messages,
several rank classes) collectives and sends wait for each other in program order, so that no two
ranks can take their communication slots for different ones.
"""
