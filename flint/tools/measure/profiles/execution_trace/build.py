"""Nodes of execution traces -> profiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from flint.tools.measure.profiles.builder import ProfileBuilder
from flint.tools.measure.profiles.execution_trace.nodes import Node, comm_of
from flint.tools.measure.profiles.kineto.collectives import ANNOTATION
from flint.tools.measure.profiles.kineto.fields import without_paths
from flint.tools.measure.profiles.profile import ActivityKind, CallKind, Profile

#: The format of a profile that has operators without times alone.
HOST_ALONE = "execution trace"
#: That of one that has times.
LINKED = "linked execution trace"
#: RecordScope of PyTorch: what users annotate is not an operator.
_USER_SCOPE = 7
#: Nodes that Flint writes of what a host was measured to do, and of pauses of a stream.
_HOST_ROW, PAUSE = "host.", "host.gap"
_KINDS = (("Memcpy", ActivityKind.COPY), ("Memset", ActivityKind.FILL))


def host_profile(
    nodes: Sequence[Node], groups: dict[str, tuple[int, ...]], *, rank: int, world: int
) -> Profile:
    """Operators in order, without times: what a partner with times is told (see `join`)."""
    builder = ProfileBuilder(HOST_ALONE, rank=rank, world_size=world, groups=dict(groups))
    calls = [n for n in nodes if not _is_annotation(n) or n.name.startswith(ANNOTATION)]
    for place, node in enumerate(sorted(calls, key=lambda n: (n.integer("rf_id"), n.number))):
        _add_operator(builder, node, float(place), 0.0, groups)
    return builder.build()


def timed_profile(
    nodes: Sequence[Node],
    groups: dict[str, tuple[int, ...]],
    *,
    rank: int,
    world: int,
    form: str = LINKED,
    is_one_step: bool = False,
) -> Profile:
    """Operators, what ran on the device, and a launch of each at the start of its operator.

    `is_one_step` says that all of it is one step, from its first moment on.
    """
    builder = ProfileBuilder(form, rank=rank, world_size=world, groups=dict(groups))
    timed = [n for n in nodes if n.start_us is not None]
    first = min((n.start_us or 0.0 for n in timed), default=0.0)
    adding = _Timed(builder, groups, {n.number: n for n in nodes}, first)
    for node in timed:
        adding.add(node)
    adding.add_device_waits(timed)
    if is_one_step and timed:
        over = max(n.end_us for n in timed) - first
        on_device = adding.lost == len(adding.rows)
        builder.add_mark("step#0", 0.0, (over + 1) * 1e3, 0, on_device=on_device)
    if 0 < adding.lost < len(adding.rows):
        builder.warnings.append(f"{adding.lost:,} kernels have no operator with a time around them")
    return builder.build()


@dataclass
class _Timed:
    """Adds nodes that have times. `rows` are activities by node, `lost` those without a launcher."""

    builder: ProfileBuilder
    groups: Mapping[str, tuple[int, ...]]
    by_number: Mapping[int, Node]
    first_us: float
    rows: dict[int, int] = field(default_factory=dict)
    lost: int = 0

    def add(self, node: Node) -> None:
        """Its activity and launch; or on the host its operator, and what that waits for."""
        since, duration = (node.start_us or 0.0) - self.first_us, node.duration_us or 0.0
        span = since * 1e3, duration * 1e3
        if node.on_device:
            self._launch(node)
            self.rows[node.number] = self._activity(node, *span)
        else:
            self._host(node, *span)
            self._waits(node, *span)

    def _host(self, node: Node, start_ns: float, duration_ns: float) -> None:
        """An annotation or an operator; of rows that Flint wrote of the host, their ends are enough."""
        if _is_annotation(node):
            name = without_paths(node.name)
            self.builder.add_mark(name, start_ns, duration_ns, _thread(node), on_device=False)
        elif not node.name.startswith(_HOST_ROW):
            _add_operator(self.builder, node, start_ns, duration_ns, self.groups)

    def _launcher(self, node: Node) -> Node | None:
        """The host's node that launched one of the device: around it, else the last that it waits for."""
        around = self.by_number.get(node.parent)
        if around is not None and not around.on_device and around.start_us is not None:
            return around
        found, seen, waiting = [], set(), list(node.deps)
        while waiting:
            dep = self.by_number.get(waiting.pop())
            if dep is None or dep.on_device or dep.number in seen or dep.start_us is None:
                continue
            seen.add(dep.number)
            if dep.name.startswith(PAUSE):
                waiting += dep.deps
            else:
                found.append(dep)
        return max(found, key=lambda n: n.end_us, default=None)

    def _launch(self, node: Node) -> None:
        """At the start of an operator that is around it, at the end of what it waits for."""
        launcher = self._launcher(node)
        if launcher is None or launcher.start_us is None:
            self.lost += launcher is None
            return
        at = launcher.start_us if launcher.number == node.parent else launcher.end_us
        self.builder.add_call(
            CallKind.LAUNCH, "launch", (at - self.first_us) * 1e3, 0.0, _thread(launcher),
            correlation=node.number, external=launcher.number,
        )  # fmt: skip

    def _activity(self, node: Node, start_ns: float, duration_ns: float) -> int:
        kind = next((k for word, k in _KINDS if node.name.startswith(word)), ActivityKind.KERNEL)
        comm, parent = node.comm, self.by_number.get(node.parent)
        if comm is None and "nccl" in node.name.lower():
            comm = comm_of(node, self.groups) or (comm_of(parent, self.groups) if parent else None)
        return self.builder.add_activity(
            kind, node.name, start_ns, duration_ns, node.stream,
            correlation=node.number,
            external=node.parent,
            comm=-1 if comm is None else self.builder.comm(comm),
            flops=node.integer("num_ops"),
            bytes_accessed=node.integer("tensor_size"),
            category=node.category,
        )  # fmt: skip

    def _waits(self, node: Node, start_ns: float, duration_ns: float) -> None:
        """An operator of the host that waits for what runs on the device."""
        known = (self.by_number.get(number) for number in node.deps)
        waited = [n for n in known if n is not None and n.on_device]
        if waited:
            last = max(waited, key=lambda n: n.start_us or 0.0)
            self.builder.add_call(
                CallKind.WAIT_EVENT, "wait", start_ns, duration_ns, _thread(node),
                external=node.number, waits_for=last.number,
            )  # fmt: skip

    def add_device_waits(self, nodes: Sequence[Node]) -> None:
        """What nodes of the device wait for there."""
        for node in nodes:
            for waited in node.deps if node.on_device else ():
                if waited in self.rows and waited != node.number:
                    self.builder.add_wait(self.rows[node.number], self.rows[waited])


def _is_annotation(node: Node) -> bool:
    return node.integer("scope", 0) == _USER_SCOPE


def _thread(node: Node) -> int:
    return node.integer("tid", 0)


def _add_operator(
    builder: ProfileBuilder,
    node: Node,
    start_ns: float,
    duration_ns: float,
    groups: Mapping[str, tuple[int, ...]],
) -> None:
    signature, comm = node.signature, comm_of(node, groups)
    builder.add_operator(
        node.name, start_ns, duration_ns, _thread(node),
        external=node.number,
        signature=-1 if signature is None else builder.signature(signature),
        sequence=node.integer("seq_id"),
        is_backward=node.integer("fw_tid", 0) > 0 or node.name.startswith("autograd::engine"),
        comm=-1 if comm is None else builder.comm(comm),
        tensors=node.tensors,
        record=node.integer("rf_id"),
    )  # fmt: skip
