"""What a cause of a difference is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class CauseKind(StrEnum):
    """What is not what it was. The order is that in which causes explain what follows from them."""

    MESH = "mesh"
    LAYERS = "layers"
    SHAPE = "shape"
    PRECISION = "precision"
    SHARDING = "sharding"
    REMAT = "remat"
    ARGUMENTS = "arguments"
    DONATION = "donation"
    OPTIONS = "options"
    COLLECTIVES = "collectives"
    OPERATIONS = "operations"
    ORDER = "order"
    CLUSTER = "cluster"
    MEASURED = "measured"
    ESTIMATE = "estimate"


#: What the user sets: these stand first, whatever they cost.
GIVEN = (CauseKind.MESH, CauseKind.OPTIONS, CauseKind.CLUSTER)


@dataclass(frozen=True, slots=True)
class Cause:
    """One fact that differs, as a sentence without a subject: `model 8 -> 4`."""

    kind: CauseKind
    text: str


@dataclass(frozen=True, slots=True)
class Causes:
    """Causes in the order of `CauseKind`, and how many arguments have other names and are the same."""

    found: tuple[Cause, ...]
    renamed: tuple[tuple[str, str], ...] = ()
