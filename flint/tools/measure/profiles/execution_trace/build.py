"""Nodes of execution traces -> profiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
    by_number = {n.number: n for n in nodes}
    launchers = {n.number: _launcher(n, by_number) for n in timed if n.on_device}
    rows: dict[int, int] = {}
    for node in timed:
        start, duration = ((node.start_us or 0.0) - first) * 1e3, (node.duration_us or 0.0) * 1e3
        if node.on_device:
            parent = by_number.get(node.parent)
            _add_launch(builder, node, launchers[node.number], first)
            rows[node.number] = _add_activity(builder, node, parent, start, duration, groups)
        else:
            _add_host(builder, node, start, duration, groups)
            _add_waits(builder, node, by_number, start, duration)
    _add_device_waits(builder, timed, rows)
    lost = sum(launcher is None for launcher in launchers.values())
    if is_one_step and timed:
        over = max(n.end_us for n in timed) - first
        builder.add_mark("step#0", 0.0, (over + 1) * 1e3, 0, on_device=lost == len(rows))
    if 0 < lost < len(rows):
        builder.warnings.append(f"{lost:,} kernels have no operator with a time around them")
    return builder.build()


def _add_host(
    builder: ProfileBuilder,
    node: Node,
    start_ns: float,
    duration_ns: float,
    groups: Mapping[str, tuple[int, ...]],
) -> None:
    """An annotation or an operator; of rows that Flint wrote of the host, their ends are enough."""
    if _is_annotation(node):
        name = without_paths(node.name)
        builder.add_mark(name, start_ns, duration_ns, _thread(node), on_device=False)
    elif not node.name.startswith(_HOST_ROW):
        _add_operator(builder, node, start_ns, duration_ns, groups)


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


def _launcher(node: Node, by_number: Mapping[int, Node]) -> Node | None:
    """The host's node that launched one of the device: around it, else the last that it waits for."""
    around = by_number.get(node.parent)
    if around is not None and not around.on_device and around.start_us is not None:
        return around
    found, seen, waiting = [], set(), list(node.deps)
    while waiting:
        dep = by_number.get(waiting.pop())
        if dep is None or dep.on_device or dep.number in seen or dep.start_us is None:
            continue
        seen.add(dep.number)
        if dep.name.startswith(PAUSE):
            waiting += dep.deps
        else:
            found.append(dep)
    return max(found, key=lambda n: n.end_us, default=None)


def _add_launch(
    builder: ProfileBuilder, node: Node, launcher: Node | None, first_us: float
) -> None:
    """At the start of an operator that is around it, at the end of what it waits for."""
    if launcher is None or launcher.start_us is None:
        return
    at = launcher.start_us if launcher.number == node.parent else launcher.end_us
    builder.add_call(
        CallKind.LAUNCH, "launch", (at - first_us) * 1e3, 0.0, _thread(launcher),
        correlation=node.number, external=launcher.number,
    )  # fmt: skip


def _add_activity(
    builder: ProfileBuilder,
    node: Node,
    parent: Node | None,
    start_ns: float,
    duration_ns: float,
    groups: Mapping[str, tuple[int, ...]],
) -> int:
    kind = next((k for word, k in _KINDS if node.name.startswith(word)), ActivityKind.KERNEL)
    comm = node.comm
    if comm is None and "nccl" in node.name.lower():
        comm = comm_of(node, groups) or (comm_of(parent, groups) if parent else None)
    return builder.add_activity(
        kind, node.name, start_ns, duration_ns, node.stream,
        correlation=node.number,
        external=node.parent,
        comm=-1 if comm is None else builder.comm(comm),
        flops=node.integer("num_ops"),
        bytes_accessed=node.integer("tensor_size"),
        category=node.category,
    )  # fmt: skip


def _add_waits(
    builder: ProfileBuilder,
    node: Node,
    by_number: Mapping[int, Node],
    start_ns: float,
    duration_ns: float,
) -> None:
    """An operator of the host that waits for what runs on the device."""
    waited = [n for n in node.deps if n in by_number and by_number[n].on_device]
    if node.on_device or not waited:
        return
    last = max(waited, key=lambda n: by_number[n].start_us or 0.0)
    builder.add_call(
        CallKind.WAIT_EVENT, "wait", start_ns, duration_ns, _thread(node),
        external=node.number, waits_for=last,
    )  # fmt: skip


def _add_device_waits(
    builder: ProfileBuilder, nodes: Sequence[Node], rows: Mapping[int, int]
) -> None:
    for node in nodes:
        if node.on_device:
            for waited in node.deps:
                if waited in rows and waited != node.number:
                    builder.add_wait(rows[node.number], rows[waited])
