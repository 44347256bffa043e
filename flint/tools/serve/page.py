"""A replay as one HTML page: times over time, caches, and where the time went."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from flint.text import format_duration
from flint.tools.report.page.charts.bars import BarSegment, bar_and_table, legend
from flint.tools.report.page.charts.scatter import Axis, ScatterDot, lines_chart
from flint.tools.report.page.colours import series
from flint.tools.report.page.document import document
from flint.tools.report.page.markup import Heading, Markup, join, table, tag
from flint.tools.report.page.section import Section
from flint.tools.serve.result import TimeSpread
from flint.tools.serve.serve import Served
from flint.tools.serve.show import pool_names, said_of, times_table

_FOOTER = (
    "Made by flint serve from captures of a model; nothing was run on hardware. Times of passes are estimates; "
    "Flint's docs/serve.md says which rules engines follow, and how close replays are to logs."
)
#: Colors of what the time of an engine goes into.
_SPENT = {"prefill": "s1", "mixed": "s2", "decode": "s3", "host": "declared", "idle": "idle"}


def served_html(served: Served) -> str:
    """The page of a replay. Equal replays give equal bytes."""
    spans, pools = served.summary.over_time, served.summary.pools
    columns, rows = times_table(served)
    times = table([Heading(c.title, c.right) for c in columns], rows, "times of requests")
    said = tag("ul", *(tag("li", line) for line in said_of(served)), cls="notes")
    names = pool_names(served)
    caches = [(name, pool.cache_over_time) for name, pool in zip(names, pools, strict=True)]
    spent = (
        bar_and_table(
            [BarSegment(what, share, _SPENT[what]) for what, share in pool.time.items()],
            1.0,
            (Heading("in"),),
            f"time of {name}",
        )
        for name, pool in zip(names, pools, strict=True)
    )
    sections = [
        Section("summary", "Summary", join((times, said))),
        _percentiles("TTFT", [(s.end_s, s.ttft_ns) for s in spans]),
        _percentiles("TPOT", [(s.end_s, s.tpot_ns) for s in spans if s.tpot_ns]),
        Section(
            "cache", "Cache in use: the fullest engine", _lines(caches, "{:.1%}".format, "cache")
        ),
        Section("spent", "Where the time went", join(spent)),
    ]
    name = served.surfaces[0].setting.workload.metadata.get("name") or "program"
    return document(f"{name}: {served.summary.requests:,} requests", join(()), sections, _FOOTER)


def _percentiles(name: str, spans: Sequence[tuple[float, TimeSpread]]) -> Section:
    """Of the requests of each span of arrivals, drawn where it ends."""
    shares = ("p50", "p90", "p99")
    curves = [(share, [(at, getattr(spread, share)) for at, spread in spans]) for share in shares]
    return Section(name.lower(), f"{name} by arrival", _lines(curves, format_duration, name))


def _lines(
    curves: Sequence[tuple[str, Iterable[tuple[float, float]]]],
    written: Callable[[float], str],
    name: str,
) -> Markup:
    dots = [
        [ScatterDot(x, y, series(n), f"{curve}: {written(y)} at {x:.4g} s", 2) for x, y in points]
        for n, (curve, points) in enumerate(curves)
    ]
    across = Axis("seconds since the first arrival", "{:g} s".format)
    chart = lines_chart(dots, across, Axis(name, written), f"{name} over time")
    return join((chart, legend([(curve, series(n)) for n, (curve, _) in enumerate(curves)])))
