"""An HLO module in memory: bytes decoded, computations and instructions found by id."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from flint.errors import FlintError
from flint.messages import decode_error
from flint.passes.hlo.schema import message_class

#: Protobuf messages of `schema`; their fields are the documentation.
Instruction = Any
Computation = Any


@dataclass(frozen=True)
class HloModule:
    """A decoded HloModuleProto with lookups. `num_devices` is 0 where the file does not say."""

    proto: Any
    source: str = "HLO module"
    num_replicas: int = 0
    num_partitions: int = 0
    _instructions: dict[int, dict[int, Instruction]] = field(default_factory=dict, repr=False)

    @cached_property
    def computations(self) -> dict[int, Computation]:
        """Computations by id."""
        return {c.id: c for c in self.proto.computations}

    @cached_property
    def schedules(self) -> dict[int, list[int]]:
        """Computation id to instruction ids in the order in which they run, where scheduled."""
        return {e.key: list(e.value.instruction_ids) for e in self.proto.schedule.sequences}

    @cached_property
    def donated(self) -> frozenset[int]:
        """Numbers of the parameters whose buffers the step may overwrite."""
        donors = (*self.proto.input_output_alias.entries, *self.proto.buffer_donor.entries)
        return frozenset(d.parameter_number for d in donors)

    @property
    def entry(self) -> Computation:
        """The computation that the step runs."""
        return self.computation(self.proto.entry_computation_id)

    def computation(self, identity: int) -> Computation:
        """A computation by id. Raises FlintError FL303 if the file refers to one it lacks."""
        found = self.computations.get(identity)
        if found is None:
            raise malformed(self.source, f"it refers to computation {identity}, which it lacks")
        return found

    def instructions(self, computation: Computation) -> dict[int, Instruction]:
        """The instructions of a computation by id."""
        found = self._instructions.get(computation.id)
        if found is None:
            found = {i.id: i for i in computation.instructions}
            self._instructions[computation.id] = found
        return found

    def in_order(self, computation: Computation) -> list[Instruction]:
        """The instructions of a computation in the order in which they run."""
        schedule = self.schedules.get(computation.id)
        if schedule is None:
            return list(computation.instructions)
        table = self.instructions(computation)
        if set(schedule) != set(table):
            raise malformed(self.source, f"the schedule of '{computation.name}' is incomplete")
        return [table[i] for i in schedule]

    def operands(self, computation: Computation, instruction: Instruction) -> list[Instruction]:
        """The instructions that `instruction` reads."""
        table = self.instructions(computation)
        try:
            return [table[i] for i in instruction.operand_ids]
        except KeyError as error:
            raise malformed(
                self.source, f"'{instruction.name}' reads instruction {error}, which it lacks"
            ) from None

    def root(self, computation: Computation) -> Instruction:
        """The instruction whose result a computation returns."""
        found = self.instructions(computation).get(computation.root_id)
        if found is None:
            raise malformed(self.source, f"computation '{computation.name}' has no root")
        return found

    def called(self, instruction: Instruction) -> list[Computation]:
        """The computations that an instruction runs."""
        return [self.computation(i) for i in instruction.called_computation_ids]


def decode_module(data: bytes, source: str = "HLO module") -> HloModule:
    """Read an HloModuleProto, HloProto or HloSnapshot.

    Raises FlintError FL303 for anything else, truncated files included.
    """
    for wrapper in ("HloProto", "HloModule", "HloSnapshot"):
        proto = _parse(wrapper, data)
        if wrapper == "HloSnapshot" and proto is not None:
            proto = proto.hlo
        if wrapper != "HloModule" and proto is not None:
            proto = proto.hlo_module
        if proto is not None and _is_module(proto):
            assignment = proto.device_assignment
            return HloModule(proto, source, assignment.replica_count, assignment.computation_count)
    raise malformed(source, "its bytes are no HloModuleProto, HloProto or HloSnapshot")


def malformed(source: str, why: str) -> FlintError:
    """The FlintError FL303 for a file that is no usable HLO."""
    return FlintError(
        "FL303",
        f"{source} is not a complete HLO module: {why}",
        help="give a .txt or .hlo.pb file as --xla_dump_to writes it; it may be truncated",
    )


def _parse(name: str, data: bytes) -> Any:
    message = message_class(name)()
    try:
        message.ParseFromString(data)
    except (decode_error(), UnicodeDecodeError, ValueError):
        return None
    return message


def _is_module(proto: Any) -> bool:
    """Whether bytes that parsed make sense: one message can often be read as another."""
    entry = next((c for c in proto.computations if c.id == proto.entry_computation_id), None)
    return (
        entry is not None
        and len(entry.instructions) > 0
        and entry.name == proto.entry_computation_name
        and all(i.opcode for i in entry.instructions)
    )
