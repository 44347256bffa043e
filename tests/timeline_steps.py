"""Programs for tests of timelines, whose rows have durations and streams."""

from __future__ import annotations

from typing import Any

import numpy as np

from flint.backends.chakra.writing.expand import expand
from flint.backends.cost.simulate.timeline import ClassWork
from flint.ir.mesh import AxisRef, Group, Mesh, Route
from flint.ir.program import Collective, Kind, Phase, Program
from tests.program_rows import ProgramBuilder

MESH = Mesh(("pipe", "data"), (2, 4))
DATA = Group((AxisRef("data"),))
STREAMS = ("compute", "ib", "ib send", "ib recv")


class Steps:
    """Rows one at a time: computation on stream 0, collectives, sends and receives on 1 to 3."""

    def __init__(self) -> None:
        self.builder = ProgramBuilder(MESH)
        self.durations: dict[int, float] = {}
        self.streams: dict[int, int] = {}

    def compute(self, duration: float, *deps: int, **columns: Any) -> int:
        """A kernel."""
        columns = {"phase": Phase.FORWARD, **columns}
        row = self.builder.add("fusion", deps=deps, result_bytes=4, **columns)
        self.durations[row] = duration
        return row

    def collective(self, duration: float, *deps: int, group: Group = DATA, **columns: Any) -> int:
        """An all-reduce."""
        row = self.builder.add(
            "sdy.all_reduce",
            Kind.COLLECTIVE,
            deps=deps,
            collective=Collective.ALL_REDUCE,
            group=group,
            comm_bytes=4,
            phase=Phase.BACKWARD,
            **columns,
        )
        self.durations[row], self.streams[row] = duration, 1
        return row

    def message(self, kind: Kind, duration: float, offset: int, *deps: int) -> int:
        """A send or receive of channel 0."""
        route = Route((AxisRef("pipe"),), offset, wrap=False)
        row = self.builder.add(
            "pipeline.message", kind, deps=deps, route=route, channel=0, comm_bytes=4
        )
        self.durations[row], self.streams[row] = duration, 2 if kind is Kind.SEND else 3
        return row

    def work(self, **about: Any) -> ClassWork:
        """The rows as the work of a rank class."""
        program: Program = self.builder.build()
        duration, stream = np.zeros(len(program)), np.zeros(len(program), dtype=np.int64)
        for row, value in self.durations.items():
            duration[row] = value
        for row, number in self.streams.items():
            stream[row] = number
        return ClassWork(program, expand(program), duration, stream, **about)
