"""How far the collective model is from measurements, beside a plain roofline.

    python -m benchmarks.accuracy_collectives

One row per data set, chip and split: count, MAPE, median, 90th percentile and bias in percent, and
the MAPE of bytes on the wire by the bandwidth of the datasheet. Presets are as shipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from benchmarks import collective_rows as rows
from benchmarks.accuracy_row import Accuracy, as_text
from benchmarks.accuracy_row import accuracy as accuracy_of
from benchmarks.fits.networks import INNER, OLDER
from flint.backends.cost.collectives import duration_ns, roofline_ns
from flint.backends.cost.software import with_libraries
from flint.cluster.models import Cluster
from flint.ir.program import Collective


def accuracy(
    data: str, split: str, measured: Iterable[rows.Measured], cluster: Cluster
) -> Accuracy:
    """Errors of the model and of the roofline."""
    without = rows.without_reduction_in_switch(cluster)
    found = list(measured)
    predicted = [
        duration_ns(r.call, without if r.cannot_reduce_in_switch else cluster) for r in found
    ]
    truth = [r.measured_ns for r in found]
    bound = [roofline_ns(r.call, rows.unfitted(without)) for r in found]
    return accuracy_of(data, cluster.chip.name, split, predicted, truth, bound)


def table() -> list[Accuracy]:
    """All rows of the report."""
    return [*_inside_a_node(), *_older(), *_over_nodes(), *_facts()]


def _inside_a_node() -> Iterator[Accuracy]:
    for preset, gpu in INNER.items():
        cluster, measured = Cluster.load(preset), rows.inside_a_node(gpu)
        data = f"NCCL 2-{max(r.call.size for r in measured)} GPUs"
        yield accuracy(data, "fit", [r for r in measured if not r.half], cluster)
        held = [r for r in measured if r.half]
        yield accuracy(data, "held out", held, cluster)
        large = [r for r in held if r.size_bytes >= 64 << 20]
        yield accuracy(data, "held out, >= 64 MiB", large, cluster)


def _older() -> Iterator[Accuracy]:
    """An older NCCL, with its own constants and with those of newer ones."""
    for preset in OLDER:
        cluster, measured = Cluster.load(preset), rows.older(preset)
        own = with_libraries(cluster, ("nccl-2-20",))
        held = [r for r in measured if r.half]
        yield accuracy("NCCL 2.18-2.20, 8 GPUs", "fit", [r for r in measured if not r.half], own)
        yield accuracy("NCCL 2.18-2.20, 8 GPUs", "held out", held, own)
        yield accuracy("NCCL 2.18-2.20, 8 GPUs", "constants of 2.27-2.29", held, cluster)


def _over_nodes() -> Iterator[Accuracy]:
    """Whole tables of all-reduces over two nodes, one half of each fitted on."""
    for data, preset, measured in (
        ("NCCL 2 nodes, EFA", "a100-80-efa", rows.over_nodes()),
        ("NCCL 2 nodes, InfiniBand", "h100-dgx", rows.public("nebius")),
        ("RCCL 8 GPUs", "mi300x", rows.public("rccl")),
    ):
        cluster = Cluster.load(preset)
        yield accuracy(data, "fit", [r for r in measured if not r.half], cluster)
        yield accuracy(data, "held out", [r for r in measured if r.half], cluster)


def _facts() -> Iterator[Accuracy]:
    """Single figures of public pages, on which constants rest: no half of them is held out."""
    efa, rack = Cluster.load("h100-efa"), Cluster.load("gb200-nvl72")
    single = [*rows.public("aws"), *rows.public("smol")]
    for data, collective in (
        ("NCCL 2-16 nodes, EFA, all-reduce", Collective.ALL_REDUCE),
        ("NCCL 2-16 nodes, EFA, all-to-all", Collective.ALL_TO_ALL),
        ("NCCL send/recv, NVLink and EFA", Collective.NONE),
    ):
        yield accuracy(data, "fit", [r for r in single if r.call.collective is collective], efa)
    yield accuracy("NCCL 72 GPUs, all-reduce", "fit", rows.public("coreweave"), rack)


if __name__ == "__main__":
    print(as_text(table()))
