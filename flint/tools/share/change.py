"""A total before and after."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Change:
    """A total of a step (`FLOPs`, `step time on h100-dgx`, ...) before and after; in one unit."""

    name: str
    before: float
    after: float

    @property
    def share(self) -> float:
        """How far it moved, as a share of what it was; 0 where it was 0 and is."""
        if self.before == self.after:
            return 0.0
        return self.after / self.before - 1 if self.before else float("inf")
