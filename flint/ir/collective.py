"""The kinds of collectives. Without numpy: what reads a cluster asks for them."""

from __future__ import annotations

from enum import IntEnum


class Collective(IntEnum):
    """Kind of a COLLECTIVE row. `comm_bytes` is always the bytes of the rank's input."""

    NONE = 0
    ALL_REDUCE = 1
    ALL_GATHER = 2
    REDUCE_SCATTER = 3
    ALL_TO_ALL = 4
    PERMUTE = 5
    BROADCAST = 6
