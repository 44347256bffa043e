"""All families, each under the name that `index.json` has."""

from __future__ import annotations

from benchmarks.sharing.corpus.families import decoders, encoders, ranking, vision
from benchmarks.sharing.corpus.family import Family

FAMILIES: tuple[Family, ...] = (
    *decoders.FAMILIES,
    *encoders.FAMILIES,
    *vision.FAMILIES,
    *ranking.FAMILIES,
)
