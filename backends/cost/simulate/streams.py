"""On which stream each row of a priced program runs, and whom it waits for in other rank classes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from flint.backends.cost.network.placement import NetworkPlacement, tier_of_row
from flint.backends.cost.simulate.layers import Preparation
from flint.backends.cost.simulate.timeline import Policy
from flint.cluster.models import Cluster
from flint.ir.program import Kind, Program


def streams_of(
    programs: Sequence[Program],
    cluster: Cluster,
    placement: NetworkPlacement,
    policy: Policy,
    prepared: Sequence[Preparation | None],
) -> tuple[tuple[str, ...], list[NDArray[np.int64]]]:
    """Names of streams, and the stream of every row: computation, by tier and kind, as recorded."""
    names = ["compute"]
    found = []
    if policy.recorded:
        return _all_as_recorded(programs)
    for program, early in zip(programs, prepared, strict=True):
        stream = np.zeros(len(program), dtype=np.int64)
        for row in np.flatnonzero(program.kind >= Kind.COLLECTIVE).tolist():
            kind = Kind(int(program.kind[row]))
            if policy.blocking and kind is not Kind.RECV:
                continue
            tier = tier_of_row(program, row, placement)
            suffix = "" if kind is Kind.COLLECTIVE else f" {kind.name.lower()}"
            name = cluster.network[tier].name + suffix
            if name not in names:
                names.append(name)
            stream[row] = names.index(name)
        if early:
            _beside(early, names, stream)
        if policy.keeps_streams:
            _as_recorded(program, names, stream)
        found.append(stream)
    return tuple(names), found


def _all_as_recorded(
    programs: Sequence[Program],
) -> tuple[tuple[str, ...], list[NDArray[np.int64]]]:
    names: list[str] = ["compute"]
    for program in programs:
        names += [n for n in program.streams if n not in names]
    numbers = [np.array([names.index(n) for n in p.streams], dtype=np.int64) for p in programs]
    return tuple(names), [of[p.stream] for of, p in zip(numbers, programs, strict=True)]


def _beside(early: Preparation, names: list[str], stream: NDArray[np.int64]) -> None:
    """Take kernels that prepare communication out of the compute stream."""
    for row, collective in early.feeds.items():
        stream[row] = stream[collective]
    if early.gathers.any() and early.counts.any():
        names += [] if "counters" in names else ["counters"]
        stream[early.counts] = names.index("counters")


def _as_recorded(program: Program, names: list[str], stream: NDArray[np.int64]) -> None:
    """Kernels that the program itself put on another stream than the first run on that."""
    aside = (program.kind == Kind.COMPUTE) & (program.stream > 0)
    for number in np.unique(program.stream[aside]).tolist():
        name = program.streams[number]
        names += [] if name in names else [name]
        stream[aside & (program.stream == number)] = names.index(name)


def peers_of(
    program: Program, rank: int, owner: NDArray[np.int16], *, others_only: bool = False
) -> dict[int, int]:
    """For each RECV row, the rank class that the message to `rank` comes from.

    With `others_only` no class receives of itself: one recorded rank stands for many, and its
    own sends are not what it received.
    """
    found = {}
    sources = {
        route: int(program.routes[route].sources(program.mesh)[rank])
        for route in np.unique(program.route[program.kind == Kind.RECV]).tolist()
    }
    for row in np.flatnonzero(program.kind == Kind.RECV).tolist():
        source = sources[int(program.route[row])]
        inside = source >= 0 and others_only and owner[source] == owner[rank]
        if source >= 0 and source != rank and not inside:
            found[row] = int(owner[source])
    return found


def together_of(
    program: Program, rank: int, owner: NDArray[np.int16]
) -> dict[int, tuple[int, ...]]:
    """For each collective row whose group reaches into several rank classes, those classes.

    Ranks of one class may meet ranks of different ones; as one rank stands for all of its class,
    all of these classes meet.
    """
    classes: dict[int, tuple[int, ...]] = {}
    for number in np.unique(program.group[program.kind == Kind.COLLECTIVE]).tolist():
        if number >= 0:
            members = program.groups[number].members(program.mesh)
            meeting = {tuple(np.unique(owner[group]).tolist()) for group in members}
            classes[number] = _connected(int(owner[rank]), meeting)
    rows = np.flatnonzero((program.kind == Kind.COLLECTIVE) & (program.group >= 0)).tolist()
    return {
        row: classes[int(program.group[row])]
        for row in rows
        if len(classes[int(program.group[row])]) > 1
    }


def _connected(start: int, meeting: set[tuple[int, ...]]) -> tuple[int, ...]:
    """The classes that meet `start`, or what meets it, sorted."""
    found, size = {start}, 0
    while size < len(found):
        size = len(found)
        found.update(c for classes in meeting if found.intersection(classes) for c in classes)
    return tuple(sorted(found))
