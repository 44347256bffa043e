"""All-to-all through a switch, which connects each member with each other."""

from __future__ import annotations

import math
from dataclasses import replace

from flint.backends.cost.collectives.algorithm import Algorithm, LinkUse, Task, of_all_to_all
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


def _schedule(task: Task) -> LinkUse:
    """To another domain each message has a start, where the tier states it, and others none.

    A member of a group with m of it in each of n domains sends (n - 1) m messages out of its own.
    """
    found = direct_all_to_all(task.comm_bytes, task.span.size)
    each_ns = task.speed.declared["p2p_peer_ns"]
    if task.span.tier == 0 or not each_ns:
        return found
    return replace(found, steps=1, local_ns=each_ns * _peers(task))


def _peers(task: Task) -> int:
    return (task.span.size - 1) * task.inside


ALGORITHMS = (
    Algorithm(
        name="direct",
        collectives=frozenset({Collective.ALL_TO_ALL}),
        networks=frozenset({NetworkKind.SWITCH}),
        schedule=_schedule,
        protocols=lambda schedule, task: of_all_to_all(schedule, task, _peers),
    ),
)
