"""All families, each under the name that `index.json` has."""

from __future__ import annotations

from benchmarks.sharing.corpus.families import (
    convolutions,
    decoders,
    encoders,
    experts,
    generators,
    ranking,
    recurrent,
    serving,
    structures,
    vision,
)
from benchmarks.sharing.corpus.family import Family

FAMILIES: tuple[Family, ...] = (
    *decoders.FAMILIES,
    *encoders.FAMILIES,
    *experts.FAMILIES,
    *vision.FAMILIES,
    *convolutions.FAMILIES,
    *generators.FAMILIES,
    *recurrent.FAMILIES,
    *structures.FAMILIES,
    *serving.FAMILIES,
    *ranking.FAMILIES,
)
