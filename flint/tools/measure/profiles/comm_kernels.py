"""Which kernels and operators communicate, by their names: one table for all libraries.

A name gives a library and mostly a kind, never bytes or a group. Patterns look at the name of the
function alone, without the arguments of templates, in which anything may be named.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from flint.ir.program import Collective

_NONE, _REDUCE, _GATHER = Collective.NONE, Collective.ALL_REDUCE, Collective.ALL_GATHER
_SCATTER, _EXCHANGE = Collective.REDUCE_SCATTER, Collective.ALL_TO_ALL
#: Messages, barriers, and what moves counts and layouts ahead of the data, have kind NONE.
_SYNC = _NONE


@dataclass(frozen=True, slots=True)
class CommName:
    """A pattern of names, what those do, whose they are, and where the names stand."""

    pattern: re.Pattern[str]
    collective: Collective
    library: str
    source: str


def _row(pattern: str, collective: Collective, library: str, source: str) -> CommName:
    return CommName(re.compile(pattern), collective, library, source)


#: The library of kernels of which nothing but a collective in their name is known.
BY_NAME = "unknown library"
_SAYS = "names of kernels that say it"
_NCCL_SOURCE = "NVIDIA/nccl src/device, ROCm/rccl src/device"
_DEEPEP = "deepseek-ai/DeepEP csrc/kernels; forks keep the inner namespaces"
_SYMM = "pytorch/pytorch torch/csrc/distributed/c10d/symm_mem"
_TRTLLM = (
    "flashinfer-ai/flashinfer include/flashinfer/comm, NVIDIA/TensorRT-LLM cpp/tensorrt_llm/kernels"
)
_MSCCLPP = "microsoft/mscclpp src, sgl-kernel csrc/allreduce"
_TE = "NVIDIA/TransformerEngine transformer_engine/common/comm_gemm_overlap/userbuffers"

#: Kernels; the first that fits says it. Those of one library stand together, names in general last.
KERNELS: tuple[CommName, ...] = (
    _row(r"^(?:nccl|rccl)\w*Kernel_?AllReduce", _REDUCE, "nccl", _NCCL_SOURCE),
    _row(r"^(?:nccl|rccl)\w*Kernel_?AllGather", _GATHER, "nccl", _NCCL_SOURCE),
    _row(r"^(?:nccl|rccl)\w*Kernel_?ReduceScatter", _SCATTER, "nccl", _NCCL_SOURCE),
    _row(r"^(?:nccl|rccl)\w*Kernel_?AllToAll", _EXCHANGE, "nccl", _NCCL_SOURCE),
    _row(r"^(?:nccl|rccl)\w*Kernel_?Broadcast", Collective.BROADCAST, "nccl", _NCCL_SOURCE),
    _row(r"^(?:nccl|rccl)\w*Kernel_?Reduce", _REDUCE, "nccl", _NCCL_SOURCE),
    _row(r"^(?:nccl|rccl)\w*Kernel", _NONE, "nccl", _NCCL_SOURCE),
    _row(r"^mscclKernel", _NONE, "rccl (msccl)", "ROCm/rccl src/device/msccl_kernel_impl.h"),
    _row(r"\b(?:internode(?:_ll)?|intranode|hybrid_ep|elastic)::(?:\w+::)*(?:dispatch|combine)", _EXCHANGE, "deepep", _DEEPEP),
    _row(r"\b(?:internode(?:_ll)?|intranode|hybrid_ep|elastic)::", _SYNC, "deepep", _DEEPEP),
    _row(r"\bdeep_ep::(?!\w*layout)", _SYNC, "deepep", _DEEPEP),
    _row(r"\ba2a_(?:dispatch|combine)_(?:send|recv)|\bpplx\w*::", _EXCHANGE, "pplx", "perplexityai/pplx-kernels"),
    _row(r"(?:\bmori::.*|\b)Ep(?:Dispatch|Combine)\w*", _EXCHANGE, "mori", "ROCm/mori src/ops"),
    _row(r"\bOneShotAll2all\w*Kernel", _EXCHANGE, "mori", "ROCm/mori src/collective"),
    _row(r"\bmori(?:::|_shmem)", _NONE, "mori", "ROCm/mori src"),
    _row(r"\broc?_?shmem", _NONE, "rocshmem", "ROCm/rocSHMEM"),
    _row(r"\bnvshmem|_on_stream_kernel|\bexchangeSplitAndOffset|\ballToAllV", _NONE, "nvshmem", f"NVIDIA/nvshmem src/device; {_SYMM}"),
    _row(r"\bmscclpp::.*all_?reduce|^all_?reduce(?:_?LL|\d)", _REDUCE, "mscclpp", _MSCCLPP),
    _row(r"\bmscclpp::.*all_?gather|^all_?gather\d", _GATHER, "mscclpp", _MSCCLPP),
    _row(r"\bmscclpp::|^executionKernel", _NONE, "mscclpp", _MSCCLPP),
    _row(r"\bcross_device_reduce", _REDUCE, "custom all-reduce", "vllm-project/vllm csrc/custom_all_reduce.cuh; sglang, aiter"),
    _row(r"\bquickreduce::|\ballreduce_prototype_", _REDUCE, "quickreduce", "mk1-project/quickreduce, vLLM and aiter csrc"),
    _row(r"\bcross_device_store|\breduce_scatter_cross_device", _SCATTER, "aiter", "ROCm/aiter csrc/include/custom_all_reduce.cuh"),
    _row(r"(?i)(?:one|two)_?shot_?all_?reduce|all_?reduce\w*(?:one|two)_?shot", _REDUCE, "one-shot and two-shot all-reduce", f"{_TRTLLM}; {_SYMM}; FBGEMM fbgemm_gpu/experimental/gen_ai/src/comm"),
    _row(r"(?i)lamport\w*all_?reduce|all_?reduce\w*lamport", _REDUCE, "tensorrt-llm", _TRTLLM),
    _row(r"\bmoeA2A(?:Dispatch|Combine)|\bmoeAllToAll|\bhelixAllToAll", _EXCHANGE, "tensorrt-llm", _TRTLLM),
    _row(r"\bmultimem_\w*all_gather", _GATHER, "symmetric memory", _SYMM),
    _row(r"\bmultimem_\w*reduce", _REDUCE, "symmetric memory", _SYMM),
    _row(r"(?:^|::)(?:barrier|put_signal|wait_signal)_kernel$", _SYNC, "symmetric memory", _SYMM),
    _row(r"\bk?userbuffers_\w*(?:_rs|_rw_rs)", _SCATTER, "userbuffers", _TE),
    _row(r"\bk?userbuffers_\w*_ag", _GATHER, "userbuffers", _TE),
    _row(r"\bk?userbuffers_\w*sum_inplace", _REDUCE, "userbuffers", _TE),
    _row(r"\bk?userbuffers_", _NONE, "userbuffers", _TE),
    _row(r"\buc[cpst]_\w+|\bnixl", _NONE, "ucx", "openucx/ucx src/uct/cuda, openucx/ucc src/components"),
    _row(r"\b(?:oneapi::)?ccl::|\bhccl|\bhcom_", _NONE, "collectives of the vendor", "uxlfoundation/oneCCL src, Ascend's HCCL"),
    _row(r"(?<![A-Za-z])all_?[rR]educe|A(?:ll|LL)_?R(?:educe|EDUCE)", _REDUCE, BY_NAME, _SAYS),
    _row(r"(?<![A-Za-z])reduce_?[sS]catter|R(?:educe|EDUCE)_?S(?:catter|CATTER)", _SCATTER, BY_NAME, _SAYS),
    _row(r"(?<![A-Za-z])all_?[gG]ather|A(?:ll|LL)_?G(?:ather|ATHER)", _GATHER, BY_NAME, _SAYS),
    _row(r"(?<![A-Za-z])all_?(?:to_?|To|2)[aA]ll|A(?:ll|LL)_?(?:T[oO]_?|2)A(?:ll|LL)|(?:^|_)a2a(?:_|$)", _EXCHANGE, BY_NAME, _SAYS),
)  # fmt: skip

#: Operators all of whose kernels communicate, except copies and what PyTorch calculates itself.
OPERATORS: tuple[CommName, ...] = (
    _row(r"^symm_mem::\w*all_reduce", _REDUCE, "symmetric memory", _SYMM),
    _row(r"^symm_mem::\w*all_gather(?!_\w*(?:mm|matmul))", _GATHER, "symmetric memory", _SYMM),
    _row(r"^symm_mem::(?!fused)\w*reduce_scatter", _SCATTER, "symmetric memory", _SYMM),
    _row(r"^symm_mem::\w*all_to_all", _EXCHANGE, "symmetric memory", _SYMM),
    _row(r"^_C_custom_ar::\w*all_reduce", _REDUCE, "custom all-reduce", "vllm-project/vllm csrc/torch_bindings.cpp"),
    _row(r"^(?:sgl_kernel|sglang|aiter|mscclpp|_C)::\w*all_?reduce", _REDUCE, "custom all-reduce", "sgl-kernel csrc, ROCm/aiter csrc"),
    _row(r"^(?:trtllm|flashinfer)::\w*all_?reduce", _REDUCE, "tensorrt-llm", _TRTLLM),
    _row(r"^(?:trtllm|flashinfer)::(?:\w*all_?to_?all|moe_(?:comm|a2a)\w*)", _EXCHANGE, "tensorrt-llm", _TRTLLM),
    _row(r"^fbgemm::\w*allreduce", _REDUCE, "fbgemm", "pytorch/FBGEMM fbgemm_gpu/experimental/gen_ai/src/comm"),
    _row(r"^(?:deep_ep|mori|pplx\w*)::\w*(?:dispatch|combine)", _EXCHANGE, "expert parallelism", f"{_DEEPEP}; ROCm/mori python/mori/ops"),
    _row(r"^record_param_comms$|^(?:nccl|rccl|ucc|xccl|hccl):", _NONE, "c10d", "pytorch/pytorch torch/csrc/distributed/c10d"),
)  # fmt: skip

_ANONYMOUS = re.compile(r"\(anonymous namespace\)::|\{lambda[^{}]*\}")
_FUNCTION = re.compile(r"^(?:void |static )*([^<(]*)")
#: What inductor makes is named after what it holds, its inputs too: such kernels do not communicate.
_GENERATED = re.compile(r"^triton_(?:poi|red|per|tem|for|mm|unk|helion)_")
#: Kernels that calculate, whatever launched them.
_CALCULATES = re.compile(r"^at(?:en)?::|^c10::|^thrust::|^cub::|^cutlass::|^cublas")


def function_of(kernel: str) -> str:
    """The function in a kernel's name, without the arguments of its template and its own."""
    found = _FUNCTION.match(_ANONYMOUS.sub("", kernel))
    return found[1].strip() if found else ""


@lru_cache(maxsize=1 << 14)
def comm_of_kernel(kernel: str) -> CommName | None:
    """What a kernel's name says of communication; None for one that says nothing of it."""
    function = function_of(kernel)
    if _GENERATED.match(function) or calculates(kernel):
        return None
    return next((k for k in KERNELS if k.pattern.search(function)), None)


@lru_cache(maxsize=1 << 14)
def comm_of_operator(operator: str) -> CommName | None:
    """What an operator's name says of communication."""
    return next((o for o in OPERATORS if o.pattern.search(operator)), None)


def calculates(kernel: str) -> bool:
    """Whether a kernel is of a library that only calculates."""
    return _CALCULATES.match(function_of(kernel)) is not None
