"""Sharding annotations into per-device collectives, by XLA's own partitioner."""

from __future__ import annotations

from dataclasses import dataclass

from flint.ir.program import Program


@dataclass(frozen=True, slots=True)
class Partitioned:
    """The program of one device, and a sentence about work that is not split ("" if all is).

    `model_share` is the part of the product FLOPs of all devices that the whole program has: the
    rest is repeated by devices, or padding.
    """

    program: Program
    replicated: str = ""
    model_share: float = 1.0
