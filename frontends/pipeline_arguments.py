"""What a `flint.Pipeline` says of itself, checked alike for models of JAX and of PyTorch."""

from __future__ import annotations

from flint.errors import FlintError, nearest
from flint.steps.pipeline import Pipeline

_GRADIENT_DTYPES = ("float32", "bfloat16", "float16", "float64")


def check_arguments(pipeline: Pipeline) -> None:
    """Raise FlintError FL240 for values that no pipeline can have, whatever its model is."""
    if pipeline.gradient_dtype not in ("", *_GRADIENT_DTYPES):
        raise FlintError(
            "FL240",
            f"gradients cannot be accumulated in '{pipeline.gradient_dtype}'"
            f"{nearest(pipeline.gradient_dtype, _GRADIENT_DTYPES)}",
            help=f"choose one of {', '.join(_GRADIENT_DTYPES)}",
        )
    _check_tied(pipeline)


def _check_tied(pipeline: Pipeline) -> None:
    seen: set[frozenset[str]] = set()
    for pair in pipeline.tied:
        names = frozenset(pair)
        if len(names) == 1 or names in seen:
            twice = "with itself" if len(names) == 1 else f"with {pair[1]} twice"
            raise FlintError("FL240", f"tied pairs {pair[0]} {twice}", help="give each pair once")
        seen.add(names)
