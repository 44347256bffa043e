"""Spoilt directories of traces: `.et` files, manifests, group and network files, and their names."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

from benchmarks.bad.case import Case, Special
from benchmarks.bad.spoil import VALUES, WORDS, spoil_bytes, spoil_json, spoil_text

COMMANDS = (("check", "t", "--json"), ("check", "t"))
_NAMES = (
    *("trace.99999999999999999999.et", "trace.-1.et", "trace.00.et", "trace.4294967296.et"),
    *("trace.7.et", "other.0.et", ".0.et", "trace.1e3.et", "trace.\x1b[31m.et", "trace.٣.et"),
)


def case(rng: random.Random, number: int, bases: Path) -> Case:
    """A directory of four ranks of which one file, or one name, is spoilt."""
    folder = bases / rng.choice(("plain", "pipeline"))
    files: dict[str, bytes | Special] = {
        p.name: p.read_bytes() for p in folder.iterdir() if p.suffix != ".flint"
    }
    traces = sorted(name for name in files if name.endswith(".et"))
    name = rng.choice(
        (rng.choice(traces), rng.choice(traces), "comm_group.json", "manifest.json", "network.yml")
    )
    data = files[name]
    assert isinstance(data, bytes)
    action = rng.random()
    if action < 0.06:
        new = rng.choice(_NAMES)
        files[new], change = files.pop(name), f"name {new}"
    elif action < 0.35:
        change, files[name] = spoil_bytes(rng, data)
    elif name.endswith(".json"):
        change, files[name] = spoil_json(rng, json.loads(data))
    elif name.endswith(".yml"):
        change, text = spoil_text(rng, data.decode())
        files[name] = text.encode("utf-8", "surrogatepass")
    else:
        change, files[name] = _spoil_trace(rng, data)
    if rng.random() < 0.3:  # without it, nobody knows that the file was changed
        files.pop("manifest.json", None)
        change += ", no manifest"
    inside = {f"t/{n}": d for n, d in files.items()}
    return Case("traces", number, f"{name}: {change}", inside, COMMANDS)


def _spoil_trace(rng: random.Random, data: bytes) -> tuple[str, bytes]:
    from flint.backends.chakra.reading.reader import records

    found = [data[a:b] for a, b in records(data, "base")]
    action = rng.choice(("node", "node", "node", "order", "drop", "double", "bomb"))
    at = rng.randrange(1, len(found))
    if action == "node":
        action, found[at] = _spoil_node(rng, found[at])
    elif action == "order":
        rng.shuffle(found)
    elif action == "drop":
        del found[at]
    elif action == "double":
        found.insert(at, found[at])
    else:
        return rng.choice(_BOMBS)
    return action, b"".join(varint(len(r)) + r for r in found)


def _spoil_node(rng: random.Random, record: bytes) -> tuple[str, bytes]:
    """Another value in one field or attribute of a node."""
    from flint.backends.chakra.schema import messages

    node = messages().Node.FromString(record)
    numbers = [v for v in VALUES if type(v) is int and 0 <= v < 2**63]
    field = rng.choice(("id", "name", "type", "data_deps", "ctrl_deps", "duration", "attr", "attr"))
    if field == "id":
        node.id = rng.choice(numbers)
    elif field == "name":
        node.name = rng.choice(WORDS)
    elif field == "type":
        node.type = rng.choice((0, 1, 2, 3, 4, 5, 6, 7, 8, 99))
    elif field in ("data_deps", "ctrl_deps"):
        getattr(node, field).append(rng.choice((*numbers, node.id)))
    elif field == "duration":
        node.duration_micros = rng.choice(numbers)
    elif node.attr:
        field += _spoil_attribute(rng, rng.choice(node.attr))
    return f"node {field}", node.SerializeToString()


def _spoil_attribute(rng: random.Random, attribute: Any) -> str:
    name = attribute.name
    kind = attribute.WhichOneof("value")
    if rng.random() < 0.2:
        attribute.name = rng.choice(("num_ops", "comm_size", "involved_dim", "comm_tag", "x", ""))
        return f" {name} named {attribute.name}"
    for value in rng.sample(VALUES, len(VALUES)):
        try:
            setattr(attribute, rng.choice((kind, "int64_val", "string_val", "double_val")), value)
            return f" {name} {value!r}"
        except (TypeError, ValueError, AttributeError, OverflowError):
            continue
    return " kept"


def varint(value: int) -> bytes:
    """A number as protobuf writes it."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


_BOMBS = (
    ("many streams", gzip.compress(bytes(1 << 24), mtime=0) * 200),
    ("millions of nodes", gzip.compress(b"\x02\x08\x01" * (1 << 23), mtime=0)),
    ("a long record", b"\xff\xff\xff\xff\x0f"),
    ("a record without end", b"\xff" * 20),
)
