"""What a stage does once in a step: the norm of its gradients, and the update."""

from __future__ import annotations

from typing import Any

from flint.errors import FlintError
from flint.frontends.jax_program import abstract_mesh, abstract_tree
from flint.frontends.jax_stages.bodies import BodyFunction
from flint.frontends.jax_stages.joint import differentiable
from flint.frontends.jax_stages.leaves import refuse_axis, sharded
from flint.frontends.jax_stages.optimizers import Optimizer, clipped
from flint.frontends.jax_stages.parts import shown
from flint.frontends.jax_stages.stage_function import StageFunction
from flint.frontends.jax_stages.traced import traced
from flint.mesh import Mesh
from flint.pipeline import Pipeline
from flint.staged import Port, Role


def gradients_of(stage: StageFunction, dtype: str) -> dict[str, Any]:
    """The gradients of a stage as they are accumulated: in `dtype`, or in their parameters' own."""
    import jax

    return {
        name: jax.ShapeDtypeStruct(
            stage.params[name].shape,
            dtype or stage.params[name].dtype,
            sharding=stage.params[name].sharding,
        )
        for name in differentiable(stage.params)
    }


def norm_function(stage: StageFunction, mesh: Mesh, dtype: str) -> BodyFunction:
    """`norm`: the sum of the squares of all gradients of a stage, in float32."""
    import jax
    import jax.numpy as jnp

    gradients = gradients_of(stage, dtype)

    def norm(*values: Any) -> tuple[Any, ...]:
        with jax.named_scope("optimizer"):
            squares = [jnp.sum(jnp.square(v.astype(jnp.float32))) for v in values]
            return (sum(squares[1:], squares[0]),)

    arguments = tuple((Port(Role.GRADIENT, n), g) for n, g in gradients.items())
    return BodyFunction(
        "norm", norm, arguments, ((Port(Role.SQUARED_NORM), _scalar(mesh).sharding),)
    )


def update_function(
    stage: StageFunction, optimizer: Optimizer, pipeline: Pipeline, mesh: Mesh
) -> BodyFunction:
    """`update`: the optimizer on the floating parameters of a stage.

    Raises FlintError: FL203 (`init` raised), FL240 (what it returns does not fit the parameters or
    is sharded over the pipeline's axis).
    """
    import jax

    gradients = gradients_of(stage, pipeline.gradient_dtype)
    params = {name: stage.params[name] for name in gradients}
    state = _state(params, optimizer, mesh, pipeline.axis)
    leaves, tree = jax.tree.flatten(state)
    limit = pipeline.clip_norm

    def update(*values: Any) -> tuple[Any, ...]:
        count = len(params)
        p, g = (dict(zip(params, v, strict=False)) for v in (values, values[count:]))
        s = jax.tree.unflatten(tree, values[2 * count : 2 * count + len(leaves)])
        with jax.named_scope("optimizer"):
            if limit is not None:
                g = clipped(g, values[-1], limit)
            new = optimizer.update(p, g, s)
        _refuse_other_result(new, params, state, optimizer.place)
        return (*(new[0][n] for n in params), *jax.tree.leaves(new[1]))

    kept = [(Port(Role.PARAMETER, n), p) for n, p in params.items()]
    states = [(Port(Role.STATE, n), s) for n, s in _names(state)]
    arguments = [*kept, *((Port(Role.GRADIENT, n), g) for n, g in gradients.items()), *states]
    if limit is not None:
        arguments.append((Port(Role.SQUARED_NORM), _scalar(mesh)))
    results = tuple((port, leaf.sharding) for port, leaf in [*kept, *states])
    held = (Role.PARAMETER, Role.STATE)
    donated = tuple(i for i, (port, _) in enumerate(arguments) if port.role in held)
    return BodyFunction("update", update, tuple(arguments), results, donated, optimizer.place)


def _scalar(mesh: Mesh) -> Any:
    import jax
    import jax.numpy as jnp

    return sharded(jax.ShapeDtypeStruct((), jnp.float32), mesh)


def _state(params: dict[str, Any], optimizer: Optimizer, mesh: Mesh, axis: str) -> Any:
    """The optimizer's state as abstract arrays, sharded as the parameters it belongs to."""
    import jax

    abstract: list[Any] = []

    def run(given: Any) -> Any:
        """`init`, which may also return descriptions of arrays instead of arrays."""
        leaves, tree = jax.tree.flatten(optimizer.init(given))
        shapes = [x if isinstance(x, jax.ShapeDtypeStruct) else None for x in leaves]
        abstract[:] = [tree, shapes]
        return [x for x, s in zip(leaves, shapes, strict=True) if s is None]

    arrays = iter(traced(run, (params,), mesh, "the optimizer's init", optimizer.place)[1])
    tree, shapes = abstract
    state = jax.tree.unflatten(tree, [next(arrays) if s is None else s for s in shapes])
    checked = abstract_tree(state, "state", None, abstract_mesh(mesh), mesh, optimizer.place)

    def place(path: Any, leaf: Any) -> Any:
        keys = [getattr(k, "key", None) for k in path]
        owner = next((params[k] for k in keys if isinstance(k, str) and k in params), None)
        if leaf.sharding is None and owner is not None and owner.shape == leaf.shape:
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=owner.sharding)
        refuse_axis(sharded(leaf, mesh), axis, "state" + jax.tree_util.keystr(path))
        return sharded(leaf, mesh)

    return jax.tree_util.tree_map_with_path(place, checked)


def _names(state: Any) -> list[tuple[str, Any]]:
    import jax

    leaves, _ = jax.tree_util.tree_flatten_with_path(state)
    return [("state" + jax.tree_util.keystr(path), leaf) for path, leaf in leaves]


def _refuse_other_result(new: Any, params: dict[str, Any], state: Any, place: str | None) -> None:
    """Raise FlintError FL240 unless an update returned parameters and state like those it took."""
    import jax

    if jax.tree.structure(new) == jax.tree.structure((params, state)):
        pairs = zip(jax.tree.leaves(new), jax.tree.leaves((params, state)), strict=True)
        wrong = [(a, b) for a, b in pairs if a.shape != b.shape or a.dtype != b.dtype]
        if not wrong:
            return
        what = f"{shown(wrong[0][0])} for {shown(wrong[0][1])}"
    else:
        what = f"{jax.tree.structure(new)}"
    raise FlintError(
        "FL240",
        f"the optimizer's update returns {what}",
        place=place,
        help="return (params, state) of the shapes, types and structure that were given",
    )
