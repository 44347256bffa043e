"""Convolutions as cuDNN takes them: what it cannot pad, cut or turn over, and what it does behind them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from flint.ir.dims import ProductDims
from flint.ir.op_class import OpClass
from flint.ir.program import Flag, Kind, Phase, Program
from flint.passes.base import Pass


@dataclass(frozen=True)
class LibraryConvolutions(Pass):
    """Views that cuDNN cannot take become kernels, and one that it implies goes.

    * What a convolution sees with padding is padded by a kernel, and a result of which a part is
      kept is cut by one: cuDNN pads both ends of a dimension alike, and its input has no holes.
      Convolutions that see one value alike read one copy.
    * The gradient of an input reads the filter as the convolution does: nothing turns it over.

    `flint.passes.hlo.convolutions` says which convolutions have such views. Without `kernels` all
    of them go: other libraries and compilers pad, cut and turn as they multiply.
    """

    kernels: bool = True
    name: ClassVar[str] = "library-convolutions"

    def apply(self, program: Program) -> Program:
        """Return the program with a row for each such padding and slice."""
        if not (program.op == OpClass.CONVOLUTION).any():
            return program
        from flint.passes.rewrites.cudnn import with_kernels, without_views

        return with_kernels(program) if self.kernels else without_views(program)


@dataclass(frozen=True)
class FuseConvolutions(Pass):
    """A convolution takes what follows it if nothing else reads that: first a factor, then a bias (a value
    for each feature) and an array of its own size in either order, last a ReLU.

    XLA's `CudnnFusedConvRewriter`: all are of the type of the result, the array is stored before, and
    a kernel without a bias gets zeros. Gradients (convolutions of the backward pass) and depthwise
    convolutions take nothing.
    """

    name: ClassVar[str] = "fuse-convolutions"

    def apply(self, program: Program) -> Program:
        """Return the program with such rows merged."""
        found = (program.op == OpClass.CONVOLUTION) & (program.kind == Kind.COMPUTE)
        found &= (program.flags & (Flag.LAUNCHED | Flag.UNPRICED | Flag.TURNED_RESULT)) == 0
        found &= (program.phase != Phase.BACKWARD) & (ProductDims.of(program.dims).n > 1)
        if not found.any():
            return program
        from flint.passes.rewrites.cudnn import fused

        return fused(program, np.flatnonzero(found).tolist())
