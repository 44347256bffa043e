"""Constants of fused attention on GPUs (`attention.*`, `decode.*`).

The chip's own constants are aiconfigurator's: one layer of a serving framework's attention, prefill
and decoding together, with the copy of new keys and values to a cache (`attention.launch_ns` is that
of several small kernels). Calls repeat on the same arrays: on L40S, whose L2 holds 96 MB, many rows
take less than their bytes from memory would, and no price follows them there.

Libraries' kernels start sooner, for they copy nothing: FlashAttention-3 and -4 are fitted on
aiconfigurator's encoders. What a paper says is assumed. Rates of training (`attention.sustained`, the
backward pass) are SimuMax's: attention as Megatron-core launches it.

Everything is fitted on one half of the shapes (`kernel_rows.half_of`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import numpy as np

from benchmarks import kernel_rows, simumax_rows
from benchmarks.fits.fit import FEW, Constant, Fit
from benchmarks.kernel_rows import Measured
from flint.backends.cost.chips.families.gpu.attention import attention_ns
from flint.backends.cost.chips.families.gpu.constants import (
    HEAD_SIZES,
    SM_TIMES,
    Constants,
    constants_of,
)
from flint.backends.cost.chips.families.gpu.hardware import GpuHardware, hardware_of
from flint.backends.cost.chips.kernels import KernelKind
from flint.cluster.models import Cluster
from flint.ir.arrays import Float64s
from flint.tools.measure.fitting.fit import Bounds, fit

#: Modules whose constants these start from.
AFTER = ("products",)

#: Bounds and start of each constant but those by head size.
SERVING: Bounds = {
    "attention.launch_ns": (1500, 20000, 9500),
    "attention.tile_ns": (0, 10000, 3000),
    "attention.tail": (0, 2, 0.7),
    "attention.overlap": (1, 8, 1.5),
    "attention.memory_efficiency": (0.2, 0.95, 0.85),
    "attention.cache_efficiency": (0.1, 0.95, 0.5),
    "decode.launch_ns": (1500, 20000, 8000),
    "decode.memory_efficiency": (0.4, 0.95, 0.85),
    "decode.head_ns": (0, 8000, 2000),
    "decode.sm_share": (1, 20, 6),
    "decode.split_keys": (32, 2048, 300),
    "decode.split_ns": (0, 5000, 1500),
}
EFFICIENCY = (0.05, 0.95, 0.6)
ENCODER: Bounds = {
    "attention.launch_ns": (1500, 20000, 6000),
    "attention.tile_ns": (0, 10000, 2000),
}
SUSTAINED: Bounds = {"attention.sustained": (0.3, 1, 0.8)}
SKIPPED: Bounds = {"attention.window_skips": (0, 1, 0.5)}
BACKWARD: Bounds = {"attention.backward_efficiency": (0.5, 1, 0.85)}
TABLE = "chip.gpu.constants"
LIBRARY = "chip.gpu.libraries."
#: Queries of a tile, whether tiles of prefill hold several heads, and whose kernels these are.
TILES = {
    "a100-80-dgx": (128, 1, "FlashAttention in SGLang"),
    "h100-dgx": (128, 1, "FlashAttention-3 in vLLM, which packs heads"),
    "h200-dgx": (128, 1, "FlashAttention-3 in vLLM, which packs heads"),
    "b200-dgx": (256, 0, "TensorRT-LLM's kernels: two tiles of 128 queries of a head at a time"),
    "l40s": (64, 0, "FlashAttention-2 in vLLM: 64 queries of a head at a time on such SMs"),
    "rtx-pro-6000": (64, 0, "as on L40S, whose SMs have as much shared memory"),
}
#: Presets that have the constants of another one, and why.
TWINS = {
    "a100-40-dgx": ("a100-80-dgx", "the same die"),
    "gb200-nvl72": ("b200-dgx", "the same die"),
}
#: Preset with SimuMax's rows -> the one of the chip that has the constants of its bursts.
TRAINING = {"b200-dgx": "b200-dgx", "a100-80-pcie": "a100-80-dgx"}
#: Library of the encoders of each preset, and the file's name of its GPU.
ENCODERS = {"h100-dgx": ("flash-3", "h100_sxm"), "b200-dgx": ("flash-4", "b200_sxm")}
#: Where no measurement of the backward pass is public as data.
FLASH_2 = (
    0.86,
    "FlashAttention-2 (arXiv 2307.08691): up to 73 % of A100's peak forward, 63 % back",
)


#: One kernel without a copy to a cache: what encoders say of FlashAttention-3 and -4, rounded.
_STARTS = (6000.0, "assumed", "as FlashAttention-3 and -4 start, which copy nothing to a cache")
LAUNCH = {"attention.launch_ns": _STARTS, "decode.launch_ns": _STARTS}


def _alike(efficiency: float, backward: float, source: str) -> dict[str, Constant]:
    """A library's efficiency, of which a publication says but one number for all head sizes."""
    return {f"{HEAD_SIZES}128": (efficiency, "assumed", source), **_backward(backward, source)}


def _backward(efficiency: float, source: str) -> dict[str, Constant]:
    """The same without the efficiency of the forward pass."""
    said = (efficiency, "assumed", f"{source}; of forward's")
    return {"attention.backward_efficiency": said, **LAUNCH}


_FLASH_1 = (
    "arXiv 2307.08691, section 1: FlashAttention has 30-50 % of A100's peak forward, 25-35 % back"
)
_FLASH_1_H100 = (
    "FlashAttention on A100 times 35/73, what FlashAttention-2 has of H100's peak (arXiv 2407.08608, "
    "abstract) and of A100's (arXiv 2307.08691) at most"
)
_FLASH_2_H100 = "arXiv 2407.08608, abstract: FlashAttention-2 has 35 % of H100's peak; back as on A100, 63 to 73"
#: Libraries of which publications say something: library, preset, constants.
SAID: tuple[tuple[str, str, Mapping[str, Constant]], ...] = (
    ("triton-flash", "a100-80-dgx", _alike(0.4, 0.75, _FLASH_1)),
    ("triton-flash", "a100-40-dgx", _alike(0.4, 0.75, _FLASH_1)),
    ("triton-flash", "h100-dgx", _backward(0.758, _FLASH_1_H100)),  # forward: fits/steps.py
    ("triton-flash", "h200-dgx", _alike(0.19, 0.758, _FLASH_1_H100)),
    ("flash-2", "a100-80-dgx", LAUNCH),
    ("flash-2", "a100-40-dgx", LAUNCH),
    ("flash-2", "h100-dgx", _alike(0.35, 0.863, _FLASH_2_H100)),
    ("flash-2", "h200-dgx", _alike(0.35, 0.863, _FLASH_2_H100)),
    ("flash-2", "l40s", LAUNCH),
    ("flash-3", "h200-dgx", LAUNCH),
    ("cudnn", "a100-80-dgx", LAUNCH),
    ("cudnn", "a100-40-dgx", LAUNCH),
    ("cudnn", "h100-dgx", LAUNCH),
    ("cudnn", "b200-dgx", LAUNCH),
)


def serving_rows(preset: str) -> list[Measured]:
    """Prefill and decoding of a preset, without rows that tell nothing of steps or of these kernels.

    On RTX PRO 6000, whose L2 holds 128 MB, calls that move an eighth to twice of that are up to twice as fast as
    from memory: they repeat on the same arrays. There prefill behind windows is another kernel (`_windows_fit`).
    """
    gpu = kernel_rows.SERVING[preset]
    prefill, decode = kernel_rows.prefill(gpu), kernel_rows.decode(gpu)
    if preset != "rtx-pro-6000":
        return [prefill, decode]
    l2 = hardware_of(Cluster.load(preset).chip).l2_bytes
    found = [prefill.select(prefill.kernels.all_keys == 0), decode]
    moved = [part.kernels.moved_bytes for part in found]
    return [p.select((b < l2 / 8) | (b > 2 * l2)) for p, b in zip(found, moved, strict=True)]


def serving(preset: str, half: int = 0) -> dict[str, float]:
    """Constants of prefill and decoding from one half of a preset's rows."""
    rows = [part.select(part.half == half) for part in serving_rows(preset)]
    found = fitted(preset, serving_bounds(preset), rows, _fixed(preset))
    # kernels of many queries start no sooner and end no later than those of one
    for name, least in (("launch_ns", "launch_ns"), ("tile_ns", "head_ns")):
        found[f"attention.{name}"] = max(found[f"attention.{name}"], found[f"decode.{least}"])
    names = ("attention.memory_efficiency", "decode.memory_efficiency")
    found[names[0]] = min(found[name] for name in names)
    return found


def serving_bounds(preset: str) -> Bounds:
    """Bounds of all that `serving` fits."""
    sizes = kernel_rows.prefill(kernel_rows.SERVING[preset]).kernels.dims[:, 3]
    return SERVING | {f"{HEAD_SIZES}{size}": EFFICIENCY for size in sorted(set(sizes.tolist()))}


def encoder(preset: str, half: int = 0) -> dict[str, float]:
    """Launch, tiles and small heads of a library, from encoders; decoding starts as soon."""
    data = kernel_rows.encoder(ENCODERS[preset][1])
    own = constants_of(Cluster.load(preset).chip).values
    launch = {"decode.launch_ns": 1500.0, "decode.head_ns": 0.0}
    bounds = encoder_bounds(preset)
    found = fitted(preset, bounds, [data.select(data.half == half)], {**own, **launch})
    return found | {
        "decode.launch_ns": found["attention.launch_ns"],
        "decode.head_ns": min(found["attention.tile_ns"], own["decode.head_ns"]),
    }


def encoder_bounds(preset: str) -> Bounds:
    """Bounds of all that `encoder` fits."""
    sizes = kernel_rows.encoder(ENCODERS[preset][1]).kernels.dims[:, 3]
    return ENCODER | {f"{HEAD_SIZES}{size}": EFFICIENCY for size in sorted(set(sizes.tolist()))}


@cache
def training(preset: str, half: int = 0) -> Mapping[str, float]:
    """What attention of training keeps of the bursts' efficiency, and its backward pass."""
    parts = [simumax_rows.attention(preset, backward=b) for b in (False, True)]
    rows = [part.select(part.half == half) for part in parts]
    own = constants_of(Cluster.load(TRAINING[preset]).chip).values
    return fitted(preset, SUSTAINED | BACKWARD, rows, own)


def _fixed(preset: str) -> dict[str, float]:
    rows, packed, _ = TILES[preset]
    return {
        "attention.rows": rows, "attention.packed": packed,
        "attention.backward_efficiency": FLASH_2[0],
    }  # fmt: skip


def fitted(
    preset: str, bounds: Bounds, rows: list[Measured], others: Mapping[str, float]
) -> dict[str, float]:
    """Constants with which prices are near; the second part of training rows is backward."""
    hardware = hardware_of(Cluster.load(preset).chip, Constants({}))
    lower = {name: v for name, v in others.items() if name not in bounds}
    if any(name.startswith(HEAD_SIZES) for name in bounds):
        lower = {name: v for name, v in lower.items() if not name.startswith(HEAD_SIZES)}

    def predict(values: Mapping[str, float]) -> Float64s:
        chip = replace(hardware, constants=Constants({**lower, **values}))
        return np.concatenate([_prices(part, chip) for part in rows])

    return fit(bounds, predict, np.concatenate([part.measured_ns for part in rows]))


def _prices(part: Measured, hardware: GpuHardware) -> Float64s:
    backward = bool((part.kernels.kind == KernelKind.ATTENTION_BACKWARD).all())
    (dtype,) = part.kernels.dtypes
    return attention_ns(part.kernels, hardware, dtype, backward=backward)


def fits() -> list[Fit]:
    """Serving kernels of each GPU, libraries' kernels, and the rates of training."""
    return [
        *(_serving_fit(preset) for preset in kernel_rows.SERVING),
        *(_tiles_fit(preset) for preset in kernel_rows.SERVING),
        _windows_fit("rtx-pro-6000"),
        *(_encoder_fit(preset) for preset in ENCODERS),
        *(_sustained_fit(preset) for preset in TRAINING),
        *(_backward_fit(*pair) for pair in TRAINING.items()),
        *(_said_fit(*said) for said in SAID),
        *(_twin_fit(twin, *like) for twin, like in TWINS.items()),
        _unmeasured_fit("mi300x", "a100-80-dgx"),
    ]


def _serving_source(preset: str) -> str:
    gpu = kernel_rows.SERVING[preset]
    return f"benchmarks.fits attention on aiconfigurator's prefill and decoding of {gpu}"


def _serving_fit(preset: str) -> Fit:
    def run() -> dict[str, Constant]:
        source = _serving_source(preset)
        return {name: (value, "fitted", source) for name, value in serving(preset).items()}

    bounds = serving_bounds(preset)
    rows = sum(int((d.half == 0).sum()) for d in serving_rows(preset))
    return Fit("attention", preset, TABLE, tuple(bounds), rows, run, bounds)


def _windows_fit(preset: str) -> Fit:
    """Prefill behind windows of a preset whose kernel walks along what they hide."""
    rows = kernel_rows.prefill(kernel_rows.SERVING[preset])
    rows = rows.select((rows.kernels.all_keys > 0) & (rows.half == 0))

    def run() -> dict[str, Constant]:
        found = fitted(preset, SKIPPED, [rows], constants_of(Cluster.load(preset).chip).values)
        return {name: (v, "fitted", _serving_source(preset)) for name, v in found.items()}

    return Fit("attention-windows", preset, TABLE, tuple(SKIPPED), len(rows), run, SKIPPED)


def _tiles_fit(preset: str) -> Fit:
    rows, packed, whose = TILES[preset]
    said: dict[str, Constant] = {
        "attention.rows": (rows, "assumed", whose),
        "attention.packed": (packed, "assumed", whose),
    }
    if preset not in TRAINING.values():
        said["attention.backward_efficiency"] = (FLASH_2[0], "assumed", FLASH_2[1])
    return _constants_fit("attention-tiles", preset, TABLE, said)


def _encoder_fit(preset: str) -> Fit:
    library, gpu = ENCODERS[preset]
    bounds = encoder_bounds(preset)
    here = f"benchmarks.fits attention on aiconfigurator's encoders of {gpu}"
    own = [name for name in serving_bounds(preset) if name.startswith(HEAD_SIZES)]
    wider = tuple(name for name in own if name not in bounds)
    names = (*bounds, "decode.launch_ns", "decode.head_ns", *wider)

    def run() -> dict[str, Constant]:
        found = {name: (value, "fitted", here) for name, value in encoder(preset).items()}
        constants = constants_of(Cluster.load(preset).chip)
        like = f"as in serving: {_serving_source(preset)}"
        return found | {name: (constants[name], "assumed", like) for name in wider}

    rows = int((kernel_rows.encoder(gpu).half == 0).sum())
    return Fit(f"attention-{library}", preset, LIBRARY + library, names, rows, run, bounds)


def _training_source(preset: str) -> str:
    system = simumax_rows.SYSTEMS[preset]
    return f"benchmarks.fits attention on SimuMax's attention of {system}"


def _training_rows(preset: str) -> int:
    parts = (simumax_rows.attention(preset, backward=b) for b in (False, True))
    return sum(int((part.half == 0).sum()) for part in parts)


def _sustained_fit(preset: str) -> Fit:
    def run() -> dict[str, Constant]:
        value = training(preset)["attention.sustained"]
        return {"attention.sustained": (value, "fitted", _training_source(preset))}

    table, rows = LIBRARY + "sustained", _training_rows(preset)
    return Fit(
        "attention-sustained", preset, table, tuple(SUSTAINED), rows, run, SUSTAINED, quick=True
    )


def _backward_fit(preset: str, chip: str) -> Fit:
    def run() -> dict[str, Constant]:
        value = training(preset)["attention.backward_efficiency"]
        return {"attention.backward_efficiency": (value, "fitted", _training_source(preset))}

    rows = _training_rows(preset)
    return Fit("attention-backward", chip, TABLE, tuple(BACKWARD), rows, run, BACKWARD, quick=True)


def _twin_fit(twin: str, preset: str, why: str) -> Fit:
    """A chip with the constants of another one, for each of whose tables it has one."""
    names = (*serving_bounds(preset), "attention.rows", "attention.packed", *BACKWARD)

    def run() -> dict[str, Constant]:
        found = constants_of(Cluster.load(preset).chip)
        source = f"as {preset}, {why}: {_serving_source(preset)}"
        return {name: (found[name], "assumed", source) for name in names}

    return Fit("attention-as", twin, TABLE, names, len(names), run, {}, quick=True)


def _unmeasured_fit(preset: str, like: str) -> Fit:
    """A chip that nobody measured, of as many FLOP per cycle and unit as another one."""
    names = (*serving_bounds(like), "attention.rows", "attention.packed", *BACKWARD)

    def run() -> dict[str, Constant]:
        chip, other = Cluster.load(preset).chip, Cluster.load(like).chip
        ours, theirs = constants_of(chip), constants_of(other)
        here, there = hardware_of(chip), hardware_of(other)
        units = (there.peak_flops_per_ns("bf16") / there.sms) / (
            here.peak_flops_per_ns("bf16") / here.sms
        )
        products = ours["gemm.efficiency"] / theirs["gemm.efficiency"]
        found: dict[str, Constant] = {}
        for name in names:
            value, how = theirs[name], ""
            if name in SM_TIMES:
                value, how = value * units, ", scaled by the peak of one unit"
            elif name.startswith(HEAD_SIZES):
                value, how = value * products, ", by the ratio of the efficiencies of products"
            source = f"as {like}, of as many FLOP per cycle and unit: nothing is measured{how}"
            found[name] = (value, "assumed", source)
        return found

    return Fit("attention-as", preset, TABLE, names, len(names), run, {}, quick=True)


def _said_fit(library: str, preset: str, said: Mapping[str, Constant]) -> Fit:
    return _constants_fit(f"attention-{library}", preset, LIBRARY + library, said)


def _constants_fit(name: str, preset: str, table: str, said: Mapping[str, Constant]) -> Fit:
    """Constants that are written down here."""
    return Fit(name, preset, table, tuple(said), FEW, lambda: said, {}, quick=True)
