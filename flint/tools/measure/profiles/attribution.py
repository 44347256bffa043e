"""To which operator, phase and scope each activity of a step belongs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from flint.ir.program import Phase
from flint.tools.measure.profiles.operators.events import knows
from flint.tools.measure.profiles.profile import Profile

# Which operator of a nest a kernel belongs to: the one that a program captured by Flint has.


def _aten(names: str) -> frozenset[str]:
    return frozenset(f"aten::{name}" for name in names.split())


#: Operators that PyTorch itself takes apart before anything runs: their parts have the work.
_WRAPPERS = _aten(
    "linear matmul contiguous to flatten rms_norm layer_norm batch_norm group_norm instance_norm "
    "_batch_norm_impl_index conv1d conv2d conv3d reshape type_as clip dropout einsum "
    "scaled_dot_product_attention cross_entropy_loss nll_loss nll_loss_nd nll_loss2d "
    "adaptive_avg_pool2d max_pool2d pad softmax log_softmax tensordot outer chunk "
    "broadcast_tensors argsort item is_nonzero float half bfloat16 expand_as where masked_select"
)
#: Operators of modules that run forward: inside a node of the backward pass they are run again.
_FORWARD = _aten(
    "linear layer_norm batch_norm group_norm instance_norm rms_norm conv1d conv2d conv3d embedding "
    "scaled_dot_product_attention dropout max_pool2d adaptive_avg_pool2d"
)


@lru_cache(maxsize=1 << 14)
def is_operator(name: str) -> bool:
    """Whether a name is an operator's (`aten::mm`, `_C::rms_norm`), not an autograd node's."""
    if name.startswith("triton_"):
        return True
    namespace, _, operator = name.partition("::")
    return bool(operator) and not namespace.startswith(("autograd", "torch")) and " " not in name


def runs_forward(name: str) -> bool:
    """Whether an operator is a module's forward code."""
    return name in _FORWARD


def chosen(names: Sequence[str]) -> int:
    """Of a nest from the outermost to the innermost, the position of the operator that has the work.

    The outermost whose work can be told and that is no wrapper of others; else the innermost operator,
    else the innermost name. -1 for an empty nest.
    """
    for at, name in enumerate(names):
        if name not in _WRAPPERS and is_operator(name) and knows(name):
            return at
    operators = [at for at, name in enumerate(names) if is_operator(name)]
    return operators[-1] if operators else len(names) - 1


_BACKWARD = re.compile(r"^autograd::engine|Backward\d*$|^torch::autograd::AccumulateGrad")
_OPTIMIZER = re.compile(r"^Optimizer\.step#")
#: Annotations that are no part of a program: steps, and what libraries mark for themselves.
_NOT_SCOPES = re.compile(
    r"^(ProfilerStep#|Optimizer\.|nccl:|rccl:|## |execute_|step\[|gloo:|PyTorch Profiler)"
)
#: What a scope may hold: annotations with anything else (paths, addresses) are omitted.
_PLAIN = re.compile(r"[\w .:#=\[\]()+-]{1,80}")


@dataclass(frozen=True, slots=True)
class ActivityOrigin:
    """`operator` is the row of the operator that has the work, -1 for none."""

    operator: int
    phase: Phase
    scope: str


@dataclass
class ActivityOrigins:
    """Origins of activities of one profile."""

    profile: Profile
    _of_operators: dict[int, tuple[int, Phase]] = field(default_factory=dict)

    def of(
        self, rows: NDArray[np.int64], launched: NDArray[np.float64]
    ) -> dict[int, ActivityOrigin]:
        """For each row its operator, phase and scope. `launched` are times by row."""
        asked = sorted(self._moment(row, float(launched[row])) for row in rows.tolist())
        marks = _Marks(self.profile)
        found = {}
        for moment, thread, row in asked:
            operator, phase = self._of(int(self.profile.activities.operator[row]))
            scope, in_optimizer = marks.at(moment, thread)
            found[row] = ActivityOrigin(operator, Phase.OPTIMIZER if in_optimizer else phase, scope)
        return found

    def _moment(self, row: int, launched_ns: float) -> tuple[float, int, int]:
        """When and on which thread annotations tell the scope of an activity.

        The backward pass has a thread of its own: its operators are in the scope of those whose
        gradients they compute, where the profile pairs them.
        """
        call = int(self.profile.activities.call[row])
        thread = int(self.profile.calls.thread[call]) if call >= 0 else -1
        operators = self.profile.operators
        for at in operators.around(int(self.profile.activities.operator[row])):
            forward = self._forward.get(int(operators.sequence[at]), -1)
            if operators.is_backward[at] and forward >= 0:
                return float(operators.start_ns[forward]), int(operators.thread[forward]), row
        return (-np.inf if np.isnan(launched_ns) else launched_ns), thread, row

    @cached_property
    def _forward(self) -> dict[int, int]:
        """By sequence number the forward operator: the last to begin of several, the innermost."""
        operators = self.profile.operators
        known = np.flatnonzero((operators.sequence >= 0) & ~operators.is_backward)
        return dict(zip(operators.sequence[known].tolist(), known.tolist(), strict=True))

    def _of(self, innermost: int) -> tuple[int, Phase]:
        if innermost < 0:
            return -1, Phase.UNKNOWN
        found = self._of_operators.get(innermost)
        if found is None:
            found = self._of_operators[innermost] = self._read(innermost)
        return found

    def _read(self, innermost: int) -> tuple[int, Phase]:
        operators = self.profile.operators
        nest = list(operators.around(innermost))[::-1]  # the outermost first
        names = [self.profile.strings[operators.name[row]] for row in nest]
        at = nest[chosen(names)]
        if not is_operator(self.profile.strings[operators.name[at]]):
            at = -1
        return at, self._phase(nest, names)

    def _phase(self, nest: list[int], names: list[str]) -> Phase:
        operators = self.profile.operators
        node = max((i for i, n in enumerate(names) if _BACKWARD.search(n)), default=-1)
        if node < 0:
            return Phase.BACKWARD if operators.is_backward[nest[0]] else Phase.FORWARD
        runs_again = any(map(runs_forward, names[node:]))
        return Phase.REMAT if runs_again else Phase.BACKWARD


class _Marks:
    """Annotations of the host around a moment, asked for in order of time."""

    def __init__(self, profile: Profile) -> None:
        self._marks, self._strings = profile.marks, profile.strings
        self._rows = np.flatnonzero(~profile.marks.on_device).tolist()
        self._next = 0
        self._open: list[int] = []

    def at(self, moment: float, thread: int) -> tuple[str, bool]:
        """Scope at a moment on a thread, and whether an optimizer steps there."""
        if moment == -np.inf:
            return "", False
        marks = self._marks
        while self._next < len(self._rows) and marks.start_ns[self._rows[self._next]] <= moment:
            self._open.append(self._rows[self._next])
            self._next += 1
        self._open = [m for m in self._open if marks.start_ns[m] + marks.duration_ns[m] > moment]
        names = [self._strings[marks.name[m]] for m in self._open if marks.thread[m] == thread]
        return _scope(tuple(names)), any(_OPTIMIZER.match(n) for n in names)


@lru_cache(maxsize=1 << 14)
def _scope(names: tuple[str, ...]) -> str:
    kept = [n for n in names if not _NOT_SCOPES.match(n) and _PLAIN.fullmatch(n)]
    return "/".join(n.removeprefix("nn.Module: ") for n in kept)
