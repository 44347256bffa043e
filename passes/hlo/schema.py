"""The messages of an HLO dump that Flint reads, declared at run time.

Field numbers are those of xla/service/hlo.proto and xla/xla_data.proto. Fields that are not listed
are skipped by the parser, so that dumps of other XLA versions stay readable.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from flint.messages import message_classes

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
    "window_dilation 5 int64, base_dilation 6 int64",
    "Window": "dimensions 1 WindowDimension*",
    "ConvolutionDimensions": "kernel_input_feature_dimension 3 int64, "
    "kernel_output_feature_dimension 4 int64, kernel_spatial_dimensions 6 int64*, "
    "output_feature_dimension 10 int64, input_spatial_dimensions 11 int64*, "
    "output_spatial_dimensions 12 int64*",
    "DotDimensions": "lhs_contracting_dimensions 1 int64*, rhs_contracting_dimensions 2 int64*, "
    "lhs_batch_dimensions 3 int64*, rhs_batch_dimensions 4 int64*",
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
    "OpSharding": "type 1 int32",
    "Instruction": "name 1 string, opcode 2 string, shape 3 Shape, metadata 7 OpMetadata, "
    "literal 8 Literal, parameter_number 9 int64, tuple_index 13 int64, dimensions 14 int64*, "
    "window 15 Window, convolution_dimension_numbers 16 ConvolutionDimensions, "
    "feature_group_count 50 int64, batch_group_count 58 int64, channel_id 26 int64, "
    "custom_call_target 28 string, dot_dimension_numbers 30 DotDimensions, "
    "ragged_dot_dimension_numbers 90 RaggedDotDimensions, fft_length 32 int64*, "
    "precision_config 51 PrecisionConfig, "
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


def message_class(name: str) -> Any:
    """The protobuf class of a message in the table above."""
    return _classes()[name]


@cache
def _classes() -> dict[str, Any]:
    return message_classes(_PACKAGE, _MESSAGES)
