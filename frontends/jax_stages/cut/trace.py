"""A whole model, and its loss, traced for one microbatch: the program that is cut."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flint.errors import FlintError
from flint.frontends.jax_stages.cut.jaxprs import OpenJaxpr, opened, reads
from flint.frontends.jax_stages.leaves import named_leaves
from flint.frontends.jax_stages.microbatch import Microbatch
from flint.frontends.jax_step.meshes import abstract_mesh
from flint.frontends.jax_step.program import definition
from flint.frontends.jax_step.settings import capturing_on
from flint.frontends.jax_step.specs import show_array
from flint.frontends.user_code import user_error
from flint.ir.mesh import Mesh
from flint.steps.pipeline import Pipeline

if TYPE_CHECKING:
    from jax import Array, ShapeDtypeStruct
    from jax.extend.core import Var


@dataclass(frozen=True)
class ModelArgument:
    """What an argument of the program is: a parameter, or else part of the microbatch.

    `struct` is its `jax.ShapeDtypeStruct` with a sharding. `layers` are the first layer and the one
    after the last, where it is a part of a stacked parameter.
    """

    name: str
    struct: ShapeDtypeStruct
    is_parameter: bool
    layers: tuple[int, int] | None = None


@dataclass(frozen=True)
class Traced:
    """The forward pass of one microbatch; `described` says what each argument's variable is."""

    program: OpenJaxpr
    described: Mapping[Var, ModelArgument]


def traced_model(pipeline: Pipeline, mesh: Mesh, microbatch: Microbatch) -> Traced:
    """Trace `loss(model(params, *inputs), *targets)`, or the model alone if there is no loss.

    Raises FlintError: FL203 (the user's function raised), FL240 (no scalar loss in training), and
    what `named_leaves` raises for the parameters.
    """
    import jax

    where = definition(pipeline.model)
    params = named_leaves(pipeline.params, "params", mesh, pipeline.axis, where)
    tree = jax.tree.structure(pipeline.params)
    batch = {**microbatch.inputs, **microbatch.targets}

    def forward(params: dict[str, Any], batch: dict[str, Any]) -> object:
        whole = jax.tree.unflatten(tree, list(params.values()))
        found = pipeline.model(whole, *microbatch.rebuild_inputs(batch))
        if pipeline.loss is not None:
            found = pipeline.loss(found, *microbatch.rebuild_targets(batch))
        return found

    flat = _in_order(forward, list(params), list(batch))
    with capturing_on(abstract_mesh(mesh)):
        try:
            closed = jax.jit(flat).trace(*params.values(), *batch.values()).jaxpr
        except FlintError:
            raise
        except (Exception, SystemExit) as error:
            raise user_error(error, f"tracing {pipeline.name or 'the model'}", where) from error
    program = opened(closed)
    _check_results(program, pipeline, where)
    arguments = [ModelArgument(n, s, True) for n, s in params.items()]
    arguments += [ModelArgument(n, s, False) for n, s in batch.items()]
    return Traced(program, dict(zip(program.arguments, arguments, strict=True)))


def from_parameters(traced: Traced) -> set[Var]:
    """Variables that are computed from parameters, the parameters among them."""
    found = {v for v, a in traced.described.items() if a.is_parameter}
    for equation in traced.program.equations:
        if any(v in found for v in reads(equation)):
            found |= set(equation.outvars)
    return found


def _in_order(
    function: Callable[[dict[str, Any], dict[str, Any]], object],
    params: list[str],
    batch: list[str],
) -> Callable[..., object]:
    """`function` of two dictionaries as one of flat arguments, whose order JAX then keeps."""

    def flat(*values: Array) -> object:
        held = dict(zip(params, values, strict=False))
        return function(held, dict(zip(batch, values[len(params) :], strict=True)))

    return flat


def _check_results(program: OpenJaxpr, pipeline: Pipeline, where: str | None) -> None:
    shapes = [(str(r.aval.dtype), r.aval.shape) for r in program.results]
    if not pipeline.trains:
        return
    if len(shapes) != 1 or shapes[0][1] or "float" not in shapes[0][0]:
        shown = ", ".join(show_array(d, s) for d, s in shapes)
        what = "the loss" if pipeline.loss is not None else "the model"
        raise FlintError(
            "FL240",
            f"{what} returns {shown or 'nothing'}, but training needs one floating-point scalar",
            place=where,
            help="return the mean over the microbatch, or give loss=",
        )
