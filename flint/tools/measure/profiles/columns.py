"""Columns of one table that grow row by row."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flint.errors import FlintError
from flint.tools.measure.profiles.source import too_large

_NUMPY = {"d": "<f8", "q": "<i8", "i": "<i4", "B": "u1"}
#: Of one table. With all tables full a Profile takes about 6 GB while it is made.
MOST_ROWS = 1 << 24


class PackedColumns:
    """Rows of numbers, packed one after another.

    A row goes in as a whole or not at all, in one call. Columns are views of the packed rows: nothing
    may be added once one of them was taken.
    """

    def __init__(self, **types: str) -> None:
        row = struct.Struct("<" + "".join(types.values()))
        self._pack = row.pack
        self._rows = bytearray()
        self._most_bytes = MOST_ROWS * row.size
        self._type = np.dtype([(name, _NUMPY[code]) for name, code in types.items()])

    def add(self, *values: Any) -> None:
        """One row. Raises FlintError FL805 for a number that does not fit, FL806 for too many rows."""
        try:
            self._rows += self._pack(*values)
        except (struct.error, OverflowError) as error:
            raise FlintError("FL805", f"an absurd number in the profile: {error}") from error
        if len(self._rows) > self._most_bytes:
            raise too_large(None, f"more than {MOST_ROWS:,} events of one kind")

    def column(self, name: str) -> NDArray[Any]:
        """All rows of one column, a view that is not contiguous."""
        found: NDArray[Any] = np.frombuffer(self._rows, dtype=self._type)[name]
        return found

    def __len__(self) -> int:
        return len(self._rows) // self._type.itemsize
