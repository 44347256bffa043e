"""Opcodes and streams of what lies in the memory of the host, and of copies to and from it."""

from __future__ import annotations

#: Calls by which JAX (and XLA, in modules that it has read) move a value.
PLACEMENTS = ("annotate_device_placement", "MoveToHost", "MoveToDevice")
#: An argument that is there, a value that is there as it is seen from a row.
ARGUMENT, VIEW = "host.argument", "host.view"
#: Copies from the device to the host, and from the host to the device.
STORE, LOAD = "host.store", "host.load"
#: The streams that copies run on: the link carries both directions at once.
TO_HOST, FROM_HOST = "to host", "from host"
#: Opcodes of rows whose values are on the host.
ON_HOST = frozenset({ARGUMENT, VIEW, STORE})
