"""Products and convolutions of real profiles: what replays of one kernel do not show.

- In a step a product finds its operands in memory, not in the L2, and no kernel like it just before:
  small ones take 2 to 3 us longer than in a replayed graph (`gemm.launch_ns` of the library
  `sustained`).
- Convolutions of a library are slower than products of their sizes (`convolution.efficiency` of the
  library `aten`). MI300X has a training step of ResNet; the one convolution of the other profiles (the
  patches of a vision transformer) is no reason for a constant.

Convolutions are fitted on half of the shapes, by hash (`trace_kernels.kernels_on`). Products have 14
shapes on H100 and 4 on B200, of which most are large: their launch is fitted on all.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from benchmarks.fits.fit import Constant, Fit
from benchmarks.trace_kernels import kernels_on, of_class
from flint.backends.cost.software import stack_for, with_stack
from flint.cluster.load import PRESETS
from flint.cluster.models import Cluster
from flint.ir.arrays import Float64s
from flint.tools.measure.fitting.fit import Bounds, fit
from flint.tools.measure.fitting.kernels import MeasuredKernels, latencies, settled, with_constants
from flint.tools.measure.fitting.toml_constants import constants_in

#: Modules whose constants these start from.
AFTER = ("products", "bytes")

_LAUNCH: Bounds = {"gemm.launch_ns": (1500.0, 12000.0, 4000.0)}
#: Preset, class of kernels, library, bounds of its one constant.
_FITS: tuple[tuple[str, str, str, Bounds], ...] = (
    ("h100-dgx", "products", "sustained", _LAUNCH),
    ("b200-dgx", "products", "sustained", _LAUNCH),
    ("mi300x", "convolutions", "aten", {"convolution.efficiency": (0.02, 1.0, 0.3)}),
)
#: Classes with too few shapes for a half.
_ALL = ("products",)
_SUSTAINED = "chip.gpu.libraries.sustained"
#: Presets without profiles -> those whose products start as much later in steps as theirs are taken to.
_AS = {
    "a100-80-dgx": "h100-dgx",
    "a100-40-dgx": "h100-dgx",
    "h200-dgx": "h100-dgx",
    "gb200-nvl72": "b200-dgx",
}


def fits() -> list[Fit]:
    """One for each of `_FITS`, and for each preset that has none of its own."""
    return [*_own(), *(_as(preset, other) for preset, other in _AS.items())]


def _as(preset: str, other: str) -> Fit:
    def made() -> Mapping[str, Constant]:
        burst, theirs = (_launch_ns(p, "chip.gpu.constants") for p in (preset, other))
        later = _launch_ns(other, _SUSTAINED) - theirs
        source = f"as much later than in replayed graphs as on {other}: no profile of this chip is public"
        return {"gemm.launch_ns": (burst + later, "assumed", source)}

    name = "traced products-as"
    rows = len(_chosen(other, "products"))
    return Fit(name, preset, _SUSTAINED, ("gemm.launch_ns",), rows, made, {}, quick=True)


def _launch_ns(preset: str, table: str) -> float:
    return float(constants_in(PRESETS / f"{preset}.toml", table)["gemm.launch_ns"]["value"])


def _own() -> list[Fit]:
    return [
        Fit(
            f"traced {what}",
            preset,
            f"chip.gpu.libraries.{library}",
            tuple(bounds),
            len(_chosen(preset, what)),
            partial(_made, preset, what, bounds),
            bounds,
            quick=True,
        )
        for preset, what, library, bounds in _FITS
    ]


def _chosen(preset: str, what: str) -> MeasuredKernels:
    found, half = kernels_on(preset)
    mine = of_class(found, what)
    return found.select(mine if what in _ALL else mine & (half == 0))


def _made(preset: str, what: str, bounds: Bounds) -> Mapping[str, Constant]:
    mine = _chosen(preset, what)
    cluster = Cluster.load(preset)
    chip = settled(with_stack(cluster, stack_for("eager", cluster)).chip)

    def times(values: dict[str, float]) -> Float64s:
        return latencies(mine, with_constants(chip, values))

    share = "all" if what in _ALL else "half"
    source = f"benchmarks.fits traced_products on {share} of the {what} of PyTorch profiles on {chip.name}"
    values = fit(bounds, times, mine.measured_ns)
    return {name: (value, "fitted", source) for name, value in values.items()}
