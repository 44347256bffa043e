"""Anonymity sets: how many known workloads an observer cannot tell from the shared one."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from flint.tools.share.leaks.fingerprints import Fingerprint, View
from flint.tools.share.leaks.known import Entry, Known


@dataclass(frozen=True, slots=True)
class AnonymitySet:
    """Known workloads with the fingerprint of the shared one in one view (looked up by hash).

    `among` is the number of known workloads. The world is closed: none (`entries` empty) says that
    no *known* workload looks so, which points at whoever made it, and hides nothing.
    """

    view: View
    entries: tuple[Entry, ...]
    among: int

    @property
    def size(self) -> int:
        """How many known workloads look the same."""
        return len(self.entries)

    @property
    def models(self) -> tuple[str, ...]:
        """Their distinct models, sorted."""
        return tuple(sorted({e.model for e in self.entries}))

    @property
    def families(self) -> tuple[str, ...]:
        """Their distinct families, sorted."""
        return tuple(sorted({e.family for e in self.entries}))

    @property
    def identification_bits(self) -> float | None:
        """Bits that an observer learns who holds all known workloads alike likely.

        log2(among / size): 0 where all look the same. None where no known workload looks so.
        """
        return math.log2(self.among / self.size) if self.entries else None


def anonymity_set(of: Fingerprint, known: Known, view: View) -> AnonymitySet:
    """Known workloads that look like the one with this fingerprint, in the order of `known`."""
    rows = np.flatnonzero(known.hashes[view] == np.uint64(of.hashes[view]))
    return AnonymitySet(view, tuple(known.entries[i] for i in rows.tolist()), len(known))
