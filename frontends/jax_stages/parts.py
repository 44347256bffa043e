"""Parts of stages: a function of the user, or some of a number of equal layers."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from types import MethodType
from typing import TYPE_CHECKING, Any, TypeVar

from flint.errors import FlintError
from flint.frontends.jax_stages.leaves import named_leaves
from flint.frontends.jax_step.meshes import abstract_mesh
from flint.frontends.jax_step.program import definition
from flint.frontends.jax_step.specs import show_array
from flint.frontends.stages.pipeline import layers_label
from flint.ir.mesh import Mesh
from flint.steps.pipeline import Layers, Stage

if TYPE_CHECKING:
    from jax import Array, ShapeDtypeStruct
    from jax.tree_util import PyTreeDef


@dataclass(frozen=True, eq=False)
class StagePart:
    """What runs in one stage of a `Stage` or of `Layers`.

    `count` layers from index `start` on, with stacked parameters; 0 is a `Stage`. `params` are its
    parameters by name; `tree` is the pytree that the user's function takes them in; `ends` is that
    of the `Layers`.
    """

    name: str
    scope: str
    fn: Callable[..., Any]
    params: dict[str, Any]
    tree: PyTreeDef
    start: int = 0
    count: int = 0
    ends: Callable[..., Any] | None = None

    @property
    def label(self) -> str:
        """Its content in words: "embed", "layers 0-19"."""
        if not self.count:
            return self.name
        return layers_label(self.name, self.start, self.start + self.count - 1)

    @property
    def key(self) -> Hashable:
        """Equal for parts that compute the same, apart from names and values of parameters."""
        shapes = tuple(described(p) for p in self.params.values())
        functions = (identity(self.fn), identity(self.ends))
        return (functions, self.count, self.scope, self.tree, shapes)

    def call(self, params: dict[str, Any], *values: Array) -> object:
        """What the part returns for parameters by name and the values before it."""
        import jax

        own = jax.tree.unflatten(self.tree, [params[n] for n in self.params])
        with jax.named_scope(self.scope) if self.scope else nullcontext():
            if not self.count:
                return self.fn(own, *values)
            return self._scan(own, values[0] if len(values) == 1 else values)

    def _scan(self, stacked: object, x: object) -> object:
        import jax

        def one(x: object, params: object) -> tuple[object, None]:
            y = self.fn(params, x)
            _refuse_other_shape(self, x, y)
            return y, None

        ends = self.ends or _unchanged
        return ends(jax.lax.scan(one, ends(x), stacked, length=self.count)[0])


_Tree = TypeVar("_Tree")  # of arrays


def _unchanged(x: _Tree) -> _Tree:
    return x


def stage_part(stage: Stage, index: int, mesh: Mesh, axis: str) -> StagePart:
    """The part that a `Stage` is. Raises FlintError as `named_leaves` does."""
    import jax

    name = stage.name or f"stage{index}"
    params = named_leaves(stage.params, name, mesh, axis, definition(stage.fn))
    return StagePart(name, stage.name, stage.fn, params, jax.tree.structure(stage.params))


def layers_part(layers: Layers, start: int, count: int, mesh: Mesh, axis: str) -> StagePart:
    """`count` layers with their parameters stacked. Raises FlintError as `named_leaves` does."""
    import jax

    one = named_leaves(layers.params, layers.name, mesh, axis, definition(layers.fn))
    stacked = {name: _stacked(leaf, count, mesh) for name, leaf in one.items()}
    tree = jax.tree.structure(layers.params)
    return StagePart(layers.name, layers.name, layers.fn, stacked, tree, start, count, layers.ends)


def _stacked(leaf: ShapeDtypeStruct, count: int, mesh: Mesh) -> ShapeDtypeStruct:
    import jax

    spec = jax.sharding.PartitionSpec(None, *leaf.sharding.spec)
    sharding = jax.sharding.NamedSharding(abstract_mesh(mesh), spec)
    return jax.ShapeDtypeStruct((count, *leaf.shape), leaf.dtype, sharding=sharding)


def _refuse_other_shape(part: StagePart, x: object, y: object) -> None:
    """Layers follow each other: raise FlintError FL240 unless `y` is like `x`."""
    import jax

    if jax.tree.structure(x) == jax.tree.structure(y):
        pairs = zip(jax.tree.leaves(x), jax.tree.leaves(y), strict=True)
        if all(a.shape == b.shape and a.dtype == b.dtype for a, b in pairs):
            return
    raise FlintError(
        "FL240",
        f"a layer of '{part.name}' takes {shown(x)} and returns {shown(y)}",
        place=definition(part.fn),
        help="layers of one Layers run one after the other: each must return what it takes",
    )


def shown(tree: object) -> str:
    """Shapes of a pytree of arrays: `bfloat16[2,8], float32[2]`."""
    import jax

    return ", ".join(show_array(v.dtype, v.shape) for v in jax.tree.leaves(tree))


def identity(function: object) -> Hashable:
    """Equal for what is the same function; of `functools.partial`, with the same objects bound."""
    if isinstance(function, MethodType):
        return (id(function.__self__), id(function.__func__))
    if not isinstance(function, partial):
        return id(function)
    bound = tuple(sorted((k, id(v)) for k, v in function.keywords.items()))
    return (identity(function.func), tuple(map(id, function.args)), bound)


def described(leaf: ShapeDtypeStruct) -> Hashable:
    """Shape, type and sharding of an abstract array, to compare."""
    spec = tuple(leaf.sharding.spec) if leaf.sharding is not None else None
    return (tuple(leaf.shape), str(leaf.dtype), str(spec))
