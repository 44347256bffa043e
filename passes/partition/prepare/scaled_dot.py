"""The sharding rule of cuDNN's block-scaled product (`jax.nn.scaled_matmul`).

Operands are (batch, m, k) and (batch, n, k), each with scales for blocks of k. Whole blocks may be on
different devices: their products are then summed.
"""

from __future__ import annotations

from typing import Any

from flint.passes.work.formulas import SCALED_DOT


def scaled_dot_rule(call: Any) -> Any | None:
    """The Shardy rule of a custom call, None if it is no block-scaled product."""
    if call.attributes["call_target_name"].value != SCALED_DOT:
        return None
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import sdy

    lhs, rhs, scales = (tuple(ir.RankedTensorType(v.type).shape) for v in list(call.operands)[:3])
    (batch, m, k), n, blocks = lhs, rhs[1], scales[2]
    sizes, inside = [batch, m, n, blocks], k // max(blocks, 1)
    whole: list[int] = []
    contracted = [3]
    if inside > 1:  # Shardy takes no second factor of size 1
        sizes.append(inside)
        whole, contracted = [4], [3, 4] if blocks > 1 else [4]
    left, right = [[0], [1], contracted], [[0], [2], contracted]
    operands = [left, right, [[0], [1], [3]], [[0], [2], [3]]]

    def tensors(mappings: list[list[list[int]]]) -> list[Any]:
        return [sdy.TensorMappingAttr.get([sdy.DimMappingAttr.get(d) for d in m]) for m in mappings]

    return sdy.OpShardingRuleAttr.get(
        sizes,
        tensors(operands[: len(call.operands)]),
        tensors([[[0], [1], [2]]]),
        reduction_factors=[3],
        need_replication_factors=whole,
        is_custom=True,
    )
