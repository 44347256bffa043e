"""Errors of parts of steps, of each set of data that gives them apart.

    python -m benchmarks.accuracy_parts

Of each machine and source: the priced sum of all products, attention, other kernels and collectives
that nothing was fitted on, against the measured sum, and a plain roofline's. That errors of parts
cancel in whole steps shows here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from benchmarks import accuracy_tpu, collective_rows, kernel_rows, simumax_rows, tpu_rows
from benchmarks.accuracy_kernels import ROW_MODELS, roofline_ns
from benchmarks.fits.bytes import A100, of_device
from benchmarks.fits.networks import INNER
from benchmarks.kernel_rows import Measured
from benchmarks.tables import markdown
from benchmarks.trace_kernels import TraceKernels, files, of_class, read_trace
from benchmarks.trace_sums import left_out
from flint.backends.cost.chips.model import latency_ns
from flint.backends.cost.collectives import duration_ns
from flint.backends.cost.collectives import roofline_ns as wire_ns
from flint.backends.cost.software import with_stack
from flint.cluster.models import Chip, Cluster
from flint.cluster.stack import Stack
from flint.ir.arrays import Float64s
from flint.tools.measure.fitting.kernels import CLASSES, latencies
from flint.tools.measure.fitting.kernels import roofline_ns as trace_bound_ns


class Kind(StrEnum):
    """What a part is."""

    PRODUCTS = "products"
    ATTENTION = "attention"
    OTHERS = "other kernels"
    COMMUNICATION = "communication"


@dataclass(frozen=True, eq=False)
class PartTimes:
    """Rows of one part that nothing was fitted on: as priced, as measured, and a roofline's."""

    priced_ns: Float64s
    measured_ns: Float64s
    bound_ns: Float64s

    def select(self, rows: NDArray[np.bool_]) -> PartTimes:
        """Some of them."""
        return PartTimes(self.priced_ns[rows], self.measured_ns[rows], self.bound_ns[rows])

    @property
    def cell(self) -> str:
        """Errors of the sum as priced and of the roofline's, in percent."""
        whole = self.measured_ns.sum()
        errors = [100 * (times.sum() / whole - 1) for times in (self.priced_ns, self.bound_ns)]
        return "{:+.1f} ({:+.0f})".format(*errors)


@dataclass(frozen=True)
class Source:
    """Measurements of one machine by one source, by part."""

    data: str
    chip: str
    parts: dict[Kind, PartTimes]


def sources() -> Iterator[Source]:
    """All that give parts apart."""
    for preset, gpu in INNER.items():
        yield Source("aiconfigurator, bursts", Cluster.load(preset).chip.name, _bursts(preset, gpu))
    for preset in simumax_rows.SYSTEMS:
        yield Source("SimuMax, training", Cluster.load(preset).chip.name, _training(preset))
    yield Source("LLMServingSim", "TPU v6e", _tpu())
    yield Source("NeuSight", A100, {Kind.OTHERS: _rows_of_a100()})
    for data, preset, rows in (
        ("NCCL, 2 nodes", "a100-80-efa", collective_rows.over_nodes()),
        ("NCCL, 2 nodes", "h100-dgx", collective_rows.public("nebius")),
    ):
        cluster = Cluster.load(preset)
        yield Source(data, cluster.chip.name, {Kind.COMMUNICATION: _calls(rows, cluster)})
    for path, preset in files():
        trace = read_trace(path, preset)
        chip = left_out(path, preset).chip
        yield Source(f"profile {trace.name}", chip.name, _traced(trace, chip))


def _bursts(preset: str, gpu: str) -> dict[Kind, PartTimes]:
    """aiconfigurator's: products, attention of prefill and decode, NCCL inside a node."""
    cluster = Cluster.load(preset)
    found: dict[Kind, PartTimes] = {}
    if gpu in kernel_rows.PRODUCTS.values():
        found[Kind.PRODUCTS] = _kernels([kernel_rows.gemms(gpu)], cluster.chip)
    if gpu in kernel_rows.PRESETS.values():
        calls = [kernel_rows.prefill(gpu), kernel_rows.decode(gpu)]
        found[Kind.ATTENTION] = _kernels(calls, cluster.chip)
    found[Kind.COMMUNICATION] = _calls(collective_rows.inside_a_node(gpu), cluster)
    return found


def _training(preset: str) -> dict[Kind, PartTimes]:
    """SimuMax's, as Megatron's stack prices them."""
    chip = with_stack(Cluster.load(preset), Stack.load("megatron")).chip
    attention = [simumax_rows.attention(preset, backward=b) for b in (False, True)]
    return {
        Kind.PRODUCTS: _kernels([simumax_rows.products(preset)], chip),
        Kind.ATTENTION: _kernels(attention, chip),
    }


def _tpu() -> dict[Kind, PartTimes]:
    """LLMServingSim's layers, o_proj's weights fetched before."""
    chip = Cluster.load("v6e").chip
    parts = {
        Kind.PRODUCTS: [tpu_rows.gemm_layer(n, in_vmem=n == "o_proj") for n in tpu_rows.GEMM_LAYERS],
        Kind.ATTENTION: [tpu_rows.attention_rows(decode=d) for d in (True, False)],
        Kind.OTHERS: [tpu_rows.rope(), tpu_rows.norm(), tpu_rows.embedding()],
    }  # fmt: skip
    return {kind: _kernels(rows, chip, accuracy_tpu.roofline_ns) for kind, rows in parts.items()}


def _rows_of_a100() -> PartTimes:
    """NeuSight's element-wise kernels, softmax and layer norms, each with its call."""
    parts = []
    for name, (_, model) in ROW_MODELS.items():
        rows, own = _held_out(kernel_rows.row_kernels(name, A100)), of_device(name, A100)
        hardware = kernel_rows.neusight_hardware(A100, dict(own))
        priced_ns = model(rows.kernels, hardware) + own.get("call_ns", 0.0)
        bound_ns = rows.kernels.moved_bytes / hardware.memory_bytes_per_ns
        parts.append(PartTimes(priced_ns, rows.measured_ns, bound_ns))
    return _joined(parts)


def _traced(trace: TraceKernels, chip: Chip) -> dict[Kind, PartTimes]:
    """A profile's kernels by what they are; the chip's constants are made without it."""
    data = trace.kernels
    priced_ns, bound_ns = latencies(data, chip), trace_bound_ns(data, chip)
    times = PartTimes(*(ns * data.count for ns in (priced_ns, data.measured_ns, bound_ns)))
    found: dict[Kind, NDArray[np.bool_]] = {}
    for name in CLASSES:
        kind = Kind(name) if name in (Kind.PRODUCTS, Kind.ATTENTION) else Kind.OTHERS
        found[kind] = found.get(kind, np.False_) | of_class(data, name)
    return {kind: times.select(rows) for kind, rows in found.items() if rows.any()}


def _calls(rows: Sequence[collective_rows.Measured], cluster: Cluster) -> PartTimes:
    """Collectives."""
    without = collective_rows.without_reduction_in_switch(cluster)
    wire = collective_rows.unfitted(without)
    held = [r for r in rows if r.half == 1]
    on = [without if r.cannot_reduce_in_switch else cluster for r in held]
    return PartTimes(
        np.array([duration_ns(r.call, c) for r, c in zip(held, on, strict=True)]),
        np.array([r.measured_ns for r in held]),
        np.array([wire_ns(r.call, wire) for r in held]),
    )


def _kernels(
    rows: Sequence[Measured], chip: Chip, bound: Callable[..., Float64s] | None = None
) -> PartTimes:
    """Kernels; `bound` is the roofline of rows, that of GPUs if none is given."""
    held = [_held_out(r) for r in rows]
    parts = [
        PartTimes(
            latency_ns(r.kernels, chip),
            r.measured_ns,
            bound(r, chip) if bound else roofline_ns(r.kernels, chip),
        )
        for r in held
    ]
    return _joined(parts)


def _held_out(rows: Measured) -> Measured:
    return rows.select(rows.half == 1)


def _joined(parts: Sequence[PartTimes]) -> PartTimes:
    columns = ("priced_ns", "measured_ns", "bound_ns")
    return PartTimes(*(np.concatenate([getattr(p, c) for p in parts]) for c in columns))


def table() -> str:
    """As it stands on the page of accuracy."""
    headings = ("data", "machine", *(f"{kind} %" for kind in Kind))
    lines = []
    for source in sources():
        cells = [source.parts[k].cell if k in source.parts else "" for k in Kind]
        lines.append((source.data, source.chip, *cells))
    return markdown(headings, lines)


if __name__ == "__main__":
    print(table())
