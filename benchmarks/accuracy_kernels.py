"""How well the GPU kernel models meet the measurements: rows of the accuracy report.

    python -m benchmarks.accuracy_kernels

Constants are those of the presets, fitted on one half of the shapes; "held out" is the other half
and "fitted" the first.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from benchmarks import cudnn_rows, simumax_rows
from benchmarks import kernel_rows as rows
from benchmarks.accuracy_row import Accuracy, accuracy, as_text
from benchmarks.fits import attention, fp8, grouped, norms
from benchmarks.fits import bytes as fitted_bytes
from benchmarks.fits.traced_products import convolutions_by
from benchmarks.low_precision_rows import quantised_products, quantising, sustained_products
from benchmarks.moe_rows import expert_calls, training_products
from benchmarks.trace_kernels import class_on
from flint.backends.cost.chips.families.gpu.constants import Constants
from flint.backends.cost.chips.families.gpu.hardware import GpuHardware, hardware_of
from flint.backends.cost.chips.families.gpu.memory import elementwise_ns, norm_ns, softmax_ns
from flint.backends.cost.chips.kernels import KernelKind, Kernels
from flint.backends.cost.chips.model import latency_ns, peak_flops_per_ns
from flint.backends.cost.software import with_stack
from flint.cluster.models import Chip, Cluster
from flint.cluster.residuals import Part
from flint.cluster.stack import Stack
from flint.ir.arrays import Float64s, Int64s
from flint.tools.measure.fitting.fit import fit, halves

SPLITS = {"held out": 1, "fitted": 0}
#: By what the name of some data begins with, the part of a step that its kernels are; the first counts.
PARTS = {
    "GEMM bf16": Part.PRODUCTS,
    "GEMM": Part.NARROW,
    "products": Part.PRODUCTS,
    "experts fp8": Part.NARROW_GROUPED,
    "experts|grouped": Part.GROUPED,
    "attention, decode": Part.DECODING,
    "attention.*backward": Part.BACKWARD,
    "attention": Part.ATTENTION,
    "norms": Part.NORMS,
    "convolutions": Part.CONVOLUTIONS,
}
#: What marks data that are some of other data.
SOME = (">=", "> ")
RowModel = Callable[[Kernels, GpuHardware], NDArray[np.float64]]
ROW_MODELS: Mapping[str, tuple[str, RowModel]] = {
    "elem": ("element-wise f32", elementwise_ns),
    "softmax": ("softmax f32", softmax_ns),
    "ln": ("layer norm f32", norm_ns),
}


#: Kinds that calculate with Tensor Cores.
TENSOR = (
    KernelKind.GEMM,
    KernelKind.CONVOLUTION,
    KernelKind.ATTENTION,
    KernelKind.ATTENTION_BACKWARD,
)


@dataclass(frozen=True, eq=False)
class Priced:
    """Kernels of one chip as priced and as measured, and a roofline's times; `half` 1 is held out.

    `split` is what all of them are, and "left out" those that judge; "": their halves say it.
    `library` is the one whose kernels they are, where a chip has rows of several.
    """

    data: str
    chip: str
    priced_ns: Float64s
    measured_ns: Float64s
    bound_ns: Float64s
    half: Int64s
    split: str = ""
    library: str = ""

    @property
    def part(self) -> Part | None:
        """The part of a step that they are; None for those that are some of other data."""
        judges = not self.split or self.split.endswith("left out")
        if not judges or any(mark in self.data for mark in SOME):
            return None
        return next((part for start, part in PARTS.items() if re.match(start, self.data)), None)

    def accuracy(self) -> Iterator[Accuracy]:
        """The errors of each split."""
        splits = (
            {self.split: slice(None)}
            if self.split
            else {n: self.half == h for n, h in SPLITS.items()}
        )
        for split, chosen in splits.items():
            times = [ns[chosen] for ns in (self.priced_ns, self.measured_ns, self.bound_ns)]
            if len(times[0]):
                yield accuracy(self.data, self.chip, split, *times)


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


def of_chip(
    data: str, preset: str, measured: rows.Measured, chip: Chip | None = None
) -> Iterator[Priced]:
    """One data set, priced with a preset's constants, or those of `chip`."""
    chip = Cluster.load(preset).chip if chip is None else chip
    predicted, bound = latency_ns(measured.kernels, chip), roofline_ns(measured.kernels, chip)
    yield Priced(data, chip.name, predicted, measured.measured_ns, bound, measured.half)


def gemm_rows() -> Iterator[Priced]:
    """bf16 GEMMs: all shapes, those of language models, big ones."""
    for preset, gpu in rows.PRODUCTS.items():
        measured = rows.gemms(gpu)
        _, _, n, k = measured.kernels.dims.T
        yield from of_chip("GEMM bf16", preset, measured)
        llm = measured.select((n >= 512) & (k >= 512))
        yield from of_chip("GEMM bf16, n and k >= 512", preset, llm)
        big = measured.select(measured.kernels.flops > 1e11)
        yield from of_chip("GEMM bf16, > 100 GFLOP", preset, big)


def sustained_rows() -> Iterator[Priced]:
    """Products as a machine that trains runs them; a constant share of the peak beside."""
    for preset in simumax_rows.SYSTEMS:
        measured = simumax_rows.products(preset)
        cluster = with_stack(Cluster.load(preset), Stack.load("megatron"))
        predicted = latency_ns(measured.kernels, cluster.chip)
        least = measured.kernels.flops / peak_flops_per_ns(cluster.chip, "bf16")
        share = np.median((least / measured.measured_ns)[measured.half == 0])
        columns = (predicted, measured.measured_ns, least / share, measured.half)
        yield Priced("products as launched in training", cluster.chip.name, *columns)


def left_out_rows() -> Iterator[Priced]:
    """cuBLASLt's sustained products: of 8 bits with the constants of the other machine, of f16 as they are."""
    ours, other = fp8.SUSTAINED
    for preset, like in ((ours, other), (other, ours)):
        yield _sustained(
            preset, f"constants of {like}", fp8.sustained_ns(preset, fp8.cublaslt((like,)))
        )
    f16 = "a100-80-dgx"
    yield _sustained(f16, "held out", latency_ns(sustained_products(f16).kernels, _eager(f16)))


def _sustained(preset: str, split: str, predicted: NDArray[np.float64]) -> Priced:
    measured, chip = sustained_products(preset), _eager(preset)
    title = f"GEMM {measured.kernels.dtypes[0]}, cuBLASLt sustained"
    bound = roofline_ns(measured.kernels, chip)
    columns = (predicted, measured.measured_ns, bound, measured.half)
    return Priced(title, chip.name, *columns, split)


def _eager(preset: str) -> Chip:
    return with_stack(Cluster.load(preset), Stack.load("pytorch-eager")).chip


def f32_rows() -> Iterator[Priced]:
    """NeuSight's products on CUDA cores; all that is fitted is what a call takes, in the bound too."""
    chip = Cluster.load("a100-40-dgx").chip
    for name, title in (("bmm", "batched"), ("linear", "linear")):
        data = rows.f32_products(name, "A100")
        prices = [price(data.kernels, chip) for price in (latency_ns, roofline_ns)]
        own = data.half == 0
        call = fit(
            {"ns": (0, 1e5, 3e4)}, lambda c, p=prices[0][own]: p + c["ns"], data.measured_ns[own]
        )["ns"]
        columns = (prices[0] + call, data.measured_ns, prices[1] + call, data.half)
        yield Priced(f"products f32, {title}, with the call", chip.name, *columns)


def quantised_rows() -> Iterator[Priced]:
    """Products of 8 and 4 bits, with the kernel that quantises the left operand in each call."""
    for (preset, gpu), ways in fp8.DATA.items():
        chip = Cluster.load(preset).chip
        for how in ways:
            measured = quantised_products(gpu, how)
            casts = quantising(measured, how)
            predicted, bound = (
                price(measured.kernels, chip) + price(casts, chip)
                for price in (latency_ns, roofline_ns)
            )
            columns = (predicted, measured.measured_ns, bound, measured.half)
            yield Priced(f"GEMM {how.replace('_', ' ')}, quantised", chip.name, *columns)


def expert_rows() -> Iterator[Priced]:
    """Calls of fused experts, balanced and not, and grouped products as training launches them."""
    for preset, gpu, dtype, library in grouped.CALLS:
        calls = expert_calls(gpu, dtype, library)
        hardware = grouped.hardware_with(preset, library)
        rest = grouped.fitted_rest(preset, gpu, dtype, library)
        kind = grouped.TYPES[dtype]
        predicted = grouped.call_ns(calls, hardware, kind, rest)
        bound = sum(
            np.maximum(2 * calls.loads.rows * p.n * p.k / hardware.peak_flops_per_ns(kind),
                       p.moved_bytes / hardware.memory_bytes_per_ns)
            for p in calls.products()
        )  # fmt: skip
        title = f"experts {dtype.replace('_', ' ')}, {library.removeprefix('moe-')}"
        columns = (predicted, calls.measured_ns, bound, calls.half)
        for routing, chosen in (("balanced", calls.balanced), ("power law", ~calls.balanced)):
            part = tuple(column[chosen] for column in columns)
            yield Priced(f"{title}, {routing}", hardware.chip.name, *part, library=library)
    for preset in simumax_rows.SYSTEMS:
        products, hardware = training_products(preset), grouped.training_hardware(preset)
        least = np.maximum(
            2 * products.rows * products.n * products.k / hardware.peak_flops_per_ns("bf16"),
            products.moved_bytes / hardware.memory_bytes_per_ns,
        )
        predicted = grouped.training_ns(products, hardware)
        columns = (predicted, products.measured_ns, least, products.half)
        yield Priced("grouped products as launched in training", hardware.chip.name, *columns)


def attention_rows() -> Iterator[Priced]:
    """Prefill (all, and those above 10 GFLOP) and decode, each also behind windows; encoders."""
    for preset, gpu in rows.SERVING.items():
        for title, measured in (("prefill", rows.prefill(gpu)), ("decode", rows.decode(gpu))):
            whole = measured.kernels.all_keys == 0
            yield from of_chip(f"attention, {title}", preset, measured.select(whole))
            if not whole.all():
                yield from of_chip(f"attention, {title}, windows", preset, measured.select(~whole))
            big = measured.select(whole & (measured.kernels.flops > 1e10))
            if title == "prefill":
                yield from of_chip("attention, prefill > 10 GFLOP", preset, big)
    for preset, (library, gpu) in attention.ENCODERS.items():
        chip = with_libraries(Cluster.load(preset).chip, library)
        for data in of_chip(f"attention, encoders, {library}", preset, rows.encoder(gpu), chip):
            yield replace(data, library=library)


def with_libraries(chip: Chip, *libraries: str) -> Chip:
    """A GPU on which kernels of some libraries run."""
    assert chip.gpu is not None, chip.name
    return chip.model_copy(update={"gpu": chip.gpu.model_copy(update={"uses": libraries})})


def training_attention_rows() -> Iterator[Priced]:
    """cuDNN's attention alone, in each type, and as Megatron-core launches it on a machine that trains."""
    for preset in cudnn_rows.GPUS:
        chip = with_libraries(Cluster.load(preset).chip, "cudnn")
        for dtype, name in cudnn_rows.TYPES.items():
            for title in ("forward", "backward", "backward in one order"):
                backward, ordered = title != "forward", title.endswith("order")
                measured = cudnn_rows.attention(
                    preset, dtype, backward=backward, deterministic=ordered
                )
                if len(measured):
                    yield from of_chip(
                        f"attention by cuDNN, {name}, {title}", preset, measured, chip
                    )
    for preset in simumax_rows.SYSTEMS:
        chip = with_stack(Cluster.load(preset), Stack.load("megatron")).chip
        for title, backward in (("forward", False), ("backward", True)):
            measured = simumax_rows.attention(preset, backward=backward)
            yield from of_chip(f"attention in training, {title}", preset, measured, chip)


def amd_attention_rows() -> Iterator[Priced]:
    """Two libraries' attention on MI355X, whose constants are assumed."""
    chip = Cluster.load("mi355x").chip
    for library, name in (("ck", "Composable Kernel"), ("triton", "Triton")):
        rows = cudnn_rows.on_mi355x(library)
        for data in of_chip(f"attention of {name}, forward", "mi355x", rows, chip):
            yield replace(data, split="nothing is fitted")


def norm_rows() -> Iterator[Priced]:
    """Norms of libraries: each shape with constants fitted on the others, and all with another generation's."""
    generations = norms.GENERATIONS.values()
    for library, mine, backward in itertools.product(norms.BACKENDS, generations, (False, True)):
        title = f"norms, {library}, {'backward' if backward else 'forward'}"
        apart = {shape: norms.fitted(library, mine, shape) for shape in norms.shapes(library)}
        others = norms.fitted(library, [p for p in norms.GPUS if p not in mine])
        for preset in mine:
            measured, chip = (
                norms.norms(preset, library, backward=backward),
                Cluster.load(preset).chip,
            )
            shapes = [(m, n) for _, m, _, n in measured.kernels.dims.tolist()]
            *without, borrowed = (
                norm_ns(measured.kernels, hardware_of(chip, Constants(values)))
                for values in (*(apart[shape] for shape in shapes), others)
            )
            own = np.array([times[i] for i, times in enumerate(without)])
            bound = roofline_ns(measured.kernels, chip)
            for split, found in (("each shape left out", own), ("of another generation", borrowed)):
                ones = np.ones(len(found), np.int64)
                yield Priced(title, chip.name, found, measured.measured_ns, bound, ones, split)


def convolution_rows() -> Iterator[Priced]:
    """Convolutions of PyTorch on MI300X, each half with constants of the other."""
    chip = Cluster.load("mi300x").chip
    for half in (1, 0):
        every = class_on("mi300x", "convolutions")
        mine = halves(every.hashes.tolist()) == half
        found, predicted = (
            every.select(mine),
            convolutions_by(every.select(~mine), every.select(mine)),
        )
        bound = roofline_ns(found.kernels, chip)
        columns = (predicted, found.measured_ns, bound, np.ones(len(predicted), np.int64))
        yield Priced("convolutions", chip.name, *columns, f"half {half} left out")


def row_kernel_rows() -> Iterator[Priced]:
    """NeuSight's element-wise, softmax and layer norm kernels with the constants that all GPUs share.

    Its times hold the call of each kernel, which prices do not.
    """
    constants = {name: value for name, (value, _, _) in fitted_bytes.shared().items()}
    for name, (title, model) in ROW_MODELS.items():
        yield from _on_all(title, name, model, dict.fromkeys(rows.NEUSIGHT_GPUS, constants))


def own_row_kernel_rows() -> Iterator[Priced]:
    """The same kernels with constants of each GPU's own, and what its calls take beside kernels."""
    for name, (title, model) in ROW_MODELS.items():
        own = {d: dict(fitted_bytes.of_device(name, d)) for d in rows.NEUSIGHT_GPUS}
        yield from _on_all(f"{title}, own constants and call", name, model, own)


def _on_all(
    title: str, name: str, model: RowModel, constants: Mapping[str, dict[str, float]]
) -> Iterator[Priced]:
    everything: list[tuple[NDArray[np.float64], ...]] = []
    for device, values in constants.items():
        measured = rows.row_kernels(name, device)
        hardware = rows.neusight_hardware(device, values)
        bound = measured.kernels.moved_bytes / hardware.memory_bytes_per_ns
        predicted = model(measured.kernels, hardware) + values.get("call_ns", 0.0)
        everything.append((predicted, measured.measured_ns, bound, measured.half))
        yield Priced(title, device, *everything[-1])
    yield Priced(title, "all five", *(np.concatenate(c) for c in zip(*everything, strict=True)))


def unseen_row_kernel_rows() -> Iterator[Priced]:
    """The same kernels on each GPU, with constants fitted on the four others."""
    launches = {n: value for n, (value, _, _) in fitted_bytes.launches_of_all().items()}
    for name, (title, model) in ROW_MODELS.items():
        for device in rows.NEUSIGHT_GPUS:
            others = tuple(d for d in rows.NEUSIGHT_GPUS if d != device)
            constants = launches | fitted_bytes.fit_shared(name, others)
            hardware = rows.neusight_hardware(device, constants)
            measured = rows.row_kernels(name, device)
            bound = measured.kernels.moved_bytes / hardware.memory_bytes_per_ns
            columns = (
                model(measured.kernels, hardware),
                measured.measured_ns,
                bound,
                measured.half,
            )
            yield Priced(title, device, *columns, "constants of the others")


def priced_kernels() -> Iterator[Priced]:
    """Kernels of chips that are priced with constants of their own; none is there twice."""
    parts = (gemm_rows, sustained_rows, quantised_rows, expert_rows, attention_rows)
    others = (training_attention_rows, norm_rows, convolution_rows)
    found = (p for rows_of in (*parts, *others) for p in rows_of())
    yield from (p for p in found if p.part is not None)


def kernel_accuracy() -> list[Accuracy]:
    """All rows of the report on kernels."""
    found = (
        *gemm_rows(), *sustained_rows(), *left_out_rows(), *f32_rows(), *quantised_rows(), *expert_rows(), *attention_rows(),
        *training_attention_rows(), *amd_attention_rows(), *norm_rows(), *convolution_rows(), *row_kernel_rows(), *own_row_kernel_rows(), *unseen_row_kernel_rows(),
    )  # fmt: skip
    return errors(found)


def errors(found: Iterable[Priced]) -> list[Accuracy]:
    """The errors of all splits."""
    return [a for priced in found for a in priced.accuracy()]


if __name__ == "__main__":
    print(as_text(kernel_accuracy()))
