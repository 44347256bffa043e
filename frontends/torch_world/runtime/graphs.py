"""CUDA graphs: what a program captures is recorded where it replays it, as one launch.

Nothing runs while a graph is captured, on CUDA either. A graph that holds an optimizer's step ends
a step of the program each time that it is replayed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from flint.frontends.torch_world.record.phases import Phases
from flint.frontends.torch_world.record.session import Session
from flint.frontends.torch_world.runtime.patching import Patches

GRAPHS = Patches()


@GRAPHS.replaces("torch.cuda:CUDAGraph", "torch.cuda.graphs:CUDAGraph")
def cuda_graph(session: Session, original: object) -> type:
    """Captures on the device, which is not there."""

    class CUDAGraph(Graph):
        def __init__(self, keep_graph: bool = False) -> None:
            super().__init__(session)

    return CUDAGraph


@GRAPHS.replaces("torch.cuda:graph", "torch.cuda.graphs:graph")
def graph_context(session: Session, original: object) -> Any:
    """`with torch.cuda.graph(g):` as above."""

    @contextmanager
    def graph(
        cuda_graph: Graph, pool: Any = None, stream: Any = None, capture_error_mode: str = "global"
    ) -> Iterator[None]:
        with cuda_graph.captured():
            yield

    return graph


@GRAPHS.replaces("torch.cuda:graph_pool_handle", "torch.cuda.graphs:graph_pool_handle")
def pool_handle(session: Session, original: object) -> Any:
    """Names memory that graphs share."""
    return lambda: (0, 0)


class Graph:
    """What was captured, by the names of `torch.cuda.CUDAGraph`."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._events: list[Any] = []
        self._optimizers: list[Any] = []
        self._open = ExitStack()

    @contextmanager
    def captured(self) -> Iterator[None]:
        """What runs inside is kept, and is no part of a step."""
        session, phases = self._session, self._session.phases
        before = session.graph
        session.graph = self._events
        try:
            with phases.setup(), _no_step(phases, self._optimizers):
                yield
        finally:
            session.graph = before

    def capture_begin(self, *args: Any, **kwargs: Any) -> None:
        self._open.enter_context(self.captured())

    def capture_end(self) -> None:
        self._open.close()

    def replay(self) -> None:
        session, phases = self._session, self._session.phases
        phases.module_starts(len(session.modules.stack), self)
        for optimizer in self._optimizers:
            phases.optimizer_starts(optimizer)
        if phases.recording:
            timeline = session.timeline
            first = timeline.next_event
            for event in self._events:
                stream, waits = timeline.current.stream_id, timeline.take_waits()
                waits = (*waits, *(first + within for within in event.waits))
                call = event.call._replace(replayed=True)
                session.on_replay(replace(event, stream=stream, waits=waits, call=call))
        for optimizer in self._optimizers:
            phases.optimizer_ends(optimizer)

    def reset(self) -> None:
        self._events.clear()
        self._optimizers.clear()

    def instantiate(self) -> None:
        """Nothing is left to do before a replay."""

    def pool(self) -> tuple[int, int]:
        return (0, 0)

    def enable_debug_mode(self) -> None:
        """There is nothing to look into."""

    def debug_dump(self, debug_path: str) -> None:
        """There is nothing to write."""


@contextmanager
def _no_step(phases: Phases, optimizers: list[Any]) -> Iterator[None]:
    """Inside, an optimizer that steps is noted and ends no step."""

    def starts(optimizer: Any) -> None:
        phases.in_optimizer += 1
        phases.on_optimizer(optimizer)
        optimizers.append(optimizer)

    def ends(optimizer: Any) -> None:
        phases.in_optimizer -= 1

    own: Any = vars(phases)
    before = own["_after_backward"]
    own["optimizer_starts"], own["optimizer_ends"], own["_after_backward"] = starts, ends, False
    try:
        yield
    finally:
        del own["optimizer_starts"], own["optimizer_ends"]
        own["_after_backward"] = before
