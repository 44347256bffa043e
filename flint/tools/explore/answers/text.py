"""The answer of a study for people: what was asked, a table of the best, what was omitted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flint.text import Column, format_bytes, format_count, headings, plural, text_table
from flint.tools.explore.answers.command import commands
from flint.tools.explore.answers.objectives import OBJECTIVES, Objective
from flint.tools.explore.answers.rank import Ranking
from flint.tools.explore.point import PointField, choices, varying
from flint.tools.explore.result import Result, Status
from flint.tools.explore.study.study import Study

# Why points are not ranked: those with one reason together.


@dataclass(frozen=True, slots=True)
class Rejected:
    """`count` points with one reason; `example` is the one that came nearest: that needs least memory."""

    status: Status
    code: str
    count: int
    example: Result


def rejected_groups(results: Sequence[Result]) -> Iterator[Rejected]:
    """Points that do not fit, or were refused or failed, the largest group first.

    Those that do not fit are two groups: with the memory of their estimate, and with a bound of it;
    others go by code and place.
    """
    groups: dict[tuple[Status, str, str, bool], list[Result]] = {}
    for r in results:
        if r.status is not Status.FITS:
            place = r.place if r.code else ""
            groups.setdefault((r.status, r.code, place, r.is_bound), []).append(r)
    for (status, code, _, _), found in sorted(groups.items(), key=lambda g: (-len(g[1]), g[0])):
        nearest = min(found, key=lambda r: (r.memory_bytes, r.point))
        yield Rejected(status, code, len(found), nearest)


#: Quantities that every table has, beside the objectives.
_ALWAYS = ("goodput", "ttft_p99", "tpot_p99", "time", "tokens_per_s", "mfu", "memory")
#: Kinds of rejected points that are told without -v.
_MOST_REASONS = 6


def study_text(
    study: Study,
    ranking: Ranking,
    *,
    top: int = 10,
    verbose: bool = False,
    is_default: bool = False,
) -> str:
    """The first `top` rows and everything that they rest on; all reasons if `verbose`.

    `is_default`: nobody has said what is best.
    """
    blocks = [
        "\n".join(_asked(study, ranking, " (the default)" if is_default else "")),
        ranking_table(ranking, top) if ranking.results else "nothing fits",
        "\n".join(_beside(study, ranking, verbose)),
    ]
    if ranking.best is not None:
        blocks.append("\n".join(_again(study, ranking.best)))
    return "\n\n".join(b for b in blocks if b)


def said(study: Study, ranking: Ranking) -> list[str]:
    """Sentences on the space and on what was omitted, for a page."""
    asked = [line.strip() for line in _asked(study, ranking)]
    return [*asked, *(line.strip() for line in _beside(study, ranking, verbose=False))]


def ranking_table(ranking: Ranking, top: int) -> str:
    """The first rows: devices, mesh, what else differs among all points, then quantities."""
    points = [r.point for r in (*ranking.results, *ranking.rejected)]
    axes = {axis.partition("=")[0] for p in points for axis in p.mesh.split(",")}
    names = [n for n in varying(points) if n not in axes and n != "mesh"]
    shown = [
        o
        for o in _objectives(ranking.objectives)
        if any(o.value(r) is not None for r in ranking.results)
    ]
    columns = [
        *headings("> | >devices | mesh"),
        *(Column(n) for n in names),
        *(Column(o.title, right=True) for o in shown if o.name != "devices"),
    ]
    rows = [_row(at, r, names, shown) for at, r in enumerate(ranking.results[:top], 1)]
    return text_table(columns, rows)


def _objectives(asked: Sequence[Objective]) -> list[Objective]:
    always = (OBJECTIVES[name] for name in _ALWAYS)
    return list({o.name: o for o in (*asked, *always)}.values())


def _row(at: int, r: Result, names: Sequence[str], shown: Sequence[Objective]) -> list[str]:
    chosen = choices(r.point)
    return [
        str(at),
        format_count(r.devices),
        r.point.mesh or "-",
        *(chosen.get(n) or "-" for n in names),
        *(o.text(r) for o in shown if o.name != "devices"),
    ]


def _asked(study: Study, ranking: Ranking, default: str = "") -> Iterator[str]:
    """What was explored: objective, dimensions, what is fixed, conditions."""
    objective = " and ".join(
        f"{'most' if o.maximize else 'least'} {o.title}" for o in ranking.objectives
    )
    yield f"{study.subject.model}: {plural(len(study.results), 'point')}, by {objective}{default}"
    for d in study.dimensions:
        values = ", ".join(v or "(the program's own)" for v in d.values[:8])
        more = f" and {len(d.values) - 8:,} more" if len(d.values) > 8 else ""
        title = f"cluster.{d.name}" if d.field == PointField.CHANGE else d.name
        yield f"  {title}: {values}{more} ({d.origin})"
    explored = {
        d.name for d in study.dimensions if d.field in (PointField.SETTING, PointField.PIPELINE)
    }
    fixed = {n: v for n, v in study.space.get("fixed", {}).items() if n not in explored}
    if fixed:
        yield "  fixed: " + ", ".join(f"{n}={v}" for n, v in fixed.items())
    for text in (*study.space.get("conditions", ()), *study.space.get("limits", ())):
        yield f"  where {text}"
    yield from _work(ranking)


def _work(ranking: Ranking) -> Iterator[str]:
    tokens = sorted({r.tokens for r in ranking.results})
    if len(tokens) == 1 and tokens[0]:
        yield f"  tokens of a step: {tokens[0]:,}"
    elif len(tokens) > 1:
        yield (
            f"  tokens of a step: {tokens[0]:,} to {tokens[-1]:,} (steps do not do the same work)"
        )
    if 0 in tokens and not any(r.served for r in ranking.results):
        yield (
            "  tokens of a step are unknown, so it is also unknown whether steps do the same work (--tokens)"
        )


def _beside(study: Study, ranking: Ranking, verbose: bool) -> Iterator[str]:
    """What the table does not say: errors, what was rejected and why."""
    near = ranking.within_error()
    yield from dict.fromkeys(o.note for o in ranking.objectives if o.note)
    if near:
        yield f"within the error of the first (80 % intervals overlap): {near:,} of the others"
    if len(ranking.objectives) > 1:
        yield f"on the Pareto front: {ranking.on_front:,}; they stand first"
    yield f"{len(ranking.results):,} of {len(study.results):,} points fit" + (
        " and meet the limits" if ranking.beyond else ""
    )
    for text, count in ranking.beyond_counts().items():
        yield f"  {count:,} fit and are not ranked: {text}"
    rejected = list(rejected_groups(study.results))
    told = rejected if verbose else rejected[:_MOST_REASONS]
    yield from (f"  {_why(r)}" for r in told)
    rest = sum(r.count for r in rejected[len(told) :])
    if rest:
        yield f"  {rest:,} for {len(rejected) - len(told)} other reasons (-v shows all)"
    if ranking.best is not None:
        yield from (f"the first: {note}" for note in ranking.best.notes)
    if study.not_explored:
        yield f"{study.not_explored:,} points were not evaluated (--budget)"
    if study.reused:
        yield f"{study.reused:,} points were known from before"
    yield from study.notes


def _why(r: Rejected) -> str:
    if r.status is Status.TOO_LARGE:
        least = format_bytes(r.example.memory_bytes)
        room = format_bytes(r.example.capacity_bytes)
        how = "at least, before capture: " if r.example.is_bound else ""
        return f"{r.count:,} do not fit in memory ({how}the smallest takes {least} of {room}: {_short(r.example)})"
    code = f"[{r.code}]" if r.code else ""
    place = f" at {r.example.place}" if r.example.place else ""
    return f"{r.count:,} {r.status.value}{code}: {r.example.reason}{place} ({_short(r.example)})"


def _short(r: Result) -> str:
    options = (*r.point.settings, *r.point.pipeline, *r.point.serve)
    return " ".join((r.point.mesh, *(f"{n}={v}" for n, v in options)))


def _again(study: Study, best: Result) -> Iterator[str]:
    yield "the first row again:"
    for line in commands(study.subject, best.point):
        yield f"  {line}"
