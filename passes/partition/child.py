"""Main loop of the child process of `worker.py`: one request, one answer, until the pipe closes.

What asks XLA runs in a fork, which has imported everything: XLA may abort its process on input that it does
not expect, and a fork ends as soon as it has its answer, whatever is still compiled.
"""

from __future__ import annotations

import contextlib
import gc
import io
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from typing import Any, BinaryIO

from flint.errors import FlintError
from flint.io.processes import begin_child, how_it_ended, last_words
from flint.passes import jax_private
from flint.passes.partition import xla_child
from flint.passes.partition.worker import announce, read_message, why_it_died, write_message

#: What a task returns: facts for the header, and bytes.
Answer = tuple[dict[str, Any], bytes]


def _result_shardings(options: dict[str, Any], payload: bytes) -> Answer:
    from flint.passes.mlir import make_context
    from flint.passes.partition.shardy_pipeline import propagated_module, result_shardings

    with make_context():
        return {"shardings": result_shardings(propagated_module(payload))}, b""


def _import(options: dict[str, Any], payload: bytes) -> Answer:
    from flint.passes.partition.prepare.import_stablehlo import import_stablehlo

    return import_stablehlo(payload, options["source"])


def _abort(options: dict[str, Any], payload: bytes) -> Answer:
    """Die the way a failed compiler check does: lets tests prove that the parent survives."""
    announce("abort-for-test")
    os.abort()


def _sleep(options: dict[str, Any], payload: bytes) -> Answer:
    """Do nothing: lets tests prove that the parent stops waiting."""
    announce("sleep-for-test")
    time.sleep(float(options["length"]))
    return {}, payload


#: Task names and what they run.
TASKS: dict[str, Callable[[dict[str, Any], bytes], Answer]] = {
    "result-shardings": _result_shardings,
    "import": _import,
    "partition": xla_child.partition,
    "parse-hlo": lambda _, payload: ({}, xla_child.parse_text(payload)),
    "import-hlo": lambda options, payload: ({}, xla_child.import_proto(options, payload)),
    "abort": _abort,
    "sleep": _sleep,
}


def serve(source: BinaryIO, sink: BinaryIO) -> None:
    """Say on `sink` that this process is ready, and answer there requests from `source`."""
    write_message(sink, {}, b"")
    while True:
        try:
            options, payload = read_message(source)
        except EOFError:
            return
        task, is_forked = options.pop("task"), options.pop("forked", False)
        announce(task)
        answer = (
            _forked(task, options, payload, sink) if is_forked else _answer(task, options, payload)
        )
        write_message(sink, *answer)


def _answer(task: str, options: dict[str, Any], payload: bytes) -> Answer:
    try:
        return TASKS[task](options, payload)
    except FlintError as error:
        return _refusal(error), b""
    except Exception:  # noqa: BLE001  the parent reports it as a bug, with this traceback
        return {"bug": traceback.format_exc()}, b""


def _refusal(error: FlintError) -> dict[str, Any]:
    return {"code": error.code, "error": error.message, "place": error.place, "help": error.help}


def _forked(task: str, options: dict[str, Any], payload: bytes, sink: BinaryIO) -> Answer:
    """The answer of a fork of this process, or that it died."""
    reader, writer = os.pipe()
    with tempfile.TemporaryFile() as said, open(reader, "rb") as pipe:
        pid = os.fork()
        if not pid:
            try:
                sink.close()  # if this process is killed, nobody keeps the parent waiting
                for stream in (1, 2):
                    os.dup2(said.fileno(), stream)
                with open(writer, "wb") as answer:
                    write_message(answer, *_answer(task, options, payload))
            finally:
                os._exit(0)
        os.close(writer)
        data = pipe.read()
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        try:
            return read_message(io.BytesIO(data))
        except EOFError:
            said.seek(0)
            return _refusal(_died(task, code, last_words(said.read()))), b""


def _died(task: str, code: int, place: str) -> FlintError:
    return FlintError(
        "FL401",
        f"XLA died in '{task}' ({how_it_ended(code)})",
        place=place,
        help=f"{why_it_died(code, place)}: please report the program, or "
        "dump the program with --xla_dump_to and capture the dump",
    )


def main() -> None:
    """Serve on the standard streams; what libraries print goes to stderr."""
    begin_child()
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    preload()
    gc.freeze()  # a collection in a fork would copy every page that holds an object
    serve(sys.stdin.buffer, sink)


def preload() -> None:
    """Import what requests and their forks need, while the parent is still busy: a fork imports for itself alone."""
    from jaxlib.mlir.dialects import builtin, func, sdy, stablehlo  # noqa: F401

    from flint.passes.hlo.module import message_class
    from flint.passes.mlir import make_context
    from flint.passes.partition import shardy_pipeline  # noqa: F401
    from flint.passes.partition.prepare import (  # noqa: F401
        local_calls,
        manual_names,
        positions,
        prepared,
        said,
    )

    make_context()
    message_class("HloModule")
    with contextlib.suppress(FlintError):  # a name that is gone: the request says so
        jax_private.xla_client()
        jax_private.xla_transforms()


if __name__ == "__main__":
    main()
