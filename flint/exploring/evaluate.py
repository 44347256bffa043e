"""Evaluator: points of a space become results, in one process, each program captured once."""

from __future__ import annotations

import traceback
import weakref
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flint.capturing import CaptureOptions, captured, captured_from
from flint.errors import FlintError
from flint.exploring.point import Point
from flint.exploring.result import Result, Status
from flint.exploring.subject import Subject
from flint.frontends.contained import contained
from flint.ir.mesh import Mesh

if TYPE_CHECKING:
    from flint.steps.model_file import ModelFile, Target
    from flint.steps.options import PipelineOptions
    from flint.tracing import Trace


@dataclass
class Evaluator:
    """Evaluates the points of one subject.

    It imports the model file once, and keeps it imported until `close`.
    """

    subject: Subject
    _file: ModelFile | None = field(default=None, init=False, repr=False)
    _open: ExitStack = field(default_factory=ExitStack, init=False, repr=False)

    def __post_init__(self) -> None:
        weakref.finalize(self, self._open.close)

    def evaluate(self, points: Sequence[Point]) -> list[Result]:
        """A result for each point, in their order; all are of one `program`.

        What a user can mend makes a point REFUSED, anything else that is raised FAILED.
        """
        found: dict[Point, Result] = {}
        for alike in self._captured_alike(points):
            found.update(zip(alike, self._of_a_capture(alike), strict=True))
        return [found[p] for p in points]

    def trace(self, point: Point) -> Trace:
        """What `flint capture` makes of a point. Raises as that does."""
        return self._captured(point)

    def close(self) -> None:
        """Forget the modules of the model."""
        self._open.close()
        self._file = None

    def _captured_alike(self, points: Sequence[Point]) -> Iterable[Sequence[Point]]:
        """Scripts and compilers are told the chip, so what they make is of one cluster's."""
        if not (self.subject.world or self.subject.compiler):
            return [points] if points else []
        clusters = dict.fromkeys(p.cluster for p in points)
        return [[p for p in points if p.cluster == cluster] for cluster in clusters]

    def _of_a_capture(self, points: Sequence[Point]) -> list[Result]:
        try:
            trace = self._captured(points[0])
        except Exception as error:  # noqa: BLE001  one point's fault is no other's
            return [_rejected(p, error) for p in points]
        return [self._evaluated(p, trace) for p in points]

    def _evaluated(self, point: Point, trace: Trace) -> Result:
        from flint.backends.cost.estimate import estimate
        from flint.exploring.cluster_changes import machine_of
        from flint.exploring.evaluated import result_of

        try:
            found = estimate(
                trace.workload,
                machine_of(point),
                stack=point.stack or None,
                policy=point.policy or None,
                mapping=point.mapping or None,
                routing=point.routing or None,
            )
            return result_of(point, found)
        except Exception as error:  # noqa: BLE001
            return _rejected(point, error)

    def _captured(self, point: Point) -> Trace:
        from flint.frontends.plugin_libraries import load_plugin_libraries
        from flint.steps.input_kind import InputKind, input_kind
        from flint.steps.model_file import Target

        options, target = self._options(point), Target.parse(self.subject.model)
        if options.world or input_kind(target.path) is not InputKind.PYTHON:
            return captured(options)
        load_plugin_libraries()
        with contained():
            return captured_from(self._model_file(target), options)

    def _model_file(self, target: Target) -> ModelFile:
        from flint.steps.model_file import ModelFile, importable

        if self._file is None:
            self._open.enter_context(importable(target.path.parent))
            self._file = ModelFile.read(target)
        return self._file

    def _options(self, point: Point) -> CaptureOptions:
        s = self.subject
        # What is swept of a script are options of its own.
        own = tuple(f"--{n.lstrip('-')}={v}" for n, v in point.settings) if s.world else ()
        settings = dict(s.settings) | ({} if s.world else dict(point.settings))
        return CaptureOptions(
            s.model,
            point.mesh or None,
            world=s.world,
            script_arguments=(*s.script_arguments, *own),
            clusters=(point.cluster,) if point.cluster else (),
            hints=s.hints,
            args=s.args,
            settings=tuple(f"{name}={value}" for name, value in settings.items()),
            trip_counts=s.trip_counts,
            partitioner=s.partitioner,
            compiler=s.compiler,
            pipeline=_pipeline({**dict(s.pipeline), **dict(point.pipeline)}.items()),
            profile=s.profile,
        )


def _pipeline(given: Iterable[tuple[str, str]]) -> PipelineOptions:
    """Raises FlintError FL216 for a number that is none, and for an option of no pipeline."""
    from flint.steps.options import PipelineOptions

    found: dict[str, str | int] = {}
    for name, text in given:
        if name in ("microbatches", "chunks"):
            if not text.isascii() or not text.isdigit():
                raise FlintError("FL216", f"{name}={text}: '{text}' is not a whole number")
            found[name] = int(text)
        elif name in ("cut", "schedule"):
            found[name] = text
        else:
            raise FlintError("FL216", f"a pipeline has no option '{name}'")
    return PipelineOptions(**found)  # type: ignore[arg-type]  # names and types are its fields'


def _rejected(point: Point, error: Exception) -> Result:
    devices = _devices(point)
    if isinstance(error, FlintError):
        return Result(
            point, Status.REFUSED, devices, error.message, error.code or "", error.place or ""
        )
    said = traceback.format_exception_only(error)[-1].strip()
    return Result(point, Status.FAILED, devices, said, place=_raised_at(error))


def _raised_at(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno}" if frames else ""


def _devices(point: Point) -> int:
    try:
        return Mesh.parse(point.mesh).size
    except FlintError:
        return 0
