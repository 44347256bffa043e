"""Programs of partitioned HLO modules, as tests read them."""

from __future__ import annotations

from collections.abc import Mapping

from flint.frontends.files.hlo import read_hlo
from flint.ir.mesh import Mesh
from flint.ir.program import Program


def hlo_to_program(
    data: bytes,
    mesh: Mesh,
    *,
    trip_counts: Mapping[str, int] | None = None,
    source: str = "HLO module",
) -> Program:
    """The program of one device; the module has to be partitioned."""
    made = read_hlo(data, mesh, trip_counts=trip_counts, name=source)
    assert isinstance(made, Program)
    return made
