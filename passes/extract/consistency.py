"""Does an operation's sharding rule hold for the shardings around it?

After explicit reshards every factor of an operation must be split over the same axes in every
operand and result that has it. Where it is not, a communication is missing, and the row says so.
"""

from __future__ import annotations

from flint.mesh import AxisRef
from flint.passes.extract.tensors import show
from flint.passes.extract.work import Operation


def doubt_about(o: Operation) -> str:
    """A sentence about the first factor whose axes disagree, or "" if all agree.

    Dimensions made of several factors (reshapes) are left out: how sub-axes divide over them is
    checked by Shardy itself. Permutation and replicated factors are covered by implied
    communication.
    """
    if "sdy.sharding_rule" not in o.op.attributes:
        return ""
    from jaxlib.mlir.dialects import sdy

    rule = sdy.OpShardingRuleAttr(o.op.attributes["sdy.sharding_rule"])
    exempt = {*rule.permutation_factors, *rule.need_replication_factors, *rule.reduction_factors}
    seen: dict[int, tuple[AxisRef, ...]] = {}
    tensors = (*o.operands, *o.results)
    for tensor, mapping in zip(
        tensors, (*rule.operand_mappings, *rule.result_mappings), strict=True
    ):
        dims = sdy.TensorMappingAttr(mapping).dim_mappings
        for axes, size, dim in zip(tensor.sharding, tensor.global_shape, dims, strict=False):
            factors = sdy.DimMappingAttr(dim).factor_indices
            if len(factors) != 1 or factors[0] in exempt or size == 1:
                continue
            if seen.setdefault(factors[0], axes) != axes:
                kinds = " ".join(show(t.sharding) for t in tensors)
                return f"factor {factors[0]} is split differently: {kinds} under {rule}"
    return ""
