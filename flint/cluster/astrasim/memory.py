"""ASTRA-sim's file of remote memory, which says how long copies to and from a host take."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictInt, ValidationError

from flint.cluster.astrasim.system import hyphenated, wrong_setting
from flint.errors import FlintError, Malformed
from flint.io.bounded import FileKind, parse_json, read_bounded

#: Each rank reaches memory of its own, and there is none.
PER_NPU: Final = "PER_NPU_MEMORY_EXPANSION"
NOTHING: Final = "NO_MEMORY_EXPANSION"
#: GB/s of a link whose speed nobody says: PCIe 5 with 16 lanes.
USUAL_GB_PER_S = 64
_Whole = Annotated[StrictInt, Field(ge=0, lt=10**15)]


class MemoryFile(BaseModel):
    """The settings of remote memory. ASTRA-sim counts whole GB/s (10^9 bytes) and whole ns."""

    model_config = ConfigDict(alias_generator=hyphenated, frozen=True, populate_by_name=True)

    memory_type: Literal[
        "NO_MEMORY_EXPANSION",
        "PER_NPU_MEMORY_EXPANSION",
        "PER_NODE_MEMORY_EXPANSION",
        "MEMORY_POOL",
    ]
    remote_mem_latency: _Whole = 0
    remote_mem_bw: _Whole = 0

    def takes_ns(self, num_bytes: int) -> int:
        """How long ASTRA-sim takes to move `num_bytes` while nobody else uses the memory, in ns."""
        return self.remote_mem_latency + int(num_bytes / self.remote_mem_bw)

    def to_text(self) -> str:
        """The file."""
        found = self.model_dump(by_alias=True, exclude_unset=True)
        return f"{{ {json.dumps(found)[1:-1]} }}\n"


def host_memory(gb_per_s: int) -> MemoryFile:
    """Memory of hosts that each rank reaches over a link of `gb_per_s`.

    The nanosecond of latency keeps the first event of a run from ending when it begins, at which
    ASTRA-sim stops.
    """
    return MemoryFile(memory_type=PER_NPU, remote_mem_latency=1, remote_mem_bw=gb_per_s)


def read_memory(path: Path) -> MemoryFile | None:
    """What a file of remote memory says; None where there is no file.

    Raises FlintError FL706 for a file that ASTRA-sim cannot read.
    """
    if not path.exists():
        return None
    try:
        return MemoryFile.model_validate(
            parse_json(read_bounded(path, FileKind.SIMULATOR, "FL706"))
        )
    except (Malformed, ValidationError) as error:
        told = wrong_setting(error) if isinstance(error, ValidationError) else str(error)
        raise FlintError(
            "FL706", f"{path.name} is not a file of remote memory: {told}", place=str(path)
        ) from error
