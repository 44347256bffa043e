"""Factorizations of matrices that are calls of a library, by the target of the call."""

from __future__ import annotations

from collections.abc import Callable

from flint.passes.work import formulas
from flint.passes.work.work import Work

#: Target to the work of so many m x n matrices; names of GPUs, of StableHLO, then of TPUs.
FACTORIZATIONS: dict[str, Callable[[int, int, int], Work]] = {
    "cusolver_potrf_ffi": lambda matrices, _, n: formulas.cholesky(matrices, n),
    "cusolver_getrf_ffi": formulas.lu,
    "cusolver_geqrf_ffi": formulas.qr,
    "LuDecomposition": formulas.lu,
    "Qr": formulas.qr,
    "Cholesky": lambda matrices, _, n: formulas.cholesky(matrices, n),
    "LuDecompositionBlock": formulas.lu,
    "QrDecompositionBlock": formulas.qr,
}
