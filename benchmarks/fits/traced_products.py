"""Products and convolutions of real profiles: what replays of one kernel do not show.

- In a step a product finds its operands in memory, not in the L2, and no kernel like it just before:
  small ones take 2 to 3 us longer than in a replayed graph (`gemm.launch_ns` of the library
  `sustained`).
- Convolutions of PyTorch are slower than products of their sizes, and have kernels around them
  (`gpu.convolutions`; library `aten`). MI300X has a training step of ResNet and a Flux pipeline. The one
  convolution of an NVIDIA profile (the patches of a vision transformer) is no reason for a constant: their
  efficiency is that of MI300X, and a launch shorter as those of element-wise kernels are.

Products have 14 shapes on H100 and 4 on B200, of which most are large, and convolutions 11 large ones in all:
they are fitted on all. Convolutions of half of the shapes are off by 16 and 18 % when fitted on the other half.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from benchmarks.fits import bytes
from benchmarks.fits.fit import Constant, Fit
from benchmarks.trace_kernels import convolutions_on, kernels_on, of_class
from flint.backends.cost.software import stack_for, with_stack
from flint.cluster.load import PRESETS
from flint.cluster.models import Chip, Cluster
from flint.ir.arrays import Float64s
from flint.tools.measure.fitting.fit import Bounds, fit, halves
from flint.tools.measure.fitting.kernels import MeasuredKernels, latencies, settled, with_constants
from flint.tools.measure.fitting.toml_constants import constants_in

#: Modules whose constants these start from.
AFTER = ("products", "bytes")

_LAUNCH: Bounds = {"gemm.launch_ns": (1500.0, 12000.0, 4000.0)}
_CONVOLUTION: Bounds = {
    "convolution.efficiency": (0.02, 1.0, 0.5),
    "convolution.launch_ns": (1500.0, 40000.0, 14000.0),
    "convolution.window_ns": (0.0, 60000.0, 20000.0),
}
#: Preset, class of kernels, library, bounds of its constants.
_FITS: tuple[tuple[str, str, str, Bounds], ...] = (
    ("h100-dgx", "products", "sustained", _LAUNCH),
    ("b200-dgx", "products", "sustained", _LAUNCH),
    ("mi300x", "convolutions", "aten", _CONVOLUTION),
)
#: As many channels as kernels of profiles take at a time: cuDNN's are called 256x64_32x4 on H100.
_STEP: Constant = (
    32.0,
    "assumed",
    "cuDNN's kernel in a profile of h100-dgx takes 32 channels at a time",
)
_COPIED: Constant = (1.0, "assumed", "libraries multiply in another layout than PyTorch has")
_SUSTAINED = "chip.gpu.libraries.sustained"
_ATEN = "chip.gpu.libraries.aten"
#: Presets without profiles -> those whose products start as much later in steps as theirs are taken to.
_AS = {
    "a100-80-dgx": "h100-dgx",
    "a100-40-dgx": "h100-dgx",
    "h200-dgx": "h100-dgx",
    "gb200-nvl72": "b200-dgx",
}


def fits() -> list[Fit]:
    """One for each of `_FITS`, and for each preset that has none of its own."""
    borrowed = (_convolutions_as(preset) for preset in bytes.PRESETS if preset != bytes.OTHER_MAKER)
    return [*_own(), *(_as(preset, other) for preset, other in _AS.items()), *borrowed]


def _convolutions_as(preset: str) -> Fit:
    def made() -> Mapping[str, Constant]:
        theirs = constants_in(PRESETS / f"{bytes.OTHER_MAKER}.toml", _ATEN)
        starts = (constants_in(PRESETS / f"{p}.toml", _ATEN) for p in (preset, bytes.OTHER_MAKER))
        ours, others = (float(found["elementwise.launch_ns"]["value"]) for found in starts)
        launch = theirs["convolution.launch_ns"]["value"] * ours / others
        source = f"as {bytes.OTHER_MAKER}: {theirs['convolution.efficiency']['source']}"
        return {
            "convolution.efficiency": (
                theirs["convolution.efficiency"]["value"],
                "assumed",
                source,
            ),
            "convolution.launch_ns": (
                launch,
                "assumed",
                f"by launches of element-wise kernels, {source}",
            ),
            "convolution.layouts": _COPIED,
            "convolution.channels": _STEP,
        }

    names = (
        "convolution.efficiency",
        "convolution.launch_ns",
        "convolution.layouts",
        "convolution.channels",
    )
    rows = len(_chosen(bytes.OTHER_MAKER, "convolutions"))
    return Fit("traced convolutions-as", preset, _ATEN, names, rows, made, {}, quick=True)


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
            (*bounds, *_given(what)),
            len(_chosen(preset, what)),
            partial(_made, preset, what, bounds),
            bounds,
            quick=True,
        )
        for preset, what, library, bounds in _FITS
    ]


def _chosen(preset: str, what: str) -> MeasuredKernels:
    if what == "convolutions":
        return convolutions_on(preset)
    found, _ = kernels_on(preset)
    return found.select(of_class(found, what))


def _given(what: str) -> Mapping[str, Constant]:
    return {"convolution.layouts": _COPIED} if what == "convolutions" else {}


def _made(preset: str, what: str, bounds: Bounds) -> Mapping[str, Constant]:
    name = Cluster.load(preset).chip.name
    source = f"benchmarks.fits traced_products on all of the {what} of PyTorch profiles on {name}"
    values = _fitted(preset, what, bounds, _chosen(preset, what))
    return {**_given(what), **{n: (value, "fitted", source) for n, value in values.items()}}


def _fitted(preset: str, what: str, bounds: Bounds, mine: MeasuredKernels) -> Mapping[str, float]:
    chip = _eager_chip(preset, what)
    return fit(
        bounds, lambda values: latencies(mine, with_constants(chip, values)), mine.measured_ns
    )


def _eager_chip(preset: str, what: str) -> Chip:
    cluster = Cluster.load(preset)
    chip = settled(with_stack(cluster, stack_for("eager", cluster)).chip)
    return with_constants(chip, {name: value for name, (value, _, _) in _given(what).items()})


def convolutions_swapped(half: int) -> tuple[MeasuredKernels, Float64s]:
    """Half of MI300X's convolutions, and their prices with constants that the other half gives."""
    found = _chosen(bytes.OTHER_MAKER, "convolutions")
    mine = halves(found.hashes.tolist()) == half
    args = bytes.OTHER_MAKER, "convolutions"
    values = _fitted(*args, _CONVOLUTION, found.select(~mine))
    return found.select(mine), latencies(
        found.select(mine), with_constants(_eager_chip(*args), values)
    )
