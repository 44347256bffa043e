"""Other dimensions for a workload: as many as can change while totals and step times stay."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flint.backends.cost.estimate import estimate
from flint.cluster.load import preset_names
from flint.cluster.named import load_cluster
from flint.errors import FlintError
from flint.ir.arrays import Float64s
from flint.ir.program import Kind
from flint.ir.workload import Workload
from flint.passes.work.totals import total
from flint.requests.estimate import EstimateRequest
from flint.tools.share.level import MOST_KEEP
from flint.tools.share.shapes.totals import Totals
from flint.tools.share.sizes import Sizes, Variable
from flint.tools.share.totals import Change, comm_bytes_by_label

# Totals of a real workload, and what estimates say of its step.

#: Machines that step times are kept on: of other makers, generations and networks.
MACHINES = ("h100-dgx", "a100-80-dgx", "b200-dgx", "v5p")


def totals_of(workload: Workload) -> dict[str, float]:
    """FLOPs, bytes of memory traffic, of parameters, and communicated over each label of axes, of one step."""
    (program,) = workload.programs
    works = program.kind >= Kind.COMPUTE
    moved = program.result_bytes + program.operand_bytes
    parameters = program.result_bytes[program.kind == Kind.PARAMETER]
    found: dict[str, float] = {
        "FLOPs": total(program, np.where(works, program.flops, 0)),
        "bytes moved": total(program, np.where(works, moved, 0)),
        "bytes of parameters": int(parameters.sum()),
    }
    for label, value in comm_bytes_by_label(program).items():
        found[f"bytes over {label}"] = value
    return found


def machines_for(workload: Workload) -> tuple[str, ...]:
    """Machines of `MACHINES` that take the mesh; others of the presets where none does."""
    found = tuple(name for name in MACHINES if step_on(workload, name))
    others = (name for name in preset_names() if name not in MACHINES)
    return found or next(((name,) for name in others if step_on(workload, name)), ())


def step_on(workload: Workload, machine: str) -> dict[str, float]:
    """Step time in ns and peak memory in bytes on a preset; nothing where it does not take the mesh."""
    try:
        found = estimate(workload, EstimateRequest(load_cluster(machine), unpriced_is_zero=True))
    except FlintError:
        return {}
    peak = max(c.memory.total_bytes for c in found.classes)
    return {
        f"step time on {machine}": float(found.step_time_ns),
        f"peak memory on {machine}": float(peak),
    }


def measures_of(workload: Workload, machines: Sequence[str]) -> dict[str, float]:
    """Totals, and steps on machines."""
    found = totals_of(workload)
    for machine in machines:
        found |= step_on(workload, machine)
    return found


# A search for other values of variables: many change, and totals stay within a bound.

#: How far a variable may move, as a factor.
MOST_FACTOR = 1.6
#: Values of a variable beside its own, at most.
MOST_VALUES = 64
#: Variables beyond which those of one value move together.
MOST_APART = 16
#: A value of which this part is its step: alignment to powers of two is kept so far.
_PARTS = 128
#: Ways that are followed at once, steps of each, and how worse a step may be at first and at last.
_WAYS, _STEPS = 160, 400
_HOT, _COLD = 2.0, 0.02
#: Weight of a bound that is broken by as much as it is wide, against a variable that stays.
_BROKEN = 12.0
#: Moves below this share are hardly moves.
_SMALL_MOVE = 0.03


@dataclass(frozen=True, eq=False)
class Choices:
    """Values that groups of variables may have, the first is their own; `group` is that of each variable.

    `weight` says how much it is worth that a variable changes: more if more rows have it.

    Where there are many variables those of one value are a group: layers that are alike stay alike.
    """

    values: tuple[Float64s, ...]
    group: NDArray[np.int64]
    weight: Float64s

    @classmethod
    def of(cls, variables: Sequence[Variable]) -> Choices:
        """Multiples of the power of two that an original is one of, as far as that leaves a choice."""
        together = len(variables) > MOST_APART
        groups: dict[tuple[int, ...], int] = {}
        group = [
            groups.setdefault((v.value, v.layers) if together else (v.number,), len(groups))
            for v in variables
        ]
        firsts = {g: v.value for v, g in reversed(list(zip(variables, group, strict=True)))}
        values = tuple(_values(firsts[g]) for g in range(len(groups)))
        uses = np.array([float(v.uses) for v in variables])
        weight = 0.5 + 1.5 * uses / max(float(uses.max(initial=1.0)), 1.0)
        return cls(values, np.array(group, dtype=np.int64), weight)

    def __len__(self) -> int:
        return len(self.values)


def _values(value: int) -> Float64s:
    step = max(min(value & -value, 1 << max((value // _PARTS).bit_length() - 1, 0)), 1)
    first = max(int(value / MOST_FACTOR) // step, 1)
    last = max(int(value * MOST_FACTOR) // step, first)
    found = [m * step for m in range(first, last + 1) if m * step != value]
    if len(found) > MOST_VALUES:
        found = [found[i * len(found) // MOST_VALUES] for i in range(MOST_VALUES)]
    return np.array([value, *found], dtype=np.float64)


class Search:
    """Simulated annealing of several ways at once, by a generator of random numbers.

    `beside` are logs by which totals of real workloads were found to move beyond what they do here.
    """

    def __init__(
        self, totals: Totals, choices: Choices, bound: float, random: np.random.Generator
    ) -> None:
        self._totals, self._choices = totals, choices
        self._bound = float(np.log1p(bound))
        self._random = random
        self._sizes = np.array([len(v) for v in choices.values])
        width = int(self._sizes.max(initial=1))
        self._table = np.stack([np.resize(v, width) for v in choices.values])
        self._at = np.zeros((_WAYS, len(choices)), dtype=np.int64)
        self._tried: set[bytes] = set()

    def next(self, beside: Float64s) -> NDArray[np.int64]:
        """The best values that were not given before."""
        self._at[::2] = 0  # other ways than before
        at, cost = self._at, self._cost(self._at, beside)
        for heat in np.geomspace(_HOT, _COLD, _STEPS):
            other = self._moved(at)
            others = self._cost(other, beside)
            better = self._random.random(_WAYS) < np.exp(np.minimum((cost - others) / heat, 0.0))
            at = np.where(better[:, None], other, at)
            cost = np.where(better, others, cost)
        self._at = at
        order = np.argsort(cost, kind="stable")
        new = [w for w in order.tolist() if at[w].tobytes() not in self._tried]
        best = at[new[0] if new else int(order[0])]
        self._tried.add(best.tobytes())
        found: NDArray[np.int64] = self._values(best[None, :])[0].astype(np.int64)
        return found

    def _moved(self, at: NDArray[np.int64]) -> NDArray[np.int64]:
        """One, two or three variables of each way with other values."""
        found = at.copy()
        for chance in (1.0, 0.7, 0.3):
            which = self._random.integers(len(self._choices), size=_WAYS)
            value = self._random.integers(self._sizes[which])
            ways = np.flatnonzero(self._random.random(_WAYS) < chance)
            found[ways, which[ways]] = value[ways]
        return found

    def _values(self, at: NDArray[np.int64]) -> Float64s:
        found = self._table[np.arange(len(self._choices))[None, :], at]
        return np.asarray(found[:, self._choices.group])

    def _cost(self, at: NDArray[np.int64], beside: Float64s) -> Float64s:
        values = self._values(at)
        logs = self._totals.logs(values) + beside
        over = np.maximum(np.abs(logs) / (0.85 * self._bound) - 1.0, 0.0).sum(axis=1)
        moves = np.abs(np.log(values / self._totals.own))
        stay = 1.0 - np.minimum(moves / _SMALL_MOVE, 1.0)
        return np.asarray(_BROKEN * over + (stay * self._choices.weight).sum(axis=1))


#: Workloads that are made and estimated before giving up.
MOST_TRIES = 14
#: Workloads within the bound after which the one with most other dimensions is taken.
ENOUGH = 3
#: Of the variables such a part has to change.
LEAST_CHANGED = 0.5


@dataclass(frozen=True, slots=True)
class Moves:
    """How far sizes moved, as shares of what they were."""

    variables: int  #: Sizes that may change: what all dimensions are made of.
    changed: int  #: How many of them changed.
    least: float  #: The smallest change of those.
    median: float  #: The change in the middle of those.
    dimensions: float  #: The share of all dimensions longer than 1 that changed.


@dataclass(frozen=True)
class Perturbed:
    """A workload with other sizes, what moved, and how far sizes did."""

    workload: Workload
    changes: tuple[Change, ...]
    moves: Moves


def perturbed(workload: Workload, keep: float, seed: int | None = None) -> Perturbed:
    """Change sizes; FLOPs, bytes moved, of parameters and over each axis, peak memory and step time stay.

    Each stays within the share `keep`, and step time and memory on the machines of
    `MACHINES` that take the mesh. Equal seeds give equal results; without one the operating
    system is asked. Raises FlintError FL906 where too few sizes can change, and FL908 for what a
    compiler or a profile made, whose numbers hold for its sizes alone, and for several programs.
    """
    _require_captured(workload)
    sizes = Sizes.of(workload)
    if len(sizes.variables) < 2:
        raise FlintError(
            "FL906",
            f"of the sizes of this workload {len(sizes.variables)} can change, and its totals depend on them",
            help="the level `names` changes no size",
        )
    random = np.random.default_rng(secrets.randbits(128) if seed is None else seed)
    return _Perturbing(sizes, keep, random).result()


class _Perturbing:
    def __init__(self, sizes: Sizes, keep: float, random: np.random.Generator) -> None:
        self._sizes, self._keep = sizes, keep
        self._totals = Totals.of(sizes)
        self._search = Search(self._totals, Choices.of(sizes.variables), keep, random)
        self._machines = machines_for(sizes.workload)
        self._before = measures_of(sizes.workload, self._machines)
        self._beside: Float64s = np.zeros(len(self._totals))
        self._nearest = float("inf")

    def result(self) -> Perturbed:
        """The workload within the bound most of whose dimensions changed. Raises FlintError FL906 for none."""
        good: list[Perturbed] = []
        for _ in range(MOST_TRIES):
            values = self._search.next(self._beside)
            changed = int((values != self._totals.own).sum())
            if changed < self._least:
                continue
            found = self._tried(values)
            if found is not None:
                good.append(found)
            if len(good) >= ENOUGH or (good and good[-1].moves.changed == len(values)):
                break
        if not good:
            raise self._refusal()
        return max(good, key=lambda p: (p.moves.dimensions, p.moves.changed))

    @property
    def _least(self) -> int:
        return max(int(np.ceil(LEAST_CHANGED * len(self._sizes.variables))), 2)

    def _tried(self, values: np.ndarray) -> Perturbed | None:
        workload = self._sizes.resized(dict(enumerate(values.tolist())))
        after = measures_of(workload, self._machines)
        changes = tuple(Change(name, n, after[name]) for name, n in self._before.items())
        furthest = max(abs(c.share) for c in changes)
        self._nearest = min(self._nearest, furthest)
        if furthest > self._keep:
            self._learn(values, after)
            return None
        moves = moves_of(self._sizes, workload, values)
        return Perturbed(workload, changes, moves)

    def _learn(self, values: np.ndarray, after: Mapping[str, float]) -> None:
        """Let the search see by how much steps and memory moved beyond what it knows of."""
        seen = self._totals.logs(values[None, :].astype(np.float64))[0]
        tpus = [m for m in self._machines if hasattr(load_cluster(m).chip.family, "arrays")]
        gpus = [m for m in self._machines if m not in tpus]
        for where, machines, words in (
            (self._totals.time(0), gpus, "step time"),
            (self._totals.time(1), tpus, "step time"),
            (self._totals.memory, self._machines, "peak memory"),
        ):
            names = [f"{words} on {m}" for m in machines]
            if found := [math.log(after[n] / self._before[n]) for n in names]:
                self._beside[where] = (max(found) + min(found)) / 2 - seen[where]

    def _refusal(self) -> FlintError:
        number = len(self._sizes.variables)
        nearest = np.ceil(self._nearest * 1000 + 0.5) / 1000 if self._nearest < MOST_KEEP else 0.0
        return FlintError(
            "FL906",
            f"half of {number} sizes cannot change with all totals and step times within {self._keep:.3g}",
            help=(
                f"the nearest that was found is --keep {nearest:.1%}"
                if nearest
                else "the search found no others: try a larger --keep, or the level `names`"
            ),
        )


def moves_of(sizes: Sizes, workload: Workload, values: np.ndarray) -> Moves:
    """How far sizes moved, of variables and of dimensions."""
    own = np.array([v.value for v in sizes.variables], dtype=np.float64)
    moved = np.abs(values / own - 1.0)
    moved = moved[moved > 0]
    before, after = (_dimensions(w) for w in (sizes.workload, workload))
    long = before > 1
    return Moves(
        len(own),
        len(moved),
        float(moved.min(initial=np.inf)) if len(moved) else 0.0,
        float(np.median(moved)) if len(moved) else 0.0,
        float((before[long] != after[long]).mean()) if long.any() else 0.0,
    )


def _dimensions(workload: Workload) -> np.ndarray:
    return np.array(
        [d for p in workload.programs for s in p.shape.tolist() for d in p.shapes[s]],
        dtype=np.int64,
    )


def _require_captured(workload: Workload) -> None:
    if len(workload.programs) > 1:
        why = f"it has {len(workload.programs)} programs (a pipeline, or pools), and what one of them keeps for another is not in its rows"
    elif workload.measured_by is not None:
        why = "a profile measured this step with its sizes: the time of other sizes is unknown"
    elif workload.compiled_by is not None:
        why = "a compiler estimated this step with its sizes: the time of other sizes is unknown"
    else:
        return
    raise FlintError(
        "FL908", f"sizes cannot change: {why}", help="the level `names` changes no size"
    )
