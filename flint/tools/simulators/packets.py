"""Files of ASTRA-sim's simulators of packets, ns-3 and htsim, for a mesh that is placed on a cluster.

Formats: ASTRA-sim's ns-3 (its `scratch/common.h`) reads a graph of links, htsim
(`fat_tree_topology.cpp`) a fat tree of which all links to chips and leaves are equally fast.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from flint.backends.cost.network.placement import NetworkPlacement
from flint.cluster.models import NetworkKind
from flint.errors import FlintError
from flint.io.files import cannot_write, write_atomically
from flint.tools.simulators.backends import Backend, Cabling
from flint.tools.simulators.physical import (
    LEAF_PORTS,
    SPINE_NS,
    Link,
    PhysicalNetwork,
    physical_network,
)

#: ECN marks of a switch by the speed of a link, in KB for each 25 Gb/s, and their likelihood: HPCC
#: (Li et al., SIGCOMM 2019, section 5.1) for DCQCN.
_ECN_LEAST, _ECN_MOST, _ECN_SHARE = 100, 400, 0.2
#: What ns-3 is told besides: DCQCN (1), packets of 1,000 bytes, buffers of 32 MB in a switch, as in
#: the example that comes with it, without its trace of every packet.
_NS3 = """ENABLE_QCN 1
USE_DYNAMIC_PFC_THRESHOLD 1
PACKET_PAYLOAD_SIZE 1000
SIMULATOR_STOP_TIME 40000000000000.00
CC_MODE 1
ALPHA_RESUME_INTERVAL 1
RATE_DECREASE_INTERVAL 4
CLAMP_TARGET_RATE 0
RP_TIMER 900
EWMA_GAIN 0.00390625
FAST_RECOVERY_TIMES 1
RATE_AI 50Mb/s
RATE_HAI 100Mb/s
MIN_RATE 100Mb/s
ERROR_RATE_PER_LINK 0
L2_CHUNK_SIZE 4000
L2_ACK_INTERVAL 1
L2_BACK_TO_ZERO 0
HAS_WIN 1
GLOBAL_T 0
VAR_WIN 1
RATE_BOUND 1
ACK_HIGH_PRIO 0
LINK_DOWN 0 0 0
ENABLE_TRACE 0
BUFFER_SIZE 32
TOPOLOGY_FILE topology.txt
FLOW_FILE flow.txt
TRACE_FILE trace.txt
TRACE_OUTPUT_FILE mix.tr
FCT_OUTPUT_FILE fct.txt
PFC_OUTPUT_FILE pfc.txt
QLEN_MON_FILE qlen.txt
QLEN_MON_START 0
QLEN_MON_END 0
"""


@dataclass(frozen=True)
class PacketFiles:
    """Files by name, what each option of the simulator is, and what follows all options."""

    files: Mapping[str, str]
    options: Mapping[str, str]
    after: tuple[str, ...] = ()

    def write(self, folder: Path) -> None:
        """Write the files into a new directory.

        Raises FlintError FL501 for one that is there, FL502 where it cannot be written.
        """
        try:
            folder.mkdir(parents=True)
            for name, text in self.files.items():
                write_atomically(folder / name, text.encode())
        except FileExistsError:
            raise FlintError("FL501", f"{folder} exists", help="name a new directory") from None
        except OSError as error:
            raise cannot_write(folder, error) from error


def packet_files(
    backend: Backend, placement: NetworkPlacement, topology: Cabling = Cabling.RAIL
) -> PacketFiles:
    """What a simulator of packets needs to know of the network.

    Raises FlintError FL733 for a network that it cannot be told.
    """
    if backend is Backend.HTSIM:
        return PacketFiles(
            {"htsim.topo": _fat_tree(placement)}, {}, ("--htsim_opts", "-topo", "htsim.topo")
        )
    network = physical_network(placement, topology)
    dims = [str(s) for s in reversed(placement.mesh.sizes) if s > 1]
    files = {
        "config.txt": _NS3 + "".join(_ecn(network)),
        "topology.txt": _topology(network),
        "logical.json": json.dumps({"logical-dims": dims}) + "\n",
        "flow.txt": "0\n",
        "trace.txt": "0\n",
    }
    options = {
        "network-configuration": "config.txt",
        "logical-topology-configuration": "logical.json",
    }
    return PacketFiles(files, options)


def _bits_per_s(link: Link) -> int:
    return round(link.bytes_per_s * 8)


def _topology(network: PhysicalNetwork) -> str:
    """Nodes, switches and links: their numbers, the numbers of the switches, a line for each link."""
    nodes = network.devices + network.switches
    lines = [
        f"{nodes} {network.switches} {len(network.links)}",
        " ".join(map(str, range(network.devices, nodes))),
    ]
    lines += [
        f"{k.one} {k.other} {_bits_per_s(k)}bps {max(1, round(k.latency_ns))}ns 0"
        for k in network.links
    ]
    return "\n".join(lines) + "\n"


def _ecn(network: PhysicalNetwork) -> list[str]:
    """Marks for each speed of a link; ns-3 stops where it has none."""
    speeds = sorted({_bits_per_s(k) for k in network.links})
    found = []
    for key, kilobytes in (("KMAX_MAP", _ECN_MOST), ("KMIN_MAP", _ECN_LEAST)):
        marks = [f"{s} {max(1, round(kilobytes * s / 25e9))}" for s in speeds]
        found.append(f"{key} {len(speeds)} {' '.join(marks)}\n")
    return [*found, f"PMAX_MAP {len(speeds)} {' '.join(f'{s} {_ECN_SHARE}' for s in speeds)}\n"]


def _fat_tree(placement: NetworkPlacement) -> str:
    """htsim's file for ranks that are in one tier of switches."""
    cluster, devices = placement.cluster, placement.mesh.size
    tiers = sorted({p.tier for p in placement.parts if p.size > 1})
    network = cluster.network[tiers[0]] if tiers else cluster.network[0]
    if len(tiers) > 1 or network.kind is not NetworkKind.SWITCH:
        raise FlintError(
            "FL733",
            f"htsim has fat trees of equal links, but {placement.mesh} on {cluster.name} uses "
            + ("links of several tiers" if len(tiers) > 1 else f"a {network.kind}"),
            help="use --network ns3 or congestion-unaware, or a mesh in one tier (--map)",
        )
    one_switch = tiers in ([], [0]) or devices <= LEAF_PORTS
    down = devices if one_switch else LEAF_PORTS
    oversubscription = 1.0 if one_switch else network.oversubscription
    if devices % down or down % oversubscription or oversubscription % 1:
        raise FlintError(
            "FL733",
            f"htsim wants full leaves with whole links up, but {devices} devices have {down} ports on "
            f"a leaf, and an oversubscription of {oversubscription:g}",
            help="use --network ns3 or congestion-unaware",
        )
    share = int(oversubscription)
    speed = max(1, round(network.bandwidth_bytes_per_s.value * 8 / 1e9))
    latency = max(1, round(network.latency_ns.value / 2))
    return f"""Nodes {devices}
Tiers 2
Podsize {devices}

Tier 0
Downlink_speed_Gbps {speed}
Radix_Down {down}
Radix_Up {down // share}
Oversubscribed {share}
Downlink_Latency_ns {latency}

Tier 1
Downlink_speed_Gbps {speed}
Radix_Down {devices // down}
Downlink_Latency_ns {SPINE_NS:.0f}
"""
