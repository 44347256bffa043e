"""What commands read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flint.backends.chakra.reading.captured import load_workload
from flint.errors import FlintError

__all__ = ["load_workload", "program_of_rank"]

if TYPE_CHECKING:
    from flint.ir.program import Program
    from flint.ir.workload import Workload


def program_of_rank(workload: Workload, rank: int) -> Program:
    """The program that `rank` runs. Raises FlintError FL503 if the mesh has no such rank."""
    if not 0 <= rank < workload.mesh.size:
        raise FlintError(
            "FL503",
            f"the mesh {workload.mesh} has no rank {rank}",
            help=f"ranks are 0 to {workload.mesh.size - 1}",
        )
    return workload.program_of(rank)
