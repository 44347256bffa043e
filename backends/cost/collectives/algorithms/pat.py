"""PAT, NCCL's parallel aggregated trees: all-gather and reduce-scatter in logarithmic steps.

Since NCCL 2.23 (its release notes and NVIDIA's article on them, "New Scaling Algorithm and
Initialization with NVIDIA Collective Communications Library 2.23"), for groups with one GPU in each
node: NCCL's tuner leaves it out of any other (`src/graph/tuning.cc`, 2.23 to 2.30; from 2.31.2 on
it also runs between nodes while NVLS runs inside, which is not modeled: presets are fitted on NCCL
2.27 to 2.29).
"""

from __future__ import annotations

import math

from flint.backends.cost.collectives.algorithm import NCCL, Algorithm, LinkUse, of_collective
from flint.backends.cost.collectives.algorithms.ring import ring
from flint.cluster.models import NetworkKind
from flint.ir.op_class import Collective

#: What NCCL's cost model (2.23 to 2.31) adds for each rank: all pieces pass through the GPU one
#: after the other, however few the messages are.
LOCAL_NS_PER_RANK = 2800.0
#: Share of the bandwidth that NCCL's cost model gives it.
BANDWIDTH_SHARE = 0.75


def pat(collective: Collective, comm_bytes: float, size: int) -> LinkUse:
    """An all-gather or a reduce-scatter over `size` nodes, one member in each.

    Every member is the root of a binary tree, and messages of different trees between the same two
    nodes go together: ceil(log2(size)) steps, and the bytes of a ring.
    """
    around = ring(collective, comm_bytes, size)
    return LinkUse(
        "PAT",
        math.ceil(math.log2(size)),
        around.wire_bytes,
        around.own_bytes,
        BANDWIDTH_SHARE,
        LOCAL_NS_PER_RANK * size,
    )


ALGORITHMS = (
    Algorithm(
        name="PAT",
        collectives=frozenset({Collective.ALL_GATHER, Collective.REDUCE_SCATTER}),
        networks=frozenset({NetworkKind.SWITCH}),
        libraries=frozenset({NCCL}),
        schedule=lambda task: pat(task.collective, task.comm_bytes, task.span.size),
        where=lambda task: task.alone and task.span.tier > 0,
        protocols=of_collective,
    ),
)
