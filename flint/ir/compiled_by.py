"""Which compiler made a workload's programs, and what it says of their memory."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

#: Words in names of chips that have fewer processors, or less memory, than those without.
_OTHER_FORMS = frozenset({"pcie", "nvl", "mig"})


@dataclass(frozen=True, slots=True)
class CompilerMemory:
    """The memory of one device in bytes, by the compiler's assignment of buffers.

    `alias_bytes` are of results in the place of arguments. For GPUs they are XLA's
    CompiledMemoryStats; for TPUs those of HBM before code is generated, without the code.
    """

    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    temp_bytes: int
    code_bytes: int

    @property
    def peak_bytes(self) -> int:
        """All that a device holds: results in the place of arguments count once."""
        held = self.argument_bytes + self.output_bytes - self.alias_bytes
        return held + self.temp_bytes + self.code_bytes


@dataclass(frozen=True, slots=True)
class CompiledBy:
    """A compiler ("xla-gpu"), its chip ("h100") and version, and for how many chips it compiled.

    `memory` is None where the programs are put together from several modules.
    """

    name: str
    chip: str
    version: str
    topology: str
    memory: CompilerMemory | None = None

    @property
    def profile(self) -> str:
        """The profile that imitates it."""
        return self.name.removesuffix("-cycles")

    def is_for(self, chip: str) -> bool:
        """Whether it compiled for a chip of this name: `h100` is for `H100-SXM5-80GB`."""
        return is_chip(self.chip, chip)

    def to_json(self) -> dict[str, Any]:
        """For the metadata of a workload."""
        return asdict(self)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> CompiledBy:
        """What `to_json` gave."""
        memory = found.get("memory")
        return cls(**{**found, "memory": CompilerMemory(**memory) if memory else None})

    def __str__(self) -> str:
        return f"{self.name} for {self.chip}, {self.topology} ({self.version})"


def is_chip(name: str, chip: str) -> bool:
    """Whether `chip` is the one called `name`; an H100 PCIe or NVL is another than an H100."""
    words = words_of(chip)
    return words_of(name) <= words and not words & _OTHER_FORMS


def words_of(chip: str) -> set[str]:
    """`A100-SXM4-40GB` as a100, sxm4 and 40; `TPU v5p` as tpu and v5p."""
    return {re.sub(r"(?<=\d)gb$", "", word) for word in re.split(r"[-_\s]+", chip.lower())}
