"""What a row waits for while a program is built: who last wrote and who still reads each storage, and streams.

What a stream waited for holds for all that follows on it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from flint.frontends.torch_world.record.recording import Event, Extent, TensorInfo

#: Collectives of traced functions are waited for where their result is first used.
FUNCTIONAL = "_c10d_functional"
#: Shape, type and place of a tensor in its storage.
_View = tuple[tuple[int, ...], str, Extent | None]
#: No storage has a byte here.
_BEYOND = 1 << 62


@dataclass
class _Part:
    """The bytes of a storage from `start` up to the next part.

    The row that last wrote them, and the rows that read them since then.
    """

    start: int
    writer: int
    readers: list[int] = field(default_factory=list)


@dataclass
class _Storage:
    """Parts in the order of their bytes, and for each view its row, until its bytes are written.

    `num_bytes` is 0 where only parts were seen.
    """

    parts: list[_Part]
    num_bytes: int = 0
    views: dict[_View, int] = field(default_factory=dict)

    def within(self, extent: Extent | None) -> list[_Part]:
        """The parts that make up a range of bytes; parts that reach beyond it are divided."""
        if extent is None:
            return self.parts
        first, end = self._divide(extent[0]), self._divide(extent[1])
        return self.parts[first:end]

    def write(self, extent: Extent | None, row: int) -> None:
        """`row` writes a range of bytes: it becomes one part."""
        first, end = extent or (0, _BEYOND)
        low, high = self._divide(first), self._divide(end)
        self.parts[low:high] = [_Part(first, row)]
        self.views = {v: seen for v, seen in self.views.items() if not _overlap(v[2], extent)}

    def _divide(self, start: int) -> int:
        """The place of the part that starts at a byte, which it does from now on."""
        place = bisect_left(self.parts, start, key=lambda part: part.start)
        is_inside = start < _BEYOND and (
            place == len(self.parts) or self.parts[place].start != start
        )
        if is_inside:
            whole = self.parts[place - 1]
            self.parts.insert(place, _Part(start, whole.writer, list(whole.readers)))
        return place


def _overlap(one: Extent | None, other: Extent | None) -> bool:
    return one is None or other is None or (one[0] < other[1] and other[0] < one[1])


@dataclass
class Memory:
    """Storages by number. Hazards are kept by ranges of bytes.

    Frameworks keep gradients and parameters in flat buffers: what happens to one bucket of a
    buffer waits for nothing that happens to another.
    """

    _storages: dict[int, _Storage] = field(default_factory=dict)

    def provide(self, storage: int, row: int, num_bytes: int) -> None:
        """`row` stands for a whole new storage."""
        self._storages[storage] = _Storage([_Part(0, row)], num_bytes)

    def writer(self, tensor: TensorInfo) -> int:
        """The last row that wrote bytes of a tensor, -1 if none did."""
        found = self._storages.get(tensor.storage)
        return (
            max((part.writer for part in found.within(tensor.extent)), default=-1) if found else -1
        )

    def writers(self, storage: int) -> set[int]:
        """The last rows that wrote parts of a storage."""
        found = self._storages.get(storage)
        return {part.writer for part in found.parts} if found else set()

    def last_use(self, storage: int) -> int:
        """The last row that wrote or read a storage, -1 if none did."""
        found = self._storages.get(storage)
        parts = found.parts if found else ()
        return max((max(part.writer, *part.readers, -1) for part in parts), default=-1)

    def forget(self, storage: int) -> None:
        """Nothing is in a storage any more."""
        self._storages.pop(storage, None)

    def rows_of(self, tensor: TensorInfo) -> list[int]:
        """The rows whose results a reader of `tensor` reads: a view since the last write, or all
        that wrote bytes of it."""
        found = self._storages.get(tensor.storage)
        if found is None:
            return [-1]
        view = found.views.get((tensor.shape, tensor.dtype, tensor.extent))
        if view is not None:
            return [view]
        return list(dict.fromkeys(part.writer for part in found.within(tensor.extent)))

    def visible_bytes(self, tensor: TensorInfo) -> int:
        """Bytes that reading `tensor` moves: an expanded view has no more than its storage."""
        found = self._storages.get(tensor.storage)
        whole = found.num_bytes if found else 0
        return min(tensor.num_bytes, whole) if whole else tensor.num_bytes

    def rows_before_write(self, tensor: TensorInfo) -> Iterator[int]:
        """Rows that must be over before a tensor is written: who wrote or reads bytes of it."""
        found = self._storages.get(tensor.storage)
        for part in found.within(tensor.extent) if found is not None else ():
            yield part.writer
            yield from part.readers

    def see(self, view: TensorInfo, row: int) -> None:
        """`row` is a view of a storage."""
        found = self._storages.get(view.storage)
        if found is not None:
            found.views[view.shape, view.dtype, view.extent] = row

    def was_read(self, tensor: TensorInfo, row: int) -> None:
        """`row` reads a tensor."""
        found = self._storages.get(tensor.storage)
        for part in found.within(tensor.extent) if found is not None else ():
            part.readers.append(row)

    def was_written(self, tensor: TensorInfo, row: int) -> None:
        """`row` changes a tensor, wholly or in part."""
        found = self._storages.setdefault(tensor.storage, _Storage([_Part(0, row)]))
        found.write(tensor.extent, row)


@dataclass
class StreamOrder:
    """The row that each stream must not run ahead of.

    Streams beside the compute stream run their few rows one after another, as on a device. Of the
    compute stream, rows that need nothing of each other are left free, but none passes a row that
    waited for another stream, or a communication that blocks.
    """

    _fences: dict[int, int] = field(default_factory=dict)
    #: For each row, the last fence of the compute stream that it comes after, or -1.
    _after: dict[int, int] = field(default_factory=dict)
    _left_over: dict[int, list[int]] = field(default_factory=dict)
    #: For each event, its stream and the last row up to it that works there; the latter by stream.
    _ends: list[tuple[int, int]] = field(default_factory=list)
    _last: dict[int, int] = field(default_factory=dict)
    #: The rows of communications that their streams go on beside, by event.
    _beside: dict[int, int] = field(default_factory=dict)

    def passed(self, event: Event) -> None:
        """The next event comes after `event`."""
        self._ends.append((event.stream, self._last.get(event.stream, -1)))

    def ends(self, event: Event) -> list[int]:
        """For each event that `event` waits for, the row with which it is over, or -1."""
        found = [(w, *self._ends[w]) for w in event.waits]
        return [self._beside.get(w, -1) if s == event.stream else row for w, s, row in found]

    def leave(self, stream: int, rows: Iterable[int]) -> None:
        """An event without a row of its own waited for `rows`."""
        self._left_over.setdefault(stream, []).extend(rows)

    def take_left_over(self, stream: int) -> list[int]:
        """What was left for the next row of a stream, once."""
        return self._left_over.pop(stream, [])

    def before(self, event: Event, sources: Sequence[int]) -> list[int]:
        """Rows that `event` must follow besides `sources`, which may follow them already."""
        fence = self._fences.get(event.stream, -1)
        if fence < 0 or fence in sources:
            return []
        if event.stream == 0 and any(self._after.get(s, -1) >= fence for s in sources):
            return []
        return [fence]

    def placed(self, row: int, deps: Iterable[int]) -> None:
        """`row` comes after `deps`."""
        after = max((self._after.get(d, -1) for d in deps), default=-1)
        if after >= 0:
            self._after[row] = after

    def ran(self, event: Event, row: int, waited: bool) -> None:
        """`row` is of `event`, which works; `waited` if it had to wait for another event."""
        self._last[event.stream] = row
        if event.comm is not None and not _blocks(event):
            self._beside[len(self._ends)] = row
        if event.stream or waited or _blocks(event):
            self._fences[event.stream] = row
            if event.stream == 0:
                self._after[row] = row


def _blocks(event: Event) -> bool:
    comm = event.comm
    return comm is not None and not comm.is_async and not event.op.startswith(FUNCTIONAL)
