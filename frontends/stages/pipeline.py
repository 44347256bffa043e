"""What a `flint.Pipeline` says of itself, read alike for models of JAX and of PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flint.errors import FlintError, nearest
from flint.ir.mesh import Mesh
from flint.steps.captured import CapturedPipeline, StageBodies
from flint.steps.pipeline import Pipeline

#: A parameter of a pipeline: its stage and its name there.
PlaceOfParameter = tuple[int, str]
#: Two places of one parameter.
Tied = tuple[PlaceOfParameter, PlaceOfParameter]

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


def boundary_specs(pipeline: Pipeline) -> tuple[Any, ...]:
    """The PartitionSpecs of `Pipeline.boundary` by number of the value, () without.

    Raises FlintError FL240 if they are not as many as values cross.
    """
    from jax.sharding import NamedSharding, PartitionSpec

    given = pipeline.boundary
    if given is None:
        return ()
    one = isinstance(given, PartitionSpec | NamedSharding)
    several = (given,) * pipeline.crossing if one else tuple(given)
    specs = tuple(getattr(s, "spec", s) for s in several)
    if len(specs) == pipeline.crossing and all(isinstance(s, PartitionSpec) for s in specs):
        return specs
    raise FlintError(
        "FL240",
        f"boundary gives {len(specs)} shardings, but crossing is {pipeline.crossing}",
        help="give one PartitionSpec for all crossing values, or a tuple with one for each",
    )


def microbatch_size(batch: int, microbatches: int, argument: str, place: str | None) -> int:
    """The size of one of so many microbatches of dimension 0 of `argument`, which is the batch.

    Raises FlintError FL243 if they do not divide it.
    """
    if batch % microbatches == 0:
        return batch // microbatches
    raise FlintError(
        "FL243",
        f"{microbatches} microbatches do not divide the batch of {batch} "
        f"(dimension 0 of {argument})",
        place=place,
        help=f"use a batch of {-(-batch // microbatches) * microbatches}, or a number of "
        f"microbatches that divides {batch}",
    )


def layers_label(name: str, first: int, last: int) -> str:
    """Some layers of a list in words: "layers 3", "layers 0-19"."""
    return f"{name} {first}" if last == first else f"{name} {first}-{last}"


def captured_pipeline(
    pipeline: Pipeline,
    mesh: Mesh,
    source: str,
    name: str,
    bodies: Sequence[StageBodies],
    stages: Sequence[int],
    labels: Sequence[str],
    tied: Sequence[Tied],
    *,
    trains: bool,
    warnings: Sequence[str] = (),
) -> CapturedPipeline:
    """Captured bodies with what the pipeline says of its step; the others as `CapturedPipeline`."""
    parts = [part for b in bodies for part in (b.step, b.norm, b.update) if part is not None]
    said = [warning for part in parts for warning in part.captured.warnings]
    return CapturedPipeline(
        mesh,
        name,
        source,
        pipeline.axis,
        tuple(bodies),
        tuple(stages),
        tuple(labels),
        pipeline.microbatches,
        pipeline.schedule or ("1f1b" if trains else "forward"),
        pipeline.chunks,
        tuple(tied),
        pipeline.gradient_dtype,
        pipeline.reshard_after_forward,
        tuple(dict.fromkeys((*warnings, *said))),
    )
