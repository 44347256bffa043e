"""PyTorch modules in: exported on meta tensors, differentiated, and lowered through JAX."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flint.errors import FlintError
from flint.frontends.jax_step.gpu_kernels import lowering_options
from flint.frontends.jax_step.meshes import abstract_mesh, as_auto
from flint.frontends.jax_step.settings import capturing_on, platform_name
from flint.frontends.torch_precision import mark_products
from flint.ir.mesh import Mesh
from flint.passes.jax_private import full_tracebacks
from flint.passes.mlir import write_bytecode
from flint.passes.partition.prepare.attention import attach_attention_rules
from flint.steps.captured import Captured
from flint.steps.step import TorchStep

if TYPE_CHECKING:
    from jax import ShapeDtypeStruct
    from jax.sharding import AbstractMesh
    from jaxlib.mlir import ir

    from flint.frontends.torch_graph.program import Argument, TorchProgram
    from flint.frontends.torch_graph.stages.step import PortedProgram


def capture_torch(step: TorchStep, mesh: Mesh, source: str = "") -> Captured:
    """Export a module, its loss, its gradients and the optimizer, as a program for `mesh`.

    Nothing of it is computed and no weight is allocated. Raises FlintError: FL207 (platform), FL220
    (operators that are not known), FL221 and FL222 (shardings), FL223 (the module cannot be
    exported), FL224 (no PyTorch), FL225 (the optimizer), FL227 (no scalar loss).
    """
    platform = platform_name(step.platform)
    require_torch()
    from flint.frontends.torch_graph.program import torch_program

    program = torch_program(step, mesh)
    name = step.name or type(step.module).__name__
    module = lowered(program, mesh, platform, name)
    return Captured(module, mesh, name, source, warnings=program.warnings)


def require_torch() -> None:
    """Raise FlintError FL224 unless a PyTorch that can be captured with is installed."""
    try:
        import torch
    except ImportError as error:
        raise FlintError(
            "FL224", "this needs PyTorch, which is not installed", help='pip install "torch>=2.13"'
        ) from error
    _check_version(torch.__version__)
    from flint.frontends.torch_private import check

    check()


def _check_version(found: str) -> None:
    if tuple(int(p) for p in found.split("+")[0].split(".")[:2]) < (2, 13):
        raise FlintError(
            "FL224", f"PyTorch {found} is too old for a capture", help='pip install "torch>=2.13"'
        )


def lowered(program: TorchProgram | PortedProgram, mesh: Mesh, platform: str, name: str) -> bytes:
    """StableHLO bytecode of the step."""
    import jax

    abstract = abstract_mesh(as_auto(mesh))
    step, arguments = program.function, program.arguments
    step.__name__ = step.__qualname__ = name
    with capturing_on(abstract), jax.enable_x64(True), full_tracebacks()(False):
        jitted = jax.jit(
            step, donate_argnums=[i for i, a in enumerate(arguments) if a.donated], keep_unused=True
        )
        lowered = jitted.trace(*(_abstract(a, abstract) for a in arguments)).lower(
            **lowering_options(platform)
        )
    module = lowered.compiler_ir("stablehlo")
    _name_arguments(module, [a.name for a in arguments])
    attach_attention_rules(module)
    mark_products(module)
    return write_bytecode(module)


def _abstract(argument: Argument, abstract: AbstractMesh) -> ShapeDtypeStruct:
    import jax

    sharding = jax.sharding.NamedSharding(abstract, argument.spec)
    return jax.ShapeDtypeStruct(argument.shape, argument.dtype, sharding=sharding)


def _name_arguments(module: ir.Module, names: list[str]) -> None:
    """Locations of arguments hold PyTorch's names, dots and all."""
    from jaxlib.mlir import ir

    main = next(f for f in module.body if f.operation.attributes["sym_name"].value == "main")
    with module.context:
        for argument, name in zip(main.regions[0].blocks[0].arguments, names, strict=True):
            argument.set_location(ir.Location.name(name))
