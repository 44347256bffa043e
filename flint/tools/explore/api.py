"""`flint.explore`: from a model and devices to ranked configurations, in one call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flint.errors import FlintError, nearest
from flint.requests.capture import CaptureRequest
from flint.requests.estimate import EstimateRequest
from flint.requests.keywords import refuse_unknown, takes_fields
from flint.tools.explore.answers.objectives import RATE, Objective, objectives_of
from flint.tools.explore.answers.rank import Ranking
from flint.tools.explore.result import Result
from flint.tools.explore.space.space import Space, space_of
from flint.tools.explore.study.study import Study
from flint.tools.explore.subject import Subject, fixed_sweeps

if TYPE_CHECKING:
    from flint.tools.explore.answers.against import StudyDifference
    from flint.tools.explore.answers.explain import RowExplanation
    from flint.tools.explore.study.run import Listener
    from flint.tools.explore.study.search import SearchKind
    from flint.tools.explore.workers.work import Executor
    from flint.tools.hints.hint import StepHints


@dataclass(frozen=True)
class Answer:
    """A study, ranked: what `flint explore` prints.

    `study` holds all results, `ranking` those that fit, the recommended one first.
    """

    study: Study
    ranking: Ranking
    #: Combinations that conditions forbade, by the first that did; empty for a study that was loaded.
    left_out: Mapping[str, int] = field(default_factory=dict)
    #: Whether nobody said what is best.
    is_default: bool = False

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        objective: str | Sequence[str] = (),
        where: str | Sequence[str] = (),
    ) -> Answer:
        """A study as its file has it: nothing is evaluated, and whether it still holds is not looked at.

        `objective` and `where` are as in `flint.explore`. Raises FlintError FL864 for a file that is
        no study, FL869 for objectives, FL861 for conditions.
        """
        from flint.tools.explore.answers.rank import ranked

        goals = objectives_of(_texts(objective)) if objective else ()
        return cls(*ranked(Study.load(path), goals, _texts(where)), is_default=not goals)

    @property
    def best(self) -> Result | None:
        """The recommended point; None if nothing fits."""
        return self.ranking.best

    @property
    def results(self) -> tuple[Result, ...]:
        """What came of every point, those that were rejected too."""
        return self.study.results

    def front(self) -> tuple[Result, ...]:
        """The points that no other one beats in all objectives."""
        return self.ranking.front

    def explain(self, first: int = 1, second: int = 2) -> RowExplanation:
        """Why row `first` of the ranking beats row `second`. Raises FlintError FL874 for no such row."""
        from flint.tools.explore.answers.explain import explain

        rows = self.ranking.results
        for number in (first, second):
            if not 1 <= number <= len(rows):
                raise FlintError(
                    "FL874",
                    f"the ranking has no row {number}",
                    help=f"it has rows 1 to {len(rows)}" if rows else "nothing fits",
                )
        return explain(rows[first - 1], rows[second - 1])

    def against(self, other: Answer | Study) -> StudyDifference:
        """What `other` says otherwise than this."""
        from flint.tools.explore.answers.against import against

        study = other.study if isinstance(other, Answer) else other
        return against(self.study, study, self.ranking.objectives)

    def to_text(self, *, top: int = 10, verbose: bool = False) -> str:
        """The first `top` rows and what they rest on; every reason of rejection if `verbose`."""
        from flint.tools.explore.answers.text import study_text

        return study_text(
            self.study, self.ranking, top=top, verbose=verbose, is_default=self.is_default
        )

    def to_html(self) -> str:
        """One page: front, parallel coordinates, heat maps, scaling, bottlenecks, rejected points."""
        from flint.tools.explore.answers.text import said
        from flint.tools.explore.page.document import study_html

        title = Path(self.study.subject.model).name
        told = said(self.study, self.ranking)
        return study_html(self.ranking, title=title, said=told, hints=self._hints())

    def _hints(self) -> StepHints | None:
        """What to change next of the recommended point, which is captured again; None of a script.

        None, too, where its model is no longer there.
        """
        from flint.capturing import capture
        from flint.cluster.named import load_cluster
        from flint.tools.explore.machine.cluster_changes import changed
        from flint.tools.explore.subject import captured, estimated

        subject = self.study.subject
        if self.best is None or subject.world or subject.serves:
            return None
        point = self.best.point
        try:
            trace = capture(captured(subject, point))
            on = changed(load_cluster(point.cluster), point.changes)
            return trace.estimate(**estimated(subject, point).but(cluster=on).given()).hints()
        except FlintError:
            return None

    def to_arrow(self) -> Any:
        """All results as a `pyarrow.Table`. Raises FlintError FL870 without pyarrow."""
        from flint.tools.explore.answers.export import to_arrow

        return to_arrow(self.results)

    def to_pandas(self) -> Any:
        """All results as a `pandas.DataFrame`. Raises FlintError FL870 without pandas."""
        from flint.tools.explore.answers.export import to_pandas

        return to_pandas(self.results)

    def to_polars(self) -> Any:
        """All results as a `polars.DataFrame`. Raises FlintError FL870 without polars."""
        from flint.tools.explore.answers.export import to_polars

        return to_polars(self.results)

    def export(self, path: str | Path, *, force: bool = False) -> None:
        """Write all results to a .csv or .parquet file. Raises FlintError FL870, FL502."""
        from flint.tools.explore.answers.export import write_table

        write_table(self.results, Path(path), force=force)

    @cached_property
    def _text(self) -> str:
        return self.to_text()

    def __str__(self) -> str:
        return self._text

    def _repr_html_(self) -> str:
        import html

        return f"<pre>{html.escape(self._text)}</pre>"


#: Fields of a CaptureRequest that hold for all points.
_CAPTURED = (
    *("settings", "args", "compiler", "trip_counts"),
    *("world", "script_arguments", "hints"),
)


@takes_fields(CaptureRequest, _CAPTURED)
def explore(
    model: str | Path | Callable[..., Any],
    devices: int | Sequence[int] = (),
    clusters: str | Path | Sequence[str | Path] = (),
    *,
    mesh: str | None = None,
    sweep: Mapping[str, object] | Sequence[str] = (),
    where: str | Sequence[str] = (),
    objective: str | Sequence[str] = (),
    tokens: str = "",
    study: str | Path | None = None,
    budget: int | None = None,
    search: str | None = None,
    seed: int = 0,
    jobs: int = 0,
    executor: Executor | None = None,
    keep_infeasible: bool = False,
    estimate: EstimateRequest | None = None,
    progress: Listener | None = None,
    serve: Mapping[str, object] | Sequence[str] = (),
    **captured: object,
) -> Answer:
    """Estimate every configuration of a program on some devices, and rank those that fit.

    `model` is a file as `flint capture` takes it ("train.py:entry"), or an entry of a file; `devices` are
    numbers of devices, `clusters` presets or files. Explored are meshes of the entry's axes (limited by
    `mesh`: "pipe=4,data=*,model=1..8"), options that it declares as choices, and what `sweep` adds:
    {"remat": ["none", "full"], "cluster.ib.bandwidth": "50..400GB/s"}, or as `--sweep` has it. `where` are
    conditions ("memory <= 70GiB"), `tokens` is as for `flint explore`. With several names in `objective`
    ("time", "mfu", ...) the Pareto front stands first. The file `study` keeps results. Spaces of more than
    `budget` points are searched (`search`: "nsga2", "tpe", "random") from `seed`. `jobs` processes evaluate
    (0: one a processor), or an `executor`; points that do not fit are priced too if `keep_infeasible`.
    `estimate` says how points are estimated, the fields below how they are captured; `progress` hears of results.
    With `serve` ({"rate": "1..50/s"}, or as `--serve` has it) points are replays of requests (docs/serve.md).

    Raises FlintError FL860 to FL874, and what loading the model raises.
    """
    from flint.tools.explore.study.run import explore_space

    request, estimate = _captured(model, captured), estimate or EstimateRequest()
    how = {"tokens": tokens, "keep_infeasible": keep_infeasible, "serves": bool(serve)}
    subject = Subject.of(request, estimate, **how)
    objectives = objectives_of(_texts(objective)) if objective else ()
    space = space_of(
        subject, devices=(devices,) if isinstance(devices, int) else tuple(devices),
        clusters=_texts(clusters), mesh=mesh, sweeps=[*_sweeps(sweep), *fixed_sweeps(estimate)],
        where=_texts(where), serve=_sweeps(serve),
    )  # fmt: skip
    found = explore_space(
        space,
        study=None if study is None else Path(study),
        executor=executor,
        objectives=objectives or (RATE,),
        budget=budget,
        kind=find_search(search),
        seed=seed,
        jobs=jobs,
        progress=progress,
    )
    return answer(found, space, objectives)


def answer(study: Study, space: Space, objectives: Sequence[Objective]) -> Answer:
    """The ranking of a study of a space. Raises FlintError FL861 as `ranked` does."""
    from flint.tools.explore.answers.rank import ranked

    found, ranking = ranked(study, objectives)
    left_out = space.left_out()
    return Answer(found, ranking, left_out, not objectives)


def find_search(name: str | None) -> SearchKind | None:
    """How points are chosen, by name; None for what suits the objectives. Raises FlintError FL873."""
    from flint.tools.explore.study.search import SearchKind

    known = [kind.value for kind in SearchKind]
    if name is not None and name not in known:
        raise FlintError(
            "FL873",
            f"unknown search '{name}'{nearest(name, known)}",
            help="searches are " + ", ".join(known),
        )
    return None if name is None else SearchKind(name)


def _captured(model: str | Path | Callable[..., Any], fields: dict[str, object]) -> CaptureRequest:
    refuse_unknown("explore", _CAPTURED, fields)
    return CaptureRequest.of({"model": _model(model), **fields})


def _model(model: str | Path | Callable[..., Any]) -> str:
    """The file of an entry, as workers load it. Raises FlintError FL211 for a function of no file."""
    if isinstance(model, str | Path):
        return str(model)
    file = inspect.getsourcefile(inspect.unwrap(model))
    name = getattr(model, "__qualname__", "")
    if file is None or not Path(file).is_file() or "<" in name:
        raise FlintError(
            "FL211",
            f"'{name or model}' is not in a file that another process could load",
            help="put it at the top level of a file, and give flint.explore the file: 'train.py:entry'",
        )
    return f"{file}:{name}"


def _sweeps(sweep: Mapping[str, object] | Sequence[str]) -> Sequence[str]:
    if isinstance(sweep, str):
        return (sweep,)
    if not isinstance(sweep, Mapping):
        return tuple(sweep)
    return [f"{name}={_values(values)}" for name, values in sweep.items()]


def _values(values: object) -> str:
    """A text as `--sweep` has it, or several values, each of which is one."""
    from flint.tools.explore.answers.command import swept

    return values if isinstance(values, str) else ",".join(map(swept, _texts(values)))


def _texts(found: object) -> tuple[str, ...]:
    if isinstance(found, Iterable) and not isinstance(found, str | bytes):
        return tuple(map(str, found))
    return (str(found),)
