"""Totals of a program by axes of the mesh, and a total before and after."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from flint.ir.arrays import Mask
from flint.ir.mesh import Group, Route
from flint.ir.program import Kind, Program
from flint.passes.work.totals import total
from flint.text import format_bytes, format_count, format_duration, format_flops

# Labels of mesh axes: how totals and conditions name what a collective runs over.

#: The label of groups and routes that list ranks instead of axes.
LISTED = "ranks"
#: Between axes of a label on the command line, where a comma is between conditions.
BETWEEN = "+"


def senders_by_label(program: Program) -> dict[str, Mask]:
    """Rows that send something, by the axes that they communicate over: `data`, `data,model`, `x:(2)4`."""
    over: list[Group | Route] = [*program.groups, *program.routes]
    labels = [",".join(map(str, one.axes)) or LISTED for one in over]
    number = np.where(program.group >= 0, program.group, len(program.groups) + program.route)
    sends = (program.kind >= Kind.COLLECTIVE) & (program.kind != Kind.RECV)
    used = sorted({labels[n] for n in number[sends].tolist()})
    return {
        label: sends & np.isin(number, [n for n, other in enumerate(labels) if other == label])
        for label in used
    }


def comm_bytes_by_label(program: Program) -> Mapping[str, int]:
    """Bytes that one device puts into communication in one step, by label.

    Loops count as often as they run; a message counts where it is sent.
    """
    return {
        label: total(program, np.where(rows, program.comm_bytes, 0))
        for label, rows in senders_by_label(program).items()
    }


# A total before and after.

#: Totals that are bytes by their name.
_IN_BYTES = re.compile(r"^bytes |bytes$|^peak memory on ")


@dataclass(frozen=True, slots=True)
class Change:
    """A total of one device in one step."""

    name: str  #: What it is: "FLOPs", "all_gather over data, bytes", ...
    before: float  #: In the original.
    after: float  #: In the grown workload.

    @property
    def share(self) -> float:
        """How far it moved, as a share of what it was; 0 where it was 0 and is."""
        if self.before == self.after:
            return 0.0
        return self.after / self.before - 1 if self.before else float("inf")

    def text(self, value: float) -> str:
        """A value of it with its unit."""
        if self.name.startswith("step time"):
            return format_duration(value)
        if self.name == "FLOPs":
            return format_flops(int(value))
        return format_bytes(int(value)) if _IN_BYTES.search(self.name) else format_count(int(value))
