"""What made workloads tell of the training workloads: shared bits, and attacks on membership."""

from __future__ import annotations

import lzma
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata

from benchmarks.sharing.evaluation.measuring.measured import Measured
from flint.ir.arrays import Float64s
from flint.tools.share.leaks.distances import shares, structure_distances
from flint.tools.share.leaks.fingerprints import View

#: So many near training programs are compressed with each program; the one that shares most counts.
NEAREST = 3
#: Raw LZMA without a header: two programs fit the dictionary.
_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 1, "dict_size": 1 << 22}]


@dataclass(frozen=True, slots=True)
class Shared:
    """Of one program: its bits when compressed alone, and how many less beside a training program."""

    bits: int
    shared: int

    @property
    def share(self) -> float:
        """The part of its bits that a training program has told already, 0 to 1."""
        return min(max(self.shared / max(self.bits, 1), 0.0), 1.0)


def shared_bits(made: Measured, training: Sequence[Measured], known: Float64s) -> Shared:
    """The bits that a program shares with that of the nearest training programs that shares most.

    Shared bits are C(x) + C(y) - C(xy), C the size of what LZMA makes of the structure: an estimate of
    mutual information (Cilibrasi and Vitanyi, 2005). Near are those with about the same
    neighbourhoods; `known` are `neighbourhoods(training)`.
    """
    distances = structure_distances(known, _shares(made))
    alone = compressed_bits(made.structure)
    found = 0
    for at in np.argsort(distances, kind="stable")[:NEAREST].tolist():
        other = training[at].structure
        found = max(found, alone + compressed_bits(other) - compressed_bits(other + made.structure))
    return Shared(alone, found)


def neighbourhoods(measured: Sequence[Measured]) -> Float64s:
    """Shares of neighbourhoods of depth 2 (op classes and edges), a row for each workload."""
    return np.stack([_shares(m) for m in measured])


def membership_auc(
    made: Sequence[Measured], members: Sequence[Measured], others: Sequence[Measured]
) -> float:
    """How well the distance to the nearest made workload tells training workloads from others.

    It is the area under the curve of true against false positives: 0.5 tells nothing, 1 everything.
    """
    known = neighbourhoods(made)
    nearest = [float(structure_distances(known, _shares(m)).min()) for m in (*members, *others)]
    ranks = rankdata([-d for d in nearest])
    n, m = len(members), len(others)
    return float((ranks[:n].sum() - n * (n + 1) / 2) / (n * m))


def compressed_bits(data: bytes) -> int:
    """Bits of what LZMA makes of it."""
    return 8 * len(lzma.compress(data, format=lzma.FORMAT_RAW, filters=_FILTERS))


def _shares(measured: Measured) -> Float64s:
    return np.asarray(shares(measured.counts[View.OPS]))
