"""Opcodes and streams of what lies in the memory of the host, and of copies to and from it."""

from __future__ import annotations

from flint.ir.op_class import OpClass

#: Calls by which JAX (and XLA, in modules that it has read) move a value.
PLACEMENTS = ("annotate_device_placement", "MoveToHost", "MoveToDevice")
#: The same two as XLA is told of them, whose compiler for CPUs drops those that it knows.
MOVES = {OpClass.TO_HOST: "flint.move_to_host", OpClass.FROM_HOST: "flint.move_to_device"}
#: Calls that copy an operand to a call on the host, and a result of it to the device.
STORE, LOAD = "flint.host_store", "flint.host_load"
#: The target of a call on the host, and what follows it where each device calls for itself.
CALLBACK_TARGET, ON_SHARDS = "flint.host_callback", "_on_shards"
#: The opcode of a call on the host: nothing runs on the device.
CALLBACK = "host.callback"
#: Opcodes of an argument that is there, and of a value that is there as it is seen from a row.
ARGUMENT, VIEW = "host.argument", "host.view"
#: Opcodes of copies from the device to the host, and from the host to the device.
OPCODES = {OpClass.TO_HOST: "host.store", OpClass.FROM_HOST: "host.load"}
#: The streams that they run on: the link carries both directions at once.
STREAMS = {OpClass.TO_HOST: "to host", OpClass.FROM_HOST: "from host"}
