"""An algorithm as ASTRA-sim takes it: a Chakra trace of each rank with its sends, receives and reductions.

Facts: `astra-sim/system/astraccl/custom_collectives/CustomAlgorithm.cc`. ASTRA-sim reads `PREFIX.<position in
the group>.et`, whose ranks are positions too, and takes the sizes that stand there for every call.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from flint.backends.chakra.schema import NodeType
from flint.backends.chakra.writing.encode import (
    field_bytes,
    integer_attribute,
    metadata_record,
    varint,
)
from flint.backends.cost.collectives.algorithms.ring import total_bytes
from flint.errors import FlintError
from flint.io.outputs import OutputKind, write_output
from flint.tools.interop.algorithms.checking import AlgorithmGraph, proved_algorithm
from flint.tools.interop.algorithms.reading import AlgorithmStep

_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def write_custom_collective(path: Path, size: str, folder: Path) -> tuple[str, int]:
    """Write the traces of an algorithm for ranks that put in `size` each, "4MiB"; the setting of system.json, and how many nodes there are.

    Raises FlintError FL607 to FL609 and FL611 (no such algorithm), FL612 (a size that its chunks do not divide, a folder that
    holds anything) and FL502 (cannot write).
    """
    graph = proved_algorithm(path)
    a = graph.algorithm
    total = total_bytes(a.collective, _bytes_in(size), a.ranks)
    if total < a.chunks or total % a.chunks:
        told = f"{total:,.0f} bytes are not divided by {a.chunks} chunks"
        raise FlintError("FL612", told, help="name bytes of a rank's input: 4MiB")
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise FlintError("FL612", f"{folder} is not empty", help="name a new folder")
    nodes = 0
    for rank, records in enumerate(_records(graph, int(total) // a.chunks)):
        head = metadata_record({"collective": a.kind, "algorithm": a.name})
        write_output(folder / f"{path.stem}.{rank}.et", head + b"".join(records), OutputKind.GRAPH)
        nodes += len(records)
    return f'"{a.kind}-implementation-custom": ["{folder / path.stem}"]', nodes


def _bytes_in(text: str) -> int:
    found = re.fullmatch(r"([0-9]{1,15}) ?([KMG]i?B|)", text)
    if found is None:
        raise FlintError("FL612", f"'{text[:40]}' is no size", help="write bytes: 4194304 or 4MiB")
    return int(found[1]) * _UNITS[found[2]]


def _records(graph: AlgorithmGraph, chunk_bytes: int) -> list[list[bytes]]:
    """The nodes of each rank as records of its file, in an order in which all can run."""
    found: list[list[bytes]] = [[] for _ in range(graph.algorithm.ranks)]
    last: dict[int, list[int]] = {-1: []}  # by step the nodes that its end is
    for i in graph.order:
        step, mine = graph.algorithm.steps[i], found[graph.algorithm.steps[i].rank]
        after = sorted({*last[graph.earlier[i]], *last[graph.other[i]]})
        for kind in _nodes_of(step):
            mine.append(_record(step, kind, len(mine), after, step.count * chunk_bytes))
            after = [len(mine) - 1]
        last[i] = after
    return found


def _nodes_of(step: AlgorithmStep) -> Iterator[NodeType]:
    """What a step is in a trace; one that only waits is nothing, and its dependencies pass through it."""
    if step.from_rank >= 0:
        yield NodeType.COMM_RECV
    if step.adds or step.kind == "cpy":
        yield NodeType.COMP
    if step.sends_to >= 0:
        yield NodeType.COMM_SEND


def _record(step: AlgorithmStep, kind: NodeType, number: int, after: list[int], size: int) -> bytes:
    name = f"{kind.name}_NODE tb{step.block} step{step.number} {step.kind}"
    if kind is NodeType.COMP:  # ASTRA-sim takes one of a custom collective as 1 ns
        values = [("num_ops", "int64_val", size), ("tensor_size", "uint64_val", size)]
    else:
        values = [("comm_size", "int64_val", size), ("comm_tag", "int32_val", step.channel)]
        # The peer alone: ASTRA-sim makes a rank of this position, but takes the own one as a rank.
        sends = kind is NodeType.COMM_SEND
        peer = ("comm_dst", step.sends_to) if sends else ("comm_src", step.from_rank)
        values.append((peer[0], "int32_val", peer[1]))
    body = (b"\x08" + varint(number) if number else b"") + field_bytes(2, name.encode())
    body += b"\x18" + varint(kind)
    if after:
        body += field_bytes(5, b"".join(map(varint, after)))
    for value in [("is_cpu_op", "bool_val", 0), *values]:
        body += field_bytes(10, integer_attribute(*value))
    return varint(len(body)) + body
