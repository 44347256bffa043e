"""Factorizations of matrices that are calls of a library, by the target of the call."""

from __future__ import annotations

from collections.abc import Callable

from flint.passes.work import formulas
from flint.passes.work.work import Work

_GPU: dict[str, Callable[[int, int, int], Work]] = {
    "potrf": lambda matrices, _, n: formulas.cholesky(matrices, n),
    "getrf": formulas.lu,
    "geqrf": formulas.qr,
}
#: Target to the work of so many m x n matrices; names of GPUs, of StableHLO, then of TPUs.
FACTORIZATIONS: dict[str, Callable[[int, int, int], Work]] = {
    **{f"{gpu}solver_{name}_ffi": work for gpu in ("cu", "hip") for name, work in _GPU.items()},
    "LuDecomposition": formulas.lu,
    "Qr": formulas.qr,
    "Cholesky": _GPU["potrf"],
    "LuDecompositionBlock": formulas.lu,
    "QrDecompositionBlock": formulas.qr,
}
