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
    """The memory of one device by a compiler's assignment of buffers, in bytes.

    For GPUs it is XLA's CompiledMemoryStats; for TPUs that of HBM before code is generated, without
    the code.
    """

    argument_bytes: int  #: Bytes of the arguments.
    output_bytes: int  #: Bytes of the results.
    alias_bytes: int
    """Bytes of results that lie in the place of arguments: they are in both of the others."""
    temp_bytes: int  #: Bytes of everything between.
    code_bytes: int  #: Bytes of the generated code; 0 where none was generated.

    @property
    def peak_bytes(self) -> int:
        """All that a device holds: results in the place of arguments count once."""
        held = self.argument_bytes + self.output_bytes - self.alias_bytes
        return held + self.temp_bytes + self.code_bytes


@dataclass(frozen=True, slots=True)
class CompiledBy:
    """The compiler that made the programs."""

    name: str  #: Its name: xla-gpu, xla-tpu or xla-tpu-cycles.
    chip: str  #: The chip that it compiled for.
    version: str  #: Its package and version.
    topology: str  #: The chips that it compiled for: their number, or the torus of a slice.
    memory: CompilerMemory | None = None
    """Memory by its own analysis; null where the programs come from several modules."""

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
