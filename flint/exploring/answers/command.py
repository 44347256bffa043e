"""What a user types to get one point of a study again."""

from __future__ import annotations

import shlex

from flint.exploring.point import Point
from flint.exploring.subject import Subject

#: The file that `--machine` writes, where a point changes its cluster.
MACHINE = "machine.toml"


def commands(subject: Subject, point: Point) -> tuple[str, ...]:
    """`flint capture`, then `flint estimate`, which prints the step time of the point.

    Where the point changes its cluster, the second names the file that `--machine` writes.
    """
    return (shlex.join(_capture(subject, point)), shlex.join(_estimate(point)))


def _capture(s: Subject, p: Point) -> list[str]:
    words = ["flint", "capture", s.model]
    words += ["--world"] if s.world else []
    words += ["--mesh", p.mesh] if p.mesh else []
    words += ["--args", s.args] if s.args else []
    for name, value in {**dict(s.settings), **dict(p.settings)}.items():
        words += ["--set", f"{name}={value}"]
    for name, value in {**dict(s.pipeline), **dict(p.pipeline)}.items():
        words += [f"--{name}", value]
    for option, values in (("--trip-count", s.trip_counts), ("--hint", s.hints)):
        for value in values:
            words += [option, value]
    words += ["--partitioner", s.partitioner] if s.partitioner != "shardy" else []
    words += ["--compiler", s.compiler, "--chip", p.cluster] if s.compiler else []
    words += ["--profile", s.profile] if s.profile != "none" else []
    words += ["-o", "trace"]
    return [*words, "--", *s.script_arguments] if s.script_arguments else words


def _estimate(p: Point) -> list[str]:
    words = ["flint", "estimate", "trace", "-c", MACHINE if p.changes else p.cluster]
    for option, value in (
        ("--stack", p.stack),
        ("--overlap", p.policy),
        ("--map", p.mapping),
        ("--routing", p.routing),
    ):
        words += [option, value] if value else []
    return words
