"""What a Kineto file says beside its events: the rank, the world, its groups, and the device."""

from __future__ import annotations

from typing import Any

from flint.tools.measure.profiles.builder import ProfileBuilder
from flint.tools.measure.profiles.kineto.fields import integer, integers, mapping

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
