"""All-reduce in the switch (NVLS): it reads what all members hold of a part, adds, multicasts.

Each member asks for the sum of its 1/n, and hands it to all. So it sends all of its bytes once for
the others' sums, and 1/n of them a second time as a result.
"""

from __future__ import annotations

from flint.backends.cost.collectives.algorithm import Algorithm, LinkUse, Task
from flint.cluster.models import NetworkKind
from flint.ir.op_class import Collective


def in_switch_all_reduce(
    comm_bytes: float, size: int, start_ns: float = 0.0, efficiency: float | None = None
) -> LinkUse:
    """An all-reduce of `size` members, which takes `start_ns` to prepare."""
    wire_bytes = comm_bytes * (size + 1) / size
    return LinkUse("in-switch", 2, wire_bytes, local_ns=start_ns, efficiency=efficiency)


def _schedule(task: Task) -> LinkUse:
    known = task.speed.declared
    start_ns = known["nvls_a0_ns"] + task.span.size * known["nvls_member_ns"]
    return in_switch_all_reduce(task.comm_bytes, task.span.size, start_ns, known["nvls_efficiency"])


ALGORITHMS = (
    Algorithm(
        name="in-switch",
        collectives=frozenset({Collective.ALL_REDUCE}),
        networks=frozenset({NetworkKind.SWITCH}),
        schedule=_schedule,
        where=lambda task: (
            task.network.in_network_reduction and task.span.size >= task.speed.declared["nvls_from"]
        ),
    ),
)
