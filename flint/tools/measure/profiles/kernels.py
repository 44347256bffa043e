"""What names of kernels tell where no operator does: the one place that knows them.

A name gives a class and never work: such rows are unpriced.
"""

from __future__ import annotations

import re
from functools import lru_cache

from flint.ir.op_class import OpClass

_CLASSES: tuple[tuple[re.Pattern[str], OpClass], ...] = (
    (
        re.compile(
            r"(?i)flash_bwd|fmha.*bwd|bwd.*fmha|attn_bwd|mha_bwd|attention.*(bwd|backward)"
        ),
        OpClass.ATTENTION_BACKWARD,
    ),
    (
        re.compile(
            r"(?i)flash_fwd|fmha|attn_fwd|mha_fwd|paged_attention|flash_attn|unified_attention"
            r"|decode_attention|batch_?prefill|batch_?decode|mla_"
        ),
        OpClass.ATTENTION,
    ),
    (re.compile(r"(?i)conv2d|conv3d|igemm_|_conv_fwd|_conv_bwd|winograd"), OpClass.CONVOLUTION),
    (
        re.compile(
            r"(?i)gemm|Cijk_|nvjet|cutlass.*(tensorop|Kernel2)|cublas|wgmma|_matmul|^bmm_|gemv|splitK"
        ),
        OpClass.MATMUL,
    ),
    (re.compile(r"(?i)softmax"), OpClass.SOFTMAX),
    (re.compile(r"(?i)(layer|rms|group|batch)_?norm"), OpClass.NORM),
    (re.compile(r"(?i)topk|top_k"), OpClass.TOP_K),
    (re.compile(r"(?i)radixsort|sort_kernel|bitonic"), OpClass.SORT),
    (re.compile(r"(?i)adam|multi_tensor.*optim"), OpClass.OPTIMIZER),
    (re.compile(r"(?i)reduce_kernel"), OpClass.REDUCE),
    (re.compile(r"(?i)CatArray"), OpClass.CONCATENATE),
    (re.compile(r"(?i)gather_kernel|indexSelect|index_elementwise"), OpClass.GATHER),
    (re.compile(r"(?i)FillFunctor|memset"), OpClass.FILL),
    (re.compile(r"(?i)copy_kernel|memcpy|transpose"), OpClass.COPY),
    (re.compile(r"(?i)act_and_mul|rotary|(vectorized|unrolled)?_?elementwise_kernel|^triton_poi"), OpClass.FUNCTION),
    (re.compile(r"^triton_(red|per)"), OpClass.REDUCE),
)  # fmt: skip
_BF16, _F16, _F32 = re.compile(r"BFloat16|bfloat16|bf16"), re.compile(r"Half|half|f16"), re.compile(r"float|f32")  # fmt: skip
_OPAQUE = re.compile(r"OpaqueType<(\d+)u?>")


@lru_cache(maxsize=1 << 14)
def class_of_kernel(name: str) -> OpClass:
    """The class that a kernel's name tells; UNKNOWN for most."""
    return next((c for pattern, c in _CLASSES if pattern.search(name)), OpClass.UNKNOWN)


@lru_cache(maxsize=1 << 14)
def element_of_kernel(name: str) -> str:
    """StableHLO's name of the type of elements that a kernel's name tells, f32 for none."""
    opaque = _OPAQUE.search(name)
    if opaque:
        return {"1": "ui8", "2": "bf16", "8": "i64"}.get(opaque[1], "f32")
    for pattern, dtype in ((_BF16, "bf16"), (_F32, "f32"), (_F16, "f16")):
        if pattern.search(name):
            return dtype
    return "f32"
