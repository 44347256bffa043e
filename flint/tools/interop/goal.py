"""Traces as GOAL text, which LogGOPSim and ATLAHS simulate.

Grammar: spcl/LogGOPSim, src/LogGOPSim/txt2bin.re; durations are nanoseconds. A rank has one processor: LogGOPSim
(76451de) begins an operation when its processor is free, whatever it waits for on another one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from flint.backends.chakra.reading.reader import TraceNode, read
from flint.backends.chakra.reading.trace_files import TraceSet, find_traces
from flint.backends.chakra.schema import NodeType
from flint.errors import FlintError

#: Of all ranks, above which nobody waits for text to be read.
_MOST_NODES = 10_000_000


def goal_text(place: Path) -> tuple[str, int]:
    """All ranks of traces that hold sends and receives, and the number of their nodes.

    Raises FlintError FL613 for traces that GOAL cannot hold: of some ranks only, with collectives or memory
    nodes, without durations, too many nodes; FL601 to FL606 as the reader of traces does.
    """
    traces = find_traces(place)
    if sorted(traces.paths) != list(range(traces.world)):
        raise _refused(
            f"{place} has not the traces of all {traces.world:,} ranks", "write them all"
        )
    parts, count = ["// flint.graph/1", f"num_ranks {traces.world}"], 0
    for rank in range(traces.world):
        lines = list(_rank(traces, rank))
        count += sum(" requires " not in line for line in lines)
        if count > _MOST_NODES:
            raise _refused(
                f"ranks up to {rank} have {count:,} nodes", "capture fewer layers or ranks"
            )
        parts += ["", f"rank {rank} {{", *lines, "}"]
    return "\n".join(parts) + "\n", count


def _rank(traces: TraceSet, rank: int) -> Iterator[str]:
    path = traces.paths[rank]
    nodes = read(path).nodes
    kernels = [node for node in nodes if node.type is NodeType.COMP]
    if kernels and not any(node.duration_micros for node in kernels):
        raise _refused(f"{path}: no kernel has a duration", "capture with -c CLUSTER")
    yield from (f"l{node.id}: {_operation(node, path)}" for node in nodes)
    for node in nodes:  # after all labels, as a node may wait for one that stands later in the file
        yield from (f"l{node.id} requires l{other}" for other in (*node.data_deps, *node.ctrl_deps))


def _operation(node: TraceNode, path: Path) -> str:
    told = {name: value for name, (_, value) in node.attributes.items()}
    if node.type is NodeType.COMP:
        return f"calc {node.duration_micros * 1000}"
    if node.type is NodeType.COMM_SEND:
        return f"send {told['comm_size']}b to {told['comm_dst']} tag {told.get('comm_tag', 0)}"
    if node.type is NodeType.COMM_RECV:
        return f"recv {told['comm_size']}b from {told['comm_src']} tag {told.get('comm_tag', 0)}"
    if node.type is NodeType.COMM_COLL:
        instead = "capture with --groups p2p, which writes collectives as sends and receives"
        raise _refused(f"{path}: node {node.id} is a collective, which GOAL does not have", instead)
    kind = node.type.name
    instead = "capture a step that moves nothing to or from hosts"
    raise _refused(f"{path}: node {node.id} is {kind}, which GOAL does not have", instead)


def _refused(what: str, instead: str) -> FlintError:
    return FlintError("FL613", what, help=instead)
