"""Routers of experts in one kernel, which are not recorded."""

from __future__ import annotations

from typing import Any, NoReturn

from flint.tools.stand_ins.transformer_engine.layers.linear import refuse

__all__ = [
    "fused_compute_score_for_moe_aux_loss",
    "fused_moe_aux_loss",
    "fused_topk_with_score_function",
]


def fused_topk_with_score_function(*_: Any, **__: Any) -> NoReturn:
    """Raises FlintError FL235."""
    raise refuse("fused router of experts", "with moe_router_fusion=False it is recorded unfused")


fused_compute_score_for_moe_aux_loss = fused_moe_aux_loss = fused_topk_with_score_function
