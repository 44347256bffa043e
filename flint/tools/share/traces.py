"""Chakra traces of any producer without names: node by node, their structure and numbers as they are."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flint.backends.chakra.reading.reader import read_bytes, records, unpack
from flint.backends.chakra.reading.trace_files import TraceSet, find_traces
from flint.backends.chakra.schema import NodeType, messages
from flint.backends.chakra.writing.encode import metadata_record, varint
from flint.backends.chakra.writing.output import refuse_output, replaced_directory
from flint.errors import FlintError
from flint.ir.workload import Workload
from flint.messages import decode_error
from flint.tools.share.leaks.files import ATTRIBUTES
from flint.tools.share.leaks.vocabulary import is_public_opcode

#: Attributes that are texts: groups are numbered anew, others dropped.
_GROUP = "pg_name"
#: Attributes of a whole trace that say who made it.
_OF_TRACES = frozenset({"mesh", "producer", "schema"})


def redact_traces(source: Path, target: Path, workload: Workload | None = None) -> int:
    """Write the traces at `source` to the directory `target` without names; gives how many there are.

    Ids, types, dependencies, durations and the numbers that Chakra's readers know stay. Names become
    the type and, if it is public, the operator; group names become numbers; other attributes, inputs and
    outputs with their values, and every other file are omitted. A redacted `workload` is written beside
    them. Raises FlintError FL601 to FL606 for
    traces that cannot be read, FL501 to FL506 for a directory that cannot be written.
    """
    found = find_traces(source)
    refuse_output(target, list(found.paths.values()))
    groups = _Groups(found)
    metadata = metadata_record({"producer": "flint"})
    with replaced_directory(target) as folder:
        for rank, path in found.paths.items():
            (folder / f"trace.{rank}.et").write_bytes(metadata + _redacted(path, groups.number))
        (folder / "comm_group.json").write_text(groups.text())
        if workload is not None:
            (folder / "workload.flint").write_bytes(workload.to_bytes())
    return len(found.paths)


class _Groups:
    """Numbers of groups: as they are where all of them are numbers, which say nothing."""

    def __init__(self, found: TraceSet) -> None:
        self._members = found.groups or {}
        self._numbers = {name: n for n, name in enumerate(self._members, 1)}

    def number(self, name: str) -> str:
        """The number of a group, a new one for a name that the group file does not have."""
        return str(self._numbers.setdefault(name, len(self._numbers) + 1))

    def text(self) -> str:
        return json.dumps({self.number(name): ranks for name, ranks in self._members.items()})


def _redacted(path: Path, group: Callable[[str], str]) -> bytes:
    """The records of a trace behind the first, which is metadata."""
    source = str(path)
    data = unpack(read_bytes(path), source)
    node, failure = messages().Node, decode_error()
    found = bytearray()
    for start, stop in list(records(data, source))[1:]:
        try:
            message = node.FromString(data[start:stop])
        except failure as error:
            raise FlintError(
                "FL603", f"{source}: at byte {start} a record is not a Chakra node"
            ) from error
        record = _node(message, node, group).SerializeToString()
        found += varint(len(record)) + record
    return bytes(found)


def _node(message: Any, make: Any, group: Callable[[str], str]) -> Any:
    kept = make(
        id=message.id,
        type=message.type,
        name=_name(message),
        ctrl_deps=message.ctrl_deps,
        data_deps=message.data_deps,
        start_time_micros=message.start_time_micros,
        duration_micros=message.duration_micros,
    )
    for attribute in message.attr:
        kind = attribute.WhichOneof("value") or ""
        if attribute.name == _GROUP and kind == "string_val":
            kept.attr.add(name=_GROUP, string_val=group(attribute.string_val))
        elif attribute.name in ATTRIBUTES - _OF_TRACES and not kind.startswith(("string", "bytes")):
            attribute.doc_string = ""
            kept.attr.append(attribute)
    return kept


def _name(message: Any) -> str:
    """The type as Chakra writes it, and the operator if it is of the public vocabulary."""
    known = message.type in NodeType._value2member_map_
    kind = f"{NodeType(message.type).name}_NODE" if known else "INVALID_NODE"
    words = str(message.name).replace("::", ".").split()
    return " ".join([kind, *filter(is_public_opcode, words[:2])])
