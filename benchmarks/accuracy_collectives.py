"""How far the collective model is from measurements, beside a plain roofline.

    python -m benchmarks.accuracy_collectives

One row per data set, chip and split: count, MAPE, median, 90th percentile and bias in percent, and
the MAPE of bytes on the wire by the bandwidth of the datasheet.
"""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks import collective_rows as rows
from benchmarks.accuracy_row import Accuracy, as_text
from benchmarks.accuracy_row import accuracy as accuracy_of
from benchmarks.fit_nccl import THROUGH_HOST, fit_over_nodes
from benchmarks.kernel_rows import PRESETS
from flint.backends.cost.collectives import duration_ns, roofline_ns
from flint.cluster.models import Cluster


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


def p4de() -> Cluster:
    """A100 nodes as AWS has them: the preset with other adapters and nothing fitted on them."""
    cluster = Cluster.load("a100-80-dgx")
    return rows.with_network(cluster, 1, bandwidth_bytes_per_s=rows.EFA_BYTES_PER_S, constants={})


def p4de_fitted() -> Cluster:
    """The same with a step's time, c and efficiency fitted on half of its rows."""
    cluster = p4de()
    inner = {k: (q.value, q.kind, q.source) for k, q in cluster.network[0].constants.items()}
    constants = {
        name: {"value": value, "kind": "fitted", "source": "fit_nccl.fit_over_nodes"}
        for name, value in fit_over_nodes(inner).items()
    }
    return rows.with_network(cluster, 1, constants=constants)


def _half(
    measured: Iterable[rows.Measured], half: int, most: int = 8
) -> tuple[str, list[rows.Measured]]:
    """Name and rows of one half, of groups of at most `most`."""
    chosen = [r for r in measured if r.half == half and r.call.size <= most]
    return "held out" if half else "fit", chosen


def table() -> list[Accuracy]:
    """All rows of the report."""
    found = []
    for preset, gpu in PRESETS.items():
        cluster = Cluster.load(preset)
        measured = rows.inside_a_node(gpu)
        if preset in THROUGH_HOST:
            wider = [r for r in measured if r.call.size > 2]
            found += [
                accuracy("NCCL 2 GPUs", *_half(measured, 0, 2), cluster),
                accuracy("NCCL 2 GPUs", *_half(measured, 1, 2), cluster),
                accuracy("NCCL 4-8 GPUs", *_half(wider, 0), cluster),
                accuracy("NCCL 4-8 GPUs", *_half(wider, 1), cluster),
            ]
            continue
        found.append(accuracy("NCCL 2-8 GPUs", *_half(measured, 0), cluster))
        found.append(accuracy("NCCL 2-8 GPUs", *_half(measured, 1), cluster))
        large = [r for r in measured if r.half and r.size_bytes >= 64 << 20]
        found.append(accuracy("NCCL 2-8 GPUs", "held out, >= 64 MiB", large, cluster))
    nodes = rows.over_nodes()
    held = [r for r in nodes if r.half]
    large = [r for r in nodes if r.size_bytes >= 16 << 20]
    found.append(accuracy("NCCL 2 nodes", "no fit", nodes, p4de()))
    found.append(accuracy("NCCL 2 nodes", "no fit, >= 16 MiB", large, p4de()))
    found.append(accuracy("NCCL 2 nodes", "held out", held, p4de_fitted()))
    return found


if __name__ == "__main__":
    print(as_text(table()))
