"""Point-to-point messages, and permutations, which are one message per member."""

from __future__ import annotations

from flint.backends.cost.collectives.schedule import Schedule


def message(comm_bytes: float, *, hops: int = 1, links: float = 1.0) -> Schedule:
    """One message over `hops` links one after the other; the bytes are not stored on the way."""
    return Schedule("message", hops, comm_bytes, links=links)
