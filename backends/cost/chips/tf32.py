"""Which products of f32 that say no more GPUs calculate in TF32, by who compiled the program."""

from __future__ import annotations

from flint.backends.cost.chips.kernels import KernelKind
from flint.cluster.models import Chip

_PRODUCTS = frozenset(
    {
        KernelKind.GEMM,
        KernelKind.CONVOLUTION,
        KernelKind.ATTENTION,
        KernelKind.ATTENTION_BACKWARD,
    }
)
#: Profiles of PyTorch. `torch.backends.cudnn.allow_tf32` is true unless a program says otherwise,
#: `torch.backends.cuda.matmul.allow_tf32` is false (docs.pytorch.org, "CUDA semantics").
_TORCH = ("eager", "inductor", "megatron")


def tf32_kinds(profile: str, chip: Chip) -> frozenset[KernelKind]:
    """The kinds of kernels that use TF32 where they multiply f32: none on a chip without it.

    XLA for GPUs uses it for all, PyTorch for convolutions only. That is for products of which the
    program says no more than f32 (`flint.ir.product_types`): others are done as they say.
    """
    if "tf32" not in chip.peak_flops_per_s:
        return frozenset()
    if profile.startswith("xla-gpu"):
        return _PRODUCTS
    return frozenset({KernelKind.CONVOLUTION}) if profile in _TORCH else frozenset()
