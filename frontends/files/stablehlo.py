"""StableHLO files in: text, MLIR bytecode, or the portable artifacts of jax.export."""

from __future__ import annotations

from collections.abc import Mapping

from flint.errors import FlintError
from flint.ir.mesh import Mesh
from flint.passes.partition.worker import the_worker
from flint.steps.captured import Captured
from flint.steps.trip_counts import TripCounts

_MLIR_BYTECODE = b"ML\xefR"
_PORTABLE_ARTIFACT = _MLIR_BYTECODE + b"\rStableHLO_v"


def capture_stablehlo(
    data: bytes, mesh: Mesh | None, name: str, trip_counts: Mapping[str, int] | None = None
) -> Captured:
    """Read a StableHLO module, with shardings of Shardy or of GSPMD, or none.

    `mesh` may be None when the module holds one. Raises FlintError FL302 for bytes that are no
    StableHLO, FL105 when the meshes differ or there is none.
    """
    try:
        facts, bytecode = the_worker().request(
            "import", _artifact(data), {"source": name}, seconds=_time_limit(data)
        )
    except FlintError as error:
        if error.code != "FL401":
            raise
        raise FlintError(
            "FL302",
            f"{name} is not a StableHLO module: reading it made the MLIR parser crash or hang",
            help="it may be truncated or damaged; write it again",
        ) from error
    agreed, is_gspmd = _agreed_mesh(facts.get("mesh"), mesh, name), bool(facts.get("gspmd"))
    if is_gspmd and agreed.size == 1:
        raise FlintError(
            "FL105",
            f"{name} is sharded over several devices, not for {agreed}",
            help="name the mesh that it was lowered for: --mesh 8",
        )
    return Captured(
        bytecode,
        agreed,
        name,
        name,
        TripCounts.of(trip_counts),
        warnings=tuple(facts.get("warnings", ())),
        is_gspmd=is_gspmd,
    )


def _time_limit(data: bytes) -> float:
    """Seconds to wait for the parser, which never ends on some damaged files.

    Sound files parse at 10 MB/s or more; this waits twenty times as long, and at least 10 s from when the
    process is there.
    """
    return 10 + len(data) / 500_000


def _artifact(data: bytes) -> bytes:
    """The portable artifact inside what `jax.export.Exported.serialize` returns, else `data`.

    That is a FlatBuffer, in which a vector of bytes follows its length (32 bits, little endian).
    """
    start = data.find(_PORTABLE_ARTIFACT, 4)
    if start < 0 or data.startswith(_MLIR_BYTECODE):
        return data
    length = int.from_bytes(data[start - 4 : start], "little")
    return data[start : start + length]


def _agreed_mesh(own: dict[str, int] | None, given: Mesh | None, name: str) -> Mesh:
    if own is None and given is None:
        raise FlintError(
            "FL105",
            f"{name} contains no mesh and none was given",
            help="name its mesh: --mesh data=64,model=8",
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
            help="omit --mesh, or lower the program again for the other mesh",
        )
    return mesh
