"""What differs between two workloads or estimates: the floor that texts and budgets stand on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from flint.tools.change.diff.cause import Cause, CauseKind
from flint.tools.change.diff.causes import shared_clusters
from flint.tools.change.diff.match import Change
from flint.tools.change.diff.rows import Cost
from flint.tools.change.diff.snapshot import EstimateFacts, Snapshot


@dataclass(frozen=True, eq=False)
class DifferenceNumbers:
    """What differs. `changes` are of kernels, and there only if both sides were read whole.

    `same` counts kernels (rows of programs) that are as they were; `moved` those of them with
    another scope or line. With estimates, `path_ns` of all changes and `shifted_ns` (of kernels
    that are as they were) add up to the difference of the step time.
    """

    before: Snapshot
    after: Snapshot
    causes: tuple[Cause, ...]
    renamed: tuple[tuple[str, str], ...] = ()
    changes: tuple[Change, ...] = ()
    same: int = 0
    moved: int = 0
    shifted_ns: float = 0.0
    has_kernels: bool = False

    @property
    def is_equal(self) -> bool:
        """Whether both do the same in the same time. Names and lines may differ."""
        return not self.causes

    @cached_property
    def estimated(self) -> tuple[EstimateFacts, EstimateFacts] | None:
        """The estimates on the first cluster that both have, or on the only one of each."""
        a, b = self.before.estimates, self.after.estimates
        shared = shared_clusters(a, b)
        return (a[shared[0][0]], b[shared[0][1]]) if shared else None

    @cached_property
    def costs(self) -> dict[CauseKind | None, Cost]:
        """What kernels cost more now, by the cause from which it follows; None: from none that is known."""
        found: dict[CauseKind | None, Cost] = {}
        for change in self.changes:
            found[change.cause] = found.get(change.cause, Cost()) + change.delta
        return found
