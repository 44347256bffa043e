"""The child process of a compiler, seen from the parent: limits, and what its end means."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any, Final

from flint.errors import FlintError
from flint.io.processes import TOTAL_SECONDS, Child, Patience, how_it_ended, last_words
from flint.io.scratch import scratch_folder
from flint.log import stage
from flint.passes.partition.worker import child_environment, read_message, write_message

#: How long libtpu's lock, which another process holds, is waited for.
LOCK_SECONDS: Final = 120.0
_POLL_SECONDS: Final = 2.0
#: What libtpu says where another process has loaded it.
_LOCKED: Final = re.compile(r"libtpu_lockfile|libtpu.so already in use|TPU is already in use")


def compile_in_child(
    options: Mapping[str, Any], module: bytes, lock_seconds: float = LOCK_SECONDS
) -> tuple[dict[str, Any], bytes]:
    """What `child.compile_module` answers: memory in bytes, and the optimised module.

    Raises FlintError FL401 if the compiler ends the process or is too slow, FL402, FL414, FL416
    and FL417 as the child does, and FL415 where another process keeps the compiler to itself.
    """
    end = time.monotonic() + lock_seconds
    while True:
        with stage(f"{options['compiler']} compiler"), scratch_folder() as scratch:
            request = io.BytesIO()
            place = {} if options["generates_code"] else {"scratch": str(scratch)}
            write_message(request, {**options, **place}, module)
            done = _run(request.getvalue(), options)
        try:
            header, result = read_message(io.BytesIO(done.stdout))
        except EOFError as error:
            if not _LOCKED.search(done.stderr.decode(errors="replace")):
                raise _died(options["compiler"], done) from error
        else:
            if not header.get("error"):
                return header, result
            if not _LOCKED.search(header["error"]):
                raise FlintError(header["code"], header["error"], help=header.get("help"))
        if time.monotonic() >= end:
            raise _locked(lock_seconds)
        time.sleep(_POLL_SECONDS)


def _run(request: bytes, options: Mapping[str, Any]) -> subprocess.CompletedProcess[bytes]:
    pipe, command = subprocess.PIPE, child_command()
    child = Child(command, stdin=pipe, stdout=pipe, stderr=pipe, env=_environment(options))
    try:
        with child.watched(Patience.from_environment()) as watch:
            out, err = child.process.communicate(request)
    finally:
        code = child.end()
    if watch.reason:
        raise FlintError(
            "FL401",
            f"the {options['compiler']} compiler {watch.reason}",
            help=f"{TOTAL_SECONDS} allows more time; a scan over layers compiles once what "
            "unrolled layers repeat",
        ) from watch.cause()
    return subprocess.CompletedProcess(command, code, out, err)


def child_command() -> list[str]:
    """How the compiler's process is started."""
    return [sys.executable, "-P", "-m", "flint.passes.compilers.child"]


def _environment(options: Mapping[str, Any]) -> dict[str, str]:
    """The child's: the user's flags of XLA and libtpu hold, their choice of a platform does not."""
    found = {k: v for k, v in child_environment().items() if k not in ("JAX_PLATFORMS",)}
    found = {**found, "TF_CPP_MIN_LOG_LEVEL": "2"}  # fatal words come all the same
    if options["platform"] != "tpu":
        return {**found, "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1"}
    alone = {  # libtpu would ask the host, and Google's metadata server, what it runs on
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_ACCELERATOR_TYPE": str(options["accelerator"]),
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_WORKER_ID": "0",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    }
    return {**found, **alone}


def flags() -> dict[str, str]:
    """Settings of the environment that change what compilers give."""
    names = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
    return {name: os.environ[name] for name in names if os.environ.get(name)}


def _died(compiler: str, done: subprocess.CompletedProcess[bytes]) -> FlintError:
    help = "this is a bug in the compiler, not in your process; leave out --compiler"
    if done.returncode == -signal.SIGKILL:
        help = "the system ends processes like this when memory runs out: make the mesh, or the "
        help += "number of unrolled layers, smaller"
    if b"Unknown flag" in done.stderr:
        help = "XLA_FLAGS has a flag that this compiler does not know: unset it"
    message = f"the {compiler} compiler died ({how_it_ended(done.returncode)})"
    return FlintError("FL401", message, place=last_words(done.stderr), help=help)


def _locked(seconds: float) -> FlintError:
    return FlintError(
        "FL415",
        f"another process has held libtpu's lock for {seconds:g} seconds",
        help="wait until it ends; if none runs, remove /tmp/libtpu_lockfile",
    )
