"""Norms by library, forward and backward: PyTorch's own, compilers' and cuDNN's (data/cudnn_frontend).

One set a library and generation: nine shapes say little of a chip alone. Other chips are assumed to have those of
a sister, or of H200. Hand-written kernels that nothing has measured (Transformer Engine's, Apex's, serving
engines') are taken to be as cuDNN's, which are hand-written too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np

from benchmarks import kernel_rows as rows
from benchmarks.fits.fit import Constant
from flint.backends.cost.chips.families.gpu import memory
from flint.backends.cost.chips.families.gpu.constants import Constants
from flint.backends.cost.chips.families.gpu.hardware import hardware_of
from flint.backends.cost.chips.kernels import KernelKind
from flint.cluster.models import Cluster
from flint.ir.arrays import Float64s
from flint.tools.measure.fitting.fit import Bounds, fit

#: Presets and the names of their GPUs in the file.
GPUS = {"h200-dgx": "h200", "gb200-nvl72": "gb200", "gb300-nvl72": "gb300"}
#: Presets of each generation, by the first of them.
GENERATIONS = {"h200-dgx": ("h200-dgx",), "gb200-nvl72": ("gb200-nvl72", "gb300-nvl72")}
#: Presets that have those of another one; all others have H200's.
SISTERS = {"b200-dgx": "gb200-nvl72"}
LENDER = "h200-dgx"
#: Libraries and their names there.
BACKENDS = {"aten": "pytorch", "triton": "torch_compile", "cudnn": "cudnn"}
_LAUNCH = (1500.0, 12000.0, 2500.0)
_SHARE = (0.3, 0.95, 0.85)
#: What a library's kernels do beside their bytes, forward.
FORWARD: Mapping[str, Bounds] = {
    "aten": {
        "norm.row_cycles": (0.0, 3000.0, 200.0),
        "norm.near_bytes": (2000.0, 60000.0, 12000.0),
    },
    "triton": {"norm.long_ns": (0.0, 9000.0, 3000.0)},
    "cudnn": {"norm.row_cycles": (0.0, 3000.0, 20.0)},
}
_BACKWARD: Bounds = {
    "norm.backward_launch_ns": (1500.0, 20000.0, 6000.0),
    "norm.backward_reads": (0.0, 4.0, 1.0),
}
#: And backward, beside that. Only PyTorch's own kernel walks down all rows of a column.
BACKWARD: Mapping[str, Bounds] = {
    "aten": {**_BACKWARD, "norm.backward_row_cycles": (0.0, 30.0, 2.0)},
    "triton": _BACKWARD,
    "cudnn": _BACKWARD,
}
NAMES = (
    *("norm.launch_ns", "norm.memory_efficiency", "norm.row_cycles", "norm.near_bytes", "norm.long_ns"),
    *BACKWARD["aten"],
)  # fmt: skip
#: Of kernels without them.
_NONE = {"norm.row_cycles": 0.0, "norm.near_bytes": 2.0**40, "norm.long_ns": 0.0,
         "norm.backward_row_cycles": 0.0}  # fmt: skip


def bounds_of(library: str) -> Bounds:
    """What each fitted constant of a library may be."""
    return {
        "norm.launch_ns": _LAUNCH,
        "norm.memory_efficiency": _SHARE,
        **FORWARD[library],
        **BACKWARD[library],
    }


def norms(preset: str, library: str, *, backward: bool) -> rows.Measured:
    """One pass of a library's norms on one chip. The weight's gradient is part of the backward pass."""
    wanted = (GPUS[preset], BACKENDS[library], "bwd" if backward else "fwd")
    found = [
        row
        for row in rows.read("cudnn_frontend/norms.csv.gz")
        if (row["gpu"], row["backend"], row["pass"]) == wanted
    ]
    return rows.measured(found, _norm, "time_ms")


def _norm(row: rows.Row) -> dict[str, object]:
    count, columns = int(row["rows"]), int(row["columns"])
    bytes_of_one = 2 * count * columns
    row["time_ms"] = str(float(row["time_ns_from_gbps"]) * 1e-6)
    return {
        "kind": KernelKind.NORM, "dtype": "bf16", "dims": (1, count, 1, columns), "flops": 0,
        "read": bytes_of_one * (2 if row["pass"] == "bwd" else 1), "written": bytes_of_one,
        "elements": count * columns, "arrays": 3, "causal": False,
    }  # fmt: skip


@cache
def made(library: str, preset: str) -> Mapping[str, Constant]:
    """All constants of a library's norms, of one of `GENERATIONS`."""
    generation = GENERATIONS[preset]
    chips = " and ".join(GPUS[p].upper() for p in generation)
    source = (
        f"benchmarks.fits bytes on all of cuDNN frontend's norms of {BACKENDS[library]} on {chips}"
    )
    own = bounds_of(library)
    return {
        name: (value, "fitted", source)
        if name in own
        else (value, "assumed", "its kernels have none")
        for name, value in fitted(library, generation).items()
    }


def shapes(library: str) -> list[tuple[int, int]]:
    """Rows and columns that were measured, each once."""
    dims = norms(next(iter(GPUS)), library, backward=False).kernels.dims
    return sorted({(int(m), int(n)) for _, m, _, n in dims})


def fitted(
    library: str, presets: Sequence[str], without: tuple[int, int] = (0, 0)
) -> dict[str, float]:
    """Values of all, from forward passes and then from backward passes, without those of one shape."""
    last = BACKWARD[library]
    first = {n: b for n, b in bounds_of(library).items() if n not in last}
    values = {n: v for n, v in _NONE.items() if n not in bounds_of(library)}
    for bounds, backward in ((first, False), (last, True)):
        parts = {p: norms(p, library, backward=backward) for p in presets}
        parts = {
            p: m.select((m.kernels.dims[:, 1::2] != without).any(axis=1)) for p, m in parts.items()
        }
        values |= _fitted(bounds, dict(values), parts)
    return values


def _fitted(
    bounds: Bounds, given: Mapping[str, float], parts: Mapping[str, rows.Measured]
) -> dict[str, float]:
    chips = {preset: Cluster.load(preset).chip for preset in parts}

    def times(values: dict[str, float]) -> Float64s:
        constants = Constants({**given, **values})
        priced = (
            memory.norm_ns(part.kernels, hardware_of(chips[preset], constants))
            for preset, part in parts.items()
        )
        return np.concatenate(list(priced))

    return fit(bounds, times, np.concatenate([part.measured_ns for part in parts.values()]))
