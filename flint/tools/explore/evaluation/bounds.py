"""A lower bound of a step's memory from its abstract arguments, before anything is captured.

Only what is certain counts: arguments that the program reads and that say how they are sharded, in the
memory of the device. Of a pipeline these are the parameters, of which the fullest rank holds at least
what the mean over ranks holds.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from flint.ir.mesh import Mesh
from flint.passes import jax_private
from flint.steps.entry import AnyStep
from flint.steps.pipeline import Layers, Pipeline
from flint.steps.step import Step, TorchStep

#: Types of which several elements share a byte: how many do is not asked.
_PACKED = ("int2", "int4", "uint2", "uint4", "float4")


@dataclass(frozen=True)
class Bound:
    """At least so many bytes of each device's memory, most of them for the argument `largest`."""

    num_bytes: int
    largest: str


def bound_of(step: AnyStep, mesh: Mesh, least_bytes: int) -> Bound | None:
    """The bound of a step; None where nothing is certain, or it is not above `least_bytes`."""
    if isinstance(step, Pipeline):
        found = None if isinstance(step.model, TorchStep) else _of_pipeline(step, mesh)
    elif isinstance(step, Step) and step.in_shardings is None and not step.static_argnums:
        found = _bound(_arguments(step), 1)
    else:
        return None
    if found is None or found.num_bytes <= least_bytes:
        return None
    if isinstance(step, Step):  # JAX drops arguments that nothing reads: look, now that it matters
        found = _of_used(step)
        found = found and replace(found, largest=_shown(step, found.largest))
    return found if found is not None and found.num_bytes > least_bytes else None


def _shown(step: Step, key: str) -> str:
    """What users call the argument `[0][1]['embed']`: `params['embed']`, by the function's parameters."""
    found = re.match(r"\[0\]\[(\d+)\]", key)
    if found is None:
        return key.removeprefix("[1]")
    with contextlib.suppress(TypeError, ValueError, IndexError):  # a builtin, *args
        name = list(inspect.signature(step.fn).parameters)[int(found[1])]
        return name + key[found.end() :]
    return f"args[{found[1]}]{key[found.end() :]}"


def _of_pipeline(step: Pipeline, mesh: Mesh) -> Bound | None:
    if step.axis not in mesh.names:
        return None
    parts = [(p.params, p.count if isinstance(p, Layers) else 1) for p in step.stages]
    held: list[tuple[str, int]] = []
    for tree, count in parts or [(step.params, 1)]:
        held += [(f"params{name}", size * count) for name, size in _held(tree)]
    return _largest(held, mesh.axis_size(step.axis))


def _bound(tree: Any, ranks: int) -> Bound | None:
    return _largest(list(_held(tree)), ranks)


def _largest(held: list[tuple[str, int]], ranks: int) -> Bound | None:
    if not held:
        return None
    return Bound(sum(size for _, size in held) // ranks, max(held, key=lambda h: h[1])[0])


def _held(tree: Any) -> Iterator[tuple[str, int]]:
    """Name and bytes in each device's memory of every array of a tree that says so."""
    import jax

    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        size = _local_bytes(leaf)
        if size:
            yield jax.tree_util.keystr(path), size


def _arguments(step: Step) -> Any:
    """The arguments in the order in which JAX flattens them."""
    return (tuple(step.args), dict(step.kwargs))


def _local_bytes(leaf: Any) -> int:
    """Bytes of a leaf on each device; 0 where that is not certain."""
    import numpy as np
    from jax.sharding import NamedSharding

    sharding, shape = getattr(leaf, "sharding", None), getattr(leaf, "shape", None)
    if not isinstance(sharding, NamedSharding) or shape is None:
        return 0
    if sharding.memory_kind not in (None, "device"):
        return 0
    try:
        dtype = np.dtype(leaf.dtype)
        local = sharding.shard_shape(tuple(shape))
    except (TypeError, ValueError):  # a type of keys; a sharding that does not divide
        return 0
    if any(str(dtype).startswith(name) for name in _PACKED):
        return 0
    return math.prod(int(n) for n in local) * int(dtype.itemsize)


def _of_used(step: Step) -> Bound | None:
    """The bound over the arguments that the step's results hang on."""
    import jax

    try:
        traced = jax.make_jaxpr(step.fn)(*step.args, **step.kwargs)
    except Exception:  # noqa: BLE001  the capture says what is wrong with it
        return None
    used = jax_private.used_inputs(traced.jaxpr)
    leaves, tree = jax.tree_util.tree_flatten(_arguments(step))
    if len(leaves) != len(used):
        return None
    kept = [leaf if is_used else () for leaf, is_used in zip(leaves, used, strict=True)]
    return _bound(jax.tree_util.tree_unflatten(tree, kept), 1)
