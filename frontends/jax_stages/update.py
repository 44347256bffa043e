"""What a stage does once in a step: the norm of its gradients, and an optimizer's update."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from flint.errors import FlintError, nearest
from flint.frontends.jax_stages.bodies import BodyFunction, differentiable
from flint.frontends.jax_stages.leaves import refuse_axis, sharded
from flint.frontends.jax_stages.parts import shown
from flint.frontends.jax_stages.stage_function import StageFunction, traced
from flint.frontends.jax_step.meshes import abstract_mesh
from flint.frontends.jax_step.program import abstract_tree, definition
from flint.ir.mesh import Mesh
from flint.steps.captured import Port, Role
from flint.steps.pipeline import Pipeline

if TYPE_CHECKING:
    from jax import Array, ShapeDtypeStruct


_Tree = TypeVar("_Tree")  # of arrays


class Optimizer(NamedTuple):
    """`init(params) -> state` and `update(params, gradients, state) -> (params, state)`."""

    init: Callable[[Any], Any]
    update: Callable[[Any, Any, Any], tuple[Any, Any]]

    @property
    def place(self) -> str | None:
        """Where the update is defined, if the user did so."""
        return None if self in BUILT_IN.values() else definition(self.update)


def find_optimizer(given: object) -> Optimizer | None:
    """The optimizer that a pipeline names. Raises FlintError FL240 for what is none."""
    if given is None:
        return None
    if isinstance(given, str):
        if given in BUILT_IN:
            return BUILT_IN[given]
        raise FlintError(
            "FL240",
            f"there is no optimizer '{given}'{nearest(given, list(BUILT_IN))}",
            help=f"choose {' or '.join(BUILT_IN)}, or give a pair (init, update)",
        )
    if isinstance(given, tuple | list) and len(given) == 2 and all(map(callable, given)):
        return Optimizer(*given)
    raise FlintError(
        "FL240",
        f"the optimizer is {type(given).__name__}, not a name or a pair of functions",
        help="give (init(params) -> state, update(params, gradients, state) -> (params, state))",
    )


def clipped(gradients: _Tree, squared_norm: Array, limit: float) -> _Tree:
    """Gradients scaled so that their norm, the root of `squared_norm`, is at most `limit`."""
    import jax
    import jax.numpy as jnp

    factor = jnp.minimum(1.0, limit / (jnp.sqrt(squared_norm) + 1e-6))
    scaled: _Tree = jax.tree.map(
        lambda g: (g.astype(jnp.float32) * factor).astype(g.dtype), gradients
    )
    return scaled


def _adamw_init(params: object) -> dict[str, object]:
    """First and second moments in float32, and the number of updates so far."""
    import jax
    import jax.numpy as jnp

    moments = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params)
    return {"m": moments, "v": moments, "count": jnp.zeros((), jnp.int32)}


def _adamw_update(params: object, gradients: object, state: dict[str, Any]) -> tuple[Any, Any]:
    """Decoupled weight decay (arXiv 1711.05101, algorithm 2), in float32."""
    import jax
    import jax.numpy as jnp

    rate, b1, b2, epsilon, decay = 3e-4, 0.9, 0.95, 1e-8, 0.1
    count = state["count"] + 1
    steps = count.astype(jnp.float32)
    first, second = 1 - b1**steps, 1 - b2**steps

    def one(p: Array, g: Array, m: Array, v: Array) -> tuple[Any, Any, Any]:
        g = g.astype(jnp.float32)
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        wide = p.astype(jnp.float32)
        change = (m / first) / (jnp.sqrt(v / second) + epsilon) + decay * wide
        return (wide - rate * change).astype(p.dtype), m, v

    new = jax.tree.map(one, params, gradients, state["m"], state["v"])
    params, m, v = jax.tree.transpose(jax.tree.structure(params), None, new)
    return params, {"m": m, "v": v, "count": count}


def _sgd_init(params: object) -> dict[str, object]:
    """Plain gradient descent has no state."""
    return {}


def _sgd_update(params: object, gradients: object, state: object) -> tuple[Any, Any]:
    import jax

    def one(p: Array, g: Array) -> Array:
        return p - (1e-2 * g).astype(p.dtype)

    return jax.tree.map(one, params, gradients), state


#: Optimizers that have a name.
BUILT_IN = {
    "adamw": Optimizer(_adamw_init, _adamw_update),
    "sgd": Optimizer(_sgd_init, _sgd_update),
}


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

    def norm(*values: Array) -> tuple[Any, ...]:
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

    def update(*values: Array) -> tuple[Any, ...]:
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


def _scalar(mesh: Mesh) -> ShapeDtypeStruct:
    import jax
    import jax.numpy as jnp

    return sharded(jax.ShapeDtypeStruct((), jnp.float32), mesh)


def _state(params: dict[str, Any], optimizer: Optimizer, mesh: Mesh, axis: str) -> object:
    """The optimizer's state as abstract arrays, sharded as the parameters it belongs to."""
    import jax

    abstract: list[Any] = []

    def run(given: object) -> list[object]:
        """`init`, which may also return descriptions of arrays instead of arrays."""
        leaves, tree = jax.tree.flatten(optimizer.init(given))
        shapes = [x if isinstance(x, jax.ShapeDtypeStruct) else None for x in leaves]
        abstract[:] = [tree, shapes]
        return [x for x, s in zip(leaves, shapes, strict=True) if s is None]

    arrays = iter(traced(run, (params,), mesh, "the optimizer's init", optimizer.place)[1])
    tree, shapes = abstract
    state = jax.tree.unflatten(tree, [next(arrays) if s is None else s for s in shapes])
    checked = abstract_tree(state, "state", None, abstract_mesh(mesh), mesh, optimizer.place)

    def place(path: Sequence[object], leaf: ShapeDtypeStruct) -> ShapeDtypeStruct:
        keys = [getattr(k, "key", None) for k in path]
        owner = next((params[k] for k in keys if isinstance(k, str) and k in params), None)
        if leaf.sharding is None and owner is not None and owner.shape == leaf.shape:
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=owner.sharding)
        refuse_axis(sharded(leaf, mesh), axis, "state" + jax.tree_util.keystr(path))
        return sharded(leaf, mesh)

    return jax.tree_util.tree_map_with_path(place, checked)


def _names(state: object) -> list[tuple[str, Any]]:
    import jax

    leaves, _ = jax.tree_util.tree_flatten_with_path(state)
    return [("state" + jax.tree_util.keystr(path), leaf) for path, leaf in leaves]


def _refuse_other_result(
    new: object, params: dict[str, Any], state: object, place: str | None
) -> None:
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
