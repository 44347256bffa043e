"""What a user types to get one point of a study again."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from flint.requests.capture import CaptureRequest
from flint.tools.explore.point import Point
from flint.tools.explore.subject import Subject, captured, estimated

#: Where the commands put the capture, and the cluster's file of a point that changes its cluster.
FOLDER, MACHINE = "trace", "machine.toml"


def commands(subject: Subject, point: Point) -> tuple[str, ...]:
    """`flint capture`, then `flint estimate`, which prints the step time of the point.

    Where the point changes its cluster, an exploration of this one point comes first, which writes
    that as a file.
    """
    on, options = _cluster(point), estimated(subject, point).words()
    found = [_capture(subject, point), iter(("estimate", FOLDER, "-c", on, *options))]
    if subject.serves:
        found = [_serve(subject, point)]
    if point.changes:
        found.insert(0, _machine(subject, point))
    return tuple(shlex.join(("flint", *words)) for words in found)


def _capture(s: Subject, p: Point) -> Iterator[str]:
    request = captured(s, p)
    told = request.but(chip=_cluster(p)) if s.world or s.compiler else request
    yield from ("capture", s.model, *told.words(), "-o", FOLDER, *_script(request))


def _script(request: CaptureRequest) -> Iterator[str]:
    if request.script_arguments:
        yield from ("--", *request.script_arguments)


def _cluster(p: Point) -> str:
    return MACHINE if p.changes else p.cluster


def _serve(s: Subject, p: Point) -> Iterator[str]:
    from flint.tools.serve.asked import served_as

    asked = served_as(dict(p.serve))
    yield from ("serve", s.model, *captured(s, p).words(), "-c", _cluster(p))
    yield from (*estimated(s, p).words(), *asked.words())


def _machine(s: Subject, p: Point) -> Iterator[str]:
    """An exploration of this one point, for its cluster's file."""
    request = captured(s, p)
    yield from ("explore", s.model, *request.words())
    yield from ("-c", p.cluster)
    for path, value in p.changes:
        yield from ("--sweep", f"cluster.{path}={swept(value)}")
    yield from ("--machine", MACHINE)
    yield from _script(request)


def swept(value: str) -> str:
    """One value of a sweep: in quotes where it would be read as several."""
    is_several = not value or any(mark in value for mark in (",", " ", "..", "'"))
    return f'"{value}"' if is_several else value
