"""The kernels of a target profile, as one pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from flint.ir.program import Program
from flint.passes.base import Pass, run_passes


@dataclass(frozen=True)
class Fuse(Pass):
    """Merge rows into the kernels of a target profile: all of its passes that make kernels."""

    profile: str = "xla-gpu"
    name: ClassVar[str] = "fuse"

    def apply(self, program: Program) -> Program:
        """Return the program with one row per kernel. Raises FlintError FL405."""
        from flint.passes.profiles import profile

        return run_passes(program, profile(self.profile).kernels)
