"""`flint.sharded`: a step of one device with the shardings of a proposal on its arguments and values."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from flint.errors import FlintError, nearest
from flint.ir.mesh import Mesh
from flint.steps.entry import AnyStep
from flint.steps.step import Step, TorchStep
from flint.tools.explore.propose.constrained import constrained

if TYPE_CHECKING:
    from jax.sharding import PartitionSpec


def sharded(
    step: AnyStep,
    mesh: Any,
    *,
    arguments: Mapping[str, Any],
    results: Mapping[int, Any] | None = None,
    constraints: Mapping[str, Any] | None = None,
    fsdp: str | Sequence[str] = (),
) -> AnyStep:
    """The step, whose arguments have these shardings by name: what a file of `flint propose` calls.

    Of JAX: `arguments` are `PartitionSpec`s by names as captures print them ("params['wq']"), `mesh` is that of
    the entry, `results` are the shardings of results by their numbers (those of the arguments that they replace), and
    `constraints` are as `flint.constrained` takes them. Of PyTorch: `arguments` and `fsdp` are
    fields of `TorchStep`. Raises FlintError FL936 for a step of another kind, FL937 for an argument that is
    not there.
    """
    if isinstance(step, TorchStep):
        return replace(step, shardings=dict(arguments), fsdp=fsdp)
    if not isinstance(step, Step):
        raise other_kind(step)
    return _of_jax(step, mesh, arguments, results or {}, constraints or {})


def other_kind(step: object) -> FlintError:
    """FlintError FL936: a step that no sharding can be put on from outside."""
    return FlintError(
        "FL936",
        f"a flint.{type(step).__name__} has its own shardings or devices",
        help="return a flint.Step or flint.TorchStep of the model on one device",
    )


def _of_jax(
    step: Step,
    mesh: Any,
    arguments: Mapping[str, PartitionSpec],
    results: Mapping[int, Any],
    constraints: Mapping[str, Any],
) -> Step:
    import jax
    from jax.sharding import NamedSharding

    from flint.frontends.jax_step.meshes import abstract_mesh

    over = abstract_mesh(mesh) if isinstance(mesh, Mesh) else mesh
    left = dict(arguments)

    def placed(name: str, leaf: Any) -> Any:
        spec = left.pop(name, None)
        if spec is None or not hasattr(leaf, "shape"):
            return leaf
        sharding = NamedSharding(over, spec)
        weak = bool(getattr(leaf, "weak_type", False))
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding, weak_type=weak)

    args, kwargs = renamed(step, placed)
    if left:
        first = next(iter(left))
        raise FlintError(
            "FL937",
            f"the step has no argument {first}{nearest(first, named_leaves(step))}",
            help="its arguments changed: run flint propose again",
        )
    fn: Callable[..., Any] = step.fn
    if constraints:
        fn = constrained(step.fn, constraints, static_argnums=step.static_argnums)
    if results:
        fn = _ending_as(fn, results)
    return replace(step, fn=fn, args=args, kwargs=kwargs)


def _ending_as(fn: Callable[..., Any], results: Mapping[int, Any]) -> Callable[..., Any]:
    """The function with the shardings of results: without them the update of a weight may end in parts."""

    @functools.wraps(fn)
    def with_results(*args: Any, **kwargs: Any) -> Any:
        import jax

        leaves, tree = jax.tree.flatten(fn(*args, **kwargs))
        for number, spec in results.items():
            leaves[number] = jax.lax.with_sharding_constraint(leaves[number], spec)
        return jax.tree.unflatten(tree, leaves)

    return with_results


def renamed(
    step: Step, change: Callable[[str, Any], Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments and keywords of a step, each array what `change` makes of its name and itself."""
    import jax

    from flint.frontends.jax_step.program import argument_names, positions

    names = argument_names(step.fn, len(step.args))
    fixed = positions(step.static_argnums, len(step.args), "static_argnums", None)

    def of(name: str, value: Any) -> Any:
        return jax.tree_util.tree_map_with_path(
            lambda path, leaf: change(name + jax.tree_util.keystr(path), leaf), value
        )

    args = [a if n in fixed else of(names[n], a) for n, a in enumerate(step.args)]
    return tuple(args), {name: of(name, step.kwargs[name]) for name in sorted(step.kwargs)}


def named_leaves(step: Step) -> list[str]:
    """Names of a step's arrays, in the order in which JAX flattens its arguments."""
    found: list[str] = []
    renamed(step, lambda name, leaf: found.append(name) or leaf)  # type: ignore[func-returns-value]
    return found
