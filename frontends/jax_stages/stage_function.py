"""StageFunction: what one stage of a JAX model computes for one microbatch, ready to be traced."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from flint.errors import FlintError
from flint.frontends.jax_step.program import abstract_mesh
from flint.frontends.jax_step.settings import capturing_on
from flint.frontends.user_code import user_error
from flint.ir.mesh import Mesh


@dataclass(frozen=True, eq=False)
class StageFunction:
    """The forward pass of one stage on one microbatch.

    `fn(params, batch, inputs)` takes dictionaries of arrays by name and the tuple of values that
    the stage before gave, and returns the tuple of values for the stage after, exactly as many as
    `outputs`. The last stage (`is_last`) returns what the step does: in training a tuple of one
    scalar, the loss, a mean over the microbatch.

    Every description is a `jax.ShapeDtypeStruct` with a `NamedSharding` on the abstract mesh:
    `params` (those of this stage only), `batch` (of one microbatch, only what this stage reads),
    `inputs` and `outputs` (see `boundary.on_boundary`; the loss or the last stage's outputs may
    have no sharding). `fn` need not constrain any of them. Stages of equal `key` compute the same
    with parameters, batch and inputs of equal shapes and shardings: they are captured once, and
    their dictionaries are in the same order. `place` is where the user defined it.
    """

    fn: Callable[[dict[str, Any], dict[str, Any], tuple[Any, ...]], tuple[Any, ...]]
    params: Mapping[str, Any]
    batch: Mapping[str, Any]
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    label: str
    key: Hashable
    is_last: bool = False
    place: str | None = None


def traced(
    function: Callable[..., Any], args: tuple[Any, ...], mesh: Mesh, name: str, place: str | None
) -> tuple[Any, Any]:
    """The jaxpr of `function(*args)` and the pytree of what it returns, as abstract arrays.

    Raises FlintError FL203 where the function raised.
    """
    import jax

    with capturing_on(abstract_mesh(mesh)):
        try:
            jaxpr, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
        except FlintError:
            raise
        except (Exception, SystemExit) as error:
            raise user_error(error, f"tracing {name}", place) from error
    return jaxpr, shapes
