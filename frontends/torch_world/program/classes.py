"""Which ranks must be recorded, and which ranks run which program.

Ranks differ in the pipeline stage that they are (whoever sends messages along an axis is a class of
its own at each position) and in the sizes of their shards. All else is the same on every rank of an
SPMD program.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np

from flint.errors import FlintError
from flint.frontends.torch_world.packages.package import packages_at_work
from flint.frontends.torch_world.program.build import Built, build_program
from flint.frontends.torch_world.program.deeds import Deed, deeds_of, difference, heavy_deeds_of
from flint.frontends.torch_world.program.derive import derive, resized
from flint.frontends.torch_world.program.groups import (
    Channels,
    group_of,
    message_axes,
    with_numbered_copies,
)
from flint.frontends.torch_world.program.matched import check_parts, matched
from flint.frontends.torch_world.program.shards import Shards
from flint.frontends.torch_world.record.recording import Comm, CommKind, Recording
from flint.ir.arrays import Mask
from flint.ir.made_by import StoodIn
from flint.ir.mesh import AxisRef, Mesh
from flint.ir.program import Int64s, Program
from flint.ir.rank_class import RankClass
from flint.passes.axes import positions_along
from flint.text import plural

# Whether ranks of one class really do the same, and which are classes of their own if they do not.
#
# A class is recorded by its first rank, and by its last one if that costs little: then products and
# communication count, as parts of flat buffers make optimizers differ a little everywhere. Where the
# program asks which rank it is, the second, the middle and the last one are recorded whatever they cost.
# If they do something else, every rank is recorded; of many ranks, those at the first, second, middle and
# last place of each axis and of each node, and every other rank is taken to be like the one before it
# that was recorded.

#: Numbers of ranks in a warning.
_RANKS = re.compile(r"(?<=rank )\d+|(?<=ranks )\d+ and \d+|(?<=recorded \()[\d, .]+")
#: Up to so many ranks of a class are all recorded where they differ.
MOST_RECORDED = 8
#: Up to so many of a larger class.
MOST_SAMPLED = 64
#: Up to so many are recorded to see whether they differ.
MOST_WITNESSES = 16
#: A rank of up to so many operators is recorded again without a reason: that takes less than PyTorch's import.
CHEAP_EVENTS = 10_000


@dataclass
class Ranks:
    """Holds ranks of a class against what stands for them; `of` records ranks."""

    mesh: Mesh
    local_world_size: int
    of: Callable[[Sequence[int]], Sequence[Recording]]
    warnings: list[str] = field(default_factory=list)
    _told: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def parts(self, mask: Mask, expected: Recording) -> Iterator[tuple[Mask, Recording]]:
        """The classes that the ranks of `mask` are; `expected` is what all of them should do."""
        asked = self._axes_asked(expected)
        compared = deeds_of if asked else heavy_deeds_of
        deeds = compared(expected, self.mesh)
        witnesses = self._recorded_witnesses(mask, expected, asked)
        different = next((r for r in witnesses if compared(r, self.mesh) != deeds), None)
        if different is None:
            self._tell_alike(mask, expected, witnesses, asked)
            yield mask, expected
            return
        stands_for = _representatives(mask, self.mesh, self.local_world_size, _numbers(expected))
        ran = [r.rank for r in witnesses]
        stands_for[ran] = ran
        recorded = np.unique(stands_for[mask]).tolist()
        alike: dict[tuple[Deed, ...], list[Recording]] = {}
        for recording in self.of(recorded):
            alike.setdefault(tuple(deeds_of(recording, self.mesh)), []).append(recording)
        how = _how_recorded(int(mask.sum()), recorded)
        what = difference(expected, different, self.mesh)
        self._tell(f"{what}: {plural(len(alike), 'program')}; {how}")
        for members in alike.values():
            yield mask & np.isin(stands_for, [r.rank for r in members]), members[0]

    def _tell_alike(
        self, mask: Mask, expected: Recording, witnesses: Sequence[Recording], asked: set[str]
    ) -> None:
        """Say which ranks did the same where the program asks which one it is, if not all ran."""
        ran = sorted({expected.rank, *(r.rank for r in witnesses)})
        if asked and expected.asks and len(ran) < mask.sum():
            how = _how_recorded(int(mask.sum()), ran, "to do what they do")
            self._tell(f"{expected.asks[0].place} asks which rank it runs as: {how}")

    def _tell(self, warning: str) -> None:
        """Warn once of what several classes have: their warnings differ in numbers of ranks alone."""
        self._told[_RANKS.sub("", warning)].append(warning)
        self.warnings[:] = []
        for first, *more in self._told.values():
            also = f" (so do ranks of {len(more)} more classes)" if more else ""
            self.warnings.append(f"{first}{also}")

    def _recorded_witnesses(
        self, mask: Mask, expected: Recording, asked: set[str]
    ) -> Sequence[Recording]:
        """Those of `_witnesses`. One that no text asks for stops no capture: a warning says why it failed."""
        ranks = self._witnesses(mask, expected, asked)
        try:
            return self.of(ranks)
        except FlintError as error:
            if asked:
                raise
            self._tell(
                f"rank {ranks[0]} could not be recorded ({error.message}): it is taken to do what rank "
                f"{expected.rank} does"
            )
            return ()

    def _witnesses(self, mask: Mask, expected: Recording, asked: set[str]) -> list[int]:
        """The second, the middle and the last rank along the axes about which the program asks, and
        those of the numbers that it holds ranks against, each with the next one.

        The last rank of all where it asks nothing that was seen, if that costs little.
        """
        ranks = np.flatnonzero(mask)
        if not asked:
            return [int(ranks[-1])][: len(ranks) > 1 and len(expected.events) <= CHEAP_EVENTS]
        places = np.array(np.unravel_index(ranks, self.mesh.sizes))
        fixed = [i for i, name in enumerate(self.mesh.names) if name not in asked]
        along = ranks[(places[fixed] == places[fixed, :1]).all(axis=0)]
        found = dict.fromkeys(along[[min(1, len(along) - 1), len(along) // 2, -1]].tolist())
        numbers = [n + more for n in _numbers(expected) for more in (0, 1)]
        for number, axis in product(numbers, (-1, *range(len(self.mesh.sizes)))):
            place = places[:, 0].copy()
            place[axis] = number
            if axis < 0 and number < mask.size:
                found[number] = None
            elif axis >= 0 and number < self.mesh.sizes[axis]:
                found[int(np.ravel_multi_index(tuple(place), self.mesh.sizes))] = None
        found.pop(expected.rank, None)
        return [rank for rank in found if mask[rank]][:MOST_WITNESSES]

    def _axes_asked(self, recording: Recording) -> set[str]:
        """Axes along which ranks may differ: all of them where an exchange is uneven."""
        every, named = set(self.mesh.names), {question.axis for question in recording.asks}
        uneven = any(e.comm and (e.comm.splits or e.comm.received) for e in recording.events)
        return every if uneven or not named <= every else named


def _numbers(recording: Recording) -> list[int]:
    """Numbers that the program holds ranks against."""
    return sorted({number for question in recording.asks for number in question.numbers})


def _representatives(
    mask: Mask, mesh: Mesh, local_world_size: int, numbers: Sequence[int] = ()
) -> Int64s:
    ranks = np.arange(mesh.size, dtype=np.int64)
    if mask.sum() <= MOST_RECORDED:
        return ranks
    sizes = _with_nodes(mesh.sizes, local_world_size)
    named = [n + more for n in numbers for more in (0, 1)]
    inner = [math.prod(sizes[i + 1 :]) for i in range(len(sizes))]
    for count, used in ((4, named), (3, named), (2, named), (4, ()), (3, ()), (2, ()), (1, ())):
        nearest = [
            _nearest(size, count, {*used, *(n // step % size for n in used)})
            for size, step in zip(sizes, inner, strict=True)
        ]
        if math.prod(len(np.unique(n)) for n in nearest) <= MOST_SAMPLED:
            break
    places = np.unravel_index(ranks, sizes)
    moved = [near[at] for near, at in zip(nearest, places, strict=True)]
    found = np.ravel_multi_index(moved, sizes).astype(np.int64)
    inside = np.flatnonzero(mask)
    before = inside[np.maximum(np.searchsorted(inside, found, side="right") - 1, 0)]
    return np.asarray(np.where(mask[found], found, before), dtype=np.int64)


def _with_nodes(sizes: Sequence[int], local_world_size: int) -> tuple[int, ...]:
    """Sizes of the axes, the one that runs across nodes cut where a node ends."""
    found: list[int] = []
    inner = 1
    for size in reversed(sizes):
        inside = local_world_size // inner
        if 1 < inside < size and local_world_size % inner == 0 and size % inside == 0:
            found += [inside, size // inside]
        else:
            found.append(size)
        inner *= size
    return tuple(reversed(found))


def _nearest(size: int, count: int, named: Iterable[int] = ()) -> Int64s:
    """For each place of `size` the last one of up to `count` samples, or named, that is not behind it."""
    samples = np.unique([*[0, 1, size - 1, size // 2][:count], *named])
    samples = samples[samples < size]
    at = np.searchsorted(samples, np.arange(size), side="right") - 1
    return np.asarray(samples[at], dtype=np.int64)


def _how_recorded(
    total: int,
    recorded: Sequence[int],
    assumed: str = "to be like the recorded one before it on each axis",
) -> str:
    if total == len(recorded):
        return f"all {total} ranks were recorded"
    shown = ", ".join(map(str, recorded[:12])) + (", ..." if len(recorded) > 12 else "")
    return f"{len(recorded)} of {total} ranks were recorded ({shown}); each other rank is assumed {assumed}"


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
    numbered = with_numbered_copies([part.recording for part in parts], mesh)
    masks = [part.mask for part in parts]
    fitted = matched(list(zip(masks, numbered, strict=True)), mesh)
    programs, warnings = _programs(parts, fitted.recordings, mesh)
    return RankClasses(
        tuple(programs),
        tuple(rank_class(part.mask, n, mesh) for n, part in enumerate(parts)),
        (*fitted.faults, *ranks.warnings, *warnings),
        _stood_in(fitted.recordings),
    )


#: Frameworks by the folder of their source, and the stack of software that each stands for.
_FRAMEWORKS = {
    "megatron": "megatron",
    "torchtitan": "torchtitan",
    "composer": "composer",
    "llmfoundry": "composer",
    "deepspeed": "deepspeed",
}


def _stood_in(recordings: Sequence[Recording]) -> StoodIn:
    """What worked in the step. The framework that launched most says the stack, else a package."""
    events = [e for r in recordings for e in r.events]
    packages = packages_at_work({e.op for e in events})
    folders = Counter(e.location.partition("/")[0] for e in events)
    frameworks = [f for f, _ in folders.most_common() if f in _FRAMEWORKS]
    stacks = [_FRAMEWORKS[f] for f in frameworks] + [p.stack for p in packages if p.stack]
    return StoodIn(
        tuple(sorted({p.name for p in packages} | set(frameworks))),
        next(iter(stacks), ""),
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
