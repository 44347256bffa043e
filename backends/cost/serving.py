"""Time to the first token and per token after it, of steps that generate: recorded loops, and two pools."""

from __future__ import annotations

from collections.abc import Sequence

from flint.backends.cost.simulate.exposure import IDLE, Serving, Share
from flint.backends.cost.simulate.timeline import Timeline
from flint.ir.program import Phase, Program
from flint.ir.workload import Workload


def serving_of(
    workload: Workload, timeline: Timeline, shares: Sequence[Sequence[Share]]
) -> Serving | None:
    """What a step that prefills and decodes takes for each; None for others. `shares` are by rank class.

    A recorded loop has both in its phases. Of two pools, the decode pool's step counts without its wait
    for the caches of new requests: in the steady state it decodes others meanwhile.
    """
    if "pools" in workload.metadata:
        return _of_pools(workload, timeline, shares)
    ends: list[float] = []
    passes = 0
    for c in timeline.classes:
        program = c.work.program
        rows = program.phase[c.work.nodes.row]
        ends += c.end_ns[rows == Phase.PREFILL].tolist()
        passes = max(passes, _decode_passes(program))
    if not ends or not passes:
        return None
    return _serving(max(ends), (timeline.total_ns - max(ends)) / passes, passes)


def _serving(ttft_ns: float, tpot_ns: float, passes: int = 1) -> Serving:
    return {
        "ttft_ns": round(ttft_ns, 3),
        "tpot_ns": round(tpot_ns, 3),
        "decode_passes": passes,
    }


def _decode_passes(program: Program) -> int:
    """How often a pass that decodes runs: loops that are in no other."""
    loops = [r for r in program.regions if r.parent < 0]
    decodes = (r for r in loops if (program.phase[r.start : r.stop] == Phase.DECODE).any())
    return sum(r.trip_count for r in decodes)


def _of_pools(workload: Workload, timeline: Timeline, shares: Sequence[Sequence[Share]]) -> Serving:
    pools = workload.metadata["pools"]
    prefills = [c.where[pools["axis"]] == tuple(pools["prefill"]) for c in workload.classes]
    ends = [c.total_ns for c in timeline.classes]
    decode = max(
        (n for n, is_prefill in enumerate(prefills) if not is_prefill), key=lambda n: ends[n]
    )
    waits = sum(s.exposed_ns for s in shares[decode] if s.kind == IDLE[0])
    first = max(end for end, is_prefill in zip(ends, prefills, strict=True) if is_prefill)
    return _serving(first, ends[decode] - waits)
