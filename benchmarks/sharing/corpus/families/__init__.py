"""All families, each under the name that `index.json` has."""

from __future__ import annotations

from benchmarks.sharing.corpus.families import (
    cells,
    convolutions,
    decoders,
    denoisers,
    encoders,
    experts,
    fields,
    generators,
    graphs,
    linear_attention,
    ranking,
    serving,
    state_spaces,
    towers,
    vision,
)
from benchmarks.sharing.corpus.family import Family

FAMILIES: tuple[Family, ...] = (
    *decoders.FAMILIES,
    *encoders.FAMILIES,
    *experts.FAMILIES,
    *vision.FAMILIES,
    *convolutions.FAMILIES,
    *denoisers.FAMILIES,
    *generators.FAMILIES,
    *state_spaces.FAMILIES,
    *linear_attention.FAMILIES,
    *cells.FAMILIES,
    *graphs.FAMILIES,
    *towers.FAMILIES,
    *fields.FAMILIES,
    *serving.FAMILIES,
    *ranking.FAMILIES,
)
