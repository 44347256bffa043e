"""What users of an inference service feel: time to the first token, time per token; and its caches.

Of two pools (`flint.Disaggregated`), the prefill pool's step is the time to the first token, without queues; the
decode pool's step, without what it waits for the caches of the requests that arrive, the time per
output token: in the steady state it decodes others meanwhile. Of one step, which is either, both are its time.
"""

from __future__ import annotations

from flint.tools.explore.result import ClassResult, PoolRole, Result


def ttft_ns(result: Result) -> float:
    """Time to the first token of a batch of prompts that finds the prefill pool free."""
    pool = _pool(result, PoolRole.PREFILL)
    return result.step_time_ns if pool is None else pool.end_ns


def tpot_ns(result: Result) -> float:
    """Time per output token: of a decode step. A step that decodes n tokens takes n of them."""
    pool = _pool(result, PoolRole.DECODE)
    return result.step_time_ns if pool is None else pool.end_ns - pool.waiting_ns


def period_ns(result: Result) -> float:
    """How often the tokens of a step come out: pools work at the same time, decoding paces them."""
    return tpot_ns(result)


def cache_bytes(result: Result) -> int:
    """Keys and values on the device that holds most of them; 0 where a step updates no cache."""
    return max((c.cache_bytes for c in result.classes), default=0)


def cache_headroom_bytes(result: Result) -> int:
    """What caches on the fullest device of those that hold them may grow by."""
    holding = [c.memory_bytes for c in result.classes if c.cache_bytes]
    return result.capacity_bytes - max(holding) if holding else 0


def _pool(result: Result, role: PoolRole) -> ClassResult | None:
    """The pool that ends last of those that serve so."""
    pools = [c for c in result.classes if c.role is role]
    return max(pools, key=lambda c: c.end_ns) if pools else None
