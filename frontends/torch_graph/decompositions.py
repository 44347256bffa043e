"""Which composite operators are taken apart before the operator table sees them."""

from __future__ import annotations

from typing import Any

import torch

#: Operators that stay whole: their parts would be slower to trace, or hide what a kernel does.
KEPT_WHOLE = (
    "_adaptive_avg_pool2d",
    "_adaptive_avg_pool2d_backward",
    "_adaptive_avg_pool3d",
    "_embedding_bag",
    "_embedding_bag_dense_backward",
    "_grouped_mm",
    "_log_softmax",
    "_log_softmax_backward_data",
    "_native_batch_norm_legit",
    "_native_batch_norm_legit_functional",
    "_native_batch_norm_legit_no_training",
    "_softmax",
    "_softmax_backward_data",
    "addmm",
    "avg_pool2d",
    "avg_pool2d_backward",
    "baddbmm",
    "convolution",
    "convolution_backward",
    "embedding",
    "embedding_dense_backward",
    "gelu",
    "gelu_backward",
    "max_pool2d_with_indices",
    "max_pool2d_with_indices_backward",
    "native_batch_norm",
    "native_batch_norm_backward",
    "native_dropout",
    "native_dropout_backward",
    "native_group_norm",
    "native_group_norm_backward",
    "native_layer_norm",
    "native_layer_norm_backward",
    "nll_loss_backward",
    "nll_loss_forward",
    "select_backward",
    "select_scatter",
    "sigmoid_backward",
    "silu",
    "silu_backward",
    "slice_backward",
    "tanh_backward",
    "upsample_bilinear2d",
    "upsample_bilinear2d_backward",
    "upsample_nearest2d",
    "upsample_nearest2d_backward",
)


def decompositions() -> dict[Any, Any]:
    """PyTorch's core decompositions without those of `KEPT_WHOLE`."""
    from torch._decomp import core_aten_decompositions

    table = dict(core_aten_decompositions())
    whole = set(KEPT_WHOLE)
    return {
        op: rule
        for op, rule in table.items()
        if not (
            isinstance(op, torch._ops.OpOverload)
            and op.namespace == "aten"
            and op._schema.name.split("::")[1] in whole
        )
    }
