"""StableHLO files in: text, MLIR bytecode, or the portable artifacts of jax.export."""

from __future__ import annotations

from collections.abc import Mapping

from flint.captured import Captured
from flint.errors import FlintError
from flint.mesh import Mesh
from flint.passes.partition.worker import the_worker


def capture_stablehlo(
    data: bytes,
    mesh: Mesh | None,
    name: str,
    trip_counts: Mapping[str, int] | None = None,
) -> Captured:
    """Read a StableHLO module whose shardings, if any, are Shardy's.

    `mesh` may be None when the module holds one. Raises FlintError FL302 for bytes that are no
    StableHLO, FL105 when the meshes differ or there is none.
    """
    facts, bytecode = the_worker().request("import", data, {"source": name})
    return Captured(
        bytecode, _agreed_mesh(facts.get("mesh"), mesh, name), name, name, dict(trip_counts or {})
    )


def _agreed_mesh(own: dict[str, int] | None, given: Mesh | None, name: str) -> Mesh:
    if own is None and given is None:
        raise FlintError(
            "FL105",
            f"{name} holds no mesh and none was given",
            help="say which mesh it is for: --mesh data=64,model=8",
        )
    if own is None:
        assert given is not None
        return given
    mesh = Mesh.parse(own)
    if given is not None and given.sizes == mesh.sizes:
        return mesh  # "64x8" says sizes only; the names are the module's
    if given is not None:
        raise FlintError(
            "FL105",
            f"{name} was lowered for the mesh {mesh}, not for {given}",
            help="leave --mesh out, or lower the program again for the other mesh",
        )
    return mesh
