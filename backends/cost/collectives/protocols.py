"""Protocols of a library: one for small messages, which starts early, and one for many bytes.

NCCL moves small messages with flags beside the data (LL, LL128: as many bytes again through a host),
whose steps are short and whose bandwidth is low, and large ones in pieces that are announced (Simple). A tier whose file states
`low_efficiency` has both, and the faster one counts; without it, `c` alone stands for the ramp.
Messages, and all-to-alls, which are made of them, have protocols of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flint.backends.cost.collectives.algorithm import LinkUse, Task, Way


def of_collective(schedule: Way, task: Task) -> list[Way]:
    """The ways that a library has to run rings and trees on the tier of a task."""
    if not task.speed.declared["low_efficiency"]:
        return [schedule]
    return [lambda t: _low(schedule(t), t), lambda t: _bulk(schedule(t), t)]


def _low(use: LinkUse, task: Task) -> LinkUse:
    return use.changed(efficiency=task.speed.declared["low_efficiency"], host_bytes=2.0)


def _bulk(use: LinkUse, task: Task) -> LinkUse:
    known = task.speed.declared
    return use.changed(later_ns=known["bulk_a0_ns"] + use.steps * known["bulk_a1_ns"])


def of_message(schedule: Way, task: Task) -> list[Way]:
    """The ways that a library has to send one message on the tier of a task.

    A large one fills the links at once: `c` is of what takes several steps, or has several peers.
    """
    return _of_messages(schedule, task, "message", lambda _: 1)


def of_all_to_all(schedule: Way, task: Task, peers: Callable[[Task], int]) -> list[Way]:
    """The ways that a library has to send to several `peers` at once."""
    return _of_messages(schedule, task, "p2p", peers)


def _of_messages(schedule: Way, task: Task, name: str, peers: Callable[[Task], int]) -> list[Way]:
    known = task.speed.declared
    if not known[f"{name}_efficiency"]:
        return [schedule]
    ways: list[Way] = [lambda t: _large(schedule(t), t, name)]
    if known["p2p_low_bytes_per_s"]:
        ways.append(lambda t: _small(schedule(t), t, name, peers(t)))
    return ways


def _large(use: LinkUse, task: Task, name: str) -> LinkUse:
    known = task.speed.declared
    lost = 0.0 if name == "message" else use.c
    return use.changed(
        later_ns=known[f"{name}_a0_ns"], efficiency=known[f"{name}_efficiency"], c=lost
    )


def _small(use: LinkUse, task: Task, name: str, peers: int) -> LinkUse:
    """Each peer's message has a rate; all together have no more than large ones."""
    known = task.speed.declared
    rate = peers * known["p2p_low_bytes_per_s"] / 1e9 / task.speed.bandwidth
    efficiency = min(rate, known[f"{name}_efficiency"])
    return use.changed(efficiency=efficiency, c=0.0, own_bytes=0.0, host_bytes=2.0)
