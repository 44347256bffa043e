"""The mesh of a captured step: the program's own, of as many devices as were asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flint.errors import FlintError
from flint.ir.mesh import Mesh

if TYPE_CHECKING:
    from jaxlib.mlir import ir

    from flint.frontends.jax_world.calls import Call
    from flint.frontends.jax_world.job import Job


def mesh_of(module: ir.Module, call: Call, job: Job) -> tuple[Mesh, tuple[str, ...]]:
    """The mesh that the shardings of a module are over, and sentences for the user about it.

    Without any it is the one asked for. Raises FlintError FL232 for a mesh of another number of
    devices, or of other axes than the user named.
    """
    found = _meshes(module)
    if not found:
        said = f"{call.function.name} runs on one of the {job.mesh.size} devices: none of its arguments is sharded"
        return job.mesh, (said,) if job.mesh.size > 1 else ()
    mesh = max(found, key=lambda m: m.size)
    if mesh.size != job.mesh.size or (job.is_named and not _same_axes(mesh, job.mesh)):
        raise FlintError(
            "FL232",
            f"{call.function.name} runs on a mesh {mesh} of {mesh.size} devices, but --mesh "
            f"{job.mesh} has {job.mesh.size}",
            place=call.function.place or None,
            help="capture with the program's mesh, or let the program make its mesh from "
            "jax.device_count()",
        )
    return mesh, ()


def _same_axes(mesh: Mesh, asked: Mesh) -> bool:
    """Whether a user named the axes of the program's mesh; those of size 1 may be omitted."""
    own = {n: s for n, s in zip(mesh.names, mesh.sizes, strict=True) if s > 1}
    return own == {n: s for n, s in zip(asked.names, asked.sizes, strict=True) if s > 1}


def _meshes(module: ir.Module) -> list[Mesh]:
    from jaxlib.mlir.dialects import sdy

    found = []
    for operation in module.body.operations:
        if operation.operation.name != "sdy.mesh":
            continue
        axes = [sdy.MeshAxisAttr(a) for a in sdy.MeshAttr(operation.attributes["mesh"]).axes]
        if axes:
            found.append(Mesh(tuple(a.name for a in axes), tuple(int(a.size) for a in axes)))
    return found
