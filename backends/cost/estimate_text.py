"""An Estimate for people."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from flint.backends.cost.chips.model import model_of
from flint.backends.cost.routing import BALANCED
from flint.backends.cost.uncertainty import PROBABILITY, Interval
from flint.cluster.models import UNKNOWN_MEMORY_BYTES
from flint.text import format_bytes, format_duration, headings, short_scope, text_table

if TYPE_CHECKING:
    from flint.backends.cost.estimate_numbers import ClassEstimate, EstimateNumbers
    from flint.backends.cost.memory.memory import MemoryUse
    from flint.backends.cost.simulate.exposure import Serving
    from flint.ir.workload import Workload

_SHARES = headings("work | over | >count | >busy | >exposed | >of step")
_PATH = headings("critical path | over | >count | >time | >of step | scope | source")
#: A component of a scope that is a number: which of several layers.
_NUMBER = re.compile(r"(?<![^/])\d+(?![^/])")
#: Segments of the critical path that are shown.
PATH_ROWS = 8
#: Rank classes whose memory is shown: with more, those with the highest peaks.
MEMORY_ROWS = 16
_MAPPING = headings("axis | >size | network")


def estimate_text(e: EstimateNumbers, interval: Interval | None, *, verbose: bool = False) -> str:
    """Step time, utilization, the slowest class's time by kind and axes, and memory by class.

    What fills the memory where most of it is in use is listed if it may not fit; `verbose` always says
    it, and the first PATH_ROWS segments of the critical path.
    """
    slowest = max(e.classes, key=lambda c: c.end_ns)
    bound = " (lower bound: operations without a price count as zero)" if e.is_lower_bound else ""
    facts = [
        ("program", e.name),
        ("cluster", f"{e.cluster.name}: {e.cluster.chip.name}"),
        ("stack", _stack(e)),
        ("kernels", f"{_launched(e)}, communication: {e.policy.name}"),
        *((("routing", f"{e.routing}, the most loaded rank"),) if e.routing != BALANCED else ()),
        ("step time", f"{format_duration(e.step_time_ns)}{_sure(interval)}{bound}"),
        *_tokens(e.serving),
        ("MFU", f"{e.mfu:.1%} of {e.peak_flops_per_s / 1e12:,.0f} TFLOP/s {e.dtype}"),
        ("HFU", f"{e.hfu:.1%}{_beyond_the_model(e)}"),
        *_throughput(e),
        *(("memory", text) for text in _memories(e.classes)),
        *_by_compiler(e.workload),
    ]
    width = max(len(label) for label, _ in facts)
    parts = ["\n".join(f"{label:<{width}}  {text}" for label, text in facts)]
    if e.mapping:
        parts.append(text_table(_MAPPING, [tuple(map(str, row)) for row in e.mapping]))
    if len(e.classes) > 1:
        parts.append(f"time of {slowest.name}, which ends last:")
    if slowest.shares:
        parts.append(text_table(_SHARES, _share_cells(slowest)))
    if e.measured and e.measured.classes:
        parts.append(e.measured.table())
    if e.kernel_times:
        parts.append(e.kernel_times.table())
    largest = max(e.classes, key=lambda c: c.memory.peak_bytes)
    parts += [_path(e)] if verbose else []
    if (verbose or not largest.memory.fits) and not largest.memory.recorded:
        parts.append(_breakdown(largest))
    if e.unpriced:
        listed = ", ".join(f"{name} x{count}" for name, count in e.unpriced.items())
        parts.append(f"unpriced  {listed}")
    parts += [f"note  {note}" for note in e.notes]
    return "\n\n".join(parts)


def _tokens(found: Serving | None) -> Iterator[tuple[str, str]]:
    """Time to the first token and per token, where the step generates some."""
    if found:
        passes = found["decode_passes"]
        yield "TTFT", f"{format_duration(found['ttft_ns'])} to the first token, without queues"
        each = f" each of {passes:,} more" if passes > 1 else " each more"
        yield "TPOT", f"{format_duration(found['tpot_ns'])}{each}"


def _sure(interval: Interval | None) -> str:
    """The interval that holds the measurement four times of five."""
    if interval is None:
        return ""
    low, high = format_duration(interval.low_ns), format_duration(interval.high_ns)
    return f" ({PROBABILITY:.0%}: {low} to {high})"


def _throughput(e: EstimateNumbers) -> Iterator[tuple[str, str]]:
    """Tokens per second, and what a million costs where somebody lists a price."""
    price, cost = e.cluster.price_per_hour, e.cost_per_million_tokens
    if e.tokens:
        by = (
            f", ${cost:.3g} a million at ${price.value:g} a chip and hour ({price.kind})"
            if price
            else ""
        )
        yield "tokens", f"{e.tokens:,} a step, {e.tokens_per_second:,.0f} a second{by}"


def _stack(e: EstimateNumbers) -> str:
    """Whose software runs, and the libraries of which this machine has constants of their own."""
    of_networks = dict.fromkeys(n.library for n in e.cluster.network if n.library)
    used = (*model_of(e.cluster.chip).libraries(), *of_networks)
    return e.stack.name + (f" ({', '.join(used)})" if used else "")


def _launched(e: EstimateNumbers) -> str:
    if e.workload.measured_by:
        return "as recorded"
    by = e.workload.compiled_by
    return f"as {by.name} compiled them for {by.chip}" if by else f"as {e.profile} launches them"


def _by_compiler(workload: Workload) -> Iterator[tuple[str, str]]:
    """Whose peak of memory it is, where a compiler said it."""
    if workload.compiled_by and workload.compiled_by.memory:
        yield "", "by the compiler's own analysis"


def _beyond_the_model(e: EstimateNumbers) -> str:
    share = e.workload.model_share
    masked = (e.executed_flops - e.repeated_flops) * share > e.model_flops + 1  # rounded
    what = (
        ("recomputation", e.repeated_flops > 0),
        ("masked scores", masked),
        ("products that devices repeat or pad", share < 1),
    )
    named = " and ".join(name for name, there in what if there)
    return f", {named} included" if named else ""


def _memories(classes: Sequence[ClassEstimate]) -> Iterator[str]:
    """A line for each class in their order, or for those of the most memory and one for the rest."""
    highest = sorted(classes, key=lambda c: -c.memory.peak_bytes)
    shown, rest = {id(c) for c in highest[:MEMORY_ROWS]}, highest[MEMORY_ROWS:]
    yield from (_memory(c, several=len(classes) > 1) for c in classes if id(c) in shown)
    if rest:
        yield f"{len(rest):,} more: up to {format_bytes(rest[0].memory.peak_bytes)}"


def _memory(c: ClassEstimate, *, several: bool) -> str:
    memory = c.memory
    who = f"{c.name}: " if several else ""
    if memory.recorded:
        return f"{who}{_recorded(memory)}"
    if not 0 < memory.capacity_bytes < UNKNOWN_MEMORY_BYTES:
        return f"{who}{format_bytes(memory.peak_bytes)}{_on_host(memory)}"
    used, capacity = format_bytes(memory.peak_bytes), format_bytes(memory.capacity_bytes)
    return f"{who}{used}{_runtime(memory)} of {capacity}, {memory.verdict}{_on_host(memory)}"


def _runtime(memory: MemoryUse) -> str:
    return f" + {format_bytes(memory.runtime_bytes)} of the runtime" if memory.runtime else ""


def _recorded(memory: MemoryUse) -> str:
    if not memory.peak_bytes:
        return "not recorded"
    return f"{format_bytes(memory.peak_bytes)} held by the framework's allocator, as recorded"


def _on_host(memory: MemoryUse) -> str:
    """What lies in the memory of the host for a device, if anything does."""
    return f"; {format_bytes(memory.host_bytes)} on the host" if memory.host_bytes else ""


def _path(e: EstimateNumbers) -> str:
    """The longest segments of the critical path, and what the others are together.

    Layers that differ in their number only are one here.
    """
    added: dict[tuple[str, str, str, str], list[float]] = {}
    for s in e.critical_path:
        scope = _NUMBER.sub("*", short_scope(s.scope))
        entry = added.setdefault((s.kind, s.over, scope, s.location), [0, 0.0])
        entry[0] += s.count
        entry[1] += s.total_ns
    ordered = sorted(added.items(), key=lambda item: (-item[1][1], item[0]))
    rows = [
        (kind, over, *_path_cells(e, [times]), scope, location)
        for (kind, over, scope, location), times in ordered[:PATH_ROWS]
    ]
    rest = [times for _, times in ordered[PATH_ROWS:]]
    if rest:
        rows.append((f"{len(rest):,} more", "", *_path_cells(e, rest), "", ""))
    return text_table(_PATH, rows)


def _breakdown(c: ClassEstimate) -> str:
    """What the memory of a class holds at its peak, largest first, and where that is."""
    memory, at = c.memory, c.memory.at
    titles = headings("memory | >at the peak | >of it")
    rows = [
        (kind.replace("_", " "), format_bytes(size), f"{size / memory.peak_bytes:.1%}")
        for kind, size in memory.breakdown.items()
    ]
    rows += [
        (f"{kind.replace('_', ' ')}, on the host", format_bytes(size), "-")
        for kind, size in memory.host_breakdown.items()
    ]
    place = ", ".join(
        filter(None, (at.opcode, _NUMBER.sub("*", short_scope(at.scope)), at.location))
    )
    return f"{text_table(titles, rows)}\n\npeak of {c.name} at {place}"


def _path_cells(e: EstimateNumbers, times: list[list[float]]) -> tuple[str, str, str]:
    count, ns = (sum(column) for column in zip(*times, strict=True))
    return f"{int(count):,}", format_duration(ns), f"{ns / e.step_time_ns:.1%}"


def _share_cells(c: ClassEstimate) -> list[tuple[str, ...]]:
    """Shares with phases added up, most exposed first."""
    added: dict[tuple[str, str], list[float]] = {}
    for share in c.shares:
        entry = added.setdefault((share.kind, share.over), [0, 0.0, 0.0])
        entry[0] += share.count
        entry[1] += share.busy_ns
        entry[2] += share.exposed_ns
    ordered = sorted(added.items(), key=lambda item: (-item[1][2], -item[1][1], item[0]))
    return [
        (
            kind,
            over,
            f"{int(count):,}" if count else "-",
            format_duration(busy) if busy else "-",
            format_duration(exposed) if exposed else "-",
            f"{exposed / c.end_ns:.1%}" if c.end_ns else "-",
        )
        for (kind, over), (count, busy, exposed) in ordered
    ]
