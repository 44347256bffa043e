"""A Kineto file, plain or packed, into one Profile: streamed, never whole in memory."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from flint.errors import FlintError
from flint.tools.measure.profiles.builder import ProfileBuilder
from flint.tools.measure.profiles.kineto.collectives import with_comms_of_operators
from flint.tools.measure.profiles.kineto.events import (
    CALLS,
    COPIES,
    FILLS,
    KERNELS,
    OPERATORS,
    Events,
    how_to_record,
    no_pytorch,
)
from flint.tools.measure.profiles.kineto.fields import integer, integers, mapping
from flint.tools.measure.profiles.kineto.stream import JsonStream
from flint.tools.measure.profiles.profile import Profile
from flint.tools.measure.profiles.source import open_profile

_BEGINS = re.compile(rb"(?:\xef\xbb\xbf)?\s*[\[{]")
_RANK = re.compile(r"rank[_-]?(\d{1,7})(?!\d)")
_HOST, _DEVICE = (*OPERATORS, *CALLS), (*KERNELS, *COPIES, *FILLS)
#: What is kept of all that is beside the events.
_KEPT = ("distributedInfo", "deviceProperties", "baseTimeNanoseconds")


def recognizes(head: bytes) -> bool:
    """Whether it may be JSON: what is in it is told by reading it."""
    return _BEGINS.match(head) is not None


def read(path: Path) -> tuple[Profile, ...]:
    """The profile in a Kineto file, one rank's.

    Raises FlintError: FL801 (JSON without events), FL802 (another tool's), FL803 (cut or damaged),
    FL804 (nothing of a device), FL805 (absurd numbers), FL806 (too large).
    """
    builder = ProfileBuilder("kineto")
    events = Events(builder)
    with open_profile(path) as source:
        try:
            beside = _walk(JsonStream(source), events, path)
        except FlintError as error:
            if error.code in ("FL805", "FL806") and str(path) not in error.message:
                raise FlintError(error.code, f"{path}: {error.message}", help=error.help) from error
            raise
    set_device(builder, beside.get("deviceProperties"), events.device)
    _require_device(path, events, builder)
    set_distributed(builder, beside.get("distributedInfo"))
    _find_rank(builder, events, path)
    _warn(builder, events)
    return (with_comms_of_operators(builder.build(_origin_ns(beside, events))),)


def _walk(document: JsonStream, events: Events, path: Path) -> dict[str, Any]:
    """All events into `events`; returns what is kept of the rest."""
    found: dict[str, Any] = {}
    if document.peek() == "[":
        _take(document, events)
    else:
        keys = []
        for key in document.members():
            keys.append(key[:40])
            if key == "traceEvents" and document.peek() == "[":
                _take(document, events)
                continue
            value = document.value()
            if key in _KEPT:
                found[key] = value
        if "traceEvents" not in keys:
            raise _no_events(path, keys)
    if document.peek():
        raise document.damaged("something follows its end")
    return found


def _take(document: JsonStream, events: Events) -> None:
    add = events.add
    for event in document.elements():
        add(event)


def _no_events(path: Path, keys: list[str]) -> FlintError:
    what = f"its keys are {', '.join(keys[:8])}" if keys else "it is empty"
    return FlintError(
        "FL801",
        f"{path} is JSON without 'traceEvents', not a profile that Flint reads: {what}",
        help="torch.profiler's export_chrome_trace writes profiles",
    )


def _require_device(path: Path, events: Events, builder: ProfileBuilder) -> None:
    seen = events.seen
    if events.devices:
        return
    if not any(seen[c] for c in _HOST) and not any(seen[c] for c in _DEVICE):
        raise no_pytorch(path, events)
    raise FlintError(
        "FL804",
        f"{path} has nothing that ran on a device: {sum(seen[c] for c in _HOST):,} operators "
        "and calls of the host, but no kernel"
        + (f"; {events.misunderstood:,} events are not understood" if events.misunderstood else ""),
        help=how_to_record(seen, builder.names, builder.device),
    )


def _find_rank(builder: ProfileBuilder, events: Events, path: Path) -> None:
    if builder.rank < 0:
        builder.rank = events.comms.rank
    named = _RANK.search(path.name)
    if builder.rank < 0 and named:
        builder.rank = int(named[1])
        builder.warnings.append(
            "the file does not name its rank; it was taken from the file's name"
        )


def _warn(builder: ProfileBuilder, events: Events) -> None:
    counts = (
        (events.misunderstood, "events are not understood, and were omitted"),
        (events.unfinished, "operators had not ended when the recording did, and were omitted"),
        (len(events.devices) - 1, "more devices are in the file: their streams have other numbers"),
    )
    builder.warnings += [f"{count:,} {what}" for count, what in counts if count > 0]


def _origin_ns(beside: dict[str, Any], events: Events) -> int:
    """Wall clock of the first event. Times of old files are since 1970, of new ones since a base."""
    first_ns = int(events.first_us) * 1000
    base = integer(beside.get("baseTimeNanoseconds"), 0)
    return max(0, base) + first_ns


_MOST_RANKS = 1 << 24


def set_distributed(builder: ProfileBuilder, value: object) -> None:
    """From `distributedInfo`: an object, an object written as text, whole or with parts missing."""
    info = mapping(value)
    builder.rank = integer(info.get("rank"), builder.rank)
    world = integer(info.get("world_size"), 0)
    builder.world_size = world if 0 < world <= _MOST_RANKS else builder.world_size
    config = info.get("pg_config")
    if isinstance(config, str):
        config = mapping('{"groups": ' + config + "}").get("groups")
    if isinstance(config, dict):
        config = list(config.values())
    for group in config if isinstance(config, list) else ():
        if isinstance(group, dict):
            _set_group(builder, group)


def _set_group(builder: ProfileBuilder, group: dict[str, Any]) -> None:
    name = group.get("pg_name", group.get("uid"))
    ranks = integers(group.get("ranks"))
    if ranks == () and integer(group.get("pg_size")) in (-1, builder.world_size):
        ranks = tuple(range(builder.world_size))
    if name is not None and ranks:
        builder.groups[str(name)] = ranks


def set_device(builder: ProfileBuilder, properties: object, device: int) -> None:
    """From `deviceProperties`: name, memory and processors of the device that ran, else the first."""
    found = [p for p in properties if isinstance(p, dict)] if isinstance(properties, list) else []
    if not found:
        return
    own = next((p for p in found if integer(p.get("id")) == device), found[0])
    builder.device = own["name"] if isinstance(own.get("name"), str) else ""
    builder.device_memory_bytes = max(0, integer(own.get("totalGlobalMem"), 0))
    builder.processors = max(0, integer(own.get("numSms"), 0))
