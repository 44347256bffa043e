"""What a replay says: times of requests as means and percentiles, throughput, goodput, where time went."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from flint.errors import FlintError, nearest
from flint.io.documents import IfAny, Millionths, Thousandths
from flint.ir.arrays import Mask
from flint.tools.serve.engine.record import KINDS, Held, PassColumns, Passes
from flint.tools.serve.replay import Pool, Replay
from flint.tools.serve.requests.table import Floats

#: Most points of the cache's use over time.
_MOST_POINTS = 256
#: Most parts of a replay whose times are told, and how many requests each has at least on average.
_MOST_SPANS, _OF_A_SPAN = 24, 20
#: An open loop is overloaded if more than this share still waits when the last request arrives, ...
_BACKLOG = 0.05
#: ... and the last third waited this many times as long as the first. Both are judgments.
_GROWTH = 2.0
#: Fewer that wait are chance.
_FEWEST = 10
#: Arrivals that end within so many times of a request show no steady state: a judgment, as the number to show one.
_STEADY, _LONG = 3, 10
_LIMIT = re.compile(r"\s*(\w+)\s*<=?\s*(\d+\.?\d*|\.\d+)\s*(us|ms|s)\s*")
_NS = {"us": 1e3, "ms": 1e6, "s": 1e9}
LIMITED = ("ttft", "tpot", "latency", "queue")


@dataclass(frozen=True)
class Limit:
    """The most that a request may take of one quantity."""

    quantity: str
    most_ns: float


def limits_of(text: str) -> tuple[Limit, ...]:
    """Reads limits, with commas between them. Raises FlintError FL891 for what cannot be read or met."""
    found: dict[str, Limit] = {}
    for part in text.split(","):
        match = _LIMIT.fullmatch(part)
        if match is None or not float(match[2]):
            raise FlintError(
                "FL891", f"'{part.strip()}' is no limit", help="write ttft<=2s,tpot<=50ms"
            )
        name = match[1].lower()
        if name not in LIMITED or name in found:
            why = "stands twice" if name in found else f"is not limited{nearest(name, LIMITED)}"
            raise FlintError(
                "FL891", f"{name} {why} in '{text}'", help=f"limit {', '.join(LIMITED)}"
            )
        found[name] = Limit(name, float(match[2]) * _NS[match[3]])
    if "ttft" in found and "latency" in found and found["latency"].most_ns < found["ttft"].most_ns:
        raise FlintError(
            "FL891",
            f"'{text}' contradicts itself: the first token comes before the last",
            help="a limit of ttft above that of latency limits nothing: leave it out",
        )
    return tuple(found.values())


@dataclass(frozen=True)
class TimeSpread:
    """Mean and percentiles of a time in ns."""

    mean: Thousandths  #: In ns.
    p50: Thousandths  #: In ns; so are the others.
    p90: Thousandths  #: Nine of ten are at most this.
    p99: Thousandths  #: 99 of a hundred are at most this.


@dataclass(frozen=True)
class TimesOfSpan:
    """Times of requests that arrive in a part of the replay."""

    start_s: Millionths  #: Since the first arrival.
    end_s: Millionths  #: Since the first arrival.
    requests: int  #: That arrive in it, and end.
    ttft_ns: TimeSpread  #: From arrival to the first token.
    tpot_ns: IfAny[TimeSpread | None]  #: Over the tokens but one.


@dataclass(frozen=True)
class Goodput:
    """Requests that stayed within limits."""

    limits_ns: dict[str, float]  #: `ttft` and the like, with the most that each may be in ns.
    share: Millionths  #: Of all requests, those that never end among them.
    requests_per_s: Millionths  #: Over the duration.


@dataclass(frozen=True)
class NotEnded:
    """Requests that no engine can ever finish."""

    reason: str  #: In words.
    requests: int  #: How many.


@dataclass(frozen=True)
class PoolUse:
    """What the engines of one pool did."""

    engines: int  #: How many.
    passes: int  #: Of all engines.
    mean_batch: Millionths  #: Sequences in a pass.
    time: dict[str, float]
    """Shares of the engines' time in passes of prompts (prefill), of decodes, of both (mixed), in which
    the chip waits for the host, and without work (idle)."""
    cache_mean: Millionths  #: Share of the cache in use, over time.
    cache_peak: Millionths  #: The same at most.
    cache_over_time: tuple[tuple[float, float], ...]
    """Of the engine with the highest peak: seconds since the start, and the share."""
    preemptions: int  #: Sequences that lost their cache and computed it again.
    held_back: dict[str, int]  #: Passes in which somebody waited, by what held the first back.


@dataclass(frozen=True)
class Overload:
    """Requests come faster than the engines serve them: waits grow with the length of the log."""

    asked_tokens_per_s: Thousandths  #: Input and output tokens that arrive.
    served_tokens_per_s: Thousandths  #: The same over the duration.
    resource: str
    """What ends it: time (tokens a second of the passes), cache (its places) or sequences (an option)."""


@dataclass(frozen=True)
class ServeSummary:
    """A replay in numbers. Times and rates are of requests that ended."""

    requests: int  #: All that arrived.
    ended: int  #: Those that got all their tokens.
    not_ended: tuple[NotEnded, ...]  #: Those that never can, by reason.
    duration_s: Millionths  #: From the first arrival to the last token.
    ttft_ns: TimeSpread  #: From arrival to the first token.
    tpot_ns: IfAny[TimeSpread | None]
    """Between the first and the last token of a request, over its tokens but one."""
    itl_ns: IfAny[TimeSpread | None]  #: Between two tokens of a request, over all of them.
    latency_ns: TimeSpread  #: From arrival to the last token.
    queue_ns: TimeSpread
    """From arrival to the first pass, and from the transfer to the first pass of a pool that decodes."""
    requests_per_s: Millionths  #: Over the duration.
    input_tokens_per_s: Thousandths  #: Over the duration.
    output_tokens_per_s: Thousandths  #: Over the duration.
    cached_share: Millionths  #: Of prompts' tokens, those that were in the cache.
    pools: tuple[PoolUse, ...]  #: One, or prefill and decode.
    over_time: tuple[TimesOfSpan, ...]
    """Parts of equal length between the first and the last arrival, those without requests left out."""
    goodput: IfAny[Goodput | None] = None  #: Where limits were given.
    overload: IfAny[Overload | None] = None  #: Where the rate is too high.


def request_times(found: Replay) -> dict[str, Floats]:
    """By quantity, nanoseconds of each request; NaN for those that never end, and TPOT of one token."""
    times = found.times
    moved = np.nan_to_num(times.resumed - times.first)
    more = found.requests.output_tokens - 1
    with np.errstate(invalid="ignore", divide="ignore"):
        tpot = np.where(more > 0, (times.last - times.first) / more, np.nan)
    return {
        "ttft": times.first - times.queued,
        "tpot": tpot,
        "latency": times.last - times.queued,
        "queue": times.scheduled - times.queued + moved,
    }


def summarize(found: Replay, limits: Sequence[Limit] = ()) -> ServeSummary:
    """The summary of a replay, with the goodput under `limits` if there are any."""
    requests, times = found.requests, found.times
    ended = ~np.isnan(times.last)
    count = int(ended.sum())
    start_ns = float(np.nanmin(times.queued))
    duration_s = (float(np.nanmax(times.last)) - start_ns) / 1e9
    inputs, outputs = requests.input_tokens[ended].sum(), requests.output_tokens[ended].sum()
    spreads = request_times(found)
    why = Counter(found.unserved.values())
    good = _goodput(spreads, ended, limits, duration_s) if limits else None
    return ServeSummary(
        requests=len(requests),
        ended=count,
        not_ended=tuple(NotEnded(reason.value, why[reason]) for reason in sorted(why)),
        duration_s=duration_s,
        ttft_ns=_needed(spreads["ttft"]),
        tpot_ns=_spread(spreads["tpot"]),
        itl_ns=_gaps([p for pool in found.passes for p in pool]),
        latency_ns=_needed(spreads["latency"]),
        queue_ns=_needed(spreads["queue"]),
        requests_per_s=count / duration_s,
        input_tokens_per_s=float(inputs / duration_s),
        output_tokens_per_s=float(outputs / duration_s),
        cached_share=float(times.cached[ended].sum() / inputs),
        pools=tuple(
            _use(p, e, start_ns, duration_s) for p, e in zip(found.pools, found.passes, strict=True)
        ),
        over_time=tuple(_over_time(spreads, times.queued, ended)),
        goodput=good,
        overload=_overload(found, spreads["queue"], duration_s),
    )


def _over_time(values: dict[str, Floats], queued_ns: Floats, ended: Mask) -> Iterator[TimesOfSpan]:
    queued_s = (queued_ns - np.nanmin(queued_ns)) / 1e9
    count = min(_MOST_SPANS, max(1, len(queued_s) // _OF_A_SPAN))
    length = float(queued_s.max()) / count
    span = np.minimum(queued_s / (length or 1.0), count - 1).astype(np.int64)
    for at in range(count):
        mine = ended & (span == at)
        if mine.any():
            ttft, tpot = _needed(values["ttft"][mine]), _spread(values["tpot"][mine])
            yield TimesOfSpan(at * length, (at + 1) * length, int(mine.sum()), ttft, tpot)


def _spread(values: Floats, weights: Floats | None = None) -> TimeSpread | None:
    """Mean and percentiles; with `weights`, the value at which so much of the weight is reached."""
    kept = values[~np.isnan(values)]
    if not len(kept):
        return None
    if weights is None:
        return TimeSpread(float(kept.mean()), *np.percentile(kept, (50, 90, 99)).tolist())
    order = np.argsort(kept, kind="stable")
    reached = np.cumsum(weights[order])
    at = np.searchsorted(reached, reached[-1] * np.array((0.5, 0.9, 0.99)))
    return TimeSpread(float(np.average(kept, weights=weights)), *kept[order][at].tolist())


def _needed(values: Floats) -> TimeSpread:
    found = _spread(values)
    assert found is not None, "some request ended"
    return found


def _gaps(passes: Sequence[Passes]) -> TimeSpread | None:
    gaps = np.concatenate([np.array(p.gaps_ns) for p in passes])
    return _spread(gaps, np.concatenate([np.array(p.gaps, np.float64) for p in passes]))


def _goodput(
    values: dict[str, Floats],
    ended: Mask,
    limits: Sequence[Limit],
    duration_s: float,
) -> Goodput:
    good = ended.copy()
    for limit in limits:
        good &= ~(values[limit.quantity] > limit.most_ns)  # one token has no TPOT, and meets it
    count = int(good.sum())
    said = {limit.quantity: limit.most_ns for limit in limits}
    return Goodput(said, count / len(good), count / duration_s)


def _use(pool: Pool, engines: Sequence[Passes], start_ns: float, duration_s: float) -> PoolUse:
    every = [engine.columns for engine in engines]
    c = PassColumns(*(np.concatenate(column) for column in zip(*every, strict=True)))
    took, host_ns = c.end_ns - c.start_ns, pool.rules.host_ns
    all_ns = duration_s * 1e9 * len(engines)
    spent = {
        kind.value: float((took - host_ns)[c.kind == number].sum()) / all_ns
        for number, kind in enumerate(KINDS)
    }
    spent["host"] = host_ns * len(took) / all_ns
    blocks = pool.times.cache_tokens // pool.rules.block_tokens
    fullest = max(every, key=lambda e: e.used.max(initial=0))
    points = np.column_stack([(fullest.end_ns - start_ns) / 1e9, fullest.used / blocks])
    shown = np.unique(np.linspace(0, len(points), _MOST_POINTS, endpoint=False).astype(np.int64))
    shown = shown[: len(points)]
    held = sum((e.held_back for e in engines), Counter[Held]())
    return PoolUse(
        engines=len(engines),
        passes=len(took),
        mean_batch=float((c.decodes + c.prompts).sum()) / max(len(took), 1),
        time={
            k: round(v, 6) for k, v in {**spent, "idle": max(0.0, 1 - sum(spent.values()))}.items()
        },
        cache_mean=float(c.used @ took) / (all_ns * blocks),
        cache_peak=float(c.used.max(initial=0)) / blocks,
        cache_over_time=tuple((at, used) for at, used in points[shown].round(6).tolist()),
        preemptions=sum(e.preemptions for e in engines),
        held_back={reason.value: held[reason] for reason in Held},
    )


def _overload(found: Replay, queue_ns: Floats, duration_s: float) -> Overload | None:
    """Whether requests of an open loop come faster than they are served, and what ends that."""
    requests, times = found.requests, found.times
    if requests.concurrency is not None or not requests.span_s:
        return None
    started = np.fmax(times.scheduled, times.resumed)
    late = np.nanmean(started > requests.arrival_s[-1] * 1e9)
    waits = queue_ns[~np.isnan(queue_ns)]
    third = max(1, len(waits) // 3)
    held = sum((p.held_back for pool in found.passes for p in pool), Counter[Held]())
    if (
        late < _BACKLOG
        or late * len(waits) < _FEWEST
        or waits[-third:].mean() < _GROWTH * waits[:third].mean()
    ):
        held = _crowded(found, times.last - started) if len(requests) >= _FEWEST else Counter()
    if not held:
        return None
    ended = ~np.isnan(times.last)
    tokens = float((requests.input_tokens + requests.output_tokens)[ended].sum())
    worst = max(Held, key=lambda reason: held[reason])
    return Overload(
        tokens / requests.span_s,
        tokens / duration_s,
        "time" if worst is Held.TOKENS else worst.value,
    )


def _crowded(found: Replay, stays_ns: Floats) -> Counter[Held]:
    """What is too small for the sequences that the rate keeps under way, by how many times, if anything is.

    By Little's law these are the rate times their stay. In the last pool, which few requests do not fill: more
    would stay longer still, so what is too much now is too much for any number of requests.
    """
    requests, pool = found.requests, found.pools[-1]
    tokens = 0 if requests.prefixes else requests.input_tokens + requests.output_tokens / 2
    all_ns = pool.engines * requests.span_s * 1e9
    needed = {
        Held.SEQUENCES: float(np.nansum(stays_ns) / all_ns) / pool.rules.max_sequences,
        Held.CACHE: float(np.nansum(stays_ns * tokens) / all_ns) / pool.times.cache_tokens,
    }
    return Counter({reason: int(100 * part) for reason, part in needed.items() if part > 1})


def unsteady(found: Replay, summary: ServeSummary) -> tuple[str, ...]:
    """A note if the requests of an open loop end before as many are under way as their rate will keep."""
    span_s, latency_s = found.requests.span_s, summary.latency_ns.mean / 1e9
    if found.requests.concurrency or summary.overload or not 0 < span_s < _STEADY * latency_s:
        return ()
    enough = math.ceil(_LONG * latency_s * len(found.requests) / span_s)
    text = f"arrivals end after {span_s:.3g} s, and a request takes {latency_s:.3g} s: too few for a steady state"
    return (f"{text}, in which more are under way, and slower: n={enough} would show it",)
