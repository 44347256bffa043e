"""Subject: what stays the same over all points of a study."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Any, Self, TypeAlias

from flint.errors import FlintError
from flint.io.records import NonNegative
from flint.requests.capture import CaptureRequest
from flint.requests.estimate import EstimateRequest
from flint.requests.option import Form, as_text
from flint.steps.options import parse_settings
from flint.tools.explore.point import Pairs, Point

#: Names with values; a name may have several.
Repeated: TypeAlias = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Subject:
    """What is explored: a model, as `flint capture` takes it, and how its points are evaluated.

    Texts are as the command line takes them. `settings` and `pipeline` hold for all points; what a
    point says of the same name takes their place.
    """

    model: str  #: "FILE[:ENTRY]"
    args: str | None = None
    settings: Pairs = ()
    pipeline: Pairs = ()  #: cut, schedule, microbatches, chunks
    trip_counts: tuple[str, ...] = ()  #: "NAME=N"
    compiler: str = ""
    profile: str = "none"
    world: bool = False
    script_arguments: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()  #: "WHERE=VALUE"
    #: Options of an estimate in which points do not differ, by the fields of its request.
    estimate: Repeated = ()
    #: Tokens of a step, as an expression over options and mesh axes; "": see `tokens.py`.
    tokens: str = ""
    #: Whether points whose memory does not fit are priced, too.
    keep_infeasible: bool = False
    #: Whether points are replays of requests on engines that serve the model (`--serve`).
    serves: bool = False
    limit_seconds: NonNegative = 600  #: of one capture; one that takes longer is FAILED

    @classmethod
    def of(cls, capture: CaptureRequest, estimate: EstimateRequest, **how: Any) -> Self:
        """The subject of requests; `how` are the fields that say how points are evaluated.

        Raises FlintError FL216 for settings that are not NAME=VALUE, and what `flint.capturing.decided` raises.
        """
        from flint.capturing import decided

        capture, _ = decided(capture)
        given = capture.given()
        pipeline = ("chunks", "cut", "microbatches", "schedule")
        same = ("model", "args", "compiler", "profile", "world")
        as_they_are: dict[str, Any] = {name: getattr(capture, name) for name in same}
        return cls(
            **as_they_are,
            settings=tuple(sorted(parse_settings(capture.settings).items())),
            pipeline=tuple((name, str(given[name])) for name in pipeline if name in given),
            trip_counts=tuple(capture.trip_counts),
            script_arguments=tuple(capture.script_arguments),
            hints=tuple(capture.hints),
            estimate=_fixed(estimate),
            **how,
        )


def _fixed(request: EstimateRequest) -> Repeated:
    """The options of a request in which points do not differ, as texts."""
    found: list[tuple[str, str]] = []
    for name, value in request.given().items():
        if not request.options()[name].swept:
            texts = value if isinstance(value, tuple | list) else (value,)
            found += [(name, _written(name, text)) for text in texts]
    return tuple(found)


def fixed_sweeps(request: EstimateRequest) -> list[str]:
    """Options of an estimate in which points may differ, as dimensions of one value."""
    options, given = request.options(), request.given().items()
    return [f'{options[n].typed}="{_written(n, value)}"' for n, value in given if options[n].swept]


def _written(name: str, value: object) -> str:
    """A value as text. Raises FlintError FL219 for an object, of which a text would be the name alone."""
    if isinstance(value, str | PathLike | int | float | Mapping):
        return as_text(value)
    raise FlintError(
        "FL219",
        f"{name} of an estimate that flint.explore makes is a {type(value).__name__}",
        help="give a name, or write it into a file and give that, because processes and studies keep texts",
    )


def estimated(subject: Subject, point: Point) -> EstimateRequest:
    """How a point is estimated, on a cluster that is still to be named."""
    written: dict[str, Any] = dict(point.estimate)
    for name, text in subject.estimate:
        is_several = EstimateRequest.options()[name].form is Form.TEXTS
        written[name] = [*written.get(name, ()), text] if is_several else text
    return EstimateRequest.of(written)


def captured(s: Subject, p: Point) -> CaptureRequest:
    """What is captured of a point. What is swept of a script are options of its own.

    Raises FlintError FL216 for a number of a pipeline that is none, and for an option of no pipeline.
    """
    own = [f"--{name.lstrip('-')}={value}" for name, value in p.settings] if s.world else []
    settings = {**dict(s.settings), **({} if s.world else dict(p.settings))}
    return CaptureRequest(
        s.model,
        mesh=p.mesh or None,
        world=s.world,
        args=s.args,
        settings=tuple(f"{name}={value}" for name, value in settings.items()),
        trip_counts=s.trip_counts,
        hints=s.hints,
        compiler=s.compiler,
        profile=s.profile,
        script_arguments=(*s.script_arguments, *own),
        **_pipeline({**dict(s.pipeline), **dict(p.pipeline)}),
    )


def _pipeline(given: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, text in given.items():
        if name in ("microbatches", "chunks"):
            if not text.isascii() or not text.isdigit():
                raise FlintError("FL216", f"{name}={text}: '{text}' is not a whole number")
            found[name] = int(text)
        elif name in ("cut", "schedule"):
            found[name] = text
        else:
            raise FlintError("FL216", f"a pipeline has no option '{name}'")
    return found
