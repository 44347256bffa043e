"""What only a switch can do: reduce by itself, and connect each member with each other."""

from __future__ import annotations

import math

from flint.backends.cost.collectives.schedule import Schedule

IN_SWITCH = "in-switch"
#: Messages that NCCL's all-to-all has under way at once.
BATCH = 8


def in_switch_all_reduce(comm_bytes: float, size: int) -> Schedule:
    """All-reduce in the switch (NVLS): it reads what all members hold of a part, adds, multicasts.

    Each member asks for the sum of its 1/n, and hands it to all. So it sends all of its bytes once
    for the others' sums, and 1/n of them a second time as a result.
    """
    return Schedule(IN_SWITCH, 2, comm_bytes * (size + 1) / size)


def direct_all_to_all(comm_bytes: float, size: int) -> Schedule:
    """Each member sends a part to each other member; all of them at once.

    The messages do not wait for each other, but the more there are, the longer their start takes:
    up to 8 members, the measured time grows by about one step for each doubling. Beyond, NCCL sends
    in batches of 8 messages, each taken for one more step (an assumption: nothing here measures
    it).
    """
    part = comm_bytes / size
    steps = 1 + math.log2(min(size, BATCH)) + max(0, size - BATCH) / BATCH
    return Schedule("direct", steps, part * (size - 1), part)
