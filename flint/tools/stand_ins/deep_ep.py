"""`deep_ep.Buffer`: tokens to the ranks of their experts and back, with balanced routing.

A token is sent once to each rank that has one of its experts, itself included. Which these are depends on
data: experts are taken to be drawn evenly and without repetition, so that of R ranks with E / R
experts each a token of K experts reaches R (1 - C(E - E / R, K) / C(E, K)) on average.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from flint.frontends.torch_world.packages.kernels import calculation, kernel
from flint.frontends.torch_world.packages.package import tell
from flint.passes.work.work import Work

__all__ = ["Buffer", "Config", "EventHandle", "EventOverlap"]


@kernel(
    "deep_ep::layout",
    "(Tensor experts, int ranks, int total) -> (Tensor, Tensor, Tensor)",
    lambda call: calculation(call.operands[0].num_elements),
)
def _layout(experts: Any, ranks: int, total: int) -> Any:
    """Tokens of each rank and of each expert, and which ranks a token goes to."""
    counts = experts.new_empty((ranks,), dtype=torch.int32)
    of_experts = experts.new_empty((total,), dtype=torch.int32)
    return counts, of_experts, experts.new_empty((experts.shape[0], ranks), dtype=torch.bool)


@kernel(
    "deep_ep::send_rows",
    "(Tensor x, int rows) -> Tensor",
    lambda call: Work(operand_bytes=call.operands[0].num_bytes, result_bytes=0),
)
def _send_rows(x: Any, rows: int) -> torch.Tensor:
    """Rows on their way: they are read, and written by the network."""
    return x.new_empty((rows, *x.shape[1:]))


@kernel(
    "deep_ep::reduce_rows",
    "(Tensor x, int tokens) -> Tensor",
    lambda call: calculation(call.operands[0].num_elements),
)
def _reduce_rows(x: Any, tokens: int) -> torch.Tensor:
    """The results of a token from all ranks, added."""
    return x.new_empty((tokens, *x.shape[1:]))


class EventHandle:
    """A point on a stream."""

    def current_stream_wait(self) -> None:
        """Nothing is left to wait for."""


class EventOverlap:
    """What a call that has not finished gives back."""

    def __init__(self, event: Any = None, extra_tensors: Any = None, works: Any = ()) -> None:
        self.event, self.extra_tensors, self._works = event, extra_tensors, works

    def current_stream_wait(self) -> None:
        """What comes next waits for the exchange."""
        for work in self._works:
            work.wait()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: object) -> None:
        self.current_stream_wait()


class Config:
    """How many chips' processors a call takes, which is not followed."""

    def __init__(self, num_sms: int = 20, *sizes: int) -> None:
        self.num_sms = num_sms

    def get_nvl_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """Bytes of a buffer within a node, or between nodes: they are not allocated."""
        return 0

    get_rdma_buffer_size_hint = get_nvl_buffer_size_hint


@dataclass(frozen=True)
class Handle:
    """What a dispatch leaves for the way back: this rank's tokens, and rows that it has."""

    tokens: int
    rows: int
    of_experts: tuple[int, ...]


class Buffer:
    """Exchanges between the ranks of a group."""

    num_sms = 20

    def __init__(
        self,
        group: Any,
        num_nvl_bytes: int = 0,
        num_rdma_bytes: int = 0,
        low_latency_mode: bool = False,
        num_qps_per_rank: int = 24,
        **options: Any,
    ) -> None:
        self.group, self.group_size = group, dist.get_world_size(group)
        self.rank = dist.get_rank(group)
        self.num_nvl_bytes, self.num_rdma_bytes = num_nvl_bytes, num_rdma_bytes

    @staticmethod
    def set_num_sms(new_num_sms: int) -> None:
        """How many processors calls take: products beside them are not slowed down."""
        Buffer.num_sms = new_num_sms

    @staticmethod
    def get_dispatch_config(num_ranks: int) -> Config:
        """The usual one."""
        return Config()

    get_combine_config = get_dispatch_config

    @staticmethod
    def capture() -> EventOverlap:
        """A point on the current stream."""
        return EventOverlap(EventHandle())

    @staticmethod
    def get_low_latency_rdma_size_hint(*sizes: int) -> int:
        """Bytes of a buffer: they are not allocated."""
        return 0

    def get_dispatch_layout(
        self,
        topk_idx: Any,
        num_experts: int,
        previous_event: Any = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> Any:
        """How many tokens go to which rank and expert."""
        counts, of_experts, places = _layout(topk_idx, self.group_size, num_experts)
        return counts, None, of_experts, places, EventOverlap()

    def dispatch(
        self,
        x: Any,
        handle: Handle | None = None,
        num_tokens_per_rank: Any = None,
        num_tokens_per_rdma_rank: Any = None,
        is_token_in_rank: Any = None,
        num_tokens_per_expert: Any = None,
        topk_idx: Any = None,
        topk_weights: Any = None,
        expert_alignment: int = 1,
        num_worst_tokens: int = 0,
        config: Any = None,
        previous_event: Any = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
        **options: Any,
    ) -> Any:
        """Tokens to the ranks of their experts. `x` may be a pair: rows in fp8, and their scales."""
        parts = list(x) if isinstance(x, tuple) else [x]
        if handle is None:
            handle = self._routed(topk_idx, int(num_tokens_per_expert.shape[0]), expert_alignment)
        given = [*parts, *(t for t in (topk_idx, topk_weights) if t is not None)]
        sent = [self._exchange(_send_rows(part, handle.rows), async_finish) for part in given]
        found = [out for out, _ in sent]
        event = EventOverlap(EventHandle(), works=[w for _, w in sent if w is not None])
        received = tuple(found[: len(parts)]) if isinstance(x, tuple) else found[0]
        rest = [*(found[len(parts) :] if topk_idx is not None else ()), None, None]
        return received, rest[0], rest[1], list(handle.of_experts), handle, event

    def combine(
        self,
        x: Any,
        handle: Handle,
        topk_weights: Any = None,
        bias: Any = None,
        config: Any = None,
        previous_event: Any = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
        **options: Any,
    ) -> Any:
        """Results back to the ranks of their tokens, and added there."""
        found: list[Any] = []
        for part in (x, topk_weights):
            if part is None:
                found.append(None)
                continue
            back, work = self._exchange(_send_rows(part, handle.rows), async_finish)
            if work is not None:
                work.wait()
            found.append(_reduce_rows(back, handle.tokens))
        return found[0], found[1], EventOverlap(EventHandle())

    def _routed(self, topk_idx: Any, experts: int, alignment: int) -> Handle:
        tokens, k = topk_idx.shape
        rows = round(tokens * ranks_reached(self.group_size, experts, k))
        each = -(-tokens * k * self.group_size // experts)
        each = -(-each // alignment) * alignment
        tell(
            f"deep_ep: routing is balanced: {rows} rows for {tokens} tokens of {k} experts on "
            f"{self.group_size} ranks, {each} of them for each expert"
        )
        return Handle(tokens, rows, (each,) * (experts // self.group_size))

    def _exchange(self, rows: Any, asynchronous: bool) -> tuple[Any, Any]:
        out = torch.empty_like(rows)
        size, rest = divmod(rows.shape[0], self.group_size)
        splits = [size + (at < rest) for at in range(self.group_size)]
        work = dist.all_to_all_single(
            out, rows, splits, splits, group=self.group, async_op=asynchronous
        )
        return out, work


def ranks_reached(ranks: int, experts: int, k: int) -> float:
    """How many ranks a token reaches, on average, whose experts are drawn evenly."""
    missed = math.comb(experts - experts // ranks, k) / math.comb(experts, k)
    return ranks * (1 - missed)
