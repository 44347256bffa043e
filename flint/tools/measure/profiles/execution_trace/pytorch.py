"""PyTorch's execution traces (JSON): of the host alone, or linked with what ran on the device.

The schemas from 1.0.2-chakra.0.0.4 to 1.1.1-chakra.1.0.0 have the same nodes; later ones add
strides and attributes. Those before (1.0.0, 1.0.1) say the same with other keys. A trace of the host has no times: it says what its Kineto partner lacks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from flint.errors import FlintError, Malformed
from flint.tools.measure.profiles.execution_trace.build import host_profile, timed_profile
from flint.tools.measure.profiles.execution_trace.nodes import Interned, Node, list_of, object_of
from flint.tools.measure.profiles.execution_trace.raw import identity
from flint.tools.measure.profiles.kineto.fields import integer, integers
from flint.tools.measure.profiles.kineto.stream import JsonStream
from flint.tools.measure.profiles.profile import Profile
from flint.tools.measure.profiles.source import open_profile, too_large

_BEGINS = re.compile(rb"\s*\{[^\[]*\"schema\"\s*:\s*\"[^\"]*\"")
_SCHEMA = re.compile(r"\d+\.\d+\.\d+-chakra\.\d+\.\d+\.\d+")
_BEFORE_CHAKRA = re.compile(r"^1\.0\.[01]$")
_GROUPS = "## process_group:init ##"
_MOST_NODES = 1 << 24
#: What is kept of a node's attributes.
_KEPT = frozenset(
    ("rf_id", "seq_id", "scope", "tid", "fw_tid", "collective_name", "dtype", "in_msg_nelems",
     "out_msg_nelems", "in_split_size", "out_split_size", "pg_name", "pg_size", "global_rank_start",
     "global_rank_stride", "src_rank", "dst_rank")
)  # fmt: skip
_OLD_INPUTS = ("inputs", "input_shapes", "input_types")
_OLD_OUTPUTS = ("outputs", "output_shapes", "output_types")
#: Names of the nodes that hold all others.
_ROOTS = re.compile(r"^\[pytorch\|profiler\|execution_(trace|graph)\|(process|thread)\]$")
_RANK = re.compile(r"rank[_-]?(\d{1,7})(?!\d)")


def recognizes(head: bytes) -> bool:
    """Whether a file is JSON that begins with a schema and has nodes."""
    return _BEGINS.match(head) is not None and b'"nodes"' in head


def read(path: Path) -> tuple[Profile, ...]:
    """The profile in an execution trace, one rank's.

    That of the host alone has operators without times and nothing of the device (see `join`).
    Raises FlintError FL821 (a schema or nodes that are not known), FL801, FL803, FL806.
    """
    nodes: list[Node] = []
    with open_profile(path) as source:
        for found in _nodes(JsonStream(source), path):
            nodes.append(found)
            if len(nodes) > _MOST_NODES:
                raise too_large(path, f"it has more than {_MOST_NODES:,} nodes")
    groups, world = _process_groups(nodes)
    named = _RANK.search(path.name)
    rank = int(named[1]) if named else -1
    kept = [n for n in nodes if not _ROOTS.match(n.name)]
    make = timed_profile if any(n.on_device for n in kept) else host_profile
    return (make(kept, groups, rank=rank, world=world),)


def _nodes(document: JsonStream, path: Path) -> Iterator[Node]:
    """Nodes of the document. Raises FlintError FL821."""
    schema = ""
    interned = Interned()
    has_nodes = False
    for key in document.members():
        if key == "nodes" and document.peek() == "[":
            is_old = _BEFORE_CHAKRA.match(schema) is not None
            if not is_old and not _SCHEMA.search(schema):
                raise _unknown(path, f"its schema is '{schema[:40]}'")
            has_nodes = True
            for element in document.elements():
                yield _node(element, path, interned, is_old=is_old)
            continue
        value = document.value()
        schema = str(value) if key == "schema" else schema
    if not has_nodes:
        raise _unknown(path, "it has no list of nodes")


def _with_new_keys(found: dict[str, Any]) -> dict[str, Any]:
    """A node of a schema before Chakra's, as later ones say it."""
    values = ("values", "shapes", "types")
    renamed = (("id", "id"), ("name", "name"), ("ctrl_deps", "parent"))
    return {
        **{new: found[old] for new, old in renamed if old in found},
        "inputs": dict(zip(values, (found.get(k) for k in _OLD_INPUTS), strict=True)),
        "outputs": dict(zip(values, (found.get(k) for k in _OLD_OUTPUTS), strict=True)),
        "attrs": [{"name": k, "value": found[k]} for k in _KEPT & found.keys()],
    }


def _node(found: Any, path: Path, interned: Interned, *, is_old: bool) -> Node:
    try:
        node = object_of(found)
        return _read(_with_new_keys(node) if is_old else node, interned)
    except Malformed as error:
        what = str(found.get("id") if isinstance(found, dict) else found)[:40]
        raise _unknown(path, f"node {what} is not one that PyTorch writes") from error


def _read(found: dict[str, Any], interned: Interned) -> Node:
    missing = next(
        (k for k in ("id", "name", "inputs", "outputs", "ctrl_deps") if k not in found), ""
    )
    if missing:
        raise Malformed(f"it has no {missing}")
    name = interned.one(str(found["name"])[:4096])
    attributes = dict(_attributes(found.get("attrs", [])))
    if name == _GROUPS:
        attributes[_GROUPS] = list_of(object_of(found["inputs"]).get("values"))[:1]
    category = found.get("cat")
    if "pg_name" in found:
        attributes["pg_name"] = found["pg_name"]
    signature, tensors = interned.read(found["inputs"], found["outputs"])
    parent = found["ctrl_deps"]
    duration = found.get("inclusive_dur", found.get("exclusive_dur"))
    waits = found.get("sync_dep") or []
    return Node(
        number=identity(found["id"]),
        name=name,
        parent=identity(parent) if parent is not None else -1,
        deps=tuple(identity(n) for n in (waits if isinstance(waits, list) else [waits])),
        signature=signature,
        tensors=tensors,
        attributes=attributes,
        start_us=_time(found.get("ts")),
        duration_us=_time(duration),
        stream=max(0, integer(found.get("stream"), 0)),
        on_device=category is not None,
    )


def _time(value: object) -> float | None:
    """A time or duration in microseconds. Raises Malformed for what is none."""
    if value is None:
        return None
    if type(value) not in (int, float) or not abs(cast("float", value)) < 1e16:
        raise Malformed("an impossible time")
    return float(cast("float", value))


def _attributes(found: object) -> Iterator[tuple[str, Any]]:
    for attribute in map(object_of, list_of(found)):
        name = attribute.get("name")
        if isinstance(name, str) and name in _KEPT:
            yield name, attribute.get("value")


def _process_groups(nodes: list[Node]) -> tuple[dict[str, tuple[int, ...]], int]:
    """Groups by name, and ranks of the world (0: not said). A group without ranks is the world."""
    found: dict[str, tuple[int, ...]] = {}
    world = 0
    for node in nodes:
        said = node.attributes.get(_GROUPS)
        if not said:
            continue
        try:
            listed = json.loads(str(said[0]))
        except (ValueError, RecursionError):
            continue
        for group in listed if isinstance(listed, list) else ():
            if isinstance(group, dict):
                size = integer(group.get("group_size", group.get("pg_size")), 0)
                ranks = integers(group.get("ranks")) or ()
                if not ranks and 0 < size <= 1 << 20:
                    ranks = tuple(range(size))
                    world = max(world, size)
                found[str(group.get("pg_name", ""))] = ranks
    highest = max((max(r, default=-1) for r in found.values()), default=-1)
    return found, max(world, highest + 1) if world else 0


def _unknown(path: Path, why: str) -> FlintError:
    return FlintError(
        "FL821",
        f"{path} is not an execution trace that Flint reads: {why}",
        help="schemas from 1.0.0 to 1.1.1-chakra.1.0.0 are read (PyTorch from 1.13 on)",
    )
