"""Constants of cuDNN's attention in training, in 16 and 8 bits, on one half of the shapes.

Kernels of other libraries have the same constants of 8 bits: nothing else is public as data. Backward passes
that add up in one order (`deterministic`) take up to a fifth longer with heads of 128; fits leave them out.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import numpy as np

from benchmarks import cudnn_rows
from benchmarks.fits.attention import BACKWARD, EFFICIENCY, LAUNCH, LIBRARY, TABLE, fitted
from benchmarks.fits.fit import FEW, Constant, Fit
from benchmarks.kernel_rows import Measured
from flint.backends.cost.chips.families.gpu.constants import HEAD_SIZES, constants_of
from flint.cluster.models import Cluster
from flint.tools.measure.fitting.fit import Bounds

#: Modules whose constants these start from.
AFTER = ("attention",)

#: What no row of forward passes tells from the efficiencies.
SAID: Mapping[str, Constant] = {
    **LAUNCH,
    "attention.tail": (0.5, "assumed", "as in backward passes: the longest tiles begin first"),
}
#: Rows of H200 are few: ends of tiles are those of its serving kernels.
FORWARD: Bounds = {"attention.tile_ns": (0, 10000, 2000)}
FEW_ROWS = ("h200-dgx",)
TYPES = {"f8E4M3FN": "attention-fp8", "f8E4M3FN:block": "attention-fp8-block"}
#: A kernel that runs so long is as fast as one in steps of minutes.
LONG_NS = 20e6
SUSTAINED: Bounds = {"attention.sustained": (0.5, 1, 0.9)}
#: Chips of the same die as one that is measured.
TWINS = {"h100-dgx": "h200-dgx", "b200-dgx": "gb200-nvl72"}
#: Chips of a die that computes exponentials twice as fast as that of B200, whose serving kernels are measured.
FASTER = ("b300-hgx", "gb300-nvl72")
_SKIPS = (0.0, "measured", "cuDNN on GB200, 128 keys of 2,048 and of 16,384: 0.536 and 23.2 ms")


def fits() -> list[Fit]:
    """cuDNN's kernels, attention of 8 bits, sustained rates, and chips that have them from others."""
    presets = tuple(cudnn_rows.GPUS)
    return [
        *map(_faster_fit, FASTER),
        *map(_cudnn_fit, presets),
        *map(_narrow_fit, presets),
        *(_sustained_fit(preset) for preset in presets if preset not in FEW_ROWS),
        *(_twin_fit(*pair) for pair in TWINS.items()),
    ]


def _rows(preset: str, dtype: str = "bf16", *, backward: bool = False) -> Measured:
    found = cudnn_rows.attention(preset, dtype, backward=backward)
    return found.select(found.half == 0)


def _source(preset: str) -> str:
    return f"benchmarks.fits cudnn on cuDNN's attention of {cudnn_rows.GPUS[preset]}"


def _bounds(preset: str) -> Bounds:
    sizes = sorted(set(_rows(preset).kernels.dims[:, 3].tolist()))
    efficiencies = {f"{HEAD_SIZES}{size}": EFFICIENCY for size in sizes}
    return efficiencies if preset in FEW_ROWS else FORWARD | efficiencies


@cache
def cudnn(preset: str) -> Mapping[str, float]:
    """Forward and backward of bf16: all constants of the chip on which cuDNN runs."""
    own = dict(constants_of(Cluster.load(preset).chip).values)
    own |= {name: value for name, (value, _, _) in SAID.items()}
    own |= fitted(preset, _bounds(preset), [_rows(preset)], own)
    return own | fitted(preset, BACKWARD, [_rows(preset, backward=True)], own)


def _cudnn_fit(preset: str) -> Fit:
    bounds = _bounds(preset) | BACKWARD
    chip = constants_of(Cluster.load(preset).chip).values
    wider = [name for name in chip if name.startswith(HEAD_SIZES) and name not in bounds]

    def run() -> dict[str, Constant]:
        found, why = cudnn(preset), "as in serving: no row has heads of this size"
        return {
            **{name: (found[name], "fitted", _source(preset)) for name in bounds},
            **{name: (found[name], "assumed", why) for name in wider},
            **SAID,
        }

    names = (*bounds, *wider, *SAID)
    return Fit("attention-cudnn", preset, LIBRARY + "cudnn", names, len(_rows(preset)), run, bounds)


def _narrow_bounds(preset: str) -> dict[str, Bounds]:
    return {
        t: {f"{own}.peak_share": (0.3, 1.5, 0.8), f"{own}.backward_score_cycles": (0, 1, 0.2)}
        for t, own in TYPES.items()
        if preset not in FEW_ROWS or t == "f8E4M3FN"
    }


def _narrow_fit(preset: str) -> Fit:
    bounds = _narrow_bounds(preset)
    flat = {name: b for part in bounds.values() for name, b in part.items()}

    def run() -> dict[str, Constant]:
        found: dict[str, Constant] = {"attention-fp8.backward_skips": _SKIPS}
        for dtype, part in bounds.items():
            rows = [_rows(preset, dtype, backward=b) for b in (False, True)]
            values = fitted(
                preset, part, rows, {**cudnn(preset), "attention-fp8.backward_skips": 0.0}
            )
            found |= {n: (v, "fitted", _source(preset)) for n, v in values.items()}
        return found

    rows = sum(len(_rows(preset, t, backward=b)) for t in bounds for b in (False, True))
    return Fit(
        "attention-fp8", preset, TABLE, (*flat, "attention-fp8.backward_skips"), rows, run, flat
    )


def _sustained_fit(preset: str) -> Fit:
    parts = [_rows(preset, backward=b) for b in (False, True)]
    long = [part.select(part.measured_ns > LONG_NS) for part in parts]

    def run() -> dict[str, Constant]:
        value = fitted(preset, SUSTAINED, long, cudnn(preset))["attention.sustained"]
        return {
            "attention.sustained": (value, "fitted", f"{_source(preset)}: kernels of over 20 ms")
        }

    count = sum(map(len, long))
    return Fit(
        "attention-long", preset, LIBRARY + "sustained", tuple(SUSTAINED), count, run, SUSTAINED
    )


def _twin_fit(twin: str, preset: str) -> Fit:
    there = _narrow_fit(preset)

    def run() -> dict[str, Constant]:
        source = f"as {preset}, the same die: {_source(preset)}"
        return {name: (value, "assumed", source) for name, (value, _, _) in there.run().items()}

    return Fit("attention-fp8", twin, TABLE, there.names, there.rows, run, {})


def _faster_fit(preset: str) -> Fit:
    there = constants_of(Cluster.load("b200-dgx").chip).values
    names = tuple(n for n in there if n.startswith(HEAD_SIZES))

    def run() -> dict[str, Constant]:
        slow, fast = (_rows(p).measured_ns for p in ("gb200-nvl72", "gb300-nvl72"))
        ratio = float(np.median(slow / fast))
        source = f"as b200-dgx, times {ratio:.3f}: what GB300 gains over GB200 in cuDNN's attention"
        return {n: (min(there[n] * ratio, EFFICIENCY[1]), "assumed", source) for n in names}

    return Fit("attention-as", preset, TABLE, names, FEW, run, {}, quick=True)
