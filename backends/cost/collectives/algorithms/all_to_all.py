"""All-to-all through a switch, which connects each member with each other."""

from __future__ import annotations

import math

from flint.backends.cost.collectives.algorithm import Algorithm, LinkUse
from flint.cluster.models import NetworkKind
from flint.ir.op_class import Collective

#: Messages that NCCL's all-to-all has under way at once.
BATCH = 8


def direct_all_to_all(comm_bytes: float, size: int) -> LinkUse:
    """Each member sends a part to each other member; all of them at once.

    The messages do not wait for each other, but the more there are, the longer their start takes:
    up to 8 members, the measured time grows by about one step for each doubling. Beyond, NCCL sends
    in batches of 8 messages, each taken for one more step (an assumption: nothing here measures
    it).
    """
    part = comm_bytes / size
    steps = 1 + math.log2(min(size, BATCH)) + max(0, size - BATCH) / BATCH
    return LinkUse("direct", steps, part * (size - 1), part)


ALGORITHMS = (
    Algorithm(
        name="direct",
        collectives=frozenset({Collective.ALL_TO_ALL}),
        networks=frozenset({NetworkKind.SWITCH}),
        schedule=lambda task: direct_all_to_all(task.comm_bytes, task.span.size),
    ),
)
