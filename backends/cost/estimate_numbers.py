"""What an estimate says, in numbers: the floor that its printers stand on."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from flint.backends.cost.chips.kernel_table import kernels_of, masked_flops, masks_of
from flint.backends.cost.chips.kernels import KernelKind
from flint.backends.cost.chips.model import peak_type
from flint.backends.cost.kernel_times import KernelTimes
from flint.backends.cost.network.placement import NetworkPlacement
from flint.backends.cost.routing import BALANCED
from flint.backends.cost.simulate.exposure import IDLE, Serving, Share
from flint.backends.cost.simulate.timeline import Policy, Timeline
from flint.cluster.models import Cluster
from flint.cluster.stack import Stack
from flint.errors import FlintError, nearest
from flint.ir.columns import is_any
from flint.ir.mesh import AxisRef
from flint.ir.op_class import OpClass
from flint.ir.program import Int64s, Kind, Phase, Program
from flint.ir.workload import Workload
from flint.passes.base import run_passes
from flint.passes.fusion.attention import FuseAttention
from flint.passes.rewrites.dead_code import DropDeadCode
from flint.passes.work.totals import matmul_flops, one_product_flops, total
from flint.requests.estimate import EstimateRequest

if TYPE_CHECKING:
    from flint.backends.cost.memory.memory import MemoryUse
    from flint.backends.cost.replay.facts import MeasuredFacts
    from flint.backends.cost.simulate.critical_path import Segment


#: Types that indices of tokens have, and the axes in what an argument says of its sharding.
_INDICES = ("i32", "i64", "ui32", "ui64", "int32", "int64", "uint32", "uint64", "s32", "s64", "u32")
_AXIS = re.compile(r'"([^"]+)"')


@dataclass(frozen=True)
class ClassEstimate:
    """What one rank class does with the step's time and a device's memory."""

    name: str
    ranks: int
    end_ns: float
    shares: tuple[Share, ...]
    memory: MemoryUse

    @property
    def compute_ns(self) -> float:
        """How long its devices compute."""
        return sum(s.exposed_ns for s in self.shares if not s.over and s.kind not in IDLE)

    @property
    def exposed_ns(self) -> float:
        """How long its devices wait for communication."""
        return sum(s.exposed_ns for s in self.shares if s.over)


@dataclass(frozen=True, eq=False)
class EstimateNumbers:
    """How long a step takes on a cluster, and why.

    `mfu` counts the flops of matrix products that the model needs, `hfu` those that are executed,
    with those that are repeated (see `utilisation.ProductFlops`); both over what the chips could do
    in that time in `dtype`. With `unpriced` operations the time is a lower bound.
    """

    name: str
    cluster: Cluster
    mapping: tuple[tuple[str, ...], ...]
    stack: Stack
    profile: str
    policy: Policy
    step_time_ns: float
    model_flops: int
    executed_flops: int
    repeated_flops: int
    peak_flops_per_s: float
    dtype: str
    classes: tuple[ClassEstimate, ...]
    unpriced: Mapping[str, int]
    notes: tuple[str, ...]
    timeline: Timeline
    #: The compiler's times of kernels beside Flint's, where they were asked for.
    kernel_times: KernelTimes | None
    #: What rests on measured times, where any does, and what was changed.
    measured: MeasuredFacts | None
    #: What was estimated, and the kernels of the profile that became of it.
    workload: Workload = field(repr=False)
    kernels: Workload = field(repr=False)
    #: Where the mesh lies in the cluster's network.
    placement: NetworkPlacement = field(repr=False)
    #: How tokens are spread over experts.
    routing: str = BALANCED
    #: What was asked for; without a cluster where a study asked.
    request: EstimateRequest = field(default_factory=EstimateRequest, repr=False)

    @property
    def mfu(self) -> float:
        """Model flops utilization, 0 to 1."""
        return self._utilisation(self.model_flops)

    @property
    def hfu(self) -> float:
        """Hardware flops utilization, 0 to 1."""
        return self._utilisation(self.executed_flops)

    def _utilisation(self, flops: int) -> float:
        ranks = sum(c.ranks for c in self.classes)
        possible = self.peak_flops_per_s * self.step_time_ns * 1e-9 * ranks
        return flops / possible if possible else 0.0

    @cached_property
    def tokens(self) -> int:
        """Tokens that a step trains on or generates on all devices; 0 where its arguments do not tell.

        They are the elements of the largest argument of indices with two dimensions or more, or a token by the
        prefill and by each pass for each of its sequences, where all ranks run one program and know shardings.
        """
        (program, *others), mesh = self.workload.programs, self.workload.mesh
        if others or not (self.serving or (program.phase == Phase.BACKWARD).any()):
            return 0
        generated = 1 + self.serving["decode_passes"] if self.serving else 0
        arguments = map(program.row, np.flatnonzero(program.kind == Kind.PARAMETER).tolist())
        found = (a for a in arguments if a.dtype in _INDICES and len(a.shape) > 1)
        told = [a for a in found if a.cause and ":" not in a.cause]
        ends, to = (1, "}") if generated else (None, ":")  # sequences, or all elements
        axes = (set(_AXIS.findall(a.cause.partition(to)[0])) for a in told)
        parts = (mesh.group_size(map(AxisRef, names)) for names in axes)
        sizes = {math.prod(a.shape[:ends]) * part for a, part in zip(told, parts, strict=True)}
        unsure = generated and len(sizes) > 1  # tables of integers beside prompts
        return 0 if unsure else max(sizes, default=0) * (generated or 1)

    @property
    def tokens_per_second(self) -> float:
        """Tokens of all devices in a second; 0 where they are not known."""
        return self.tokens / self.step_time_ns * 1e9 if self.step_time_ns else 0.0

    @property
    def cost_per_million_tokens(self) -> float:
        """US dollars by the cluster's price of a chip and hour; 0 where that or the tokens are not known."""
        price, rate = self.cluster.price_per_hour, self.tokens_per_second
        ranks = sum(c.ranks for c in self.classes)
        return price.value * ranks / 3600 / rate * 1e6 if price and rate else 0.0

    @property
    def is_lower_bound(self) -> bool:
        """Whether operations without a price were counted as nothing."""
        return bool(self.unpriced)

    @cached_property
    def critical_path(self) -> tuple[Segment, ...]:
        """What the step time is made of, longest first; found when it is asked for."""
        from flint.backends.cost.simulate.critical_path import critical_path

        return critical_path(self.timeline, self.policy)

    @cached_property
    def serving(self) -> Serving | None:
        """Times to the first and to each further token, of steps that prefill and decode."""
        if "pools" not in self.workload.metadata and not any(
            (p.phase >= Phase.PREFILL).any() for p in self.workload.programs
        ):
            return None
        from flint.backends.cost.serving import serving_of

        return serving_of(self.workload, self.timeline, [c.shares for c in self.classes])

    @property
    def slowest_class(self) -> int:
        """The index of the rank class that ends last."""
        return int(np.argmax([c.end_ns for c in self.classes]))

    def chosen_classes(self, rank_class: int | str | None) -> list[int]:
        """Indices of the classes meant: by index, or by a name or its part before a colon.

        None is the slowest, "all" are all. Raises FlintError FL503 for a class that is not there.
        """
        names = [c.name for c in self.classes]
        if rank_class is None:
            return [self.slowest_class]
        for known in (names, [n.partition(":")[0] for n in names]):
            if known.count(str(rank_class)) == 1:
                return [known.index(str(rank_class))]
        if rank_class == "all":
            return list(range(len(names)))
        if rank_class in (*range(len(names)), *map(str, range(len(names)))):
            return [int(rank_class)]
        shown = [*names[:20], *(["or all"] if "all" not in names else [])]
        raise FlintError(
            "FL503",
            f"no rank class is called '{rank_class}'{nearest(str(rank_class), names)}",
            help=f"the classes are {'; '.join(shown)}{'; ...' if len(names) > 20 else ''}",
        )


# What utilisation is measured by: flops of products of matrices, and the peak they compare with.

#: Backward passes of attention in one kernel.
_BACKWARD = frozenset({OpClass.ATTENTION_BACKWARD, OpClass.FUSED_ATTENTION_BACKWARD})


@dataclass(frozen=True, slots=True)
class ProductFlops:
    """Flops of products of matrices of one device and step.

    `model` are those that forward and backward pass need (Chowdhery et al., arXiv 2204.02311,
    appendix B), without what a mask leaves out. `executed` are those that kernels do. Of these,
    `repeated` were done before: of layers that are recomputed, and of scores within the backward
    pass of flash attention.
    """

    model: int
    executed: int
    repeated: int


def needed_flops(program: Program) -> int:
    """Flops of products that a program's model needs; its kernels, which a profile makes, may do more.

    A model does not need the scores that its mask leaves out, whoever calculates them: attention
    that a program writes out is recognised, as `FuseAttention` does for flash kernels.
    """
    flops, again = executed_flops(run_passes(program, (DropDeadCode(), FuseAttention())))
    return flops - again


def executed_flops(program: Program) -> tuple[int, int]:
    """Flops of products, without those that kernels skip for masks; and the repeated of them."""
    flops, masks = matmul_flops(program), masks_of(program)
    again = np.where(program.phase == Phase.REMAT, flops, _done_again(program, flops))
    both = (masked_flops(f, program.dims, masks) for f in (flops, again))
    done, repeated = (total(program, f) for f in both)
    return done, repeated


def _done_again(program: Program, flops: Int64s) -> Int64s:
    """For each row the flops that a backward pass of flash attention calculates again.

    In one kernel the scores, the first of its five products (Dao et al., arXiv 2205.14135,
    appendix B): the one of which `dims` are. In two kernels the first calculates them for its
    four products and the second, of three, all but the gradient of the queries.
    """
    rows = np.flatnonzero(is_any(program, _BACKWARD))
    one = np.minimum(one_product_flops(program, rows), flops[rows])
    again = np.zeros(len(program), dtype=np.int64)
    again[rows] = np.where(flops[rows] <= 3 * one, flops[rows] - one, one)
    return again


def main_type_and_peak(
    workload: Workload, cluster: Cluster, tf32: Collection[KernelKind] = ()
) -> tuple[str, float]:
    """The type whose peak most flops of products run at, and that peak.

    Where others run faster, it is what the chip can do in this mix of types, so that no utilisation
    is above 1. `tf32` is that of `kernels_of`.
    """
    kinds = frozenset(tf32)
    weight = workload.kept.get("flops of types", kinds, lambda: _flops_of_types(workload, kinds))
    peaks = {k: v.value for k, v in cluster.chip.peak_flops_per_s.items()}
    found: dict[str, int] = {}
    for dtype, flops in weight.items():
        with suppress(FlintError):  # a type that the chip has no peak for
            name, _ = peak_type(cluster.chip, dtype)
            found[name] = found.get(name, 0) + flops
    main = max(found, key=lambda name: found[name]) if any(found.values()) else "bf16"
    peak = peaks.get(main, max(peaks.values()))
    if any(peaks[name] > peak for name, flops in found.items() if flops):
        mixed = sum(found.values()) / sum(flops / peaks[name] for name, flops in found.items())
        peak = max(peak, mixed)
    return main, peak


def _flops_of_types(workload: Workload, tf32: Collection[KernelKind]) -> dict[str, int]:
    """The flops of products by what they multiply, of one device of each class."""
    found: dict[str, int] = {}
    for program in workload.programs:
        kernels, rows = kernels_of(program, tf32=tf32)
        flops = kernels.flops.astype(object) * program.trips[rows]  # sums need not fit 64 bits
        for number in np.unique(kernels.dtype).tolist():
            mine = (kernels.dtype == number) & (kernels.kind <= KernelKind.ATTENTION_BACKWARD)
            dtype = kernels.dtypes[number]
            found[dtype] = found.get(dtype, 0) + int(flops[mine].sum())
    return found
