"""The options of engines under their own names, and the rules that they mean.

Defaults and rules are those of the versions that docs/serve.md names, with the files they stand in.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from flint.errors import FlintError, nearest
from flint.tools.serve.engine.rules import Expected, Order, Reserve, Rules, Victim
from flint.tools.serve.spec import Above0, AtLeast1, NotBelow0, fill, parse_spec

#: What the host adds to a pass although it prepares the next one meanwhile: an assumption. Whoever has a
#: log gives host_us.
_HOST_US = 200.0
Fraction = Annotated[float, Field(ge=0, lt=1)]


@dataclass(frozen=True)
class Vllm:
    """vLLM 0.19, V1: vllm/v1/core/sched/scheduler.py, vllm/config/scheduler.py, vllm/engine/arg_utils.py.

    One budget of tokens for all; running requests first, then waiting ones, none of them in a
    pass that preempted (`schedule`). A request starts if its whole prompt fits
    (`scheduler_reserve_full_isl`). The last is preempted and recomputed (`_preempt_request`). Defaults
    are those of the server on a GPU of 70 GiB or more (`get_batch_defaults`).
    """

    max_num_seqs: AtLeast1 = 1024  #: most sequences that run
    max_num_batched_tokens: AtLeast1 = 8192  #: most tokens of a pass
    block_size: AtLeast1 = 16  #: tokens of a block of the cache
    enable_chunked_prefill: bool = True  #: cut prompts
    enable_prefix_caching: bool = True  #: keep blocks of prompts
    scheduler_reserve_full_isl: bool = True  #: start if the whole prompt fits
    scheduling_policy: Order = Order.FCFS
    watermark: Fraction = 0.0  #: share of the cache that starting requests leave free
    host_us: NotBelow0 = _HOST_US

    def rules(self) -> Rules:
        """Chunks and decodes share passes, decodes first."""
        _at_least(
            self.max_num_batched_tokens, self.max_num_seqs, "max_num_batched_tokens", "max_num_seqs"
        )
        return Rules(
            "vllm", self.max_num_seqs, self.max_num_batched_tokens, self.block_size,
            self.enable_chunked_prefill, prefill_first=False, mixed=True,
            reserve=Reserve.PROMPT if self.scheduler_reserve_full_isl else Reserve.CHUNK,
            victim=Victim.LAST, prefix_caching=self.enable_prefix_caching,
            order=self.scheduling_policy, watermark=self.watermark, host_ns=self.host_us * 1e3,
        )  # fmt: skip


@dataclass(frozen=True)
class Sglang:
    """SGLang 0.5: sglang/srt/managers/scheduler.py, schedule_policy.py, schedule_batch.py, environ.py.

    Prompts come first and alone, unless `enable_mixed_chunk` (`get_next_batch_to_run`). A request starts
    if prompt and answer fit beside a share of what others have left (`PrefillAdder`,
    `NewTokenRatioTracker`). The shortest answers are retracted (`retract_decode`).
    """

    max_running_requests: AtLeast1 = 2048  #: most sequences that run
    chunked_prefill_size: AtLeast1 = 8192  #: most tokens of prompts in a pass
    page_size: AtLeast1 = 1  #: tokens of a page of the cache
    enable_mixed_chunk: bool = False  #: decode beside prompts
    disable_radix_cache: bool = False  #: forget prompts
    schedule_conservativeness: Above0 = 1.0  #: scales the expected share
    host_us: NotBelow0 = _HOST_US

    def rules(self) -> Rules:
        """Prompts first; chunks are always on."""
        if self.enable_mixed_chunk:
            _at_least(self.chunked_prefill_size, self.max_running_requests,
                      "chunked_prefill_size", "max_running_requests")  # fmt: skip
        first = min(Expected.first * self.schedule_conservativeness, 1.0)
        return Rules(
            "sglang", self.max_running_requests, self.chunked_prefill_size, self.page_size,
            chunked=True, prefill_first=True, mixed=self.enable_mixed_chunk, reserve=Reserve.EXPECTED,
            victim=Victim.SHORTEST, prefix_caching=not self.disable_radix_cache, order=Order.FCFS,
            watermark=0.0, host_ns=self.host_us * 1e3, expected=Expected(first, first * 0.14),
        )  # fmt: skip


class Capacity(StrEnum):
    """TensorRT-LLM's capacity schedulers."""

    GUARANTEED_NO_EVICT = "GUARANTEED_NO_EVICT"
    MAX_UTILIZATION = "MAX_UTILIZATION"


@dataclass(frozen=True)
class Trtllm:
    """TensorRT-LLM 1.2, docs "Scheduler", "Useful Runtime Options" and tensorrt_llm/llmapi/llm_args.py.

    In-flight batching: requests that generate, then contexts, up to `max_num_tokens`. GUARANTEED_NO_EVICT
    starts a request if prompt and answer fit beside those of all others; MAX_UTILIZATION starts what fits
    now, and pauses the last. A context is not cut unless `enable_chunked_prefill`.
    """

    max_batch_size: AtLeast1 = 2048  #: most sequences that run
    max_num_tokens: AtLeast1 = 8192  #: most tokens of a pass
    tokens_per_block: AtLeast1 = 32  #: tokens of a block of the cache
    enable_chunked_prefill: bool = False  #: cut prompts
    enable_block_reuse: bool = True  #: keep blocks of prompts
    capacity_scheduler_policy: Capacity = Capacity.GUARANTEED_NO_EVICT
    host_us: NotBelow0 = _HOST_US

    def rules(self) -> Rules:
        """Decodes first, contexts beside them."""
        _at_least(self.max_num_tokens, self.max_batch_size, "max_num_tokens", "max_batch_size")
        whole_answer = self.capacity_scheduler_policy is Capacity.GUARANTEED_NO_EVICT
        return Rules(
            "trtllm", self.max_batch_size, self.max_num_tokens, self.tokens_per_block,
            self.enable_chunked_prefill, prefill_first=False, mixed=True,
            reserve=Reserve.WHOLE if whole_answer else Reserve.PROMPT, victim=Victim.LAST,
            prefix_caching=self.enable_block_reuse, order=Order.FCFS, watermark=0.0,
            host_ns=self.host_us * 1e3,
        )  # fmt: skip


ENGINES: dict[str, type[Vllm | Sglang | Trtllm]] = {
    "vllm": Vllm,
    "sglang": Sglang,
    "trtllm": Trtllm,
}


def rules_of(text: str) -> Rules:
    """The rules of `vllm:max_num_seqs=128,...`. Raises FlintError FL890 for what it does not take."""
    spec = parse_spec(text, "FL890")
    if spec.first:
        raise FlintError("FL890", f"'{spec.first}' of '{text}' is not written key=value")
    if spec.name not in ENGINES:
        near = nearest(spec.name, [*ENGINES])
        raise FlintError(
            "FL890", f"'{text}' is no engine{near}", help=f"write {', '.join(ENGINES)}"
        )
    return fill(ENGINES[spec.name], spec, "FL890").rules()


def _at_least(tokens: int, sequences: int, name: str, other: str) -> None:
    """Each sequence that runs computes at least a token in a pass."""
    if tokens < sequences:
        raise FlintError(
            "FL890",
            f"{name}={tokens} is less than {other}={sequences}",
            help=f"each sequence takes a token of a pass: lower {other}, or raise {name}",
        )
