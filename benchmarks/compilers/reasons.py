"""Why programs differ from the compiled ones: for each, a section of docs/compilers.md."""

from __future__ import annotations

_TWICE = "[the same value twice](#the-same-value-twice)"
_TABLES = "[tables on two axes](#tables-on-two-axes)"
_SEQUENCE = "[sequence parallelism that nothing pins](#sequence-parallelism-that-nothing-pins)"
_EXPERTS = "[experts by einsum](#experts-by-einsum)"
_UNEVEN = "[dimensions that do not divide](#dimensions-that-do-not-divide)"
_SUMS = "[sums that are not merged](#sums-that-are-not-merged)"
_IDLE = "[an axis that is idle](#an-axis-that-is-idle)"

#: Reason by name of the program.
REASONS: dict[str, str] = {
    **dict.fromkeys(
        (
            "llama fsdp+tp, remat full", "llama fsdp+tp, remat none",
            "llama fsdp+tp+sp, remat full", "llama fsdp+tp+sp, remat none", "resnet50", "resnet_dp",
            "resnet_spatial", "resnet_spatial_infer", "unet spatial", "llama_fsdp_tp_sp_pinned",
        ),
        _TWICE,
    ),
    **dict.fromkeys(("resnet50 spatial", "dlrm"), _UNEVEN),
    **dict.fromkeys(
        ("gpt2 fsdp table by rows", "gpt2 fsdp tp", "gqa tp sp", "llama_3_axes"), _TABLES
    ),
    "gpt2 fsdp tp sp": _SEQUENCE,
    **dict.fromkeys(("moe top-2 pinned", "moe top-2 fsdp"), _EXPERTS),
    **dict.fromkeys(("vit data", "lstm", "encoder decoder tp"), _SUMS),
    "op_map": _IDLE,
    "op_topk_free": "[an axis that nothing uses](#an-axis-that-nothing-uses)",
    "op_cond": "[an operation that is the result](#an-operation-that-is-the-result)",
    "ulysses": "[constants are exchanged](#constants-are-exchanged)",
    "op_associative_scan": "[odd and even](#odd-and-even)",
}  # fmt: skip
