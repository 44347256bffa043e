"""Who last wrote and who still reads each storage, while a program is built."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from flint.frontends.torch_world.record.recording import TensorInfo

_View = tuple[tuple[int, ...], str]


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
