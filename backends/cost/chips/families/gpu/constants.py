"""A GPU in cluster files: its table [chip.gpu], and what each constant of its models means."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import AfterValidator, Field

from flint.cluster.load import chips_with_constants
from flint.cluster.tables import (
    SUSTAINED,
    ChipFamily,
    Constant,
    Count,
    KnownLibraries,
    Positive,
    Quantity,
    efficiency,
    limited,
    named,
    share,
    wrong,
)
from flint.errors import FlintError, nearest

if TYPE_CHECKING:
    from flint.cluster.models import Chip

#: Efficiencies of attention by head size; chips have those that were measured on them.
HEAD_SIZES = "attention.efficiency."
_CYCLES = Constant("of an SM per element, beside the bytes")
_INDEXED = Constant("of an SM per element whose place it finds: arrays that lie differently")
_BANDWIDTH = efficiency("share of the memory bandwidth of what it reads and writes")
#: No GPU starts and ends a kernel in less than 1.5 us.
_LAUNCH = Constant("start to end of a kernel without work", least=1500)
#: Sets of constants for products of narrow numbers (see `gpu.quantised`).
QUANTISED = ("fp8", "fp8-block", "fp4")


def _quantised(model: str, numbers: str) -> dict[str, Constant]:
    """Constants of products of numbers of 8 or 4 bits."""
    return {
        f"{model}.efficiency": efficiency(f"share of the peak of a tile's inner loop, {numbers}"),
        f"{model}.memory_efficiency": efficiency("share of the memory bandwidth that reads get"),
        f"{model}.launch_ns": _LAUNCH,
        f"{model}.step_ns": Constant("of one step along k, as gemm.step_ns"),
        f"{model}.epilogue_k": Constant("a tile's start and end, in elements of k"),
        f"{model}.power_share": Constant("of what bf16 sustains of its peak, what these sustain"),
        f"{model}.narrow_rows": Constant("rows up to which the library takes its narrow tile"),
        f"{model}.least_width": Constant("columns of the narrowest tile that the library has"),
        f"{model}.column_ns": Constant("of bringing the scales of a column into their layout"),
    }


#: Fused attention of 8 bits (see `gpu.attention`): meanings, and what is assumed unless a chip says so.
NARROW_ATTENTION = {
    "peak_share": (Constant("share of the peak of 8 bits, over that of bf16's peak"), 1.0),
    "backward_score_cycles": (Constant("of an SM for a score, beside its products"), 0.0),
    "backward_skips": (Constant("of what a window hides, what is skipped", most=1), 1.0),
}
#: Sets of constants for grouped products (see `gpu.grouped`).
GROUPED = ("grouped", "grouped-fp8")


def _grouped(model: str) -> dict[str, Constant]:
    """Constants of products that have groups of rows."""
    return {
        f"{model}.efficiency": efficiency("share of the peak of a tile's inner loop, of groups"),
        f"{model}.memory_efficiency": efficiency("share of the memory bandwidth"),
        f"{model}.launch_ns": _LAUNCH,
        f"{model}.step_ns": Constant("of one step along k, as gemm.step_ns"),
        f"{model}.epilogue_k": Constant("a tile's start and end, in elements of k"),
        f"{model}.group_ns": Constant("of each group that has rows"),
        f"{model}.tile_columns": Constant("columns of a library's only tile; 0: it has several"),
    }


CONSTANTS: Mapping[str, Constant] = {
    "gemm.efficiency": efficiency("share of the peak of a tile's inner loop, beside its steps"),
    "gemm.memory_efficiency": efficiency("share of the memory bandwidth that reads get"),
    "gemm.launch_ns": _LAUNCH,
    "gemm.step_ns": Constant("of one step along k (64 bytes) that is neither arithmetic nor loads"),
    "gemm.feed_ns": Constant("of an SM for 32 KiB of operands that it takes in"),
    "gemm.split_ns": Constant("the kernel that adds the parts of a product split along k"),
    "gemm.epilogue_k": Constant("a tile's start and end, in elements of k"),
    "gemm.sustained": share("of the peak that products reach at the clock that power allows"),
    "gemm.power_ns": Constant("how long a product runs until half of that fall of the clock shows"),
    "gemm.overlap": Constant("exponent of the norm that joins arithmetic and memory", least=1),
    "gemm.unaligned_ns": Constant("least of a step along k of rows that do not start at 16 bytes"),
    "gemm.unaligned_cycles": Constant("of an SM for each load or store of such rows"),
    f"{HEAD_SIZES}D": efficiency("share of the peak of fused attention with heads of D elements"),
    "attention.launch_ns": _LAUNCH,
    "attention.rows": Constant("queries of a tile of fused attention", least=16),
    "attention.packed": Constant(
        "exponent: of heads that share keys, those in a tile of prefill", most=1
    ),
    "attention.tile_ns": Constant("a tile's start and end, for heads of 128 elements"),
    "attention.tail": Constant("causal tiles by which the last SM ends later than the average one"),
    "attention.overlap": Constant("exponent of the norm that joins arithmetic and memory", least=1),
    "attention.memory_efficiency": _BANDWIDTH,
    "attention.cache_efficiency": efficiency("share of the bandwidth of copies of keys to a cache"),
    "attention.backward_efficiency": share(
        "efficiency of the backward pass, relative to the forward pass"
    ),
    "attention.sustained": share("share of the efficiency that steps of minutes keep"),
    "attention.window_skips": Constant(
        "share of what a window hides that prefill leaves out", most=1
    ),
    "decode.launch_ns": _LAUNCH,  # attention of one query per head
    "decode.memory_efficiency": _BANDWIDTH,
    "decode.head_ns": Constant("a tile's start and end in that, for heads of 128 elements"),
    "decode.sm_share": Constant("what one SM reads, over its part of the bandwidth", least=1),
    "decode.split_keys": Constant("least keys that a split leaves an SM", least=1),
    "decode.split_ns": Constant("the kernel that adds the parts of keys that were split"),
    "elementwise.launch_ns": _LAUNCH,
    "elementwise.memory_efficiency": _BANDWIDTH,
    "elementwise.cycles": _CYCLES,
    "elementwise.indexed_cycles": _INDEXED,
    "softmax.launch_ns": _LAUNCH,
    "softmax.memory_efficiency": _BANDWIDTH,
    "softmax.cycles": _CYCLES,
    "softmax.long_bytes": Constant(
        "bytes that move for rows that registers do not hold, over theirs", least=1
    ),
    "norm.launch_ns": _LAUNCH,
    "norm.memory_efficiency": _BANDWIDTH,
    "norm.row_cycles": Constant("of an SM per row, beside its bytes"),
    "norm.element_cycles": Constant("of an SM per element of the rows that it works on"),
    "norm.long_ns": Constant("of loops over rows that registers do not hold"),
    "norm.backward_launch_ns": Constant(
        "start to end of all kernels of a backward pass", least=1500
    ),
    "norm.backward_reads": Constant("reads of operands for the weight's gradient"),
    "norm.backward_row_cycles": Constant("of a thread per row of the weight's gradient"),
    "norm.near_bytes": Constant(
        "of a row that stay near an SM; a longer one is read twice", least=1
    ),
    "copy.launch_ns": _LAUNCH,
    "copy.memory_efficiency": _BANDWIDTH,
    "copy.cycles": _CYCLES,
    "copy.indexed_cycles": _INDEXED,
    "reduction.launch_ns": _LAUNCH,
    "reduction.memory_efficiency": _BANDWIDTH,
    "reduction.cycles": _CYCLES,
    "gather.launch_ns": _LAUNCH,  # scatters too
    "gather.memory_efficiency": _BANDWIDTH,
    "gather.cycles": _CYCLES,
    "convolution.efficiency": share("of the speed of a product of the same sizes"),
    "convolution.launch_ns": Constant("of a product and the kernels around it", least=1500),
    "convolution.window_ns": Constant("of kernels around it where windows overlap"),
    "convolution.layouts": Constant("copies of all arrays into other layouts"),
    "convolution.channels": Constant("that a step along k has, of images too", least=1),
    "quantise.launch_ns": _LAUNCH,  # kernels that write numbers of 8 or 4 bits and their scales
    "quantise.memory_efficiency": _BANDWIDTH,
    "quantise.cycles": _CYCLES,
    **_quantised("fp8", "8 bits"),
    **_quantised("fp8-block", "8 bits with scales of blocks"),
    **_quantised("fp4", "4 bits"),
    **{f"attention-fp8.{name}": said for name, (said, _) in NARROW_ATTENTION.items()},
    **{f"attention-fp8-block.{name}": said for name, (said, _) in NARROW_ATTENTION.items()},
    **_grouped("grouped"),
    **_grouped("grouped-fp8"),
}
#: Constants that a chip need not have: they are those of another class of kernels then.
INSTEAD = {
    f"{own}.{name}": f"elementwise.{name}"
    for own in ("copy", "reduction", "gather", "quantise")
    for name in ("launch_ns", "memory_efficiency", "cycles")
} | {
    f"{own}.{name}": f"gemm.{name}"
    for own in (*QUANTISED, *GROUPED)
    for name in ("efficiency", "memory_efficiency", "launch_ns", "step_ns", "epilogue_k")
}
INSTEAD |= {f"attention-fp8-block.{name}": f"attention-fp8.{name}" for name in NARROW_ATTENTION}
INSTEAD["copy.indexed_cycles"] = "elementwise.indexed_cycles"
INSTEAD["norm.backward_launch_ns"] = "norm.launch_ns"
INSTEAD["convolution.launch_ns"] = "gemm.launch_ns"
#: Or this. Inner loops of products lose no more than `gemm.step_ns` and `gemm.feed_ns`. Compilers' kernels have one loop for arrays however they lie, and keep rows in registers.
UNLESS_SAID = {
    "gemm.efficiency": 1.0,
    "gemm.unaligned_ns": 0.0,
    "gemm.unaligned_cycles": 0.0,
    "convolution.efficiency": 1.0,
    "convolution.window_ns": 0.0,
    "convolution.layouts": 0.0,
    "convolution.channels": 8.0,
    "attention.sustained": 1.0,
    "attention.window_skips": 1.0,
    **{f"attention-fp8.{name}": value for name, (_, value) in NARROW_ATTENTION.items()},
    "elementwise.indexed_cycles": 0.0,
    "softmax.long_bytes": 1.0,
    "norm.element_cycles": 0.0,
    "norm.long_ns": 0.0,
    "norm.backward_reads": 0.0,
    "norm.backward_row_cycles": 0.0,
    "norm.near_bytes": 2.0**40,  # longer than any row
    **{f"{own}.power_share": 1.0 for own in QUANTISED},
    **{f"{own}.narrow_rows": 0.0 for own in QUANTISED},
    **{f"{own}.least_width": 64.0 for own in QUANTISED},
    **{f"{own}.column_ns": 0.0 for own in QUANTISED},
    **{f"{own}.{name}": 0.0 for own in GROUPED for name in ("group_ns", "tile_columns")},
}
#: Names of all that every chip has but those of attention by head size.
NEEDED = tuple(
    name
    for name in CONSTANTS
    if not (name.startswith(HEAD_SIZES) or name in INSTEAD or name in UNLESS_SAID)
)
#: Constants that are times of an SM's work, and shrink as it gets faster: generations that double
#: an SM's arithmetic also feed it faster (prices of all pairs of fitted GPUs say so).
SM_TIMES = frozenset(
    {
        *("gemm.step_ns", "gemm.feed_ns", "attention.tile_ns", "decode.head_ns"),
        *(f"{own}.step_ns" for own in (*QUANTISED, *GROUPED)),
    }
)


def _has_constants(name: str) -> str:
    """Refuse a chip to be `like` that has no constants."""
    known = chips_with_constants(Gpu.table) if name else {}
    if name and name not in known:
        said = f"is '{name}', which is not a chip with constants{nearest(name, list(known))}"
        raise wrong(said, help=f"one of {', '.join(known)}")
    return name


#: Constants of a GPU in a file.
GpuConstants = Annotated[dict[str, Quantity], named(CONSTANTS), limited(CONSTANTS)]


class Gpu(ChipFamily):
    """What a GPU's latency model needs beside peak and memory."""

    table: ClassVar[str] = "gpu"
    known: ClassVar[Mapping[str, Constant]] = CONSTANTS
    peak_keys: ClassVar[tuple[str, ...]] = ("sms", "clock_hz")
    unit_keys: ClassVar[tuple[str, ...]] = ("sms",)
    unit_times: ClassVar[frozenset[str]] = SM_TIMES

    sms: Count
    """Streaming multiprocessors (compute units) of a chip."""
    clock_hz: Positive
    """Their clock, in Hz."""
    l2_bytes: Positive
    """Size of the last cache before memory, in bytes."""
    l2_bandwidth_bytes_per_s: Positive | None = None
    """Its bandwidth, in bytes/s; without it a multiple of that of memory."""
    constants: GpuConstants = Field(default_factory=dict)
    """Fitted constants of the latency model. Missing ones are scaled from the chip named `like`."""
    libraries: Annotated[dict[str, GpuConstants], KnownLibraries] = Field(default_factory=dict)
    """Constants of kernels of one library, by its name: they stand before `constants` where it runs."""
    uses: tuple[str, ...] = ()
    """Libraries that run; of two, the later one has the word. Without any, a stack says."""
    like: Annotated[str, AfterValidator(_has_constants)] = ""
    """The chip whose constants it takes."""


@dataclass(frozen=True)
class Constants:
    """Values by name, and the chip that they were fitted on, if it is another one."""

    values: Mapping[str, float]
    borrowed_from: str = ""

    def __getitem__(self, name: str) -> float:
        if name in self.values:
            return self.values[name]
        return UNLESS_SAID[name] if name in UNLESS_SAID else self[INSTEAD[name]]

    def in_use(self) -> dict[str, float]:
        """All that models read, with what stands for those that a chip does not have."""
        missing = (n for n in (*INSTEAD, *UNLESS_SAID) if n not in self.values)
        return {**self.values, **{name: self[name] for name in missing}}


def gpu_of(chip: Chip) -> Gpu:
    """The GPU part of a chip. Raises FlintError FL705 for a chip that is no GPU."""
    if not isinstance(chip.family, Gpu):
        raise FlintError("FL705", f"chip '{chip.name}' is not a GPU: it has no table [chip.gpu]")
    return chip.family


def constants_of(chip: Chip) -> Constants:
    """Constants of a chip: its own where it has them, the others from `reference_chip`.

    Times of an SM's work are scaled by what an SM calculates per second; shares and the launch are
    taken as they are.
    """
    gpu, reference = gpu_of(chip), lender_of(chip)
    own = _values(gpu, gpu.uses)
    if reference is None:
        return Constants(own)
    scale = _sm_flops_per_s(reference) / _sm_flops_per_s(chip)
    borrowed = {
        name: value * (scale if name in SM_TIMES else 1.0)
        for name, value in _values(gpu_of(reference), gpu.uses).items()
        if not (name.startswith(HEAD_SIZES) and any(n.startswith(HEAD_SIZES) for n in own))
    }
    return Constants(borrowed | own, reference.name)


def _values(gpu: Gpu, uses: tuple[str, ...]) -> dict[str, float]:
    """Constants by name, those of the libraries that run before the others.

    Efficiencies of attention by head size are of one kernel: a library that has some has no others.
    """
    found = {name: q.value for name, q in gpu.constants.items()}
    for library in uses:
        its = {name: q.value for name, q in gpu.libraries.get(library, {}).items()}
        if any(name.startswith(HEAD_SIZES) for name in its):
            found = {n: v for n, v in found.items() if not n.startswith(HEAD_SIZES)}
        found |= its
    return found


def libraries_of(chip: Chip) -> tuple[str, ...]:
    """The libraries in use that have constants: of the chip, or of the one that lends it some.

    Sustained rates are there where they say at least what power leaves of products.
    """
    gpu = gpu_of(chip)
    there, lender = _with_constants(gpu), lender_of(chip)
    if lender is not None:
        there |= _with_constants(gpu_of(lender))
    return tuple(name for name in gpu.uses if name in there)


def _with_constants(gpu: Gpu) -> set[str]:
    return {
        name
        for name, constants in gpu.libraries.items()
        if name != SUSTAINED or "gemm.sustained" in constants
    }


def constants_note(chip: Chip) -> str:
    """A sentence on whose constants a chip's kernels are priced with; empty if they are its own."""
    found = constants_of(chip)
    if not found.borrowed_from:
        return ""
    count = len(found.values) - len(gpu_of(chip).constants)
    return (
        f"{chip.name} has no measurements for {count} of {len(found.values)} constants of the "
        f"kernel models: they come from {found.borrowed_from}, with times of an SM's work "
        "scaled by its peak"
    )


def lender_of(chip: Chip) -> Chip | None:
    """The chip whose constants stand for those that a chip does not have; None if it has all."""
    gpu = gpu_of(chip)
    return reference_chip(chip) if _missing(_values(gpu, gpu.uses)) else None


def reference_chip(chip: Chip) -> Chip:
    """The preset whose constants stand in: the one named `like`, or of the nearest generation.

    A generation shows in what one SM calculates per cycle (A100 2,048 FLOP, H100 4,096, B200
    8,192); of equals, the one with the nearest memory bandwidth is taken. Raises FL705 if `like`
    names no chip with constants.
    """
    known, like = _fitted_chips(), gpu_of(chip).like
    if like:
        preset = chips_with_constants(Gpu.table).get(like)
        if preset is None:  # a file is refused before; a model may be copied with anything
            raise FlintError(
                "FL705",
                f"chip '{chip.name}' is like '{like}', which has no constants of kernel models",
                help=f"one of {', '.join(known)}",
            )
        return known[preset]
    return min(known.values(), key=lambda k: nearness(chip, k))


def nearness(chip: Chip, known: Chip) -> tuple[float, float]:
    """How near a chip is that lends constants: by what a unit does in a cycle, then by bandwidth; 0 is nearest."""
    unit = abs(math.log2(flops_per_cycle(chip) / flops_per_cycle(known)))
    ours, theirs = chip.memory_bandwidth_bytes_per_s, known.memory_bandwidth_bytes_per_s
    return round(unit, 1), abs(math.log2(ours.value / theirs.value))


def flops_per_cycle(chip: Chip) -> float:
    """What one SM multiplies per cycle, of numbers of 16 bits if the chip's file has a peak for them."""
    return _sm_flops_per_s(chip) / gpu_of(chip).clock_hz.value


def _sm_flops_per_s(chip: Chip) -> float:
    peak = max(
        (chip.peak_flops_per_s[d].value for d in ("bf16", "f16") if d in chip.peak_flops_per_s),
        default=max(q.value for q in chip.peak_flops_per_s.values()),
    )
    return peak / gpu_of(chip).sms.value


@cache
def _fitted_chips() -> dict[str, Chip]:
    from flint.cluster.models import Cluster  # which needs this module

    names = sorted(set(chips_with_constants(Gpu.table).values()))
    return {name: Cluster.load(name).chip for name in names}


def _missing(own: Mapping[str, float]) -> bool:
    """Whether the models read a constant that is not there. One head size is enough."""
    if not any(name.startswith(HEAD_SIZES) for name in own):
        return True
    return any(name not in own for name in NEEDED)
