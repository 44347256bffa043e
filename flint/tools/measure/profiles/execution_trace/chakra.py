"""Chakra execution traces of any producer (`PREFIX.<rank>.et`, or the JSON that chakra_jsonizer makes).

Nodes have durations in whole microseconds; where they have no starts, times follow from what they
wait for (see `schedule`). Groups are those of comm_group.json beside the file.
"""

from __future__ import annotations

import ast
import heapq
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flint.backends.chakra.reading.reader import Decoder, records
from flint.backends.chakra.reading.trace_files import read_groups
from flint.backends.chakra.schema import CommType, NodeType, messages
from flint.errors import FlintError, Malformed
from flint.io.bounded import FileKind
from flint.messages import decode_error
from flint.tools.measure.profiles.contradictions.ranks import MOST_RANKS
from flint.tools.measure.profiles.execution_trace.build import PAUSE, timed_profile
from flint.tools.measure.profiles.execution_trace.nodes import Interned, Node, list_of, object_of
from flint.tools.measure.profiles.execution_trace.raw import WORKLOAD_GRAPH, RawNode, graph_nodes
from flint.tools.measure.profiles.kineto.fields import integer
from flint.tools.measure.profiles.kineto.stream import JsonStream
from flint.tools.measure.profiles.profile import Profile, ProfiledComm
from flint.tools.measure.profiles.source import head_of, open_profile, whole_profile

# When nodes run that say how long they take and what they wait for, but not when.
#
# Each stream of the device and each thread of the host runs one node at a time, whichever was ready
# first, the lower number of two. That is what a simulator without a network would do.


def scheduled(nodes: Sequence[Node], waits: Callable[[Node], Iterable[int]]) -> list[Node]:
    """Nodes with starts, in order of them; `waits` gives what a node waits for.

    Those that wait for themselves in the end are omitted.
    """
    by_number = {n.number: n for n in nodes}
    waiting: dict[int, set[int]] = {}
    followers: dict[int, list[int]] = defaultdict(list)
    for node in nodes:
        deps = {d for d in waits(node) if d in by_number and d != node.number}
        waiting[node.number] = deps
        for d in deps:
            followers[d].append(node.number)
    ready = [(0.0, number) for number, deps in waiting.items() if not deps]
    heapq.heapify(ready)
    reached: dict[int, float] = defaultdict(float)
    free: dict[tuple[str, int], float] = defaultdict(float)
    found = []
    while ready:
        at, number = heapq.heappop(ready)
        node = by_number[number]
        lane = _lane(node)
        start = max(at, free[lane])
        free[lane] = end = start + (node.duration_us or 0.0)
        found.append(replace(node, start_us=start))
        for follower in followers[number]:
            reached[follower] = max(reached[follower], end)
            waiting[follower].discard(number)
            if not waiting[follower]:
                heapq.heappush(ready, (reached[follower], follower))
    return found


def _lane(node: Node) -> tuple[str, int]:
    """What a node takes while it runs: a stream, a thread, or, of a pause, nothing."""
    if node.on_device:
        return "stream", node.stream
    if node.name.startswith(PAUSE):
        return "pause", node.number
    return "thread", node.integer("tid", 0)


_FILE = re.compile(r"(.+)\.(\d{1,7})\.et(?:\.json)?(?:\.gz)?")
_JSON = re.compile(
    rb'"(dataDeps|ctrlDeps|durationMicros|workload_graph)"|"type"\s*:\s*"(COMP|COMM_\w+|METADATA)_NODE"'
)
#: Longest text of arguments that is read: a list of Python's.
_MOST_TEXT = 1 << 20
_NAMES = {
    CommType.ALL_REDUCE: "allreduce",
    CommType.REDUCE: "reduce",
    CommType.ALL_GATHER: "allgather",
    CommType.GATHER: "gather",
    CommType.SCATTER: "scatter",
    CommType.BROADCAST: "broadcast",
    CommType.ALL_TO_ALL: "all_to_all",
    CommType.REDUCE_SCATTER: "reduce_scatter",
    CommType.REDUCE_SCATTER_BLOCK: "reduce_scatter",
    CommType.BARRIER: "barrier",
}
_COMMUNICATES = (NodeType.COMM_COLL, NodeType.COMM_SEND, NodeType.COMM_RECV)
#: What stands first in names that Flint and others write.
_TYPE_WORD = re.compile(r"^(COMP|COMM_COLL|COMM_SEND|COMM_RECV)_NODE[ _]?")
_OPCODE = re.compile(r"^(?:stablehlo|hlo|sdy)\.(\w+)|^(fusion)\b")
_NO_STARTS = "the trace has no starts: times follow from durations and dependencies"
_GOES_ROUND = (
    "control dependencies form a circle: only data dependencies are followed, as in Chakra's feeder"
)
#: Streams of nodes that name none.
_COMPUTE, _NETWORK = 0, 1


@dataclass(frozen=True, slots=True)
class _World:
    """Groups by name, and ranks of the job (0: not known)."""

    groups: dict[str, tuple[int, ...]]
    size: int

    def members(self, name: str) -> tuple[int, ...]:
        """Ranks of a group; "" and "0" are the world, of which one file alone says nothing."""
        is_world = name in ("", "0") and 1 < self.size <= MOST_RANKS
        everyone = tuple(range(self.size)) if is_world else ()
        return self.groups.get(name, everyone)


def recognizes(head: bytes) -> bool:
    """Whether a file begins as a Chakra trace: with a record of metadata, or as JSON of such records."""
    if head.lstrip()[:1] == b"{":
        return b'"traceEvents"' not in head and _JSON.search(head) is not None
    return _is_metadata(head)


def read(path: Path) -> tuple[Profile, ...]:
    """The profile in a Chakra trace, one rank's.

    Raises FlintError FL821 (JSON that is none), FL823 (no durations, dependencies that go round, or
    two nodes of one number),
    FL603, FL604 (damaged, or no metadata), FL605 (the group file), FL801, FL803, FL806.
    """
    world, rank = _surroundings(path)
    metadata, found = _contents(path)
    raw = [r for r in found if r.kind not in (NodeType.METADATA, NodeType.INVALID)]
    _require_distinct(raw, path)
    interned = Interned()
    nodes = [_node(r, world, interned) for r in raw]
    has_starts = any(r.start > 0 for r in raw)
    timed, goes_round = _with_times(nodes, path, has_starts=has_starts)
    profile = timed_profile(
        timed, world.groups, rank=rank, world=world.size, form="chakra",
        is_one_step=metadata.get("producer") == "flint",
    )  # fmt: skip
    free = sum(n.on_device and not n.duration_us for n in nodes)
    said = [] if has_starts else [_NO_STARTS]
    said += [_GOES_ROUND] if goes_round else []
    said += [f"{free:,} nodes of the device have no duration: they take no time"] if free else []
    return (replace(profile, warnings=profile.warnings + tuple(said)),)


def _require_distinct(raw: list[RawNode], path: Path) -> None:
    """Raise FlintError FL823 for two nodes of one number: what waits for it could run twice."""
    (number, count), *_ = Counter(r.number for r in raw).most_common(1) or [(0, 0)]
    if count > 1:
        raise FlintError(
            "FL823",
            f"{path} has {count:,} nodes with the number {number}",
            help="flint check names them; the file may be two in one",
        )


def _with_times(nodes: list[Node], path: Path, *, has_starts: bool) -> tuple[list[Node], bool]:
    """Nodes with starts, and whether control dependencies were omitted, as they go round.

    Raises FlintError FL823 where nodes have no durations, or data dependencies go round.
    """
    if not any(n.duration_us for n in nodes if n.on_device):
        raise FlintError(
            "FL823",
            f"{path} has no durations of work on the device",
            help="flint estimate reads the captured workload; traces with times come from a profile, "
            "or from flint capture -c CLUSTER",
        )
    if has_starts:
        return nodes, False
    timed = scheduled(nodes, Node.waits)
    if len(timed) == len(nodes):
        return timed, False
    timed = scheduled(nodes, lambda n: n.data_deps)
    if len(timed) < len(nodes):
        raise FlintError(
            "FL823",
            f"{path}: {len(nodes) - len(timed):,} nodes wait for each other's data in a circle",
            help="flint check names them",
        )
    starts = {n.number: n.start_us or 0.0 for n in timed}
    return [_by_data_alone(n, starts) for n in timed], True


def _by_data_alone(node: Node, starts: Mapping[int, float]) -> Node:
    """A node without its control dependencies, except one around it that has begun before it."""
    is_later = starts.get(node.parent, 0.0) > (node.start_us or 0.0)
    return replace(node, deps=node.data_deps, parent=-1 if is_later else node.parent)


# Files ----------------------------------------------------------------------------------------


def _contents(path: Path) -> tuple[Mapping[str, Any], list[RawNode]]:
    with open_profile(path) as source:
        if source.read(64).lstrip()[:1] == b"{":
            return _json_contents(path)
    data = whole_profile(path, FileKind.TRACE.most_bytes)
    spans = list(records(data, str(path)))
    _, metadata = Decoder().metadata(data[slice(*spans[0])], str(path))
    return metadata, [_raw(path, data[start:stop], start) for start, stop in spans[1:]]


def _raw(path: Path, record: bytes, at: int) -> RawNode:
    message = _message(record)
    if message is None or message.type not in NodeType._value2member_map_:
        raise FlintError(
            "FL603",
            f"{path} is not a whole Chakra trace: at byte {at} a record is not a Chakra node",
            help="it may be truncated, or in another format; write it again",
        )
    return RawNode(
        message.id, message.name, NodeType(message.type), tuple(message.ctrl_deps),
        tuple(message.data_deps), message.start_time_micros, message.duration_micros,
        _texts(message.inputs), _texts(message.outputs), {a.name: _value(a) for a in message.attr},
    )  # fmt: skip


def _message(record: bytes) -> Any:
    try:
        return messages().Node.FromString(record)
    except decode_error():
        return None


def _texts(found: Any) -> Mapping[str, str]:
    return {k: getattr(found, k) for k in ("values", "shapes", "types")}


def _value(attribute: Any) -> Any:
    kind = attribute.WhichOneof("value")
    if kind is None:
        return None
    value = getattr(attribute, kind)
    return tuple(value.values) if kind.endswith("_list") else value


def _json_contents(path: Path) -> tuple[Mapping[str, Any], list[RawNode]]:
    """Documents one after another, the metadata, then nodes; or one that holds a workload graph."""
    nodes: list[RawNode] = []
    is_graph = WORKLOAD_GRAPH.encode() in head_of(path)
    with open_profile(path) as source:
        document = JsonStream(source)
        try:
            if is_graph:
                return {}, list(graph_nodes(document))
            metadata = _json_attributes(document.value())
            while document.peek():
                nodes.append(_json_node(document.value()))
        except Malformed as error:
            raise FlintError(
                "FL821",
                f"{path} is not a Chakra trace in JSON: "
                f"{'a node of its graph' if is_graph else f'document {len(nodes) + 1:,}'} is "
                "not a node",
                help="chakra_jsonizer writes them from .et files, which can also be read",
            ) from error
    return metadata, nodes


def _json_attributes(document: object) -> dict[str, Any]:
    attributes = map(object_of, list_of(object_of(document).get("attr", [])))
    return {
        str(a.get("name")): next((v for k, v in a.items() if k not in ("name", "docString")), None)
        for a in attributes
    }


def _json_kind(said: object) -> NodeType:
    name = str(said).removesuffix("_NODE")
    if isinstance(said, int) and said in NodeType._value2member_map_:
        return NodeType(said)
    if name not in NodeType.__members__:
        raise Malformed(f"there is no node type {name[:40]}")
    return NodeType[name]


def _json_node(document: object) -> RawNode:
    """A node as protobuf writes it in JSON: numbers of 64 bits are text, zeros are omitted."""
    found = object_of(document)
    kind = _json_kind(found.get("type", 0))
    return RawNode(
        integer(found.get("id"), 0), str(found.get("name", "")), kind,
        tuple(integer(n) for n in list_of(found.get("ctrlDeps", []))),
        tuple(integer(n) for n in list_of(found.get("dataDeps", []))),
        integer(found.get("startTimeMicros"), 0), integer(found.get("durationMicros"), 0),
        object_of(found.get("inputs", {})), object_of(found.get("outputs", {})),
        _json_attributes(found),
    )  # fmt: skip


def _is_metadata(head: bytes) -> bool:
    """Whether the first record is GlobalMetadata, as far as it is there, and a record follows."""
    try:
        start, stop = next(records(head, ""))
    except FlintError:
        return False
    try:
        Decoder().metadata(head[start:stop], "")
    except FlintError:
        return False
    return head[start : start + 1] in (b"\x0a", b"\x12")


def _surroundings(path: Path) -> tuple[_World, int]:
    """Groups and the size of the job by the files beside the trace, and the rank by its name."""
    named = _FILE.fullmatch(path.name)
    file = path.parent / "comm_group.json"
    groups = read_groups(file) if file.is_file() else {}
    ranks = [r for g in groups.values() for r in g]
    if named:
        beside = (_FILE.fullmatch(p.name) for p in path.parent.iterdir())
        ranks += [int(m[2]) for m in beside if m and m[1] == named[1]]
    return _World(groups, max(ranks, default=-1) + 1), int(named[2]) if named else -1


# Nodes ----------------------------------------------------------------------------------------


def _node(raw: RawNode, world: _World, interned: Interned) -> Node:
    attributes = raw.attributes
    communicates = raw.kind in _COMMUNICATES
    name = _TYPE_WORD.sub("", raw.name) or raw.kind.name.lower()
    on_device = not attributes.get("is_cpu_op", False)
    unnamed = _NETWORK if communicates else _COMPUTE
    if on_device:  # converters of 2023 put the stream there
        unnamed = integer(attributes.get("tid"), unnamed)
    stream = integer(attributes.get("stream"), unnamed)
    opcode = _OPCODE.match(name)
    signature, tensors = interned.read(_values(raw.inputs), _values(raw.outputs))
    return Node(
        number=raw.number,
        name=name[:4096],
        parent=raw.ctrl_deps[0] if raw.ctrl_deps else -1,
        deps=tuple(dict.fromkeys((*raw.data_deps, *raw.ctrl_deps))),
        signature=signature,
        tensors=tensors,
        attributes=attributes,
        start_us=float(raw.start),
        duration_us=float(raw.duration),
        stream=max(0, stream),
        on_device=on_device,
        data_deps=raw.data_deps,
        comm=_comm(raw, world) if communicates else None,
        category=(opcode[1] or opcode[2]).replace("_", "-") if opcode else "",
    )


def _values(texts: Mapping[str, str]) -> Mapping[str, object]:
    """Arguments that PyTorch's converter wrote as Python's lists."""
    return {k: _listed(v) for k, v in texts.items()}


def _listed(text: object) -> object:
    if not isinstance(text, str) or not text or len(text) > _MOST_TEXT:
        return None
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):  # of the parser alone
        return None


def _comm(raw: RawNode, world: _World) -> ProfiledComm:
    """Sizes in the traces are bytes of the rank's input."""
    size, group = integer(raw.attributes.get("comm_size")), str(raw.attributes.get("pg_name") or "")
    members = world.members(group)
    if raw.kind is NodeType.COMM_COLL:
        kind = integer(raw.attributes.get("comm_type"))
        name = _NAMES.get(CommType(kind), "") if kind in CommType._value2member_map_ else ""
        return ProfiledComm(name or "unknown", size, -1, "Byte", group, len(members), members)
    sends = raw.kind is NodeType.COMM_SEND
    peer = integer(raw.attributes.get("comm_dst" if sends else "comm_src"))
    return ProfiledComm(
        "send" if sends else "recv", size, size, "Byte", group, len(members), members, peer
    )
