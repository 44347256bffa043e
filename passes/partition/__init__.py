"""Sharding annotations into per-device collectives: one small interface, two partitioners."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from flint.captured import Captured
from flint.errors import FlintError, nearest
from flint.program import Program

#: A partitioner turns a whole program into the program of one device.
Partitioner = Callable[[Captured], Program]

#: Name to `module:function`; imported when it is used.
PARTITIONERS: dict[str, str] = {
    "shardy": "flint.passes.partition.shardy:partition_shardy",
    "xla": "flint.passes.partition.xla_spmd:partition_xla",
}


def partitioner(name: str) -> Partitioner:
    """The partitioner called `name`. Raises FlintError FL404 listing those that exist."""
    if name not in PARTITIONERS:
        known = list(PARTITIONERS)
        raise FlintError(
            "FL404",
            f"there is no partitioner '{name}'{nearest(name, known)}",
            help=f"choose one of {', '.join(known)}",
        )
    module, function = PARTITIONERS[name].split(":")
    found: Partitioner = getattr(import_module(module), function)
    return found
