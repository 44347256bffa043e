"""Files that equal another but for ranks and groups are not parsed again.

A trace of another rank of the same class has its own comm_src, comm_dst and pg_name in the same
places. So the first file of a length is parsed, and a later one is compared with it as a whole:
where only bytes of those three values differ, they alone are read.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flint.backends.chakra.reading.trace_class import TraceClass
from flint.ir.program import Int64s

#: Bytes of files that are kept to compare with. A larger file has no reference.
_MOST_BYTES = 256 << 20
#: Files of one length that are kept.
_MOST_OF_A_LENGTH = 8


class Field(NamedTuple):
    """Where values of one width stand in a file: `value` among its values, `start` in its bytes."""

    value: Int64s
    start: Int64s
    width: int
    is_text: bool

    @property
    def positions(self) -> Int64s:
        """(count, width) places of their bytes."""
        return self.start[:, None] + np.arange(self.width)

    def read(self, content: NDArray[np.uint8]) -> Int64s | None:
        """The values in another file; None if something else stands there."""
        digits = content[self.positions]
        if self.is_text:
            if ((digits < ord("0")) | (digits > ord("9"))).any():
                return None
            powers = 10 ** np.arange(self.width - 1, -1, -1)
            numbers: Int64s = (digits.astype(np.int64) - ord("0")) @ powers
            return numbers << 4 | self.width
        if (digits[:, -1] >= 0x80).any() or (digits[:, :-1] < 0x80).any():
            return None
        shifts = 7 * np.arange(self.width)
        ranks: Int64s = ((digits & 0x7F).astype(np.int64) << shifts).sum(axis=1)
        return ranks


@dataclass(frozen=True, eq=False)
class Reference:
    """A parsed file, its values, and where in its bytes they stand."""

    trace_class: TraceClass
    content: NDArray[np.uint8]
    values: Int64s
    fields: tuple[Field, ...]

    @cached_property
    def _free(self) -> Int64s:
        """Places whose bytes may differ, ascending, and one beyond all."""
        places = [f.positions.reshape(-1) for f in self.fields]
        return np.sort(np.concatenate([*places, [len(self.content)]]))

    def values_in(self, content: NDArray[np.uint8]) -> Int64s | None:
        """The values of another file of this length; None if it differs elsewhere."""
        differs = np.flatnonzero(content != self.content)
        if (self._free[np.searchsorted(self._free, differs)] != differs).any():
            return None
        values = self.values.copy()
        for field in self.fields:
            found = field.read(content)
            if found is None:
                return None
            values[field.value] = found
        return values


class References:
    """The files that later ones are compared with, the last first."""

    def __init__(self) -> None:
        self._by_length: dict[int, deque[Reference]] = {}
        self._bytes = 0

    def find(self, content: NDArray[np.uint8]) -> tuple[TraceClass, Int64s] | None:
        """Class and values of a file, if it is like one that was kept."""
        for reference in self._by_length.get(len(content), ()):
            values = reference.values_in(content)
            if values is not None:
                return reference.trace_class, values
        return None

    def keep(self, reference: Reference) -> None:
        """Compare later files with this one, and with no others if they would take the memory."""
        size = len(reference.content)
        if size > _MOST_BYTES:
            return
        if self._bytes + size > _MOST_BYTES:
            self._by_length.clear()
            self._bytes = 0
        same = self._by_length.setdefault(size, deque(maxlen=_MOST_OF_A_LENGTH))
        self._bytes += 0 if len(same) == _MOST_OF_A_LENGTH else size
        same.appendleft(reference)
