"""What a file of `algorithms/` states: an algorithm of collectives, and where it is to be had.

Each states its name, the collectives and the tiers that it is for, what it asks of the links (a
`LinkUse`, whose formula has its source beside it) and the constants of a tier that it reads beyond
those that every tier has. Of all that can run a call the fastest is taken: see `choose`.
"""

from __future__ import annotations

import math
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module

from flint.backends.cost.collectives import algorithms as folder
from flint.backends.cost.network.torus import Span
from flint.cluster.models import Network, NetworkKind
from flint.ir.op_class import Collective

#: What goes from one member to another: a permutation is one message per member.
MESSAGES = frozenset({Collective.NONE, Collective.PERMUTE})
#: All that a whole group takes part in.
GROUP_COLLECTIVES = frozenset(Collective) - MESSAGES
#: Kinds of tier whose chips have neighbors.
NEIGHBOURS = frozenset({NetworkKind.TORUS, NetworkKind.RING})
#: The library of GPUs.
NCCL = "NCCL"


@dataclass(frozen=True, slots=True)
class LinkUse:
    """One algorithm on one tier, as one rank sees it.

    `steps` messages follow each other, `wire_bytes` go out over the links of the tier, and
    `own_bytes` is the rank's own part, which is copied and never sent. `links` is the share of the
    bandwidth of the tier that the algorithm can use: below 1 where some links lie idle, and above
    it where the bandwidth of the tier is that of one link of several. `local_ns` is what chips and
    hosts do beside the messages. `efficiency` is what the bytes reach of these links, and `c` what
    their protocol loses between latency and bandwidth, if those are not the tier's own. Where a group
    goes through a host, `host_bytes` do for each byte of it.
    """

    algorithm: str
    steps: float
    wire_bytes: float
    own_bytes: float = 0.0
    links: float = 1.0
    local_ns: float = 0.0
    efficiency: float | None = None
    c: float | None = None
    host_bytes: float = 1.0

    def changed(
        self,
        *,
        efficiency: float | None = None,
        c: float | None = None,
        later_ns: float = 0.0,
        own_bytes: float | None = None,
        host_bytes: float = 1.0,
    ) -> LinkUse:
        """With another protocol, which starts `later_ns` later; None is as it was."""
        return LinkUse(  # `dataclasses.replace` takes ten times as long
            self.algorithm,
            self.steps,
            self.wire_bytes,
            self.own_bytes if own_bytes is None else own_bytes,
            self.links,
            self.local_ns + later_ns,
            self.efficiency if efficiency is None else efficiency,
            self.c if c is None else c,
            host_bytes,
        )


@dataclass(frozen=True, slots=True)
class Speed:
    """Constants of a tier. Bandwidth is what one rank sends, in bytes per ns.

    `declared` are those that algorithms read beyond these, by name.
    """

    a0_ns: float
    a1_ns: float
    c: float
    efficiency: float
    own_part: float
    host_bytes_per_s: float
    sockets_bytes_per_s: float
    bandwidth: float
    domain: float
    declared: Mapping[str, float]

    def host_bytes_per_ns(self, size: int) -> float:
        """What a member sends at most where a group of `size` goes through the host.

        Two members reach each other; more share what `host_bytes_per_s` carries, all together, and
        groups of more than half of a domain, which cross between its sockets, `sockets_bytes_per_s`.
        """
        if size <= 2:
            return math.inf
        wide = size > self.domain / 2
        return (self.sockets_bytes_per_s if wide else self.host_bytes_per_s) / 1e9 / size

    def start_ns(self, schedule: LinkUse) -> float:
        """Time of the steps one after the other, without any bytes."""
        return schedule.steps * self.a1_ns + schedule.local_ns

    def transfer_ns(self, schedule: LinkUse, span: Span) -> float:
        """Time of the bytes of the group at `span`, beside those that share its links."""
        moved = schedule.wire_bytes + self.own_part * schedule.own_bytes
        best = self.efficiency if schedule.efficiency is None else schedule.efficiency
        lost = self.c if schedule.c is None else schedule.c
        speed = min(best * self.bandwidth, self.host_bytes_per_ns(span.size) / schedule.host_bytes)
        return (moved + lost * math.sqrt(moved)) / (speed * schedule.links / span.sharing)

    def roofline_ns(self, schedule: LinkUse, span: Span) -> float:
        """Bytes on the wire by the bandwidth of the datasheet."""
        speed = min(self.bandwidth, self.host_bytes_per_ns(span.size))
        return schedule.wire_bytes * span.sharing / (speed * schedule.links)


#: How a tier runs an algorithm: what it asks of the links there for a task.
Way = Callable[["Task"], LinkUse]


@dataclass(frozen=True, slots=True)
class Task:
    """What a tier has to do of a call: `comm_bytes` is the input of each rank there.

    `members` is the size of the tier's domains (0: any), and `alone` is true where the group lies
    inside this one tier. `library` is the one that runs the collective. `inside` is how many of the
    group are in each domain of the tiers inside this one.
    """

    collective: Collective
    comm_bytes: float
    span: Span
    network: Network
    members: int
    speed: Speed
    library: str
    alone: bool
    inside: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """A way to run collectives inside one tier.

    It is to be had on tiers of the kinds `networks`, from the `libraries` (empty: from all), where
    `where` is true.
    """

    name: str
    collectives: frozenset[Collective]
    networks: frozenset[NetworkKind]
    schedule: Callable[[Task], LinkUse]
    where: Callable[[Task], bool] = lambda _: True
    libraries: frozenset[str] = frozenset()
    protocols: Callable[[Way, Task], list[Way]] = lambda schedule, _: [schedule]

    def ways(self, task: Task) -> list[Way]:
        """With each protocol that the library has on the tier of a task."""
        return self.protocols(self.schedule, task)

    def runs(self, task: Task) -> bool:
        """Whether it can do a task."""
        return (
            task.collective in self.collectives
            and task.network.kind in self.networks
            and (not self.libraries or task.library in self.libraries)
            and self.where(task)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AcrossTiers:
    """A way to run collectives over several tiers at once, all of the kinds `networks`.

    `schedules` gives one for each tier. Each task has all bytes of the call. The collectives of
    `only_way` are not run tier by tier where this is to be had.
    """

    name: str
    collectives: frozenset[Collective]
    networks: frozenset[NetworkKind]
    schedules: Callable[[Sequence[Task]], Sequence[LinkUse]]
    only_way: frozenset[Collective] = frozenset()
    protocols: Callable[[Way, Task], list[Way]] = lambda schedule, _: [schedule]

    def ways(self, tasks: Sequence[Task]) -> list[tuple[Way, ...]]:
        """By protocol, how each tier runs it. Tiers with one protocol have the same in all."""
        uses = self.schedules(tasks)
        each = [
            self.protocols(lambda _, use=use: use, task)  # type: ignore[misc]
            for use, task in zip(uses, tasks, strict=True)
        ]
        return [tuple(w[min(i, len(w) - 1)] for w in each) for i in range(max(map(len, each)))]

    def runs(self, tasks: Sequence[Task]) -> bool:
        """Whether it can do the tasks of a call."""
        return all(
            t.collective in self.collectives and t.network.kind in self.networks for t in tasks
        )


@dataclass(frozen=True, slots=True)
class CollectiveCall:
    """One collective or message: `comm_bytes` is the bytes of the rank's input.

    `spans` are the tiers that the group crosses, inner first; the product of their sizes is the
    size of the group. For a message they hold the one tier that it goes through, with size 2.
    `collective` NONE is a message. `written` is the only way to run it, where somebody wrote one.
    """

    collective: Collective
    comm_bytes: int
    spans: tuple[Span, ...]
    written: AcrossTiers | None = None

    @property
    def size(self) -> int:
        """Members of the group."""
        count = 1
        for span in self.spans:
            count *= span.size
        return count


@cache
def _registered() -> tuple[Algorithm | AcrossTiers, ...]:
    """What the modules of `algorithms/` state, in their order: of equally fast ones the first counts."""
    found: list[Algorithm | AcrossTiers] = []
    for name in sorted(m.name for m in pkgutil.iter_modules(folder.__path__)):
        found += import_module(f"{folder.__name__}.{name}").ALGORITHMS
    names = [a.name for a in found]
    assert len(set(names)) == len(names), f"two algorithms of collectives have one name: {names}"
    return tuple(found)


@cache
def algorithms() -> tuple[Algorithm, ...]:
    """Those that run inside one tier."""
    return tuple(a for a in _registered() if isinstance(a, Algorithm))


@cache
def across_tiers() -> tuple[AcrossTiers, ...]:
    """Those that run over several tiers."""
    return tuple(a for a in _registered() if isinstance(a, AcrossTiers))


# Protocols of a library: one for small messages, which starts early, and one for many bytes.
#
# NCCL moves small messages with flags beside the data (LL, LL128: as many bytes again through a host),
# whose steps are short and whose bandwidth is low, and large ones in pieces that are announced (Simple). A tier whose file states
# `low_efficiency` has both, and the faster one counts; without it, `c` alone stands for the ramp.
# Messages, and all-to-alls, which are made of them, have protocols of their own.


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
