"""What a row waits for while a program is built: who last wrote and who still reads each storage, and streams.

What a stream waited for holds for all that follows on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from flint.frontends.torch_world.record.recording import Event, TensorInfo

_View = tuple[tuple[int, ...], str]
#: Collectives of traced functions are waited for where their result is first used.
FUNCTIONAL = "_c10d_functional"


@dataclass
class _Storage:
    """The row that last wrote, rows that read since then, and views taken since then.

    `num_bytes` is 0 where only parts were seen.
    """

    writer: int
    num_bytes: int = 0
    readers: list[int] = field(default_factory=list)
    views: dict[_View, int] = field(default_factory=dict)


@dataclass
class Memory:
    """Storages by number.

    A write into a part of a storage is a write of the whole that reads it: the writer comes after
    the one before it, and who reads the storage afterwards waits for both.
    """

    _storages: dict[int, _Storage] = field(default_factory=dict)

    def provide(self, storage: int, row: int, num_bytes: int) -> None:
        """`row` stands for a whole new storage."""
        self._storages[storage] = _Storage(row, num_bytes)

    def writer(self, storage: int) -> int:
        """The row that last wrote a storage, -1 if none did."""
        found = self._storages.get(storage)
        return found.writer if found else -1

    def row_of(self, tensor: TensorInfo) -> int:
        """The row whose result a reader of `tensor` reads: a view since the last write, or it."""
        found = self._storages.get(tensor.storage)
        if found is None:
            return -1
        return found.views.get((tensor.shape, tensor.dtype), found.writer)

    def visible_bytes(self, tensor: TensorInfo) -> int:
        """Bytes that reading `tensor` moves: an expanded view has no more than its storage."""
        found = self._storages.get(tensor.storage)
        whole = found.num_bytes if found else 0
        return min(tensor.num_bytes, whole) if whole else tensor.num_bytes

    def rows_before_write(self, storage: int) -> Iterator[int]:
        """Rows that must be over before a storage is written: its writer and its readers."""
        found = self._storages.get(storage)
        if found is not None:
            yield found.writer
            yield from found.readers

    def see(self, view: TensorInfo, row: int) -> None:
        """`row` is a view of a storage."""
        found = self._storages.get(view.storage)
        if found is not None:
            found.views[view.shape, view.dtype] = row

    def was_read(self, storage: int, row: int) -> None:
        """`row` reads a storage."""
        found = self._storages.get(storage)
        if found is not None:
            found.readers.append(row)

    def was_written(self, storage: int, row: int) -> None:
        """`row` changes a storage, wholly or in part."""
        found = self._storages.setdefault(storage, _Storage(row))
        found.writer = row
        found.readers, found.views = [], {}

    def made(self, tensor: TensorInfo, row: int) -> None:
        """`row` stores `tensor`: a new storage, or one that it wrote already."""
        found = self._storages.get(tensor.storage)
        if found is None or found.writer != row:
            self.provide(tensor.storage, row, tensor.num_bytes)


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
        if event.stream or waited or _blocks(event):
            self._fences[event.stream] = row
            if event.stream == 0:
                self._after[row] = row


def _blocks(event: Event) -> bool:
    comm = event.comm
    return comm is not None and not comm.is_async and not event.op.startswith(FUNCTIONAL)
