"""An HLO module in memory: bytes decoded and bounded, computations and instructions found by id.

Its messages are declared at run time, only those that Flint reads. Field numbers are those of
xla/service/hlo.proto and xla/xla_data.proto. Fields that are not listed are skipped by the parser,
so that dumps of other XLA versions stay readable.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

from flint.errors import FlintError, Malformed
from flint.ir.program import Phase
from flint.messages import decode_error, message_classes
from flint.passes.locations import (
    as_written,
    file_name,
    is_tracer,
    split_name_stack,
    written_place,
)

#: Protobuf messages; the fields of `_MESSAGES` are the documentation.
Instruction = Any
OpSharding = Any
Computation = Any
_PACKAGE = "flint_hlo"
#: Message name to its fields: (name, number, type), `*` for repeated, a capital for a message.
_MESSAGES: dict[str, str] = {
    "Layout": "minor_to_major 1 int64*, element_size_in_bits 7 int64, memory_space 8 int64",
    "Shape": "element_type 2 int32, dimensions 3 int64*, tuple_shapes 4 Shape*, layout 5 Layout",
    "OpMetadata": "op_type 1 string, op_name 2 string, source_file 3 string, source_line 4 int32, "
    "stack_frame_id 15 int32",
    "Literal": "shape 1 Shape, preds 2 bool*, s32s 4 int64*, s64s 5 int64*, u32s 6 uint64*, "
    "u64s 7 uint64*",
    "WindowDimension": "size 1 int64, stride 2 int64, padding_low 3 int64, padding_high 4 int64, "
    "window_dilation 5 int64, base_dilation 6 int64, window_reversal 7 bool",
    "Window": "dimensions 1 WindowDimension*",
    "ConvolutionDimensions": "kernel_input_feature_dimension 3 int64, "
    "kernel_output_feature_dimension 4 int64, kernel_spatial_dimensions 6 int64*, "
    "input_batch_dimension 7 int64, input_feature_dimension 8 int64, "
    "output_batch_dimension 9 int64, output_feature_dimension 10 int64, input_spatial_dimensions 11 int64*, "
    "output_spatial_dimensions 12 int64*",
    "DotDimensions": "lhs_contracting_dimensions 1 int64*, rhs_contracting_dimensions 2 int64*, "
    "lhs_batch_dimensions 3 int64*, rhs_batch_dimensions 4 int64*",
    "GatherDimensions": "offset_dims 1 int64*",
    "ScatterDimensions": "update_window_dims 1 int64*",
    "PrecisionConfig": "operand_precision 1 int32*, algorithm 2 int32",
    "RaggedDotDimensions": "dot_dimension_numbers 1 DotDimensions",
    "ReplicaGroup": "replica_ids 1 int64*",
    "IotaGroups": "num_replica_groups 1 int64, num_devices_per_group 2 int64, "
    "iota_reshape_dims 3 int64*, iota_transpose_perm 4 int64*",
    "MeshAxis": "name 1 string, size 2 int64",
    "IotaDevices": "reshape_dims 1 int64*, transpose_perm 2 int64*",
    "DeviceMesh": "axes 1 MeshAxis*, device_ids 2 int64*, iota_devices 3 IotaDevices",
    "SubAxis": "pre_size 1 int64, size 2 int64",
    "MeshAxisRef": "mesh_axis_index 1 int64, sub_axis_info 2 SubAxis",
    "MeshAxesGroups": "mesh 1 DeviceMesh, axes 2 MeshAxisRef*",
    "CollectiveDevices": "replica_groups 1 ReplicaGroup*, iota_replica_group_list 2 IotaGroups",
    "SourceTarget": "source 1 int64, target 2 int64",
    "Attribute": "key 1 string, value 2 string",
    "FrontendAttributes": "map 1 Attribute*",
    "OpSharding": "type 1 int32, tile_assignment_dimensions 3 int64*, "
    "tile_assignment_devices 4 int64*, tuple_shardings 5 OpSharding*, "
    "replicate_on_last_tile_dim 6 bool, last_tile_dims 8 int32*, iota_reshape_dims 9 int64*, "
    "iota_transpose_perm 10 int32*, named_sharding 14 NamedSharding",
    # how JAX 0.12 and newer say it
    "NamedSharding": "mesh 2 DeviceMesh, dim_shardings 3 DimensionSharding*, "
    "manual_axes 7 MeshAxisRef*",
    "DimensionSharding": "axes 1 MeshAxisRef*",
    "Instruction": "name 1 string, opcode 2 string, shape 3 Shape, metadata 7 OpMetadata, "
    "literal 8 Literal, parameter_number 9 int64, tuple_index 13 int64, dimensions 14 int64*, "
    "window 15 Window, convolution_dimension_numbers 16 ConvolutionDimensions, "
    "feature_group_count 50 int64, batch_group_count 58 int64, channel_id 26 int64, "
    "custom_call_target 28 string, exponent_bits 18 int32, mantissa_bits 19 int32, "
    "dot_dimension_numbers 30 DotDimensions, "
    "ragged_dot_dimension_numbers 90 RaggedDotDimensions, fft_length 32 int64*, "
    "gather_dimension_numbers 33 GatherDimensions, "
    "scatter_dimension_numbers 48 ScatterDimensions, precision_config 51 PrecisionConfig, "
    "comparison_direction 63 string, id 35 int64, operand_ids 36 int64*, "
    "control_predecessor_ids 37 int64*, called_computation_ids 38 int64*, sharding 40 OpSharding, "
    "backend_config 43 bytes, replica_groups 49 ReplicaGroup*, use_global_device_ids 71 bool, "
    "is_host_transfer 47 bool, source_target_pairs 52 SourceTarget*, k 81 int64, "
    "frontend_attributes 68 FrontendAttributes, collective_device_list 87 CollectiveDevices, "
    "iota_groups 92 IotaGroups, mesh_axes_groups 93 MeshAxesGroups",
    "ProgramShape": "parameters 1 Shape*",
    "Computation": "name 1 string, instructions 2 Instruction*, id 5 int64, root_id 6 int64",
    "InstructionSequence": "instruction_ids 1 int64*",
    "ScheduleEntry": "key 1 int64, value 2 InstructionSequence",
    "Schedule": "sequences 1 ScheduleEntry*",
    "AliasEntry": "parameter_number 2 int64",
    "InputOutputAlias": "entries 1 AliasEntry*",
    "DonorEntry": "parameter_number 1 int64",
    "BufferDonor": "entries 1 DonorEntry*",
    "FileLocation": "file_name_id 1 int32, function_name_id 2 int32, line 3 int32",
    "StackFrame": "file_location_id 1 int32, parent_frame_id 2 int32",
    "StackFrameIndex": "file_names 1 string*, function_names 2 string*, "
    "file_locations 3 FileLocation*, stack_frames 4 StackFrame*",
    "DeviceAssignment": "replica_count 1 int32, computation_count 2 int32",
    "HloModule": "name 1 string, entry_computation_name 2 string, computations 3 Computation*, "
    "host_program_shape 4 ProgramShape, id 5 int64, entry_computation_id 6 int64, "
    "schedule 7 Schedule, input_output_alias 8 InputOutputAlias, "
    "spmd_output_sharding 12 OpSharding, spmd_parameters_shardings 14 OpSharding*, "
    "device_assignment 15 DeviceAssignment, stack_frame_index 17 StackFrameIndex, "
    "buffer_donor 18 BufferDonor, frontend_attributes 19 FrontendAttributes",
    "HloProto": "hlo_module 1 HloModule",
    "HloSnapshot": "hlo 1 HloProto",
}


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
        """A computation by id. Raises Malformed if the file refers to one it lacks."""
        found = self.computations.get(identity)
        if found is None:
            raise Malformed(f"it refers to computation {identity}, which it lacks")
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
        if sorted(schedule) != sorted(table):
            raise Malformed(f"the schedule of '{computation.name}' is incomplete")
        return [table[i] for i in schedule]

    def operands(self, computation: Computation, instruction: Instruction) -> list[Instruction]:
        """The instructions that `instruction` reads."""
        table = self.instructions(computation)
        return [table[i] for i in instruction.operand_ids]

    def root(self, computation: Computation) -> Instruction:
        """The instruction whose result a computation returns."""
        found = self.instructions(computation).get(computation.root_id)
        if found is None:
            raise Malformed(f"computation '{computation.name}' has no root")
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
            if b"async-update" in data:
                from flint.passes.hlo.late_operands import bind

                bind(proto)
            assignment = proto.device_assignment
            return HloModule(proto, source, assignment.replica_count, assignment.computation_count)
    raise malformed(source, "its bytes are not an HloModuleProto, HloProto or HloSnapshot")


def malformed(source: str, why: str) -> FlintError:
    """The FlintError FL303 for a file that is not a usable HLO."""
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


def message_class(name: str) -> Any:
    """The protobuf class of a message in the table above."""
    return _classes()[name]


@cache
def _classes() -> dict[str, Any]:
    return message_classes(_PACKAGE, _MESSAGES)


def scope_and_phase(instruction: Instruction) -> tuple[str, Phase]:
    """Source scope and training phase from the `op_name` that JAX wrote."""
    return split_name_stack(_first_name(instruction))


def _first_name(instruction: Instruction) -> str:
    """The `op_name`; XLA joins those of instructions that it makes one of."""
    return as_written(instruction.metadata.op_name.partition(";")[0])


def location(instruction: Instruction, module: HloModule) -> str:
    """`file.py:line` of the instruction, from its name, its metadata or the module's stack frames."""
    metadata = instruction.metadata
    if (written := written_place(_first_name(instruction))) is not None:
        return written
    if metadata.source_file:
        return _place(metadata.source_file, metadata.source_line)
    index = module.proto.stack_frame_index
    frame = _entry(index.stack_frames, metadata.stack_frame_id)
    place = frame and _entry(index.file_locations, frame.file_location_id)
    name = place and _entry(index.file_names, place.file_name_id)
    return _place(name, place.line) if name else ""


def _place(file: str, line: int) -> str:
    return "" if is_tracer(file) else f"{file_name(file)}:{line}"


def _entry(table: Any, one_based: int) -> Any:
    """An entry of a table whose ids start at 1; None for 0 or an id outside it."""
    return table[one_based - 1] if 0 < one_based <= len(table) else None


#: Starts whose result is (operands, results, ...) and not the results alone.
PAIRED_STARTS = ("all-gather-start", "collective-permute-start", "copy-start")


def started_shape(i: Instruction) -> Any:
    """The shape of what an instruction computes."""
    if i.opcode in PAIRED_STARTS and len(i.shape.tuple_shapes) > 1:
        return i.shape.tuple_shapes[0 if i.opcode == "copy-start" else 1]
    return i.shape
