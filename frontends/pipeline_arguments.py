"""What a `flint.Pipeline` says of itself, checked alike for models of JAX and of PyTorch."""

from __future__ import annotations

from typing import Any

from flint.errors import FlintError, nearest
from flint.pipeline import Layers, Pipeline

_GRADIENT_DTYPES = ("float32", "bfloat16", "float16", "float64")
_TEXTS = ("cut", "schedule", "axis", "name", "gradient_dtype", "platform")


def check_arguments(pipeline: Pipeline) -> None:
    """Raise FlintError FL240 for fields that no pipeline can have, whatever its model is."""
    for name in ("microbatches", "chunks", "crossing"):
        _check_count(getattr(pipeline, name), name)
    for name in _TEXTS:
        value = getattr(pipeline, name)
        if not isinstance(value, str) and not (name == "schedule" and value is None):
            raise FlintError("FL240", f"{name} of a pipeline is {_shown(value)}, not text")
    if pipeline.gradient_dtype not in ("", *_GRADIENT_DTYPES):
        raise FlintError(
            "FL240",
            f"gradients cannot be accumulated in '{pipeline.gradient_dtype}'"
            f"{nearest(pipeline.gradient_dtype, _GRADIENT_DTYPES)}",
            help=f"choose one of {', '.join(_GRADIENT_DTYPES)}",
        )
    _check_norm(pipeline.clip_norm)
    if pipeline.boundary is not None and not hasattr(pipeline.boundary, "spec"):
        _check_boundary(pipeline.boundary)
    _check_tied(pipeline.tied)
    for part in pipeline.stages if isinstance(pipeline.stages, list | tuple) else ():
        _check_part(part)


def _check_count(value: Any, name: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise FlintError("FL240", f"{name} is {_shown(value)}, not a number without a fraction")
    if value < 1:
        raise FlintError("FL240", f"{name} is {value}, it is at least 1")


def _check_norm(value: Any) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise FlintError(
            "FL240",
            f"clip_norm is {_shown(value)}, not a norm above 0",
            help="leave it out for gradients that are not clipped",
        )


def _check_boundary(value: Any) -> None:
    if isinstance(value, str) or not hasattr(value, "__iter__"):
        raise FlintError(
            "FL240",
            f"boundary is {_shown(value)}, not a sharding",
            help='give a PartitionSpec: P("data", None, None)',
        )


def _check_tied(pairs: Any) -> None:
    if not isinstance(pairs, list | tuple):
        raise FlintError("FL240", f"tied is {_shown(pairs)}, not a list of pairs of names")
    seen: set[frozenset[str]] = set()
    for pair in pairs:
        both = isinstance(pair, list | tuple) and len(pair) == 2
        if not both or not all(isinstance(name, str) for name in pair):
            raise FlintError(
                "FL240",
                f"tied has {_shown(pair)}, not a pair of names",
                help="tied=[(\"embed['table']\", \"head['table']\")]",
            )
        names = frozenset(pair)
        if len(names) == 1 or names in seen:
            twice = "with itself" if len(names) == 1 else f"with {pair[1]} twice"
            raise FlintError("FL240", f"tied pairs {pair[0]} {twice}", help="give each pair once")
        seen.add(names)


def _check_part(part: Any) -> None:
    name = getattr(part, "name", "")
    if not isinstance(name, str):
        raise FlintError("FL240", f"the name of a stage is {_shown(name)}, not text")
    if isinstance(part, Layers):
        _check_layers(part)


def _check_layers(layers: Layers) -> None:
    if isinstance(layers.count, bool) or not isinstance(layers.count, int):
        raise FlintError("FL240", f"count of '{layers.name}' is {_shown(layers.count)}, no number")
    numbers = layers.split if isinstance(layers.split, list | tuple) else ()
    if isinstance(layers.split, str) or (
        isinstance(layers.split, list | tuple)
        and all(isinstance(n, int) and not isinstance(n, bool) for n in numbers)
    ):
        return
    raise FlintError(
        "FL240",
        f"the split of '{layers.name}' is {_shown(layers.split)}",
        help='choose "uniform", "balanced" or a list of numbers of layers',
    )


def _shown(value: Any) -> str:
    plain = isinstance(value, str | int | float | list | tuple | None)
    return repr(value) if plain else type(value).__name__
