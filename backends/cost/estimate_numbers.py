"""What an estimate says, in numbers: the floor that its printers stand on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from flint.backends.cost.kernel_times import KernelTimes
from flint.backends.cost.network.placement import NetworkPlacement
from flint.backends.cost.routing import BALANCED
from flint.backends.cost.simulate.exposure import IDLE, Share
from flint.backends.cost.simulate.timeline import Policy, Timeline
from flint.cluster.models import Cluster
from flint.cluster.stack import Stack
from flint.errors import FlintError, nearest
from flint.ir.workload import Workload

if TYPE_CHECKING:
    from flint.backends.cost.memory.memory import MemoryUse
    from flint.backends.cost.replay.facts import MeasuredFacts
    from flint.backends.cost.simulate.critical_path import Segment


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

    @property
    def is_lower_bound(self) -> bool:
        """Whether operations without a price were counted as nothing."""
        return bool(self.unpriced)

    @cached_property
    def critical_path(self) -> tuple[Segment, ...]:
        """What the step time is made of, longest first; found when it is asked for."""
        from flint.backends.cost.simulate.critical_path import critical_path

        return critical_path(self.timeline, self.policy)

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
