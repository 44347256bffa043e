"""A child process that compiles one module with one of XLA's compilers, and ends.

A compiler may end the process, take all memory, or hold a lock for as long as it lives: none of that
reaches the process of the user.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from flint.errors import FlintError
from flint.io.processes import begin_child
from flint.passes import jax_private
from flint.passes.compilers.buffers import split_dump
from flint.passes.compilers.opaque import carry_calls
from flint.passes.compilers.plugins import PLUGINS
from flint.passes.compilers.rocm import load_without_rocm
from flint.passes.mlir import functions_of, make_context
from flint.passes.partition.prepare.local_calls import with_local_calls
from flint.passes.partition.prepare.manual_names import with_whole_names
from flint.passes.partition.worker import read_message, write_message

#: What XLA says where the program is too large for the chip.
_OUT_OF_MEMORY = "RESOURCE_EXHAUSTED"
_SHOWN_CHARACTERS = 600
TOO_LARGE = (
    "shard it over more devices; without --compiler, `flint estimate -v` says what fills the memory"
)
#: What it says of a kernel that keeps more where its threads meet than a multiprocessor holds.
_TOO_WIDE = "Shared memory size limit exceeded"
#: The pass that makes such kernels, of whole rows.
_WIDE_FUSIONS = "triton-softmax-rewriter"
_POLL_SECONDS = 0.02
_T = TypeVar("_T")


def main() -> None:
    """Compile what the standard input holds; write the memory that it needs, and the module."""
    begin_child()
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    options, module = read_message(sys.stdin.buffer)
    try:
        facts, compiled = compile_module(options, module)
    except FlintError as error:
        answer = {"code": error.code, "error": error.message, "help": error.help}
        write_message(sink, answer, b"")
    else:
        write_message(sink, facts, compiled)
    sys.stderr.flush()
    os._exit(0)  # threads of libtpu do not end by themselves


def compile_module(options: dict[str, Any], module: bytes) -> tuple[dict[str, Any], bytes]:
    """Memory of one device in bytes, for GPUs a `warning`, and the optimised HloModuleProto.

    `options` are `platform`, `devices`, `is_gspmd`, `declared` kernels, for GPUs `text` and `gpus_per_host`, and for TPUs
    `topology` and, unless code is to be generated, a folder `scratch`. Raises FlintError FL402 with
    the compiler's reason, FL414 for a slice that it does not know, FL416 for a program that does not
    fit, FL417 for a plugin that cannot be loaded.
    """
    if options.get("scratch"):
        return _until_optimised(options, module)
    executable, warning = _executable(options, module)
    memory = executable.get_compiled_memory_stats()
    facts = {
        "warning": warning,
        "argument_bytes": memory.argument_size_in_bytes,
        "output_bytes": memory.output_size_in_bytes,
        "alias_bytes": memory.alias_size_in_bytes,
        "temp_bytes": memory.temp_size_in_bytes,
        "code_bytes": memory.generated_code_size_in_bytes,
    }
    return facts, executable.hlo_modules()[0].as_serialized_hlo_module_proto()


def _executable(options: dict[str, Any], module: bytes) -> tuple[Any, str]:
    """What was compiled, and what was left out of it."""
    from jaxlib.mlir import ir

    is_gpu = options["platform"] != "tpu"
    found = _gpus(options) if is_gpu else _tpus(options)
    xla = jax_private.xla_client()
    chosen = found[: options["devices"]]
    local = module if options["is_gspmd"] else with_local_calls(module, options["devices"])
    try:
        with make_context():
            parsed = ir.Module.parse(with_whole_names(local))
            if is_gpu:
                carry_calls(parsed, options["declared"], options["platform"])
            settings = _settings(xla, chosen, parsed, is_gspmd=options["is_gspmd"])
            compile = partial(
                chosen[0].client.compile, parsed, xla.DeviceList(tuple(chosen)), settings
            )
            return _without_too_wide(compile, settings.executable_build_options.debug_options)
    except (RuntimeError, ValueError, TypeError) as error:
        raise _refused(error) from error


def _without_too_wide(compile: Callable[[], _T], debug: Any) -> tuple[_T, str]:
    """Once more without kernels of whole rows where one is too wide: XLA refuses the whole program."""
    try:
        return compile(), ""
    except RuntimeError as error:
        if _TOO_WIDE not in str(error):
            raise
    left_out = filter(None, (debug.xla_disable_hlo_passes, _WIDE_FUSIONS))
    debug.xla_disable_hlo_passes = ",".join(left_out)
    return compile(), (
        "a softmax of whole rows needs more shared memory than a multiprocessor of this chip has: all "
        "of them are compiled as several kernels"
    )


def _until_optimised(options: dict[str, Any], module: bytes) -> tuple[dict[str, int], bytes]:
    """The module before libtpu generates code, which takes by far the longest and changes no row.

    It is dumped with its buffers; the compilation is left behind, with the process.
    """
    folder = Path(options["scratch"])
    flags = f"--xla_dump_to={folder} --xla_dump_hlo_as_proto=true"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()
    compiling = ThreadPoolExecutor(1).submit(_executable, options, module)
    while True:
        is_done = compiling.done()
        if found := _dumped(folder):
            return found
        if is_done:
            compiling.result()  # raises what the compiler said
            raise FlintError("FL402", "libtpu wrote no optimised module")
        time.sleep(_POLL_SECONDS)


def _dumped(folder: Path) -> tuple[dict[str, int], bytes] | None:
    dumps = folder.glob("*.after_optimizations.hlo.pb")
    return next((found for dump in dumps if (found := split_dump(dump.read_bytes()))), None)


def _settings(xla: Any, devices: list[Any], module: Any, *, is_gspmd: bool) -> Any:
    """What JAX asks the compiler for: one partition a device, by Shardy unless it is GSPMD's.

    The sharding of a result that the program leaves open is the compiler's choice.
    """
    import numpy as np

    found = xla.CompileOptions()
    found.num_replicas, found.num_partitions = 1, len(devices)
    build = found.executable_build_options
    build.use_spmd_partitioning = True
    build.use_shardy_partitioner = not is_gspmd
    build.allow_spmd_sharding_propagation_to_output = _open_results(module)
    assignment = np.array([[device.id for device in devices]], dtype=np.int64)
    found.device_assignment = xla.DeviceAssignment.create(assignment)
    return found


def _open_results(module: Any) -> list[bool]:
    """Whether each result of the step has no sharding of its own."""
    from jaxlib.mlir import ir

    main = functions_of(module)["main"]
    if "res_attrs" not in main.attributes:
        return [True]
    found = (ir.DictAttr(a) for a in ir.ArrayAttr(main.attributes["res_attrs"]))
    return [not ("sdy.sharding" in a or "mhlo.sharding" in a) for a in found] or [True]


def _gpus(options: dict[str, Any]) -> list[Any]:
    """Devices of so many hosts: slices, hosts of a slice, devices of a host."""
    if options["platform"] == "rocm":  # before JAX looks for its plugin's libraries
        load_without_rocm((*PLUGINS["rocm"].modules, "jax_rocm7_plugin"))
    from jax.experimental import topologies

    count = int(options["devices"])
    per_host = next(n for n in range(int(options["gpus_per_host"]), 0, -1) if count % n == 0)
    try:
        described = topologies.get_topology_desc(
            "",
            platform=options["platform"],
            target_config=options["text"],
            topology=f"1x{count // per_host}x{per_host}",
        )
    except (RuntimeError, ValueError) as error:
        raise FlintError(
            "FL417",
            f"JAX's {options['platform']} plugin does not start: {_said(error)}",
            help="install it anew, of jaxlib's version",
        ) from error
    return list(described.devices)


def _tpus(options: dict[str, Any]) -> list[Any]:
    from jax.experimental import topologies

    try:
        described = topologies.get_topology_desc(platform="tpu", **options["topology"])
    except (RuntimeError, ValueError) as error:
        raise FlintError(
            "FL414",
            f"libtpu has no slice {options['topology']['topology_name']}: {_said(error)}",
            help="give a mesh of another size, or another --chip",
        ) from error
    return list(described.devices)


def _refused(error: Exception) -> FlintError:
    said = _said(error)
    if _OUT_OF_MEMORY in said and _TOO_WIDE not in said:
        return FlintError("FL416", f"the program does not fit the chip: {said}", help=TOO_LARGE)
    help = "leave out --compiler, or change the operation that is named"
    if "No registered implementation" in said or "No FFI handler" in said:
        help = "say what this call costs with @flint.cost_of: then it is taken as it is"
    return FlintError("FL402", f"XLA does not compile this program: {said}", help=help)


def _said(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines)[:_SHOWN_CHARACTERS]


if __name__ == "__main__":
    main()
