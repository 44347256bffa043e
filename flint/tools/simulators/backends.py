"""The networks that ASTRA-sim is built with, and how cables join chips in those of packets."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Backend(StrEnum):
    """The networks that ASTRA-sim is built with."""

    UNAWARE = "congestion-unaware"
    AWARE = "congestion-aware"
    HTSIM = "htsim"
    NS3 = "ns3"

    @property
    def binary(self) -> str:
        """What a build is called, or a part of it."""
        return _BINARIES[self]

    @property
    def sends_packets(self) -> bool:
        """Whether it needs files that say which cable joins what."""
        return self in (Backend.HTSIM, Backend.NS3)


_BINARIES: Final = {
    Backend.UNAWARE: "AstraSim_Analytical_Congestion_Unaware",
    Backend.AWARE: "AstraSim_Analytical_Congestion_Aware",
    Backend.HTSIM: "AstraSim_HTSim",
    Backend.NS3: "AstraSimNetwork",
}


class Cabling(StrEnum):
    """How chips of several inner domains are joined."""

    RAIL = (
        "rail"  #: Chips with the same place in their domains share leaves; spines join the leaves.
    )
    FAT_TREE = "fat-tree"  #: Neighboring domains share leaves; spines join the leaves.
    DRAGONFLY = "dragonfly"  #: Neighboring domains share a router; each router has a link to each.
