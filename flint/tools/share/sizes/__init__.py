"""Symbolic sizes: of which variables the dimensions of a workload are made, and the workload with others."""

from flint.tools.share.sizes.expression import Expression
from flint.tools.share.sizes.sizes import Sizes, Variable

__all__ = ["Expression", "Sizes", "Variable"]
