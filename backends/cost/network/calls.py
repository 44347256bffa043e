"""Where the members of a group lie on a cluster's network, as the collective models see it."""

from __future__ import annotations

from dataclasses import dataclass

from flint.ir.op_class import Collective


@dataclass(frozen=True, slots=True)
class Span:
    """The part of a group that lies inside one tier: `size` members, `stride` chips apart.

    `tier` is the index into `Cluster.network`, inner first. `sharing` is how many groups of the
    same collective leave through the same links of the tier at once (8 groups over nodes of 8
    chips share the node's links: each chip still has its own NIC, so it is 1 for them).

    On a torus (and on a ring, its case of one dimension) the members are a product of lines of
    chips: `torus_sizes` long, one in each dimension that the group occupies, with members
    `torus_strides` chips apart; as many groups are interleaved on the links of that line. Where
    `torus_wraps` is true the ends are joined: that line is a ring. A message on a torus goes
    `stride` hops, and `sharing` messages are on the fullest of its links.
    """

    tier: int
    size: int
    stride: int = 1
    sharing: int = 1
    torus_sizes: tuple[int, ...] = ()
    torus_strides: tuple[int, ...] = ()
    torus_wraps: tuple[bool, ...] = ()


@dataclass(frozen=True, slots=True)
class CollectiveCall:
    """One collective or message: `comm_bytes` is the bytes of the rank's input.

    `spans` are the tiers that the group crosses, inner first; the product of their sizes is the
    size of the group. For a message they hold the one tier that it goes through, with size 2.
    `collective` NONE is a message.
    """

    collective: Collective
    comm_bytes: int
    spans: tuple[Span, ...]

    @property
    def size(self) -> int:
        """Members of the group."""
        count = 1
        for span in self.spans:
            count *= span.size
        return count
