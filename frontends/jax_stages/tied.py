"""Parameters that are one parameter in two stages, found by their names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flint.errors import FlintError, nearest
from flint.frontends.jax_stages.parts import described, shown
from flint.frontends.jax_stages.stage_function import StageFunction
from flint.frontends.stages.pipeline import PlaceOfParameter, Tied


def find_tied(
    pairs: Sequence[tuple[str, str]],
    stages: Sequence[StageFunction],
    captured: Sequence[StageFunction],
) -> tuple[Tied, ...]:
    """Pairs of names as pairs of (stage, name).

    `captured[s]` is the stage that was captured for stage s: its parameters are the same in the
    same order, under the names that the ports have. Raises FlintError FL240: an unknown name, one
    that several stages have, or two parameters that are not alike.
    """
    known = {n for stage in stages for n in stage.params}
    found = []
    for pair in pairs:
        a, b = (_place_of(name, stages, known) for name in pair)
        x, y = (stages[s].params[n] for s, n in (a, b))
        if described(x) != described(y):
            raise FlintError(
                "FL240",
                f"tied parameters differ: {a[1]} is {_shown(x)}, {b[1]} is {_shown(y)}",
                help="a parameter in two stages has one shape, type and sharding",
            )
        found.append((a, b))
    return as_ports(found, stages, captured)


def as_ports(
    pairs: Sequence[Tied],
    stages: Sequence[StageFunction],
    captured: Sequence[StageFunction],
) -> tuple[Tied, ...]:
    """Pairs of places under the names that the ports of the captured stages have."""
    return tuple((_port(a, stages, captured), _port(b, stages, captured)) for a, b in pairs)


def _place_of(name: str, stages: Sequence[StageFunction], known: set[str]) -> PlaceOfParameter:
    at = [number for number, stage in enumerate(stages) if name in stage.params]
    if len(at) == 1:
        return at[0], name
    if at:
        raise FlintError(
            "FL240",
            f"tied names {name}, which stages {', '.join(map(str, at))} have",
            help="tie parameters of parts that are in one stage each",
        )
    raise FlintError(
        "FL240",
        f"tied names {name}, which no stage has{nearest(name, sorted(known))}",
        help="names are the part's and the path in its parameters: \"embed['table']\"",
    )


def _port(
    place: PlaceOfParameter, stages: Sequence[StageFunction], captured: Sequence[StageFunction]
) -> PlaceOfParameter:
    stage, name = place
    return stage, list(captured[stage].params)[list(stages[stage].params).index(name)]


def _shown(leaf: Any) -> str:
    return f"{shown(leaf)} {tuple(leaf.sharding.spec)}"
