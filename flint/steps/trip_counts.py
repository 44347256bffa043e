"""Trip counts of loops whose bound depends on data: the user's counts, and which loops asked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from flint.errors import FlintError, nearest


class TripCounts(Mapping[str, int]):
    """Trip counts by name, that remember which of them were used and which loops asked.

    `over` are counts that take precedence over these, and remember for themselves: the command
    line's over a step's.
    """

    def __init__(self, given: Mapping[str, int], over: TripCounts | None = None) -> None:
        self._given = dict(given)
        self._over = over
        self._taken: set[str] = set()
        self._asked: dict[str, None] = {}

    @classmethod
    def of(cls, given: Mapping[str, int] | None) -> TripCounts:
        """The counts themselves if they remember already."""
        return given if isinstance(given, TripCounts) else cls(given or {})

    def __getitem__(self, name: str) -> int:
        if self._over is not None and name in self._over:
            return self._over[name]
        return self._given[name]

    def __iter__(self) -> Iterator[str]:
        return iter({**(self._over or {}), **self._given})

    def __len__(self) -> int:
        return len(list(iter(self)))

    def take(self, names: Sequence[str]) -> int | None:
        """The count of a loop that goes by any of these names, or None."""
        names = [name for name in names if name]
        taken = [name for name in names if name in self]
        self._note(names, taken)
        return self[taken[0]] if taken else None

    def _note(self, names: Sequence[str], taken: Sequence[str]) -> None:
        self._asked.update(dict.fromkeys(names))
        self._taken.update(taken)
        if self._over is not None:
            self._over._note(names, taken)

    def require_taken(self) -> None:
        """Raise FlintError FL403 for a count that no loop used; call it after the partitioner."""
        left = [name for name in self._given if name not in self._taken]
        if not left:
            return
        known = list(self._asked)
        loops = f"loops whose count depends on data: {', '.join(known)}"
        none = "no loop of the program has a count that depends on data"
        raise FlintError(
            "FL403",
            f"no loop uses the trip count '{left[0]}'{nearest(left[0], known)}",
            help=loops if known else f"omit it: {none}",
        )
