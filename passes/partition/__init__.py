"""Sharding annotations into per-device collectives: one small interface, two partitioners."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from flint.errors import FlintError, nearest
from flint.ir.program import Program

if TYPE_CHECKING:
    from flint.steps.captured import Captured


@dataclass(frozen=True, slots=True)
class Partitioned:
    """The program of one device, and a sentence about work that is not split ("" if all is).

    `model_share` is the part of the product FLOPs of all devices that the whole program has: the
    rest is repeated by devices, or padding.
    """

    program: Program
    replicated: str = ""
    model_share: float = 1.0
    by: str = "xla"  #: the partitioner that made it
    warning: str = ""  #: what differs from the program of another partitioner


#: A partitioner turns a whole program into the program of one device.
Partitioner = Callable[["Captured"], Partitioned]

#: Name to `module:function`; imported when it is used.
PARTITIONERS: dict[str, str] = {
    "auto": "flint.passes.partition.auto:partitioned",
    "shardy": "flint.passes.partition.shardy:partitioned",
    "xla": "flint.passes.partition.xla:partitioned",
}


def partitioner(name: str) -> Callable[[Captured], Program]:
    """What the partitioner called `name` makes of a program. Raises FlintError FL404 as below."""
    found = find_partitioner(name)
    return lambda captured: found(captured).program


def find_partitioner(name: str) -> Partitioner:
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
