"""Which operator of a nest a kernel belongs to: the one that a program captured by Flint has."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from flint.tools.measure.profiles.operators.events import knows


def _aten(names: str) -> frozenset[str]:
    return frozenset(f"aten::{name}" for name in names.split())


#: Operators that PyTorch itself takes apart before anything runs: their parts have the work.
_WRAPPERS = _aten(
    "linear matmul contiguous to flatten rms_norm layer_norm batch_norm group_norm instance_norm "
    "_batch_norm_impl_index conv1d conv2d conv3d reshape type_as clip dropout einsum "
    "scaled_dot_product_attention cross_entropy_loss nll_loss nll_loss_nd nll_loss2d "
    "adaptive_avg_pool2d max_pool2d pad softmax log_softmax tensordot outer chunk "
    "broadcast_tensors argsort item is_nonzero float half bfloat16 expand_as where masked_select"
)
#: Operators of modules that run forward: inside a node of the backward pass they are run again.
_FORWARD = _aten(
    "linear layer_norm batch_norm group_norm instance_norm rms_norm conv1d conv2d conv3d embedding "
    "scaled_dot_product_attention dropout max_pool2d adaptive_avg_pool2d"
)


@lru_cache(maxsize=1 << 14)
def is_operator(name: str) -> bool:
    """Whether a name is an operator's (`aten::mm`, `_C::rms_norm`), not an autograd node's."""
    if name.startswith("triton_"):
        return True
    namespace, _, operator = name.partition("::")
    return bool(operator) and not namespace.startswith(("autograd", "torch")) and " " not in name


def runs_forward(name: str) -> bool:
    """Whether an operator is a module's forward code."""
    return name in _FORWARD


def chosen(names: Sequence[str]) -> int:
    """Of a nest from the outermost to the innermost, the position of the operator that has the work.

    The outermost whose work can be told and that is no wrapper of others; else the innermost operator,
    else the innermost name. -1 for an empty nest.
    """
    for at, name in enumerate(names):
        if name not in _WRAPPERS and is_operator(name) and knows(name):
            return at
    operators = [at for at, name in enumerate(names) if is_operator(name)]
    return operators[-1] if operators else len(names) - 1
