"""Results that a value which never changes keeps, so that asking again costs nothing."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeVar, cast

T = TypeVar("T")


class Kept:
    """For each name the result that was asked for last: what is kept cannot grow with questions.

    It is no part of the value that has it: copies and pickles of that begin empty.
    """

    def __init__(self) -> None:
        self._results: dict[str, tuple[Hashable, object]] = {}

    def get(self, name: str, key: Hashable, make: Callable[[], T]) -> T:
        """The result of `make`, which must depend on `key` and the value only."""
        found = self._results.get(name)
        if found is None or found[0] != key:
            found = (key, make())
            self._results[name] = found
        return cast(T, found[1])

    def __reduce__(self) -> tuple[type[Kept], tuple[()]]:
        return Kept, ()
