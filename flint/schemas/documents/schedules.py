"""What `flint schedules` says."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

#: One pass of one microbatch, with its times. A call, since "pass" is a word of Python.
UnitDocument = TypedDict(
    "UnitDocument",
    {
        "pass": Annotated[
            str, Field(description="forward, backward, input or weight: what is computed.")
        ],
        "chunk": Annotated[int, Field(description="Which of the rank's stages.")],
        "microbatch": Annotated[int, Field(description="Number of the microbatch, from 0.")],
        "start": Annotated[
            float, Field(description="When it starts; a forward pass of a stage takes 1.")
        ],
        "end": Annotated[float, Field(description="When it ends, in the same unit.")],
    },
)
UnitDocument.__doc__ = "One pass of one microbatch on a rank, with its times."


class ImpossibleDocument(TypedDict):
    """A schedule that cannot be with these numbers."""

    name: str
    """Its name."""
    impossible: str
    """Why not."""


class ScheduleSummaryDocument(TypedDict):
    """A schedule with its idle time and what ranks hold."""

    name: str
    """Its name, as in --schedule."""
    ranks: int
    """Ranks of the pipeline."""
    microbatches: int
    """Microbatches of a step."""
    chunks: int
    """Stages of each rank."""
    idle: float
    """Share of the step in which a rank waits, 0 to 1."""
    held: list[int]
    """Most passes whose activations each rank holds at once, from rank 0."""
    stages: list[list[int]]
    """Numbers of the stages of each rank, by chunk."""


class ScheduleDocument(ScheduleSummaryDocument):
    """All of a schedule."""

    units: list[list[UnitDocument]]
    """What each rank runs, in order."""


class SchedulesDocument(TypedDict):
    """Schedules of pipelines; exactly one of the two is there."""

    schema: Literal["flint.schedules/1"]
    """Kind and version of this document."""
    schedules: NotRequired[list[ScheduleSummaryDocument | ImpossibleDocument]]
    """All of them (without a NAME)."""
    schedule: NotRequired[ScheduleDocument]
    """The one that was asked for."""
