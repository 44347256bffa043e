"""Main loop of the child process of `worker.py`: one request, one answer, until the pipe closes."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, BinaryIO

from flint.errors import FlintError
from flint.io.processes import begin_child
from flint.passes.partition.worker import announce, read_message, write_message

#: What a task returns: facts for the header, and bytes.
Answer = tuple[dict[str, Any], bytes]


def _shardy(options: dict[str, Any], payload: bytes) -> Answer:
    from flint.passes.partition.shardy_pipeline import partition_module

    return {}, partition_module(payload)


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
    "shardy": _shardy,
    "result-shardings": _result_shardings,
    "import": _import,
    "abort": _abort,
    "sleep": _sleep,
}


def serve(source: BinaryIO, sink: BinaryIO) -> None:
    """Answer requests from `source` on `sink`."""
    while True:
        try:
            options, payload = read_message(source)
        except EOFError:
            return
        task = TASKS[options.pop("task")]
        try:
            facts, result = task(options, payload)
        except FlintError as error:
            answer = {
                "code": error.code,
                "error": error.message,
                "place": error.place,
                "help": error.help,
            }
            write_message(sink, answer, b"")
        except Exception:  # noqa: BLE001  the parent reports it as a bug, with this traceback
            write_message(sink, {"bug": traceback.format_exc()}, b"")
        else:
            write_message(sink, facts, result)


def main() -> None:
    """Serve on the standard streams; what libraries print goes to stderr."""
    begin_child()
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    from flint.passes.mlir import make_context

    make_context()  # imports MLIR while the parent is still busy
    serve(sys.stdin.buffer, sink)


if __name__ == "__main__":
    main()
