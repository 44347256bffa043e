"""A replay as a Perfetto trace: passes of each engine, what it holds, and the lives of requests."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator, Mapping

import numpy as np

from flint.tools.report import perfetto
from flint.tools.report.perfetto import EventType, described, messages, occurred
from flint.tools.serve.engine.record import KINDS, PassColumns
from flint.tools.serve.replay import Replay

#: Numbers of tracks of one engine: itself, its passes, its counters.
_TRACKS = 8


def timeline_of(replay: Replay) -> bytes:
    """The trace, up to the time at which pass NODE_LIMIT begins; then the process of requests says so.

    An engine is a process. Requests have as many threads as are under way at a time. Times are rounded to 1 ns.
    """
    kinds = ("prefill", "decode") if len(replay.pools) > 1 else ("engine",)
    every = [
        (f"{kind} {at}", one.columns, pool.rules.block_tokens)
        for kind, pool, passes in zip(kinds, replay.pools, replay.passes, strict=True)
        for at, one in enumerate(passes)
    ]
    starts, limit = np.sort(np.concatenate([c.start_ns for _, c, _ in every])), perfetto.NODE_LIMIT
    until = float(starts[limit]) if len(starts) > limit else math.inf
    packets: list[Iterator[object]] = []
    for number, (name, c, block_tokens) in enumerate(every, 1):
        shown = PassColumns(*(column[c.start_ns < until] for column in c))
        packets.append(_engine(number, name, shown, block_tokens))
    said = f"requests of the first {limit:,} passes" if until < math.inf else "requests"
    packets.append(_lives(replay, len(every) + 1, said, until))
    return perfetto.trace_bytes(itertools.chain.from_iterable(packets))


def _engine(number: int, name: str, c: PassColumns, block_tokens: int) -> Iterator[object]:
    base = number * _TRACKS
    yield _process(number, base, name)
    yield _thread(number, base + 1, base, "passes")
    rows = zip(c.start_ns, c.end_ns, c.kind.astype(int), c.decodes, c.prompts, c.new, strict=True)
    for start, end, kind, decodes, prompts, new in rows:
        said = {"decodes": decodes, "prompts": prompts, "prompt_tokens": new}
        yield from _slice(base + 1, KINDS[kind].value, start, end, said)
    counters = {
        "tokens in the cache": c.used * block_tokens,
        "sequences that run": c.decodes + c.prompts,
        "sequences that wait": c.waiting,
    }
    idle = np.append(c.start_ns[1:] > c.end_ns[:-1], True)[: len(c.start_ns)]
    for track, (what, values) in enumerate(counters.items(), base + 2):
        unit = messages().CounterDescriptor()
        yield described(uuid=track, parent_uuid=base, name=what, counter=unit)
        before = 0
        for start, end, value, ends in zip(c.start_ns, c.end_ns, values, idle, strict=True):
            for moment, count in ((start, int(value)), *([(end, 0)] if ends else [])):
                if count != before:
                    yield _event(track, moment, EventType.COUNTER, counter_value=count)
                before = count


def _lives(replay: Replay, number: int, name: str, until: float) -> Iterator[object]:
    """Each request as a slice of a thread that no other uses meanwhile, and inside of it what it does."""
    base, t, r = number * _TRACKS, replay.times, replay.requests
    yield _process(number, base, name)
    free: list[tuple[float, int]] = []
    resumed = np.where(np.isnan(t.resumed), t.first, t.resumed)
    moments = np.column_stack([t.queued, t.scheduled, t.first, resumed, t.last])
    said = {
        "input_tokens": r.input_tokens,
        "output_tokens": r.output_tokens,
        "cached_tokens": t.cached,
        "preemptions": t.preemptions,
        "engine": t.replica,
    }
    mine = np.flatnonzero(~np.isnan(t.last) & (t.queued < until))
    for request in mine[np.argsort(t.queued[mine], kind="stable")].tolist():
        at = moments[request].tolist()
        if free and free[0][0] <= at[0]:
            _, thread = heapq.heapreplace(free, (at[-1], free[0][1]))
        else:
            thread = base + 1 + len(free)
            heapq.heappush(free, (at[-1], thread))
            yield _thread(number, thread, base, f"requests {len(free)}")
        inside = zip(("wait", "prefill", "wait", "decode"), itertools.pairwise(at), strict=True)
        facts = {key: column[request] for key, column in said.items()}
        begin, *_, end = _slice(thread, f"request {request}", at[0], at[-1], facts)
        yield begin
        for what, (start, stop) in inside:
            if stop > start:
                yield from _slice(thread, what, start, stop, {})
        yield end


def _slice(
    track: int, name: str, start: float, end: float, said: Mapping[str, float]
) -> Iterator[object]:
    notes = [perfetto.argument(key, int(value)) for key, value in said.items()]
    yield _event(track, start, EventType.SLICE_BEGIN, name=name, debug_annotations=notes)
    yield _event(track, end, EventType.SLICE_END)


def _event(track: int, moment: float, kind: EventType, **fields: object) -> object:
    return occurred(round(moment), messages().TrackEvent(type=kind, track_uuid=track, **fields))


def _process(number: int, track: int, name: str) -> object:
    return described(
        uuid=track, process=messages().ProcessDescriptor(pid=number, process_name=name)
    )


def _thread(number: int, track: int, parent: int, name: str) -> object:
    thread = messages().ThreadDescriptor(pid=number, tid=track, thread_name=name)
    return described(uuid=track, parent_uuid=parent, thread=thread)
