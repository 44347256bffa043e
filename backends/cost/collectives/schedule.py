"""What an algorithm asks of the links of one tier."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Schedule:
    """One algorithm on one tier, as one rank sees it.

    `steps` messages follow each other, `wire_bytes` go out over the links of the tier, and
    `own_bytes` is the rank's own part, which is copied and never sent. `links` is the share of the
    bandwidth of the tier that the algorithm can use: below 1 where some links lie idle, and above
    it where the bandwidth of the tier is that of one link of several. `local_ns` is what chips and
    hosts do beside the messages.
    """

    algorithm: str
    steps: float
    wire_bytes: float
    own_bytes: float = 0.0
    links: float = 1.0
    local_ns: float = 0.0
