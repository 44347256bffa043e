"""Loops that run once, without the loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from flint.ir.edit import Editor
from flint.ir.program import Flag, Program, RegionKind
from flint.passes.base import Pass


@dataclass(frozen=True)
class OpenSingleTrips(Pass):
    """The body of a loop of one trip becomes part of what is around it (`WhileLoopSimplifier`).

    What the loop carried are views of what it began as.
    """

    name: ClassVar[str] = "open-single-trips"

    def apply(self, program: Program) -> Program:
        """Return the program without such loops."""
        edit = Editor(program)
        once = [
            (number, region)
            for number, region in enumerate(program.regions)
            if region.kind is RegionKind.LOOP and region.trip_count == 1
        ]
        for number, region in once:
            edit.unwrap(number)
            for row, _ in region.carries:
                read = edit.reads(row)
                if len(read) == 1:
                    edit.change(row, flags=program.flags[row] | np.uint16(Flag.VIEW), alias=read[0])
        return edit.build().program if once else program
