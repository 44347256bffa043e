"""Classes of tensors in fp8, for `isinstance`: parameters are never of them here."""

from __future__ import annotations

__all__ = ["Float8Tensor", "MXFP8Tensor", "QuantizedTensor"]


class QuantizedTensor:
    """A tensor that is kept in fp8."""


class Float8Tensor(QuantizedTensor):
    """One with a scale for all elements."""


class MXFP8Tensor(QuantizedTensor):
    """One with a scale for 32 elements."""
