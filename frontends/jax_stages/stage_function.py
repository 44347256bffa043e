"""StageFunction: what one stage of a JAX model computes, and parameters that two stages have."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flint.errors import FlintError, nearest
from flint.frontends.jax_stages.parts import described, shown
from flint.frontends.jax_step.meshes import abstract_mesh
from flint.frontends.jax_step.settings import capturing_on
from flint.frontends.stages.pipeline import PlaceOfParameter, Tied
from flint.frontends.user_code import user_error
from flint.ir.mesh import Mesh

if TYPE_CHECKING:
    from jax import ShapeDtypeStruct


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


def find_tied(
    pairs: Sequence[tuple[str, str]],
    stages: Sequence[StageFunction],
    captured: Sequence[StageFunction],
) -> tuple[Tied, ...]:
    """Pairs of names as pairs of (stage, name).

    `captured[s]` is the stage that was captured for stage s: its parameters are the same in the
    same order, under the names that the ports have. Raises FlintError FL240: an unknown name, one
    that several stages have, or two parameters that are not alike.
    """
    known = {n for stage in stages for n in stage.params}
    found = []
    for pair in pairs:
        a, b = (_place_of(name, stages, known) for name in pair)
        x, y = (stages[s].params[n] for s, n in (a, b))
        if described(x) != described(y):
            raise FlintError(
                "FL240",
                f"tied parameters differ: {a[1]} is {_shown(x)}, {b[1]} is {_shown(y)}",
                help="a parameter in two stages must have one shape, type and sharding",
            )
        found.append((a, b))
    return as_ports(found, stages, captured)


def as_ports(
    pairs: Sequence[Tied], stages: Sequence[StageFunction], captured: Sequence[StageFunction]
) -> tuple[Tied, ...]:
    """Pairs of places under the names that the ports of the captured stages have."""
    return tuple((_port(a, stages, captured), _port(b, stages, captured)) for a, b in pairs)


def _place_of(name: str, stages: Sequence[StageFunction], known: set[str]) -> PlaceOfParameter:
    at = [number for number, stage in enumerate(stages) if name in stage.params]
    if len(at) == 1:
        return at[0], name
    if at:
        raise FlintError(
            "FL240",
            f"tied names {name}, which is in stages {', '.join(map(str, at))}",
            help="tie parameters of parts that are in one stage each",
        )
    raise FlintError(
        "FL240",
        f"tied names {name}, which no stage has{nearest(name, sorted(known))}",
        help="a name is the part's name and the path in its parameters: \"embed['table']\"",
    )


def _port(
    place: PlaceOfParameter, stages: Sequence[StageFunction], captured: Sequence[StageFunction]
) -> PlaceOfParameter:
    stage, name = place
    return stage, list(captured[stage].params)[list(stages[stage].params).index(name)]


def _shown(leaf: ShapeDtypeStruct) -> str:
    return f"{shown(leaf)} {tuple(leaf.sharding.spec)}"
