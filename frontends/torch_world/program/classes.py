"""Which ranks must be recorded, and which ranks run which program.

Ranks differ in the pipeline stage that they are (whoever sends messages along an axis is a class of
its own at each position) and in the sizes of their shards. All else is the same on every rank of an
SPMD program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from flint.errors import FlintError
from flint.frontends.torch_world.packages.package import packages_at_work
from flint.frontends.torch_world.program.alike import Ranks
from flint.frontends.torch_world.program.build import Built, build_program
from flint.frontends.torch_world.program.derive import derive, resized
from flint.frontends.torch_world.program.groups import Channels, group_of, message_axes
from flint.frontends.torch_world.program.matched import check_parts, matched
from flint.frontends.torch_world.program.shards import Shards
from flint.frontends.torch_world.record.recording import Comm, CommKind, Recording
from flint.ir.arrays import Mask
from flint.ir.made_by import StoodIn
from flint.ir.mesh import AxisRef, Mesh
from flint.ir.program import Int64s, Program
from flint.ir.rank_class import RankClass
from flint.passes.axes import positions_along

#: Records the given ranks, each in its own process.
Record = Callable[[Sequence[int]], Sequence[Recording]]


@dataclass(frozen=True)
class RankClasses:
    """Programs, the rank classes that run them, and what the user should know."""

    programs: tuple[Program, ...]
    classes: tuple[RankClass, ...]
    warnings: tuple[str, ...]
    stood_in: StoodIn = field(default_factory=StoodIn)


@dataclass
class _Class:
    """Ranks of one class and the recording that stands for them."""

    mask: Mask
    recording: Recording
    base: Recording | None = None  #: what `recording` was derived from, or is


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


def rank_classes(
    record: Record, first: Recording, mesh: Mesh, local_world_size: int = 8
) -> RankClasses:
    """Record what the classes need and build their programs; `first` is the recording of rank 0.

    Raises FlintError FL238 if pipeline stages keep appearing, FL250 and FL251 for exchanges that do
    not fit together, and what `record` raises.
    """
    recordings = Recordings(record, {first.rank: first})
    ranks = Ranks(mesh, local_world_size, recordings.of)
    parts = [
        part
        for stage in _stages(recordings, first, mesh)
        for alike in _by_shards(stage, recordings, mesh)
        for part in _by_deeds(alike, ranks)
    ]
    check_parts(list(recordings.by_rank.values()))
    fitted = matched([(part.mask, part.recording) for part in parts], mesh)
    programs, warnings = _programs(parts, fitted.recordings, mesh)
    return RankClasses(
        tuple(programs),
        tuple(rank_class(part.mask, n, mesh) for n, part in enumerate(parts)),
        (*fitted.faults, *ranks.warnings, *warnings),
        _stood_in(fitted.recordings),
    )


def _stood_in(recordings: Sequence[Recording]) -> StoodIn:
    packages = packages_at_work({e.op for r in recordings for e in r.events})
    return StoodIn(
        tuple(sorted(p.name for p in packages)),
        next((p.stack for p in packages if p.stack), ""),
        tuple(sorted({place for r in recordings for place in r.shares})),
    )


def _by_shards(stage: _Class, recordings: Recordings, mesh: Mesh) -> list[_Class]:
    """The classes of a stage by the sizes of their shards.

    Recordings of the others are derived from that of the stage, or made where they cannot be.
    """
    own = stage.recording
    labels = shard_labels(own, mesh)
    masks = [stage.mask & (labels == n) for n in _in_order(labels[stage.mask])]
    found = [own if m[own.rank] else derive(own, int(np.argmax(m)), mesh) for m in masks]
    missing = [int(np.argmax(m)) for m, r in zip(masks, found, strict=True) if r is None]
    recorded = iter(recordings.of(missing))
    return [
        _Class(mask, next(recorded)) if made is None else _Class(mask, made, own)
        for mask, made in zip(masks, found, strict=True)
    ]


def _by_deeds(alike: _Class, ranks: Ranks) -> list[_Class]:
    """The classes that ranks with equal shards are, by what they do."""
    return [
        _Class(mask, recording, alike.base if recording is alike.recording else None)
        for mask, recording in ranks.parts(alike.mask, alike.recording)
    ]


def _programs(
    parts: Sequence[_Class], fitted: Sequence[Recording], mesh: Mesh
) -> tuple[list[Program], list[str]]:
    """The program of each class, and warnings of what was built for them."""
    channels = Channels()
    built: dict[int, Built] = {}  # by rank
    programs: list[Program] = []
    warnings: dict[str, None] = {}
    for part, recording in zip(parts, fitted, strict=True):
        if part.base is None or part.recording is part.base:
            made = built[recording.rank] = build_program(recording, mesh, channels)
            programs.append(made.program)
            warnings.update(dict.fromkeys(recording.warnings))
        else:
            programs.append(resized(built[part.base.rank], part.base, part.recording))
    return programs, list(warnings)


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
        f"the ranks send messages along an increasing number of axes of the mesh {mesh}",
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
