"""What a generator has to beat: copies, statistics of rows, changed copies, motifs put together."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.sharing.evaluation.baselines.copies import train_copy, train_nearest
from benchmarks.sharing.evaluation.baselines.motifs import train_motifs
from benchmarks.sharing.evaluation.baselines.mutate import train_mutate
from benchmarks.sharing.evaluation.baselines.trigram import train_trigram
from benchmarks.sharing.evaluation.generator import Trainer

#: Baselines by name, in the order of tables.
BASELINES: Mapping[str, Trainer] = {
    "copy": train_copy,
    "copy nearest": train_nearest,
    "mutate": train_mutate,
    "motifs": train_motifs,
    "trigram": train_trigram,
}
