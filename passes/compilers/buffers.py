"""The memory of a module before code is generated: XLA's assignment of values to buffers.

Field numbers are those of xla/service/hlo.proto, of which only these are read.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from flint.messages import decode_error, message_classes

_MESSAGES = {
    "Allocation": "size 2 int64, is_thread_local 3 bool, is_parameter 5 bool, is_live_out 7 bool, "
    "color 8 int64",
    "Assignment": "allocations 3 Allocation*",
    "Dump": "module 1 bytes, assignment 3 Assignment",
}
#: The memory space of HBM; others are inside of a core.
_HBM = 0


def split_dump(data: bytes) -> tuple[dict[str, int], bytes] | None:
    """Bytes of a device's memory by use, and the HloModuleProto, of a dump that is whole.

    None for one that is still being written: the assignment follows the module.
    """
    try:
        dump = _classes()["Dump"].FromString(data)
    except decode_error():
        return None
    if not dump.module or not dump.HasField("assignment"):
        return None
    found = [a for a in dump.assignment.allocations if a.color == _HBM and not a.is_thread_local]
    return _memory(found), dump.module


def _memory(allocations: list[Any]) -> dict[str, int]:
    def total(*, parameter: bool, live_out: bool) -> int:
        return sum(
            a.size for a in allocations if a.is_parameter == parameter and a.is_live_out == live_out
        )

    shared = total(parameter=True, live_out=True)
    return {
        "argument_bytes": shared + total(parameter=True, live_out=False),
        "output_bytes": shared + total(parameter=False, live_out=True),
        "alias_bytes": shared,
        "temp_bytes": total(parameter=False, live_out=False),
        "code_bytes": 0,
    }


@cache
def _classes() -> dict[str, Any]:
    return message_classes("flint_buffers", _MESSAGES)
