"""Errors of sums: what errors of parts make of whole steps, where long kernels count most.

    python -m benchmarks.accuracy_parts

Of each set of data: the priced sum of all its rows that nothing was fitted on against the measured sum,
and a plain roofline's. That errors of parts cancel in whole steps shows here. Sums of real profiles are
`benchmarks.trace_sums`'s.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks import tpu_rows
from benchmarks.accuracy_kernels import ROW_MODELS, Priced, own_row_kernel_rows, priced_kernels
from benchmarks.accuracy_tpu import roofline_ns
from benchmarks.fits.bytes import A100
from benchmarks.tables import markdown
from flint.backends.cost.chips.model import latency_ns
from flint.cluster.models import Cluster


def sources() -> Iterator[Priced]:
    """All that is measured kernel by kernel."""
    yield from priced_kernels()
    titles = [f"{title}, own constants and call" for title, _ in ROW_MODELS.values()]
    yield from (p for p in own_row_kernel_rows() if p.chip == A100 and p.data in titles)
    chip = Cluster.load("v6e").chip
    for part, layers in tpu_rows.parts().items():
        columns = [
            (latency_ns(r.kernels, chip), r.measured_ns, roofline_ns(r, chip), r.half)
            for r in layers
        ]
        joined = (np.concatenate(column) for column in zip(*columns, strict=True))
        yield Priced(f"LLMServingSim, {part}", chip.name, *joined)


def table() -> str:
    """As it stands on the page of accuracy."""
    lines = []
    for p in sources():
        held = p.half == 1
        whole = p.measured_ns[held].sum()
        if held.any():
            errors = (
                f"{100 * (ns[held].sum() / whole - 1):+.1f}" for ns in (p.priced_ns, p.bound_ns)
            )
            lines.append((p.data, p.chip, f"{int(held.sum()):,}", *errors))
    return markdown(("data", "machine", "rows", "sum %", "roofline %"), lines)


if __name__ == "__main__":
    print(table())
