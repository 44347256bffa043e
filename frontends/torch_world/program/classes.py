"""Which ranks must be recorded, and which ranks run which program.

Ranks differ in the pipeline stage that they are (whoever sends messages along an axis is a class of
its own at each position) and in the sizes of their shards. All else is the same on every rank of an
SPMD program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from flint.errors import FlintError
from flint.frontends.torch_world.program.build import Built, build_program
from flint.frontends.torch_world.program.derive import derive, resized
from flint.frontends.torch_world.program.groups import Channels, group_of, message_axes
from flint.frontends.torch_world.program.shards import Shards
from flint.frontends.torch_world.record.recording import Comm, CommKind, Recording
from flint.ir.mesh import AxisRef, Mesh
from flint.ir.program import Int64s, Program
from flint.ir.workload import RankClass
from flint.passes.axes import positions_along

#: Records the given ranks, each in its own process.
Record = Callable[[Sequence[int]], Sequence[Recording]]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class RankClasses:
    """Programs, the rank classes that run them, and what the user should know."""

    programs: tuple[Program, ...]
    classes: tuple[RankClass, ...]
    warnings: tuple[str, ...]


@dataclass
class _Class:
    """Ranks of one class and the recording that stands for them."""

    mask: Mask
    recording: Recording


@dataclass
class Recordings:
    """Recordings by rank, made when they are needed."""

    record: Record
    by_rank: dict[int, Recording] = field(default_factory=dict)

    def of(self, ranks: Sequence[int]) -> list[Recording]:
        """Recordings of `ranks`; those that are missing are recorded together."""
        missing = [r for r in dict.fromkeys(ranks) if r not in self.by_rank]
        if missing:
            self.by_rank.update(zip(missing, self.record(missing), strict=True))
        return [self.by_rank[r] for r in ranks]


def rank_classes(record: Record, first: Recording, mesh: Mesh) -> RankClasses:
    """Record what the classes need and build their programs; `first` is the recording of rank 0.

    Raises FlintError FL238 if pipeline stages keep appearing, and what `record` raises.
    """
    work = _Work(Recordings(record, {first.rank: first}), mesh)
    for stage in _stages(work.recordings, first, mesh):
        work.add(stage)
    return RankClasses(tuple(work.programs), tuple(work.classes), tuple(work.warnings))


@dataclass
class _Work:
    """The programs and classes of a workload while they are made."""

    recordings: Recordings
    mesh: Mesh
    channels: Channels = field(default_factory=Channels)
    programs: list[Program] = field(default_factory=list)
    classes: list[RankClass] = field(default_factory=list)
    warnings: dict[str, None] = field(default_factory=dict)

    def add(self, stage: _Class) -> None:
        """The classes of a stage: by the sizes of their shards.

        Recordings of the others are derived from that of the stage, or made where they cannot be.
        """
        own = stage.recording
        built = self._built(own)
        labels = shard_labels(own, self.mesh)
        masks = [stage.mask & (labels == n) for n in _in_order(labels[stage.mask])]
        programs: list[Program | None] = []
        for mask in masks:
            other = own if mask[own.rank] else derive(own, int(np.argmax(mask)), self.mesh)
            programs.append(None if other is None else resized(built, own, other))
        missing = [int(np.argmax(m)) for m, p in zip(masks, programs, strict=True) if p is None]
        recorded = iter(self.recordings.of(missing))
        for mask, program in zip(masks, programs, strict=True):
            self.classes.append(rank_class(mask, len(self.programs), self.mesh))
            self.programs.append(program or self._built(next(recorded)).program)

    def _built(self, recording: Recording) -> Built:
        self.warnings.update(dict.fromkeys(recording.warnings))
        return build_program(recording, self.mesh, self.channels)


def _stages(recordings: Recordings, first: Recording, mesh: Mesh) -> list[_Class]:
    """One class for each position along the axes of messages, with its recording."""
    axes: tuple[AxisRef, ...] = ()
    seen = [first]
    every = np.arange(mesh.size, dtype=np.int64)
    for _ in range(len(mesh.names) + 1):
        wider = mesh.canonical((*axes, *(a for r in seen for a in stage_axes(r, mesh))))
        position = positions_along(every, wider, mesh)
        ranks = [int(np.argmax(position == p)) for p in range(mesh.group_size(wider))]
        seen = recordings.of(ranks)
        if wider == axes or len(ranks) == 1:
            return [_Class(position == p, r) for p, r in enumerate(seen)]
        axes = wider
    raise FlintError(
        "FL238",
        f"the ranks send messages along ever more axes of the mesh {mesh}",
        help="name the pipeline's axis in the mesh: --mesh pipe=4,data=16,model=8",
    )


def stage_axes(recording: Recording, mesh: Mesh) -> set[AxisRef]:
    """Axes along which the rank sends or receives messages."""
    ends: dict[tuple[str, int], Comm] = {}
    for event in recording.events:
        if event.comm is not None and event.comm.kind is not CommKind.COLLECTIVE:
            ends.setdefault((event.comm.group, event.comm.peer), event.comm)
    found: set[AxisRef] = set()
    for group, peer in ends:
        members = group_of(group, recording, mesh)
        found.update(message_axes(recording.rank, peer, members, mesh))
    return found


def shard_labels(recording: Recording, mesh: Mesh) -> Int64s:
    """A number for each rank of the mesh; ranks with equal numbers have shards of equal shapes."""
    labels = np.zeros(mesh.size, dtype=np.int64)
    for sizes in Shards(recording, mesh).uneven_sizes():
        combined = labels * (int(sizes.max()) + 1) + sizes
        labels = np.unique(combined, return_inverse=True)[1].reshape(-1).astype(np.int64)
    return labels


def _in_order(labels: Int64s) -> list[int]:
    """Distinct labels in order of their first rank."""
    found, first = np.unique(labels, return_index=True)
    return [int(label) for label in found[np.argsort(first)]]


def rank_class(mask: Mask, program: int, mesh: Mesh) -> RankClass:
    """The class of the ranks in `mask`: by coordinates if they are a product of them, or listed."""
    if mask.all():
        return RankClass("all", program)
    grid = mask.reshape(mesh.sizes)
    where: dict[str, tuple[int, ...]] = {}
    for i, name in enumerate(mesh.names):
        others = tuple(d for d in range(len(mesh.sizes)) if d != i)
        used = np.flatnonzero(grid.any(axis=others))
        if len(used) < mesh.sizes[i]:
            where[name] = tuple(used.tolist())
    candidate = RankClass(_name(where), program, where)
    if np.array_equal(candidate.mask(mesh), mask):
        return candidate
    ranks = tuple(np.flatnonzero(mask).tolist())
    return RankClass(f"ranks {_ranges(ranks)}", program, {}, ranks)


def _name(where: dict[str, tuple[int, ...]]) -> str:
    return ",".join(f"{axis}={_ranges(at)}" for axis, at in where.items())


def _ranges(numbers: Iterable[int]) -> str:
    """`0-3` for 0, 1, 2, 3; the first three runs of many."""
    array = np.array(list(numbers))
    runs = np.split(array, np.flatnonzero(np.diff(array) != 1) + 1)
    shown = [str(r[0]) if len(r) == 1 else f"{r[0]}-{r[-1]}" for r in runs[:3]]
    return " ".join([*shown, *(["..."] if len(runs) > 3 else [])])
