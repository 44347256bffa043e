"""What is asked of XLA, in a process that may abort or end afterwards: partition, parse text, import HLO.

XLA's later passes are never needed: the answer is there as soon as the module after SPMD partitioning is
on disk.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

from flint.errors import FlintError
from flint.passes import jax_private
from flint.passes.partition.prepare.by_xla import (
    COMPILER_ERRORS,
    compile_for_cpus,
    first_lines,
    refused,
    simplified_by_xla,
)

#: The pass that divides a module; a device alone has only what ends shardings.
_DIVIDES, _ALONE = "spmd-partitioning", "shardy-xla"
_POLL_SECONDS = 0.005


def run_spmd(
    module_bytecode: bytes, num_devices: int, scratch: str, *, is_shardy: bool = True
) -> tuple[bytes, bytes]:
    """Simplify a StableHLO module and partition it, both by XLA; returns an HloProto before and after the latter.

    The compilation is left behind once the partitioned module has been dumped into the empty folder
    `scratch`. Shardings are Shardy's, or GSPMD's unless `is_shardy`. Call it in a process that may end
    afterwards. Raises FlintError FL402 with XLA's reason if it refuses the module.
    """
    name = _DIVIDES if num_devices > 1 else _ALONE
    os.chdir(scratch)  # XLA reads no path with spaces
    # The user's own flags are for other programs, and an unknown one would end this process.
    os.environ["XLA_FLAGS"] = (
        f"--xla_dump_to=. --xla_dump_hlo_as_proto --xla_dump_hlo_pass_re={name}"
    )
    simplified = simplified_by_xla(module_bytecode, is_shardy=is_shardy)
    refusals: list[Exception] = []

    def compile() -> None:
        try:
            compile_for_cpus(simplified, num_devices, is_shardy=is_shardy)
        except COMPILER_ERRORS as error:
            refusals.append(error)

    compiling = threading.Thread(target=compile, daemon=True)
    compiling.start()
    while True:
        finished = not compiling.is_alive()
        data = _dumped(Path(), f"after_{name}")
        if data is not None:
            return _dumped(Path(), f"before_{name}") or b"", data
        if finished:
            break
        time.sleep(_POLL_SECONDS)
    if refusals:
        raise refused(refusals[0])
    raise FlintError(
        "FL402",
        f"XLA could not write the partitioned module into {scratch}",
        help="is there free space? TMPDIR names another folder",
    )


def _dumped(folder: Path, name: str) -> bytes | None:
    """The dump before or after partitioning if it is whole: an HloProto says how long its module is."""
    for path in folder.glob(f"*{name}*.hlo.pb"):
        data = path.read_bytes()
        if data[:1] == b"\x0a":  # field 1, length-delimited
            length, start = _varint(data, 1)
            if start and len(data) >= start + length:
                return data
    return None


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A protobuf varint and the position after it, or (0, 0) if the data ends before it does."""
    value = shift = 0
    while at < len(data):
        value |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if data[at - 1] < 0x80:
            return value, at
    return 0, 0


def parse_text(text: bytes) -> bytes:
    """HLO text to a serialised HloModuleProto. Raises FlintError FL303 with XLA's reason."""
    try:
        return jax_private.proto_of_hlo_text(text.decode())
    except COMPILER_ERRORS as error:
        raise FlintError("FL303", first_lines(error)) from error


def partition(options: dict[str, Any], payload: bytes) -> tuple[dict[str, Any], bytes]:
    """A module as `run_spmd` partitions it once it is written as compilers simplify it.

    `first_bytes` of the answer are the module before.
    """
    from flint.passes.partition.prepare.local_calls import with_local_calls
    from flint.passes.partition.prepare.manual_names import with_whole_names
    from flint.passes.partition.prepare.positions import marked
    from flint.passes.partition.prepare.prepared import prepared
    from flint.passes.partition.prepare.said import with_said

    devices, is_shardy = int(options["num_devices"]), bool(options["shardy"])
    module = prepared(with_said(payload))
    if is_shardy:
        module = with_local_calls(module, devices)
    module = marked(with_whole_names(module))
    before, after = run_spmd(module, devices, str(options["scratch"]), is_shardy=is_shardy)
    return {"first_bytes": len(before)}, before + after


def import_proto(options: dict[str, Any], payload: bytes) -> bytes:
    """An HloModuleProto from before partitioning as StableHLO. Raises FlintError FL303 and FL305."""
    from flint.passes.partition.prepare.import_hlo import import_hlo

    donated = [int(n) for n in options["donated"]]
    return import_hlo(payload, donated, keep_gspmd=bool(options.get("keep_gspmd")))
