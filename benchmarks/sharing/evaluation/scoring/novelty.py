"""How much of a set is new: whole programs, bodies of loops and neighbourhoods of rows, by hash."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.sharing.evaluation.measuring.measured import Measured
from flint.tools.share.leaks.fingerprints import View


@dataclass(frozen=True, slots=True)
class Novelty:
    """Shares of a set of workloads, 0 to 1.

    `programs`: whose program (op classes and edges) no training workload has; `topologies`: whose
    edges alone none has; `unique`: that no other of the set has; `bodies`: of bodies of loops, those
    that no training workload has (None without loops); `rows`: of rows, those whose neighbourhood of
    depth 3 none has.
    """

    programs: float
    topologies: float
    unique: float
    bodies: float | None
    rows: float


def novelty(made: Sequence[Measured], training: Sequence[Measured]) -> Novelty:
    """What of `made` is in no workload of `training`."""
    own = Counter(m.hashes[View.OPS] for m in made)
    bodies = np.concatenate([m.bodies for m in made])
    known_bodies = np.concatenate([t.bodies for t in training])
    known_rows = np.unique(np.concatenate([t.neighbours for t in training]))
    rows = [float((~np.isin(m.neighbours, known_rows)).mean()) for m in made]
    return Novelty(
        _unseen(made, training, View.OPS),
        _unseen(made, training, View.TOPOLOGY),
        float(np.mean([own[m.hashes[View.OPS]] == 1 for m in made])),
        float((~np.isin(bodies, known_bodies)).mean()) if len(bodies) else None,
        float(np.mean(rows)),
    )


def _unseen(made: Sequence[Measured], training: Sequence[Measured], view: View) -> float:
    known = {t.hashes[view] for t in training}
    return float(np.mean([m.hashes[view] not in known for m in made]))
