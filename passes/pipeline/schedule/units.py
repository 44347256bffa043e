"""What a schedule orders: one pass of one microbatch through one stage."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class Work(IntEnum):
    """Which pass."""

    FORWARD = 0
    BACKWARD = 1  #: the whole backward pass
    INPUT_BACKWARD = 2  #: its part that the stage before waits for
    WEIGHT_BACKWARD = 3  #: the rest: gradients of parameters


class Unit(NamedTuple):
    """One pass of microbatch `microbatch` through the `chunk`-th stage that a rank holds."""

    work: Work
    chunk: int
    microbatch: int
