"""What a user types to get one point of a study again."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from flint.tools.explore.point import Point
from flint.tools.explore.subject import Subject

#: Where the commands put the capture, and the cluster's file of a point that changes its cluster.
FOLDER, MACHINE = "trace", "machine.toml"


def commands(subject: Subject, point: Point) -> tuple[str, ...]:
    """`flint capture`, then `flint estimate`, which prints the step time of the point.

    Where the point changes its cluster, an exploration of this one point comes first, which writes
    that as a file.
    """
    found = [_capture(subject, point), _estimate(point)]
    if point.changes:
        found.insert(0, _machine(subject, point))
    return tuple(shlex.join(("flint", *words)) for words in found)


def _capture(s: Subject, p: Point) -> Iterator[str]:
    yield from ("capture", s.model)
    yield from _program(s, p)
    if s.world or s.compiler:
        yield from ("--chip", _cluster(p))
    yield from ("-o", FOLDER)
    yield from _script(s, p)


def _program(s: Subject, p: Point) -> Iterator[str]:
    """Options that say what is captured."""
    if p.mesh:
        yield from ("--mesh", p.mesh)
    if s.world:
        yield "--world"
    if s.args is not None:
        yield from ("--args", s.args)
    for name, value in {} if s.world else {**dict(s.settings), **dict(p.settings)}.items():
        yield from ("--set", f"{name}={value}")
    for name, value in {**dict(s.pipeline), **dict(p.pipeline)}.items():
        yield from (f"--{name}", value)
    for option, values in (("--trip-count", s.trip_counts), ("--hint", s.hints)):
        for value in values:
            yield from (option, value)
    if s.partitioner != "shardy" and not s.compiler:
        yield from ("--partitioner", s.partitioner)
    if s.compiler:
        yield from ("--compiler", s.compiler)
    if s.profile != "none":
        yield from ("--profile", s.profile)


def _script(s: Subject, p: Point) -> Iterator[str]:
    """Arguments of a script; what is swept of it are options of its own."""
    own = [f"--{n.lstrip('-')}={v}" for n, v in p.settings] if s.world else []
    if s.script_arguments or own:
        yield from ("--", *s.script_arguments, *own)


def _cluster(p: Point) -> str:
    return MACHINE if p.changes else p.cluster


def _estimate(p: Point) -> Iterator[str]:
    yield from ("estimate", FOLDER, "-c", _cluster(p))
    for option, value in (
        ("--stack", p.stack),
        ("--overlap", p.policy),
        ("--map", p.mapping),
        ("--routing", p.routing),
    ):
        if value:
            yield from (option, value)


def _machine(s: Subject, p: Point) -> Iterator[str]:
    """An exploration of this one point, for its cluster's file."""
    yield from ("explore", s.model)
    yield from _program(s, p)
    yield from ("-c", p.cluster)
    for path, value in p.changes:
        yield from ("--sweep", f"cluster.{path}={swept(value)}")
    yield from ("--machine", MACHINE)
    yield from _script(s, p)


def swept(value: str) -> str:
    """One value of a sweep: in quotes where it would be read as several."""
    is_several = not value or any(mark in value for mark in (",", " ", "..", "'"))
    return f'"{value}"' if is_several else value
