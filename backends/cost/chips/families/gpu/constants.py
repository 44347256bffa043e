"""A GPU in cluster files: its table [chip.gpu], and what each constant of its models means."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import AfterValidator, Field

from flint.cluster.errors import wrong
from flint.cluster.load import chips_with_constants
from flint.cluster.tables import (
    ChipFamily,
    Constant,
    Count,
    Positive,
    Quantity,
    efficiency,
    limited,
    named,
    share,
)
from flint.errors import FlintError, nearest

if TYPE_CHECKING:
    from flint.backends.cost.chips.model import ChipModel
    from flint.cluster.models import Chip

#: Efficiencies of attention by head size; chips have those that were measured on them.
HEAD_SIZES = "attention.efficiency."
_CYCLES = Constant("of an SM per element, beside the bytes")
_BANDWIDTH = efficiency("share of the memory bandwidth of what it reads and writes")
#: No GPU starts and ends a kernel in less than 1.5 us.
_LAUNCH = Constant("start to end of a kernel without work", least=1500)
CONSTANTS: Mapping[str, Constant] = {
    "gemm.efficiency": efficiency("share of the peak of a tile's inner loop"),
    "gemm.memory_efficiency": efficiency("share of the memory bandwidth that reads get"),
    "gemm.write_efficiency": share("bandwidth of writes, as a share of that of reads"),
    "gemm.launch_ns": _LAUNCH,
    "gemm.step_ns": Constant("of one step along k (128 bytes): loads and barriers, not arithmetic"),
    "gemm.split_ns": Constant("the kernel that adds the parts of a product split along k"),
    "gemm.epilogue_k": Constant("a tile's start and end, in elements of k (2-byte elements)"),
    "gemm.throttle": Constant("share by which the clock falls under products of milliseconds"),
    "gemm.l2_share": share("of the L2 that one product may fill before lines are evicted"),
    "gemm.overlap": Constant("exponent of the norm that joins arithmetic and memory", least=1),
    f"{HEAD_SIZES}D": efficiency("share of the peak of fused attention with heads of D elements"),
    "attention.launch_ns": _LAUNCH,
    "attention.memory_efficiency": _BANDWIDTH,
    "attention.backward_efficiency": share("efficiency of the backward pass, of forward's"),
    "decode.launch_ns": _LAUNCH,  # attention of one or a few queries per head
    "decode.memory_efficiency": _BANDWIDTH,
    "decode.head_ns": Constant("what one head of one sequence costs an SM in that"),
    "elementwise.launch_ns": _LAUNCH,
    "elementwise.memory_efficiency": _BANDWIDTH,
    "elementwise.cycles": _CYCLES,
    "softmax.launch_ns": _LAUNCH,
    "softmax.memory_efficiency": _BANDWIDTH,
    "softmax.cycles": _CYCLES,
    "norm.launch_ns": _LAUNCH,
    "norm.memory_efficiency": _BANDWIDTH,
    "norm.row_cycles": Constant("of an SM per row, where its bytes do not take longer"),
    "copy.launch_ns": _LAUNCH,
    "copy.memory_efficiency": _BANDWIDTH,
    "copy.cycles": _CYCLES,
    "reduction.launch_ns": _LAUNCH,
    "reduction.memory_efficiency": _BANDWIDTH,
    "reduction.cycles": _CYCLES,
    "gather.launch_ns": _LAUNCH,  # scatters too
    "gather.memory_efficiency": _BANDWIDTH,
    "gather.cycles": _CYCLES,
    "convolution.efficiency": share("of the speed of a product of the same sizes"),
}
#: Constants that a chip need not have: they are those of another class of kernels then.
INSTEAD = {
    f"{own}.{name}": f"elementwise.{name}"
    for own in ("copy", "reduction", "gather")
    for name in ("launch_ns", "memory_efficiency", "cycles")
}
#: Or this.
UNLESS_SAID = {"convolution.efficiency": 1.0}
#: Names of all that every chip has but those of attention by head size.
NEEDED = tuple(
    name
    for name in CONSTANTS
    if not (name.startswith(HEAD_SIZES) or name in INSTEAD or name in UNLESS_SAID)
)
#: Constants that are times of an SM's work, and shrink as it gets faster: generations that double
#: an SM's arithmetic also feed it faster (prices of all pairs of fitted GPUs say so).
SM_TIMES = frozenset({"gemm.step_ns", "decode.head_ns"})


def _has_constants(name: str) -> str:
    """Refuse a chip to be `like` that has no constants."""
    known = chips_with_constants(Gpu.table) if name else {}
    if name and name not in known:
        said = f"is '{name}', which is no chip with constants{nearest(name, list(known))}"
        raise wrong(said, help=f"one of {', '.join(known)}")
    return name


class Gpu(ChipFamily):
    """What a GPU's latency model needs beside peak and memory."""

    table: ClassVar[str] = "gpu"
    known: ClassVar[Mapping[str, Constant]] = CONSTANTS

    sms: Count
    """Streaming multiprocessors (compute units) of a chip."""
    clock_hz: Positive
    """Their clock, in Hz."""
    l2_bytes: Positive
    """Size of the last cache before memory, in bytes."""
    l2_bandwidth_bytes_per_s: Positive | None = None
    """Its bandwidth, in bytes/s; without it a multiple of that of memory."""
    constants: Annotated[dict[str, Quantity], named(CONSTANTS), limited(CONSTANTS)] = Field(
        default_factory=dict
    )
    """Fitted constants of the latency model. Missing ones are scaled from the chip named `like`."""
    like: Annotated[str, AfterValidator(_has_constants)] = ""
    """The chip whose constants it takes."""

    def model(self, chip: Chip) -> ChipModel:
        from flint.backends.cost.chips.families.gpu.model import GpuModel

        return GpuModel(chip)


@dataclass(frozen=True)
class Constants:
    """Values by name, and the chip that they were fitted on, if it is another one."""

    values: Mapping[str, float]
    borrowed_from: str = ""

    def __getitem__(self, name: str) -> float:
        if name in self.values:
            return self.values[name]
        return UNLESS_SAID[name] if name in UNLESS_SAID else self.values[INSTEAD[name]]

    def in_use(self) -> dict[str, float]:
        """All that models read, with what stands for those that a chip does not have."""
        missing = (n for n in (*INSTEAD, *UNLESS_SAID) if n not in self.values)
        return {**self.values, **{name: self[name] for name in missing}}


def gpu_of(chip: Chip) -> Gpu:
    """The GPU part of a chip. Raises FlintError FL705 for a chip that is no GPU."""
    if not isinstance(chip.family, Gpu):
        raise FlintError("FL705", f"chip '{chip.name}' is no GPU: it has no table [chip.gpu]")
    return chip.family


def constants_of(chip: Chip) -> Constants:
    """Constants of a chip: its own where it has them, the others from `reference_chip`.

    Times of an SM's work are scaled by what an SM calculates per second; shares and the launch are
    taken as they are.
    """
    own = {name: q.value for name, q in gpu_of(chip).constants.items()}
    if not _missing(own):
        return Constants(own)
    reference = reference_chip(chip)
    scale = _sm_flops_per_s(reference) / _sm_flops_per_s(chip)
    borrowed = {
        name: q.value * (scale if name in SM_TIMES else 1.0)
        for name, q in gpu_of(reference).constants.items()
        if not (name.startswith(HEAD_SIZES) and any(n.startswith(HEAD_SIZES) for n in own))
    }
    return Constants(borrowed | own, reference.name)


def constants_note(chip: Chip) -> str:
    """A sentence on whose constants a chip's kernels are priced with; empty if they are its own."""
    found = constants_of(chip)
    if not found.borrowed_from:
        return ""
    count = len(found.values) - len(gpu_of(chip).constants)
    return (
        f"{chip.name} has no measurements of its own for {count} of {len(found.values)} constants "
        f"of the kernel models: they are those of {found.borrowed_from}, with times of "
        "an SM's work scaled by its peak"
    )


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
    return min(known.values(), key=lambda k: (_distance(chip, k), _bandwidth_ratio(chip, k)))


def _distance(chip: Chip, known: Chip) -> float:
    return round(abs(math.log2(_flops_per_cycle(chip) / _flops_per_cycle(known))), 1)


def _bandwidth_ratio(chip: Chip, known: Chip) -> float:
    ours, theirs = chip.memory_bandwidth_bytes_per_s, known.memory_bandwidth_bytes_per_s
    return abs(math.log2(ours.value / theirs.value))


def _flops_per_cycle(chip: Chip) -> float:
    return _sm_flops_per_s(chip) / gpu_of(chip).clock_hz.value


def _sm_flops_per_s(chip: Chip) -> float:
    peak = max(
        (chip.peak_flops_per_s[d].value for d in ("bf16", "f16") if d in chip.peak_flops_per_s),
        default=max(q.value for q in chip.peak_flops_per_s.values()),
    )
    return peak / gpu_of(chip).sms.value


@cache
def _fitted_chips() -> dict[str, Chip]:
    """Presets that have constants, by the name of their cluster."""
    from flint.cluster.models import Cluster  # which needs this module

    names = sorted(set(chips_with_constants(Gpu.table).values()))
    return {name: Cluster.load(name).chip for name in names}


def _missing(own: Mapping[str, float]) -> bool:
    """Whether the models read a constant that is not there. One head size is enough."""
    if not any(name.startswith(HEAD_SIZES) for name in own):
        return True
    return any(name not in own for name in NEEDED)
