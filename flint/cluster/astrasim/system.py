"""ASTRA-sim's system.json as types: the settings that its system layer and its roofline read."""

from __future__ import annotations

import json
from typing import Annotated, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    ValidationError,
)

#: Larger numbers are typing errors.
_MOST = 1e15
_Number = Annotated[StrictInt | StrictFloat, Field(allow_inf_nan=False, ge=0, lt=_MOST)]
_Positive = Annotated[StrictInt | StrictFloat, Field(allow_inf_nan=False, gt=0, lt=_MOST)]
_Count = Annotated[StrictInt, Field(ge=1, lt=_MOST)]
_Switch = StrictBool | Literal[0, 1]
_Algorithms = tuple[StrictStr, ...]


def hyphenated(field: str) -> str:
    """A field's name as ASTRA-sim's files spell it."""
    return field.replace("_", "-")


class SystemFile(BaseModel):
    """The settings that ASTRA-sim reads, each of the type and size that it takes.

    `peak_perf` is in TFLOP/s and `local_mem_bw` in GB/s; the delays are in ns. Keys that it does not
    know it skips, and so does this: they are in `model_extra`.
    """

    model_config = ConfigDict(alias_generator=hyphenated, frozen=True, extra="allow")

    peak_perf: _Positive
    local_mem_bw: _Positive
    scheduling_policy: Literal["LIFO", "FIFO", "EXPLICIT"] = "LIFO"
    endpoint_delay: _Number = 10
    active_chunks_per_dimension: _Count = 1
    preferred_dataset_splits: _Count = 1
    all_reduce_implementation: _Algorithms = ()
    all_gather_implementation: _Algorithms = ()
    reduce_scatter_implementation: _Algorithms = ()
    all_to_all_implementation: _Algorithms = ()
    collective_optimization: Literal["baseline", "localBWAware"] = "baseline"
    local_reduction_delay: _Number = 0
    roofline_enabled: _Switch = 0
    boost_mode: _Switch = 0
    trace_enabled: _Switch = 0
    replay_only: _Switch = 0
    track_local_mem: _Switch = 0


def wrong_setting(error: ValidationError) -> str:
    """The first wrong setting in a sentence: key, what is wrong, value."""
    found = error.errors(include_url=False)[0]
    if not found["loc"]:
        return "it is not an object of ASTRA-sim's system settings"
    key = str(found["loc"][0])
    if found["type"] == "missing":
        return f"{key} is missing"
    reason = found["msg"].removeprefix("Input ")
    return f"{key} is {json.dumps(found['input'])[:40]}, it {reason}"
