"""What made a workload: a compiler, a profiler, and stand-ins for what was not there."""

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
    """Bytes of results that overwrite arguments: they are in both of the others."""
    temp_bytes: int  #: Bytes of everything between.
    code_bytes: int  #: Bytes of the generated code; 0 where none was generated.

    @property
    def peak_bytes(self) -> int:
        """All that a device holds: results that overwrite arguments count once."""
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


# What stood in, when a program was recorded, for software and data that were not there.


@dataclass(frozen=True, slots=True)
class StoodIn:
    """`packages` are those that worked in the step, as stand-ins ("transformer_engine") or frameworks
    ("megatron"), `stack` the stack of software that they are part of ("megatron", "" if none). `shares`
    are lines (`train.py:80`) at which no data said how many rows each expert has: all have as many, or
    what a hint says.
    """

    packages: tuple[str, ...] = ()
    stack: str = ""
    shares: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> StoodIn:
        """What `to_json` gave."""
        return cls(
            tuple(map(str, found.get("packages", ()))),
            str(found.get("stack", "")),
            tuple(map(str, found.get("shares", ()))),
        )

    def to_json(self) -> dict[str, Any]:
        """For a workload's metadata, key "stood_in"."""
        return asdict(self)


# What was recorded where a workload is made of profiles: the tool, the device, the measured step.


@dataclass(frozen=True, slots=True)
class MeasuredClass:
    """One rank's profile, the program of which is that of a rank class.

    `span_ns` is the recorded time of the step that the program holds: from the start of the first
    thing in it, on host or device, to the end of the last on the device. `steps` are the steps that
    the profile has, of which one was taken; `period_ns` is the median period between their ends, 0
    where no step follows another. `peak_bytes` is the most memory that the framework's
    allocator held, 0 where the profile does not say.
    """

    rank: int
    span_ns: float
    steps: int
    peak_bytes: int = 0
    period_ns: float = 0.0

    @property
    def step_ns(self) -> float:
        """The time of a step: the period of several, of a single one its span."""
        return self.period_ns or self.span_ns


@dataclass(frozen=True, slots=True)
class MeasuredBy:
    """A profiler's format ("kineto", "xplane", ...), the device's name, and what was recorded.

    `classes` goes by rank class of the workload. Ranks without a profile are in the class of one that
    has.
    """

    format: str
    device: str
    classes: tuple[MeasuredClass, ...]

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> MeasuredBy:
        """What `to_json` gave."""
        classes = tuple(MeasuredClass(**c) for c in found["classes"])
        return cls(str(found["format"]), str(found["device"]), classes)

    def to_json(self) -> dict[str, Any]:
        """For a workload's metadata, key "measured"."""
        return asdict(self)
