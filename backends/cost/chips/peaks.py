"""Peaks of a chip by what a product multiplies: which peak, and how many products make one.

A GPU multiplies f32 on its CUDA cores (`f32:highest`, `f32:ieee`) or its Tensor Cores in TF32:
XLA takes those unless the precision is HIGHEST (`GetBlasComputationType` in its
stream_executor/gpu/gpu_blas_lt.cc: up to HIGH). A TPU has bf16 only, and makes f32 of 3 products of
halves at HIGH, 6 at HIGHEST (docs.jax.dev, `jax.lax.Precision`).
"""

from __future__ import annotations

from flint.cluster.models import Chip
from flint.errors import FlintError

#: Types that a GPU calculates as others where its file has no peak of their own. 32-bit integers
#: multiply at the rate of f32 on A100 and at half of it on H100 (NVIDIA's whitepapers).
_SAME_ON_GPU = {
    "f16": ("bf16",),
    "bf16": ("f16",),
    "ui8": ("i8",),
    "tf32": ("f32",),
    "i32": ("f32",),
    "ui32": ("f32",),
}
#: The same of a TPU: operands are converted on the way into the arrays.
_SAME_ON_TPU = {"f16": "bf16", "f32": "bf16", "tf32": "bf16", "ui8": "i8", "i4": "i8", "ui4": "i8"}
#: What a GPU does for f32 that is asked for in a certain way.
_F32_ON_GPU = {"high": "tf32", "tf32": "tf32"}
#: How many products of bf16 a TPU needs for it.
_F32_ON_TPU = {"high": 3, "highest": 6}


def peak_flops_per_ns(chip: Chip, dtype: str) -> float:
    """Dense rate of products of `dtype`, a name of `flint.ir.product_types`.

    Raises FlintError FL705 if the chip's file has no peak for it.
    """
    name, products = peak_type(chip, dtype)
    return chip.peak_flops_per_s[name].value * 1e-9 / products


def peak_type(chip: Chip, dtype: str) -> tuple[str, int]:
    """The type whose peak such products run at, and how many of it are done for one.

    Raises FlintError FL705 if the chip's file has no peak for it.
    """
    name, _, how = dtype.partition(":")
    if how.isdigit():
        products = int(how)
    else:
        products = _F32_ON_TPU.get(how, 1) if chip.systolic else 1
        name = name if chip.systolic else _F32_ON_GPU.get(how, name)
    for candidate in (name, *_stand_ins(chip, name)):
        if candidate in chip.peak_flops_per_s:
            return candidate, products
    raise FlintError(
        "FL705",
        f"chip '{chip.name}' has no peak for {name}",
        help=f"add {name} to [chip.peak_flops_per_s] of the cluster file",
    )


def _stand_ins(chip: Chip, dtype: str) -> tuple[str, ...]:
    if chip.systolic:
        return (_SAME_ON_TPU.get(dtype, "bf16" if dtype.startswith("f8") else ""),)
    if dtype.startswith("f8"):
        return ("f8E4M3FN", "f8E5M2")
    return _SAME_ON_GPU.get(dtype, ())
