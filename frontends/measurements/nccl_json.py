"""The JSON file of newer nccl-tests (`-J FILE`): one run, its devices and results.

Its list of environment variables, its arguments but for the name of the test, and its hosts' names
are not kept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from flint.errors import FlintError
from flint.frontends.measurements import nccl_tests
from flint.frontends.measurements.rows import Collected, Measurements

FORMAT = "nccl-tests JSON"


def recognizes(document: Any) -> bool:
    """Whether a JSON document is one of these."""
    return (
        isinstance(document, dict)
        and isinstance(document.get("results"), list)
        and any(isinstance(r, dict) and "out_of_place" in r for r in document["results"])
    )


def read(document: Mapping[str, Any], name: str) -> Measurements:
    """The rows of a document. Raises FlintError as `nccl_tests.read` does, FL854 for broken ones."""
    found = Collected(name, FORMAT)
    try:
        run = _run(document)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FlintError(
            "FL854",
            f"{name} is no JSON of nccl-tests that is known: {type(error).__name__} at {error}",
            help="give the text that it prints instead",
        ) from error
    nccl_tests.take(run, found)
    return found.done()


def _run(document: Mapping[str, Any]) -> nccl_tests.Run:
    run = nccl_tests.Run(unit="us")
    arguments = document.get("args") or [""]
    program = PurePosixPath(str(arguments[0])).name
    run.test = program.removesuffix("_mpi").removesuffix("_perf")
    if run.test not in (*nccl_tests.COLLECTIVES, *nccl_tests.OTHERS):
        run.test = ""
    for device in (document.get("config") or {}).get("devices") or ():
        if 0 <= int(device["rank"]) < nccl_tests.MOST_RANKS:
            run.ranks[int(device["rank"])] = (int(device["group"]), str(device["hostname"]))
    for result in document["results"]:
        body = result.get("out_of_place") or result.get("in_place")
        if body:
            run.rows.append(_row(result, body))
    return run


def _row(result: Mapping[str, Any], body: Mapping[str, Any]) -> nccl_tests.Row:
    time = body.get("time", body.get("cpu_time"))
    wrong = body.get("nwrong")
    return nccl_tests.Row(
        int(result["size"]),
        nccl_tests.TYPES[str(result["type"])],
        _float(time),
        _float(body["alg_bw"]),
        _float(body["bus_bw"]),
        wrong is not None and _float(wrong) >= 1,
    )


def _float(value: Any) -> float:
    return math.nan if value is None else float(value)
