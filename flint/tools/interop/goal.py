"""Traces as GOAL text, which LogGOPSim and ATLAHS simulate.

Grammar: spcl/LogGOPSim, src/LogGOPSim/txt2bin.re; durations are nanoseconds. A rank has one processor: LogGOPSim
(76451de) begins an operation when its processor is free, whatever it waits for on another one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from flint.backends.chakra.reading.trace_files import find_traces
from flint.backends.chakra.schema import NodeType
from flint.backends.cost.astrasim.traces import Meeting, MessageEnd, RankTrace, TraceReader
from flint.cluster.astrasim.system import SystemFile
from flint.errors import FlintError

#: Of all ranks, above which nobody waits for text to be read.
_MOST_NODES = 10_000_000
#: Without a roofline: a kernel takes its duration, or 1 ns if it has none.
_DURATIONS = SystemFile.model_validate({"peak-perf": 1, "local-mem-bw": 1})


def goal_text(place: Path) -> tuple[str, int]:
    """All ranks of traces that hold sends and receives, and the number of their nodes.

    Raises FlintError FL613 for traces that GOAL cannot hold: of some ranks only, with collectives or memory
    nodes, without durations, too many nodes; FL601 to FL606 and FL707 as the reader of traces does.
    """
    traces = find_traces(place)
    if sorted(traces.paths) != list(range(traces.world)):
        what = f"{place} has not the traces of all {traces.world:,} ranks"
        raise FlintError("FL613", what, help="write them all")
    reader = TraceReader(traces, traces.dimensions or (traces.world,), _DURATIONS)
    parts, count = ["// flint.graph/1", f"num_ranks {traces.world}"], 0
    for rank in range(traces.world):
        nodes = reader.read(rank, traces.paths[rank])
        count += len(nodes.id)
        if count > _MOST_NODES:
            what = f"ranks up to {rank} have {count:,} nodes"
            raise FlintError("FL613", what, help="capture fewer layers or ranks")
        parts += ["", f"rank {rank} {{", *_lines(nodes, traces.paths[rank]), "}"]
    return "\n".join(parts) + "\n", count


def _lines(nodes: RankTrace, path: Path) -> Iterator[str]:
    kernels = [w for t, w in zip(nodes.type, nodes.work, strict=True) if t is NodeType.COMP]
    if kernels and set(kernels) == {1}:
        what = f"{path}: no kernel has a duration"
        raise FlintError("FL613", what, help="capture with -c CLUSTER")
    for at, number in enumerate(nodes.id):
        yield f"l{number}: {_operation(nodes, at, path)}"
    for number, children in zip(nodes.id, nodes.children, strict=True):
        yield from (f"l{nodes.id[child]} requires l{number}" for child in children)


def _operation(nodes: RankTrace, at: int, path: Path) -> str:
    work, kind = nodes.work[at], nodes.type[at]
    if isinstance(work, MessageEnd):
        sends = kind is NodeType.COMM_SEND
        verb, end = ("send", f"to {work.target:d}") if sends else ("recv", f"from {work.source:d}")
        return f"{verb} {work.size_bytes:d}b {end} tag {work.tag:d}"
    if kind is NodeType.COMP:
        return f"calc {work}"
    what, instead = kind.name, "capture a step that moves nothing to or from hosts"
    if isinstance(work, Meeting):
        what = "a collective"
        instead = "capture with --groups p2p, which writes collectives as sends and receives"
    message = f"{path}: node {nodes.id[at]} is {what}, which GOAL does not have"
    raise FlintError("FL613", message, help=instead)
