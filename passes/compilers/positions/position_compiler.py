"""Compiles modules for one position of an axis, and remembers who did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from flint.ir.made_by import CompiledBy
from flint.ir.mesh import Mesh
from flint.ir.program import Program
from flint.ir.workload import Workload
from flint.passes.compilers.compiled import compile_captured
from flint.passes.compilers.positions.cut_module import with_shardings
from flint.passes.hlo.arguments import argument_shardings
from flint.passes.hlo.facts import CapturedFacts
from flint.passes.hlo.walk import module_with_results
from flint.passes.partition.one_position import on_all_positions, on_one_position
from flint.passes.partition.worker import the_worker
from flint.passes.pools.ports import PoolStep, pool_step
from flint.passes.rewrites.phases import with_phases
from flint.steps.captured import Captured, Positions
from flint.steps.lowering import Lowering


@dataclass
class PositionCompiler:
    """For one chip, and for the devices of one position of `axis`, where others run other programs.

    Its methods raise what `compile_captured` does, and FlintError FL403.
    """

    lowering: Lowering
    axis: str
    by: CompiledBy | None = None
    warnings: dict[str, None] = field(default_factory=dict)

    def compile(self, alone: Captured, mesh: Mesh) -> tuple[Program, tuple[int, ...]]:
        """A module for one position as the program of each on `mesh`, and a row for each result."""
        compiled = compile_captured(alone, self.lowering)
        self.by = replace(compiled.by, memory=None)
        if compiled.warning:
            self.warnings[compiled.warning] = None
        known = CapturedFacts(argument_shardings(alone))
        program, results = module_with_results(
            compiled.module, alone.mesh, alone.trip_counts, known
        )
        return on_all_positions(program, mesh, self.axis), results

    def pool(self, captured: Captured) -> PoolStep:
        """A step of a pool. Results without a sharding have the one that Shardy propagates."""
        alone = on_one_position(captured, self.axis, Positions.POOLS)
        facts, _ = the_worker().request("result-shardings", alone.module)
        module = with_shardings(alone.module, 0, facts["shardings"], results=True)
        program, results = self.compile(replace(alone, module=module), captured.mesh)
        return pool_step(module, with_phases(program), results)

    def signed(self, workload: Workload) -> Workload:
        """A workload that says who compiled it."""
        assert self.by is not None, "nothing was compiled"
        metadata: dict[str, Any] = {
            **workload.metadata,
            "partitioner": "none",
            "compiler": self.by.to_json(),
        }
        warnings = [*_warnings(workload.metadata), *self.warnings]
        if warnings:
            metadata["warnings"] = warnings
        return replace(workload, metadata=metadata)


def _warnings(metadata: Mapping[str, Any]) -> list[str]:
    return list(metadata.get("warnings", ()))
