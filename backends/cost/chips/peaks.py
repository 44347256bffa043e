"""Which peak of a chip's file a product runs at, by what it multiplies, and how many make one.

A GPU multiplies f32 on its CUDA cores (`f32:highest`, `f32:ieee`) or its Tensor Cores in TF32:
XLA takes those unless the precision is HIGHEST (`GetBlasComputationType` in its
stream_executor/gpu/gpu_blas_lt.cc: up to HIGH). A TPU has bf16 only, and makes f32 of 3 products of
halves at HIGH, 6 at HIGHEST (docs.jax.dev, `jax.lax.Precision`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flint.backends.cost.chips.kernels import KernelKind
from flint.errors import FlintError

if TYPE_CHECKING:
    from flint.cluster.models import Chip


@dataclass(frozen=True)
class ProductTypes:
    """What chips of a family multiply for a type.

    `same` are the types that are as fast, where a chip's file has no peak of the type's own; `f8`
    those of all floats of 8 bits. `f32` says what is done for f32 that is asked for in a certain
    way: in which type, and how many products of that.
    """

    same: Mapping[str, tuple[str, ...]]
    f8: tuple[str, ...]
    f32: Mapping[str, tuple[str, int]] = field(default_factory=dict)

    def on(self, chip: Chip, dtype: str) -> tuple[str, int]:
        """The type whose peak products of `dtype` run at, and how many of it are done for one.

        `dtype` is a name of `flint.ir.product_types`. Raises FlintError FL705 if the chip's file
        has no peak for it.
        """
        name, _, how = dtype.partition(",")[0].partition(":")
        name, products = (name, int(how)) if how.isdigit() else self.f32.get(how, (name, 1))
        instead = self.f8 if name.startswith("f8") else self.same.get(name, ())
        for candidate in (name, *instead):
            if candidate in chip.peak_flops_per_s:
                return candidate, products
        raise FlintError(
            "FL705",
            f"chip '{chip.name}' has no peak for {name}",
            help=f"add {name} to [chip.peak_flops_per_s] of the cluster file",
        )

    def flops_per_ns(self, chip: Chip, dtype: str) -> float:
        """Dense rate of products of `dtype`. Raises FlintError FL705 as `on` does."""
        name, products = self.on(chip, dtype)
        return chip.peak_flops_per_s[name].value * 1e-9 / products


#: 32-bit integers multiply at the rate of f32 on A100 and at half of it on H100 (NVIDIA's
#: whitepapers).
ON_GPU = ProductTypes(
    same={
        "f16": ("bf16",),
        "bf16": ("f16",),
        "ui8": ("i8",),
        "tf32": ("f32",),
        "i32": ("f32",),
        "ui32": ("f32",),
    },
    f8=("f8E4M3FN", "f8E5M2"),
    f32={"high": ("tf32", 1), "tf32": ("tf32", 1)},
)
#: Operands are converted on the way into the arrays.
ON_TPU = ProductTypes(
    same={
        "f16": ("bf16",),
        "f32": ("bf16",),
        "tf32": ("bf16",),
        "ui8": ("i8",),
        "i4": ("i8",),
        "ui4": ("i8",),
    },
    f8=("bf16",),
    f32={"high": ("f32", 3), "highest": ("f32", 6)},
)

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
_TORCH = ("eager", "torch", "inductor", "megatron")


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
