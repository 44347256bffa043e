"""Order that streams impose beyond data: what a stream waited for holds for all that follows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from flint.frontends.torch_world.record.recording import Event

#: Collectives of traced functions are waited for where their result is first used.
FUNCTIONAL = "_c10d_functional"


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
