"""From a call of a jitted function to StableHLO: lowered for the chip, as JAX itself would there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flint.errors import FlintError
from flint.frontends.jax_step.gpu_kernels import lowering_options, without_gpu
from flint.frontends.user_code import user_error
from flint.passes import jax_private
from flint.passes.jax_private import PARAMETERS, setting

if TYPE_CHECKING:
    from jaxlib.mlir import ir

    from flint.frontends.jax_world.calls import Call


def lowered(call: Call, platform: str) -> ir.Module:
    """The module of a call for `platform` ("cuda" or "tpu"), with shardings over its meshes.

    Raises FlintError FL203 where JAX refuses: shardings that do not fit together, devices of two
    meshes, an operation that the platform does not have.
    """
    pjit = jax_private.jitted_calls()
    options = lowering_options(platform, call.parameters.get("jaxpr"))
    types = [pjit.convert_to_metaty(abstract(a)) for a in call.arguments]
    try:
        with setting("use_shardy_partitioner", True), without_gpu():
            computation = jax_private.lower_call()(
                types,
                **call.parameters,
                lowering_platforms=options["lowering_platforms"],
                lowering_parameters=options[PARAMETERS],
                pgle_profiler=None,
            )
            module = computation.stablehlo()
    except FlintError:
        raise
    except Exception as error:
        name = call.function.name
        raise user_error(error, f"lowering {name} for {platform}", call.function.place) from error
    _forget_device_order(module)
    return module


def abstract(argument: Any) -> Any:
    """An argument as JAX sees it when it lowers: a shape, a type, and where it was put."""
    import jax

    if not hasattr(argument, "_committed"):
        return argument  # a number or an array of the host
    if not argument._committed:
        return jax.ShapeDtypeStruct(argument.shape, argument.dtype, weak_type=_is_weak(argument))
    return jax.ShapeDtypeStruct(
        argument.shape, argument.dtype, sharding=argument.sharding, weak_type=_is_weak(argument)
    )


def _is_weak(argument: Any) -> bool:
    return bool(getattr(argument, "weak_type", False))


def _forget_device_order(module: ir.Module) -> None:
    """Positions of a mesh are what counts here, not which devices a torus would put there."""
    from jaxlib.mlir.dialects import sdy

    with module.context:
        for operation in module.body.operations:
            if operation.operation.name == "sdy.mesh":
                mesh = sdy.MeshAttr(operation.attributes["mesh"])
                if len(mesh.axes):
                    plain: ir.Attribute = sdy.MeshAttr.get(list(mesh.axes))
                    operation.attributes["mesh"] = plain
