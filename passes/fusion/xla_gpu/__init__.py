"""What XLA's compiler for GPUs does beside fusing: what it joins, splits and copies."""

from flint.passes.fusion.xla_gpu.copy_carried import CopyCarried
from flint.passes.fusion.xla_gpu.expand_ragged import ExpandRagged
from flint.passes.fusion.xla_gpu.join_collectives import JoinCollectives
from flint.passes.fusion.xla_gpu.merge_products import MergeProducts
from flint.passes.fusion.xla_gpu.split_products import SplitProducts
from flint.passes.fusion.xla_gpu.split_reductions import SplitReductions

__all__ = [
    "CopyCarried",
    "ExpandRagged",
    "JoinCollectives",
    "MergeProducts",
    "SplitProducts",
    "SplitReductions",
]
