"""Spoilt profiles: of PyTorch, execution traces, Nsight Systems and XLA; workloads made of them."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.bad import flint_files
from benchmarks.bad.case import Case, Special
from benchmarks.bad.databases import spoil_database
from benchmarks.bad.spoil import spoil_bytes, spoil_json
from benchmarks.bad.traces import varint

Content = bytes | Special
#: What is asked of a workload that was measured.
_MEASURED = (
    ("estimate", "w.flint", "-c", "h100-dgx", "--json"),
    ("export", "w.flint", "-f", "json"),
    ("compare", "w.flint", "w.flint"),
)


def nsight(rng: random.Random, number: int, bases: Path) -> Case:
    """A spoilt export of Nsight Systems."""
    return _imported("nsight", rng, number, bases, ("nsys.sqlite",), spoil_database)


def xplane(rng: random.Random, number: int, bases: Path) -> Case:
    """A spoilt profile of XLA."""
    return _imported(
        "xplane", rng, number, bases, ("gpu.xplane.pb", "tpu.xplane.pb"), _spoil_xplane
    )


def kineto(rng: random.Random, number: int, bases: Path) -> Case:
    """A spoilt profile of PyTorch."""
    return _imported("kineto", rng, number, bases, ("kineto.json",), _spoil_document)


def execution_trace(rng: random.Random, number: int, bases: Path) -> Case:
    """A spoilt execution trace of PyTorch, or Chakra's."""
    names = ("linked.json", "linked.json", "trace.0.et.json", "timed.0.et")
    return _imported("executions", rng, number, bases, names, _spoil_document)


def measured(rng: random.Random, number: int, bases: Path) -> Case:
    """A spoilt workload that was made of a profile."""
    spoilt = flint_files.spoil(rng, bases / "measured.flint")
    return Case("measured", number, spoilt[0], {"w.flint": spoilt[1]}, _MEASURED)


def _imported(
    kind: str,
    rng: random.Random,
    number: int,
    bases: Path,
    names: tuple[str, ...],
    spoil: Callable[[random.Random, bytes], tuple[str, Content]],
) -> Case:
    name = rng.choice(names)
    change, data = spoil(rng, (bases / name).read_bytes())
    if isinstance(data, bytes) and rng.random() < 0.05:
        data, change = gzip.compress(data, mtime=0), f"{change}, packed"
    command = ("import", name, "--json")
    whole = ("import", name, "-q", "-o", "w.flint")
    estimate = ("estimate", "w.flint", "-c", "h100-dgx", "--json")
    commands = (command, whole, estimate) if rng.random() < 0.3 else (command,)
    return Case(kind, number, f"{name}: {change}", {name: data}, commands)


def _spoil_document(rng: random.Random, data: bytes) -> tuple[str, Content]:
    if rng.random() < 0.25 or data[:1] != b"{":
        return spoil_bytes(rng, data)
    documents = list(_documents(data.decode()))
    at = rng.randrange(len(documents))
    change, text = spoil_json(rng, documents[at])
    texts = [text if n == at else json.dumps(d).encode() for n, d in enumerate(documents)]
    return change, b"\n".join(texts)


def _documents(text: str) -> Any:
    decoder, at = json.JSONDecoder(), 0
    while at < len(text):
        found, at = decoder.raw_decode(text, at)
        yield found
        at += len(text[at:]) - len(text[at:].lstrip())


def _spoil_xplane(rng: random.Random, data: bytes) -> tuple[str, Content]:
    """Other values in fields of the planes."""
    if rng.random() < 0.3:
        return spoil_bytes(rng, data)
    from flint.tools.measure.profiles.xplane.reader import plane_class

    planes, rest, at = [], b"", 0
    while data[at : at + 1] == b"\x0a":
        size, shift, start = 0, 0, at + 1
        while True:
            byte = data[start]
            size, shift, start = size | (byte & 0x7F) << shift, shift + 7, start + 1
            if byte < 0x80:
                break
        planes.append(plane_class().FromString(data[start : start + size]))
        at = start + size
    rest = data[at:]
    done = [_spoil_field(rng, rng.choice(planes)) for _ in range(rng.choice((1, 1, 2, 3)))]
    found = b""
    for plane in planes:
        packed = plane.SerializeToString()
        found += b"\x0a" + varint(len(packed)) + packed
    return ", ".join(done), found + rest


def _spoil_field(rng: random.Random, message: Any) -> str:
    while True:
        fields = [f for f, _ in message.ListFields()]
        inner = [f for f in fields if f.message_type is not None]
        plain = [f for f in fields if f.message_type is None]
        if not inner or (plain and rng.random() < 0.3):
            break
        value = getattr(message, rng.choice(inner).name)
        message = rng.choice(value) if hasattr(value, "add") or hasattr(value, "__len__") else value
    if not plain:
        return "nothing"
    field = rng.choice(plain)
    values = (-1, 0, 1, 2**31 - 1, 2**62, -(2**62), b"", b"\xff\xfe", b"x" * 9999, 1e308, -1e308)
    for value in rng.sample((*values, float("nan"), float("inf")), len(values) + 2):
        try:
            setattr(message, field.name, value)
            return f"{field.name}={str(value)[:20]}"
        except (TypeError, ValueError, AttributeError):
            continue
    return "nothing"
