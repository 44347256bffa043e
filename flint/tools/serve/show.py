"""What `flint serve` prints."""

from __future__ import annotations

from collections.abc import Iterator

from flint.text import Column, format_bytes, format_duration, text_table
from flint.tools.serve.result import PoolUse, TimeSpread
from flint.tools.serve.serve import Served
from flint.tools.serve.surface.surface import Surface

_TIMES = (("TTFT", "ttft_ns"), ("TPOT", "tpot_ns"), ("latency", "latency_ns"), ("wait", "queue_ns"))


def served_text(served: Served) -> str:
    """The replay for people: what was served, times, rates, and what each pool did."""
    head, rates, *pools = (list(lines) for lines in _said(served))
    parts = [head, [text_table(*times_table(served))], rates, *pools]
    parts.append([f"note     {note}" for note in served.notes])
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def said_of(served: Served) -> list[str]:
    """The same without the table, line by line."""
    return [line for lines in _said(served) for line in lines] + list(served.notes)


def pool_names(served: Served) -> tuple[str, ...]:
    """What the engines of each pool do."""
    return ("prefill", "decode") if len(served.surfaces) > 1 else ("engines",)


def _said(served: Served) -> Iterator[Iterator[str]]:
    yield _head(served)
    yield _rates(served)
    yield from map(_pool, pool_names(served), served.surfaces, served.summary.pools)


def _head(served: Served) -> Iterator[str]:
    s, workload = served.summary, served.surfaces[0].setting.workload
    clusters = dict.fromkeys(surface.setting.cluster.name for surface in served.surfaces)
    yield f"program  {workload.metadata.get('name') or 'program'}"
    yield f"machines {served.devices} devices: {', '.join(clusters)}"
    yield f"requests {s.requests:,} ({served.replay.requests.source}), {s.ended:,} ended"
    for left in s.not_ended:
        yield f"         {left.requests:,} never end: {left.reason}"
    if s.overload:
        o = s.overload
        yield (
            f"TOO MANY requests come faster than they are served: {o.asked_tokens_per_s:,.0f} tokens/s arrive, "
            f"{o.served_tokens_per_s:,.0f} are served; what ends first: {o.resource}"
        )


def times_table(served: Served) -> tuple[list[Column], list[list[str]]]:
    """Times of requests: headings and rows."""
    rows = [
        [name, *(format_duration(v) for v in (s.mean, s.p50, s.p90, s.p99)), *_ends(served, field)]
        for name, field in _TIMES
        if isinstance(s := getattr(served.summary, field), TimeSpread)
    ]
    sure = ("80 %: mean", "p99") if served.ends else ()
    heads = [Column(name, right=bool(name)) for name in ("", "mean", "p50", "p90", "p99", *sure)]
    return heads, rows


def _ends(served: Served, field: str) -> list[str]:
    """The mean and the 99th percentile at both ends of the intervals of passes."""
    found = [getattr(end, field) for end in served.ends]
    both = [[format_duration(v) for v in (s.mean, s.p99)] for s in found]
    return [f"{low} to {high}" for low, high in zip(*both, strict=True)] if both else []


def _rates(served: Served) -> Iterator[str]:
    s = served.summary
    yield (
        f"rate     {s.requests_per_s:.3g} requests/s, {s.input_tokens_per_s:,.0f} + "
        f"{s.output_tokens_per_s:,.0f} tokens/s in and out, over {s.duration_s:.4g} s"
    )
    if s.goodput:
        limits = ", ".join(f"{k} <= {format_duration(v)}" for k, v in s.goodput.limits_ns.items())
        yield f"goodput  {s.goodput.requests_per_s:.3g} requests/s, {s.goodput.share:.1%} ({limits})"
    price = served.surfaces[0].setting.cluster.price_per_hour
    if price and (hourly := served.summed(lambda cluster: cluster.price_per_hour)):
        million = hourly / 3600 / max(s.output_tokens_per_s, 1e-9) * 1e6
        yield f"cost     {million:.3g} USD a million output tokens ({price.kind}: {hourly:.4g} USD/h)"


def _pool(name: str, surface: Surface, use: PoolUse) -> Iterator[str]:
    memory = surface.memory
    yield (
        f"{name:<8} {use.engines} x {surface.setting.workload.mesh.size} devices; {use.passes:,} passes of "
        f"{use.mean_batch:.3g} sequences; {use.preemptions:,} preemptions"
    )
    spent = ", ".join(f"{kind} {share:.1%}" for kind, share in use.time.items() if share >= 5e-4)
    yield f"time     {spent}"
    yield (
        f"cache    {surface.cache_tokens:,} tokens of {format_bytes(round(memory.token_bytes))}; "
        f"{use.cache_mean:.0%} used on average, {use.cache_peak:.0%} at most; weights "
        f"{format_bytes(memory.weight_bytes)} of {format_bytes(memory.capacity_bytes)} a device"
    )
    held = {reason: count for reason, count in use.held_back.items() if count}
    if held:
        said = ", ".join(f"{reason} in {count:,} passes" for reason, count in held.items())
        yield f"held     requests waited for {said}"
