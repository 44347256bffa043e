"""Products, convolutions and engines' kernels of real profiles: what replays of one kernel do not show.

- In a step a product finds its operands in memory, not in the L2, and no kernel like it just before:
  small ones take 2 to 3 us longer than in a replayed graph (`gemm.launch_ns` of the library
  `sustained`).
- Attention of PyTorch on MI300X is AOTriton's, of which profiles have four shapes: a key takes a tile as
  long with heads of 64 elements as with 512. Engines and Transformer Engine have other libraries.
- Convolutions of PyTorch are slower than products of their sizes, and have kernels around them
  (`gpu.convolutions`; library `aten`). MI300X has a training step of ResNet and a Flux pipeline. The one
  convolution of an NVIDIA profile (the patches of a vision transformer) is no reason for a constant: their
  efficiency is that of MI300X, and a launch shorter as those of element-wise kernels are.

Products have 14 shapes on H100 and 4 on B200, of which most are large, and convolutions 11 large ones in all:
they are fitted on all. Those of half of the shapes are off by 16 % when fitted on the other half.

Beside them, kernels of serving engines (`[chip.gpu.libraries.serving]`): gated activations, rotations and caches
are written by hand, a block of threads a token, and start later than PyTorch's own. Their launch is fitted on
those of two profiles, whose graphs are replayed and say no shapes: what each moves is that of the model's
published sizes. On other chips they are taken to start as much later, by ratio. Norms are as cuDNN's
(`fits.norms`), which are written by hand, too.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from functools import cache, partial

from benchmarks import kernel_rows as rows
from benchmarks.fits import bytes, norms
from benchmarks.fits.fit import Constant, Fit, constants_in
from benchmarks.trace_kernels import DATA, class_on
from flint.backends.cost.chips.families.gpu import memory
from flint.backends.cost.chips.families.gpu.constants import HEAD_SIZES, Constants
from flint.backends.cost.chips.families.gpu.hardware import hardware_of
from flint.backends.cost.chips.kernels import KernelKind
from flint.backends.cost.software import stack_for, with_stack
from flint.cluster.load import PRESETS
from flint.cluster.models import Chip, Cluster
from flint.ir.arrays import Float64s
from flint.tools.measure.fitting.fit import Bounds, fit
from flint.tools.measure.fitting.kernels import MeasuredKernels, latencies, settled, with_constants

#: Modules whose constants these start from.
AFTER = ("products", "bytes")

_LAUNCH: Bounds = {"gemm.launch_ns": (1500.0, 12000.0, 4000.0)}
_CONVOLUTION: Bounds = {
    "convolution.efficiency": (0.02, 1.0, 0.5),
    "convolution.launch_ns": (1500.0, 40000.0, 14000.0),
    "convolution.window_ns": (0.0, 60000.0, 20000.0),
}
#: By head size: 64 of three shapes, 512 of one.
_ATTENTION: Bounds = {f"{HEAD_SIZES}{size}": (0.01, 0.95, 0.2) for size in (64, 512)}
#: Preset, class of kernels, library, bounds of its constants.
_FITS: tuple[tuple[str, str, str, Bounds], ...] = (
    ("h100-dgx", "products", "sustained", _LAUNCH),
    ("b200-dgx", "products", "sustained", _LAUNCH),
    ("mi300x", "convolutions", "aten", _CONVOLUTION),
    ("mi300x", "attention", "aten", _ATTENTION),
)
#: As many channels as kernels of profiles take at a time: cuDNN's are called 256x64_32x4 on H100.
_SAID = "cuDNN's kernel in a profile of h100-dgx takes 32 channels at a time"
_STEP: Constant = (32.0, "assumed", _SAID)
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
    engines = map(_engines, bytes.PRESETS)
    return [*_own(), *(_as(preset, other) for preset, other in _AS.items()), *borrowed, *engines]


def _convolutions_as(preset: str) -> Fit:
    def made() -> Mapping[str, Constant]:
        theirs = constants_in(PRESETS / f"{bytes.OTHER_MAKER}.toml", _ATEN)
        starts = (constants_in(PRESETS / f"{p}.toml", _ATEN) for p in (preset, bytes.OTHER_MAKER))
        ours, others = (float(found[LAUNCH]["value"]) for found in starts)
        efficiency, launch = (theirs[name] for name in names[:2])
        source = f"as {bytes.OTHER_MAKER}: {efficiency['source']}"
        later = f"by launches of element-wise kernels, {source}"
        made = ((efficiency["value"], "assumed", source),
                (launch["value"] * ours / others, "assumed", later), _COPIED, _STEP)  # fmt: skip
        return dict(zip(names, made, strict=True))

    own = ("efficiency", "launch_ns", "layouts", "channels")
    names = tuple(f"convolution.{name}" for name in own)
    rows = len(class_on(bytes.OTHER_MAKER, "convolutions"))
    return Fit("traced convolutions-as", preset, _ATEN, names, rows, made, {}, quick=True)


def _as(preset: str, other: str) -> Fit:
    def made() -> Mapping[str, Constant]:
        tables = (
            (preset, "chip.gpu.constants"),
            (other, "chip.gpu.constants"),
            (other, _SUSTAINED),
        )
        there = (constants_in(PRESETS / f"{p}.toml", t)["gemm.launch_ns"] for p, t in tables)
        burst, theirs, late = (float(constant["value"]) for constant in there)
        source = f"as much later than in replayed graphs as on {other}: no profile of this chip is public"
        return {"gemm.launch_ns": (burst + late - theirs, "assumed", source)}

    rows, name = len(class_on(other, "products")), "traced products-as"
    return Fit(name, preset, _SUSTAINED, ("gemm.launch_ns",), rows, made, {}, quick=True)


def _own() -> list[Fit]:
    return [
        Fit(f"traced {what}", preset, f"chip.gpu.libraries.{library}", (*bounds, *_given(preset, what)),
            len(class_on(preset, what)), partial(_made, preset, what, bounds), bounds, quick=True)
        for preset, what, library, bounds in _FITS
    ]  # fmt: skip


def _given(preset: str, what: str) -> Mapping[str, Constant]:
    """What a class has beside its fitted constants."""
    if what == "convolutions":
        return {"convolution.layouts": _COPIED}
    if what == "attention":
        value, _, source = bytes.aten(preset)["elementwise.launch_ns"]
        return {"attention.launch_ns": (value, "assumed", f"as element-wise kernels': {source}")}
    return {}


def _made(preset: str, what: str, bounds: Bounds) -> Mapping[str, Constant]:
    name = Cluster.load(preset).chip.name
    source = f"benchmarks.fits traced_products on all of the {what} of PyTorch profiles on {name}"
    values = _fitted(preset, what, bounds, class_on(preset, what))
    return {**_given(preset, what), **{n: (value, "fitted", source) for n, value in values.items()}}


def _fitted(preset: str, what: str, bounds: Bounds, mine: MeasuredKernels) -> Mapping[str, float]:
    chip = _eager_chip(preset, what, bounds)
    return fit(bounds, lambda v: latencies(mine, with_constants(chip, v)), mine.measured_ns)


def _eager_chip(preset: str, what: str, bounds: Bounds) -> Chip:
    """The chip that runs PyTorch. Efficiencies by head size are those of `bounds` alone, if it has some."""
    cluster = Cluster.load(preset)
    chip = settled(with_stack(cluster, stack_for("eager", cluster)).chip)
    given = {name: value for name, (value, _, _) in _given(preset, what).items()}
    gpu = with_constants(chip, given).gpu
    assert gpu is not None, preset
    own = gpu.constants
    if any(name.startswith(HEAD_SIZES) for name in bounds):
        own = {name: value for name, value in own.items() if not name.startswith(HEAD_SIZES)}
    return chip.model_copy(update={"gpu": gpu.model_copy(update={"constants": own})})


def convolutions_by(fitted: MeasuredKernels, others: MeasuredKernels) -> Float64s:
    """Prices of some of MI300X's convolutions with constants that others give."""
    args = bytes.OTHER_MAKER, "convolutions", _CONVOLUTION
    return latencies(others, with_constants(_eager_chip(*args), _fitted(*args, fitted)))


# --- serving engines -----------------------------------------------------------------------------

LAUNCH = "elementwise.launch_ns"
_SERVING = "chip.gpu.libraries.serving"
_ENGINES: Bounds = {LAUNCH: (1500.0, 12000.0, 4000.0)}
#: Preset -> profile, and parts of kernels' names with the bytes that they move.
#: Qwen3-8B, 32 sequences: 12,288 gated columns, 32 + 8 heads of 128, all in bf16.
#: gpt-oss-120b on 8 GPUs, 888 tokens: 8 + 1 heads of 64; queries, and 2,880 columns, to 8 bits.
KERNELS: Mapping[str, tuple[str, Mapping[str, int]]] = {
    "mi300x": (
        "mi300x_sglang_qwen3-8b_decode",
        {"act_and_mul_kernel": 32 * 3 * 12288 * 2, "rotary_embedding_kernel": 32 * 2 * 40 * 128 * 2,
         "store_kvcache": 32 * 4 * 8 * 128 * 2},
    ),
    "b200-dgx": (
        "b200_eager_rank0of8",
        {"rotary_embedding_kernel": 888 * 2 * 9 * 64 * 2, "scaled_fp8_quant_kernel": 888 * 512 * 3,
         "reshape_and_cache_flash": 888 * 2 * 64 * 3, "quantize_with_block_size": 888 * 2880 * 3},
    ),
}  # fmt: skip


@cache
def measured(preset: str) -> rows.Measured:
    """The kernels of one of `KERNELS`, with their mean times."""
    name, moved = KERNELS[preset]
    with gzip.open(DATA / f"{name}.json.gz", "rt", encoding="utf-8") as file:
        events = [e for e in json.load(file)["traceEvents"] if e.get("cat") == "kernel"]
    found = []
    for part, size in moved.items():
        times = [float(e["dur"]) for e in events if part in e["name"]]
        found.append({"ms": str(sum(times) / len(times) / 1000), "bytes": str(size)})
    return rows.measured(found, _kernel, "ms")


def _kernel(row: rows.Row) -> dict[str, object]:
    half = int(row["bytes"]) // 2
    return {
        "kind": KernelKind.ELEMENTWISE, "dtype": "bf16", "dims": (0, 0, 0, 0), "flops": 0,
        "read": half, "written": half, "elements": half // 2, "arrays": 2, "causal": False,
    }  # fmt: skip


@cache
def launch(preset: str) -> Constant:
    """When such kernels are done beside their bytes."""
    generated, _, source = bytes.triton(preset)[LAUNCH]
    if preset not in KERNELS:
        later = [launch(p)[0] / bytes.triton(p)[LAUNCH][0] for p in KERNELS]
        said = f"as much later than PyTorch's as engines' start on {' and '.join(KERNELS)}"
        return generated * sum(later) / len(later), "assumed", f"{said}, {source}"
    data, chip = measured(preset), Cluster.load(preset).chip
    given = {name: value for name, (value, _, _) in bytes.triton(preset).items()}
    values = fit(
        _ENGINES,
        lambda v: memory.elementwise_ns(data.kernels, hardware_of(chip, Constants(given | v))),
        data.measured_ns,
    )
    kernels = f"benchmarks.fits traced_products on all {len(data)} kernels of {KERNELS[preset][0]} (kineto)"
    return values[LAUNCH], "fitted", kernels


def _engines(preset: str) -> Fit:
    def made() -> Mapping[str, Constant]:
        return {LAUNCH: launch(preset), **bytes.by_hand(preset)}

    count = len(measured(preset)) if preset in KERNELS else sum(len(measured(p)) for p in KERNELS)
    bounds = _ENGINES if preset in KERNELS else {}
    own = (bytes.ELEMENT_CYCLES,) if preset == bytes.OTHER_MAKER else ()
    names = (LAUNCH, *norms.NAMES, *own)
    return Fit("engines", preset, _SERVING, names, count, made, bounds, quick=True)
