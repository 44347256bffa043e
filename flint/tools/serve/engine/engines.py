"""The options of engines under their own names, and the rules that they mean.

Versions, files and what is not modelled stand in docs/serve.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from flint.errors import FlintError, nearest
from flint.tools.serve.engine.rules import EngineRules, Expected, QueueOrder, Reserve, Victim
from flint.tools.serve.spec import Above0, AtLeast1, NotBelow0, fill, parse_spec

#: What the host adds to a pass although it prepares the next one meanwhile: an assumption. Whoever has
#: a log gives host_us.
_HOST_US = 200.0
#: What each sequence of a pass adds in vLLM (sampling, bookkeeping, caches of unequal lengths): fitted on one
#: run of 300 requests (Llama-3.1-8B, RTX PRO 6000, `benchmarks/serving.py`), on which it is not judged.
_SEQUENCE_US = 25.0
Fraction = Annotated[float, Field(ge=0, lt=1)]


@dataclass(frozen=True)
class Speculation:
    """What engines call by many names: a model drafts tokens, and each pass checks them."""

    draft_tokens: Annotated[int, Field(ge=0, le=64)] = 0  #: of a draft; 0: none is made
    #: An assumption; measured rates differ by text.
    acceptance_rate: Annotated[float, Field(ge=0, le=1)] = 0.7
    #: Of a pass that decodes, for each token of a draft: an assumption.
    draft_share: NotBelow0 = 0.05

    def drafting(self, rules: EngineRules) -> EngineRules:
        """Rules with drafts."""
        return replace(
            rules,
            draft_tokens=self.draft_tokens,
            acceptance=self.acceptance_rate,
            draft_share=self.draft_share,
        )


@dataclass(frozen=True)
class Vllm(Speculation):
    """vLLM 0.19, V1: vllm/v1/core/sched/scheduler.py, vllm/config/scheduler.py, vllm/engine/arg_utils.py.

    One budget of tokens for all; running requests first, then waiting ones, none of them in a pass that
    preempted (`schedule`). A request starts if its whole prompt fits (`scheduler_reserve_full_isl`).
    The last is preempted and recomputed (`_preempt_request`). Defaults are those of the server on a GPU
    of 70 GiB or more (`get_batch_defaults`), never more sequences than tokens.
    """

    max_num_seqs: AtLeast1 | None = None  #: most sequences that run; 1024
    max_num_batched_tokens: AtLeast1 = 8192  #: most tokens of a pass
    block_size: AtLeast1 = 16  #: tokens of a block of the cache
    enable_chunked_prefill: bool = True
    enable_prefix_caching: bool = True
    scheduler_reserve_full_isl: bool = True
    scheduling_policy: QueueOrder = QueueOrder.FCFS
    watermark: Fraction = 0.0  #: share of the cache that starting requests leave free
    host_us: NotBelow0 = _HOST_US
    sequence_us: NotBelow0 = _SEQUENCE_US

    def rules(self) -> EngineRules:
        """Decodes first, chunks beside them. Raises FlintError FL890 for fewer tokens than sequences."""
        tokens = self.max_num_batched_tokens
        most = _sequences("max_num_seqs", self.max_num_seqs, 1024, "max_num_batched_tokens", tokens)
        reserve = Reserve.PROMPT if self.scheduler_reserve_full_isl else Reserve.CHUNK
        return EngineRules(
            most,
            tokens,
            self.block_size,
            reserve,
            self.host_us * 1e3,
            self.enable_prefix_caching,
            self.enable_chunked_prefill,
            order=self.scheduling_policy,
            watermark=self.watermark,
            sequence_ns=self.sequence_us * 1e3,
        )


@dataclass(frozen=True)
class Sglang(Speculation):
    """SGLang 0.5: sglang/srt/managers/scheduler.py, schedule_policy.py, schedule_batch.py, environ.py.

    Prompts come first and alone, unless `enable_mixed_chunk` (`get_next_batch_to_run`). A request starts
    if prompt and answer fit beside a share of what others have left (`PrefillAdder`,
    `NewTokenRatioTracker`). The shortest answers are retracted (`retract_decode`). The default of
    `chunked_prefill_size` is that of GPUs of 60 to 90 GiB.
    """

    max_running_requests: AtLeast1 | None = None  #: most sequences that run; 2048
    chunked_prefill_size: AtLeast1 = 8192  #: most tokens of prompts in a pass
    page_size: AtLeast1 = 1  #: tokens of a page of the cache
    enable_mixed_chunk: bool = False  #: decode beside prompts
    disable_radix_cache: bool = False
    schedule_conservativeness: Above0 = 1.0  #: scales the expected share
    host_us: NotBelow0 = _HOST_US

    def rules(self) -> EngineRules:
        """Prompts first. Raises FlintError FL890 for mixed passes of fewer tokens than sequences."""
        tokens, asked = self.chunked_prefill_size, self.max_running_requests
        first = min(Expected.first * self.schedule_conservativeness, 1.0)
        beside = tokens if self.enable_mixed_chunk else 1 << 53  # decodes alone take no chunk
        most = _sequences("max_running_requests", asked, 2048, "chunked_prefill_size", beside)
        return EngineRules(
            most,
            tokens,
            self.page_size,
            Reserve.EXPECTED,
            self.host_us * 1e3,
            not self.disable_radix_cache,
            prefill_first=True,
            mixed=self.enable_mixed_chunk,
            victim=Victim.SHORTEST,
            expected=Expected(first, first * 0.14),
        )


class Capacity(StrEnum):
    """TensorRT-LLM's capacity schedulers."""

    GUARANTEED_NO_EVICT = "GUARANTEED_NO_EVICT"
    MAX_UTILIZATION = "MAX_UTILIZATION"


@dataclass(frozen=True)
class Trtllm(Speculation):
    """TensorRT-LLM 1.2: its pages "Scheduler" and "Useful Runtime Options", tensorrt_llm/llmapi/llm_args.py.

    In-flight batching: requests that generate, then contexts, up to `max_num_tokens`. GUARANTEED_NO_EVICT
    starts a request if prompt and answer fit beside those of all others; MAX_UTILIZATION starts what fits
    now, and pauses the last. A context is not cut unless `enable_chunked_prefill`.
    """

    max_batch_size: AtLeast1 | None = None  #: most sequences that run; 2048
    max_num_tokens: AtLeast1 = 8192  #: most tokens of a pass
    tokens_per_block: AtLeast1 = 32  #: tokens of a block of the cache
    enable_chunked_prefill: bool = False
    enable_block_reuse: bool = True
    capacity_scheduler_policy: Capacity = Capacity.GUARANTEED_NO_EVICT
    host_us: NotBelow0 = _HOST_US

    def rules(self) -> EngineRules:
        """Decodes first, contexts beside them. Raises FlintError FL890 for fewer tokens than sequences."""
        guaranteed = self.capacity_scheduler_policy is Capacity.GUARANTEED_NO_EVICT
        tokens = self.max_num_tokens
        most = _sequences("max_batch_size", self.max_batch_size, 2048, "max_num_tokens", tokens)
        reserve = Reserve.WHOLE if guaranteed else Reserve.PROMPT
        return EngineRules(
            most,
            tokens,
            self.tokens_per_block,
            reserve,
            self.host_us * 1e3,
            self.enable_block_reuse,
            self.enable_chunked_prefill,
        )


ENGINES: dict[str, type[Vllm | Sglang | Trtllm]] = {
    "vllm": Vllm,
    "sglang": Sglang,
    "trtllm": Trtllm,
}


def rules_of(text: str) -> EngineRules:
    """The rules of `vllm:max_num_seqs=128,...`. Raises FlintError FL890 for what it does not take."""
    spec = parse_spec(text, "FL890")
    if spec.first:
        raise FlintError("FL890", f"'{spec.first}' of '{text}' is not written key=value")
    if spec.name not in ENGINES:
        near = nearest(spec.name, [*ENGINES])
        raise FlintError(
            "FL890", f"'{text}' is no engine{near}", help="write " + ", ".join(ENGINES)
        )
    found = fill(ENGINES[spec.name], spec, "FL890")
    return found.drafting(found.rules())


def _sequences(name: str, asked: int | None, most: int, token_name: str, tokens: int) -> int:
    """How many sequences may run: each computes at least a token in a pass."""
    if asked is not None and asked > tokens:
        raise FlintError(
            "FL890",
            f"{token_name}={tokens} is less than {name}={asked}",
            help=f"each sequence takes a token of a pass: lower {name}",
        )
    return min(most, tokens) if asked is None else asked
