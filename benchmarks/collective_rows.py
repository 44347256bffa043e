"""The collective measurements in benchmarks/data/ as `CollectiveCall`s, split by a fixed rule."""

from __future__ import annotations

import csv
import gzip
import zlib
from dataclasses import dataclass

from benchmarks.kernel_rows import DATA
from flint.backends.cost.collectives.algorithm import CollectiveCall
from flint.backends.cost.network.torus import Span
from flint.cluster.models import Cluster, Network
from flint.ir.program import Collective
from flint.tools.measure.fitting.fit import halves, hash_of

_COLLECTIVES = {
    "all_reduce": Collective.ALL_REDUCE,
    "all_gather": Collective.ALL_GATHER,
    "reduce_scatter": Collective.REDUCE_SCATTER,
    "alltoall": Collective.ALL_TO_ALL,
    "sendrecv": Collective.NONE,
}


@dataclass(frozen=True)
class Measured:
    """A measured call: its type and "size" as nccl-tests has them, its half (1: held out)."""

    call: CollectiveCall
    measured_ns: float
    dtype: str
    size_bytes: int
    half: int

    @property
    def cannot_reduce_in_switch(self) -> bool:
        """NVLink switches add floating-point numbers, but not 8-bit integers."""
        return self.dtype == "int8"


def half_of(*key: object) -> int:
    """0 for a row to fit on and 1 for a row that is held out, by CRC-32 of what it measures."""
    return zlib.crc32(" ".join(map(str, key)).encode()) & 1


def inside_a_node(gpu: str) -> list[Measured]:
    """aiconfigurator's NCCL measurements of a GPU, on 2, 4 and 8 of them.

    Its bytes are nccl-tests "size": of an all-gather all ranks' inputs together, otherwise the
    input of one rank.
    """
    (path,) = DATA.glob(f"aiconfigurator/nccl_{gpu}_*.csv.gz")
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [_measured(row) for row in csv.DictReader(file)]


def _measured(row: dict[str, str]) -> Measured:
    element = 1 if row["nccl_dtype"] == "int8" else 2  # tables of some GPUs count elements
    size = int(row["bytes"] if "bytes" in row else int(row["message_elems"]) * element)
    members = int(row["num_gpus"])
    collective = _COLLECTIVES[row["op_name"]]
    comm_bytes = size // members if collective is Collective.ALL_GATHER else size
    call = CollectiveCall(collective, comm_bytes, (Span(0, members),))
    half = half_of(row["op_name"], row["nccl_dtype"], members, size)
    return Measured(call, float(row["latency_ms"]) * 1e6, row["nccl_dtype"], size, half)


def over_nodes() -> list[Measured]:
    """AWS's all-reduce over 2 nodes of 8 A100."""
    with (DATA / "nccl_multinode" / "all_reduce.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return [_over_nodes(row, int(row["nodes_or_racks"])) for row in rows]


def older(preset: str) -> list[Measured]:
    """Azure's all-reduces of NCCL 2.18 to 2.20 on 8 GPUs; of few rows, too, half are held out."""
    with (DATA / "azure_nccl" / "all_reduce.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["preset"] == preset]
    half = halves([hash_of("all_reduce", row["gpus"], row["bytes"]) for row in rows])
    found = []
    for row, part in zip(rows, half.tolist(), strict=True):
        size, gpus = int(row["bytes"]), int(row["gpus"])
        call = CollectiveCall(Collective.ALL_REDUCE, size, (Span(0, gpus),))
        ns = size * 2 * (gpus - 1) / gpus / float(row["busbw_GBps"])
        found.append(Measured(call, ns, "float32", size, part))
    return found


def public(source: str) -> list[Measured]:
    """Facts of public pages, by their source (benchmarks/data/nccl_public)."""
    with (DATA / "nccl_public" / "rows.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["source"] == source]
    return [_over_nodes(row, int(row["nodes"])) for row in rows]


def _over_nodes(row: dict[str, str], nodes: int) -> Measured:
    size, gpus = int(row["bytes"]), int(row["gpus"])
    collective = _COLLECTIVES[row["op"]]
    if collective is Collective.NONE:
        spans: tuple[Span, ...] = (Span(int(nodes > 1), 2),)
    else:
        spans = (Span(0, gpus // nodes), *((Span(1, nodes, gpus // nodes),) if nodes > 1 else ()))
    call = CollectiveCall(collective, size, spans)
    half = half_of(row["op"], row["gpus"], size)
    return Measured(call, float(row["time_us"]) * 1e3, "float32", size, half)


def without_reduction_in_switch(cluster: Cluster) -> Cluster:
    """The cluster as 8-bit integers find it."""
    tiers = [n.model_copy(update={"in_network_reduction": False}) for n in cluster.network]
    return cluster.model_copy(update={"network": tuple(tiers)})


def unfitted(cluster: Cluster) -> Cluster:
    """The cluster without the constants of its networks: what datasheets say."""
    tiers = [n.model_copy(update={"constants": {}}) for n in cluster.network]
    return cluster.model_copy(update={"network": tuple(tiers)})


def with_constants(cluster: Cluster, tier: int, constants: dict[str, float]) -> Cluster:
    """The cluster with these constants in one tier, and no others there."""
    given = {n: {"value": v, "kind": "assumed", "source": "tried"} for n, v in constants.items()}
    return with_network(cluster, tier, constants=given)


def with_network(cluster: Cluster, tier: int, **changes: object) -> Cluster:
    """The cluster with another network in one tier, for systems that no preset describes."""
    networks: list[Network] = list(cluster.network)
    networks[tier] = Network.model_validate({**networks[tier].model_dump(), **changes})
    return cluster.model_copy(update={"network": tuple(networks)})
