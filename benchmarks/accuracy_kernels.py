"""How well the GPU kernel models meet the measurements: rows of the accuracy report.

    python -m benchmarks.accuracy_kernels

Constants are those of the presets, fitted on one half of the shapes; "held out" is the other half
and "fitted" the first.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from benchmarks import kernel_rows as rows
from benchmarks.accuracy_row import Accuracy, accuracy, as_text
from benchmarks.fit_gpu import fit_bytes, fit_gemm
from flint.backends.cost.chips.families.gpu.constants import Constants, constants_of
from flint.backends.cost.chips.families.gpu.hardware import hardware_of
from flint.backends.cost.chips.families.gpu.memory import elementwise_ns, norm_ns, softmax_ns
from flint.backends.cost.chips.families.gpu.products import gemm_ns
from flint.backends.cost.chips.kernels import KernelKind, Kernels
from flint.backends.cost.chips.model import latency_ns, peak_flops_per_ns
from flint.cluster.models import Chip, Cluster

#: GPU -> the one whose constants stand in for its own, of the generation before or beside it.
UNSEEN = {
    "a100-80-dgx": "h100-dgx",
    "h100-dgx": "a100-80-dgx",
    "h200-dgx": "h100-dgx",
    "b200-dgx": "h200-dgx",
    "l40s": "a100-80-dgx",
}
SPLITS = {"held out": 1, "fitted": 0}
ROW_MODELS = {
    "elem": ("element-wise f32", elementwise_ns),
    "softmax": ("softmax f32", softmax_ns),
    "ln": ("layer norm f32", norm_ns),
}
FITTED_AS = {"elem": "elementwise", "softmax": "softmax", "ln": "norm"}


#: Kinds that calculate with Tensor Cores.
TENSOR = (
    KernelKind.GEMM,
    KernelKind.CONVOLUTION,
    KernelKind.ATTENTION,
    KernelKind.ATTENTION_BACKWARD,
)


def roofline_ns(kernels: Kernels, chip: Chip) -> NDArray[np.float64]:
    """The longer of FLOP over peak and bytes over memory bandwidth, per kernel.

    FLOP count for products of matrices and attention; what element-wise kernels calculate is not
    in datasheets. Raises FlintError FL705 if the chip has no peak for a type.
    """
    times = kernels.moved_bytes / (chip.memory_bandwidth_bytes_per_s.value * 1e-9)
    tensor = np.isin(kernels.kind, TENSOR)
    for code in np.unique(kernels.dtype[tensor]):
        mine = tensor & (kernels.dtype == code)
        peak = peak_flops_per_ns(chip, kernels.dtypes[code])
        times[mine] = np.maximum(times[mine], kernels.flops[mine] / peak)
    return times


def of_chip(data: str, preset: str, measured: rows.Measured) -> Iterator[Accuracy]:
    """Both splits of one data set, priced with a preset's constants."""
    chip = Cluster.load(preset).chip
    predicted, bound = latency_ns(measured.kernels, chip), roofline_ns(measured.kernels, chip)
    for split, half in SPLITS.items():
        s = measured.half == half
        if s.any():
            yield accuracy(data, chip.name, split, predicted[s], measured.measured_ns[s], bound[s])


def gemm_rows() -> Iterator[Accuracy]:
    """bf16 GEMMs: all shapes, those of language models, big ones."""
    for preset, gpu in rows.PRESETS.items():
        measured = rows.gemms(gpu)
        _, _, n, k = measured.kernels.dims.T
        yield from of_chip("GEMM bf16", preset, measured)
        llm = measured.select((n >= 512) & (k >= 512))
        yield from of_chip("GEMM bf16, n and k >= 512", preset, llm)
        big = measured.select(measured.kernels.flops > 1e11)
        yield from of_chip("GEMM bf16, > 100 GFLOP", preset, big)


def fp8_rows() -> Iterator[Accuracy]:
    """fp8 GEMMs with the constants of bf16, and the conversion of A that the rows include."""
    for preset in ("h100-dgx", "h200-dgx", "b200-dgx"):
        measured = rows.gemms(rows.PRESETS[preset], "fp8")
        chip, conversion = Cluster.load(preset).chip, rows.conversions(measured)
        predicted, bound = (
            price(measured.kernels, chip) + price(conversion, chip)
            for price in (latency_ns, roofline_ns)
        )
        columns = (predicted, measured.measured_ns, bound, np.ones(len(measured), np.int64))
        yield from _splits("GEMM fp8 and conversion", chip.name, columns)


def other_half_rows() -> Iterator[Accuracy]:
    """GEMM constants fitted anew on the half that is held out, judged on the other half."""
    for preset, gpu in rows.PRESETS.items():
        measured = rows.gemms(gpu)
        measured = measured.select(measured.half == 0)
        chip = Cluster.load(preset).chip
        constants = dict(constants_of(chip).values) | fit_gemm(preset, half=1)
        hardware = hardware_of(chip, Constants(constants))
        predicted = gemm_ns(measured.kernels, hardware, "bf16")
        bound = roofline_ns(measured.kernels, chip)
        yield accuracy(
            "GEMM bf16", chip.name, "halves swapped", predicted, measured.measured_ns, bound
        )


def unseen_rows() -> Iterator[Accuracy]:
    """GEMMs of each GPU with the constants of another one, as a chip without its own gets them."""
    for preset, like in UNSEEN.items():
        measured = rows.gemms(rows.PRESETS[preset])
        chip = Cluster.load(preset).chip
        assert chip.gpu is not None, preset
        gpu = chip.gpu.model_copy(update={"constants": {}, "like": like})
        stranger = chip.model_copy(update={"gpu": gpu})
        yield accuracy(
            "GEMM bf16", chip.name, f"constants of {like}", latency_ns(measured.kernels, stranger),
            measured.measured_ns, roofline_ns(measured.kernels, chip),
        )  # fmt: skip


def attention_rows() -> Iterator[Accuracy]:
    """Prefill (all, and those above 10 GFLOP) and decode."""
    for preset, gpu in rows.PRESETS.items():
        prefill = rows.prefill(gpu)
        yield from of_chip("attention, prefill", preset, prefill)
        big = prefill.select(prefill.kernels.flops > 1e10)
        yield from of_chip("attention, prefill > 10 GFLOP", preset, big)
        yield from of_chip("attention, decode", preset, rows.decode(gpu))


def row_kernel_rows() -> Iterator[Accuracy]:
    """NeuSight's element-wise, softmax and layer norm kernels with the shared constants."""
    gpu = Cluster.load("a100-40-dgx").chip.gpu
    assert gpu is not None, "an A100 is a GPU"
    constants = {name: q.value for name, q in gpu.constants.items()}
    for name, (title, model) in ROW_MODELS.items():
        everything: list[tuple[NDArray[np.float64], ...]] = []
        for device in rows.NEUSIGHT_GPUS:
            measured = rows.row_kernels(name, device)
            hardware = rows.neusight_hardware(device, constants)
            bound = measured.kernels.moved_bytes / hardware.memory_bytes_per_ns
            predicted = model(measured.kernels, hardware)
            everything.append((predicted, measured.measured_ns, bound, measured.half))
            yield from _splits(title, device, everything[-1])
        yield from _splits(
            title, "all five", tuple(np.concatenate(c) for c in zip(*everything, strict=True))
        )


def unseen_row_kernel_rows() -> Iterator[Accuracy]:
    """The same kernels on each GPU, with constants fitted on the four others."""
    for name, (title, model) in ROW_MODELS.items():
        for device in rows.NEUSIGHT_GPUS:
            others = tuple(d for d in rows.NEUSIGHT_GPUS if d != device)
            constants = fit_bytes(name, FITTED_AS[name], devices=others)
            hardware = rows.neusight_hardware(device, constants)
            measured = rows.row_kernels(name, device)
            bound = measured.kernels.moved_bytes / hardware.memory_bytes_per_ns
            yield accuracy(
                title, device, "constants of the others", model(measured.kernels, hardware),
                measured.measured_ns, bound,
            )  # fmt: skip


def _splits(
    title: str, device: str, columns: tuple[NDArray[np.generic], ...]
) -> Iterator[Accuracy]:
    predicted, measured, bound, half = columns
    for split, number in SPLITS.items():
        s = half == number
        if not s.any():
            continue
        yield accuracy(title, device, split, predicted[s], measured[s], bound[s])


def kernel_accuracy() -> list[Accuracy]:
    """All rows of the report on kernels."""
    return [
        *gemm_rows(), *other_half_rows(), *unseen_rows(), *fp8_rows(), *attention_rows(),
        *row_kernel_rows(), *unseen_row_kernel_rows(),
    ]  # fmt: skip


if __name__ == "__main__":
    print(as_text(kernel_accuracy()))
