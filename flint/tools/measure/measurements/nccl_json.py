"""The JSON file of newer nccl-tests (`-J FILE`): one run, its devices and results.

Its list of environment variables, its arguments except the name of the test, and its hosts' names
are not kept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, NotRequired

from typing_extensions import TypedDict

from flint.errors import FlintError, Malformed
from flint.io.records import Count, record_of
from flint.tools.measure.measurements import nccl_tests
from flint.tools.measure.measurements.rows import CollectedRows, Measurements

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
    found = CollectedRows(name, FORMAT)
    try:
        run = _run(record_of(_Document, document))
    except Malformed as error:
        raise FlintError(
            "FL854",
            f"{name} is not a known JSON format of nccl-tests: {error}",
            help="give the text output instead",
        ) from error
    nccl_tests.take(run, found)
    return found.done()


class _Device(TypedDict):
    rank: Count
    group: Count
    hostname: str


class _Config(TypedDict):
    devices: NotRequired[list[_Device] | None]


class _Times(TypedDict):
    time: NotRequired[float | None]
    cpu_time: NotRequired[float | None]
    alg_bw: float | None
    bus_bw: float | None
    nwrong: NotRequired[float | None]


class _Result(TypedDict):
    size: Count
    type: str
    out_of_place: NotRequired[_Times | None]
    in_place: NotRequired[_Times | None]


class _Document(TypedDict):
    args: NotRequired[list[str] | None]
    config: NotRequired[_Config | None]
    results: list[_Result]


def _run(document: _Document) -> nccl_tests._Run:
    run = nccl_tests._Run(unit="us")
    arguments = document.get("args") or [""]
    program = PurePosixPath(arguments[0]).name
    run.test = program.removesuffix("_mpi").removesuffix("_perf")
    if run.test not in (*nccl_tests.COLLECTIVES, *nccl_tests.OTHERS):
        run.test = ""
    for device in (document.get("config") or _Config()).get("devices") or ():
        if device["rank"] < nccl_tests.MOST_RANKS:
            run.ranks[device["rank"]] = (device["group"], device["hostname"])
    for result in document["results"]:
        body = result.get("out_of_place") or result.get("in_place")
        if body:
            run.rows.append(_row(result, body))
    return run


def _row(result: _Result, body: _Times) -> nccl_tests._Row:
    if result["type"] not in nccl_tests.TYPES:
        raise Malformed(f"type {result['type'][:40]!r} is not known")
    time = body.get("time", body.get("cpu_time"))
    return nccl_tests._Row(
        result["size"],
        nccl_tests.TYPES[result["type"]],
        _float(time),
        _float(body["alg_bw"]),
        _float(body["bus_bw"]),
        (body.get("nwrong") or 0) >= 1,
    )


def _float(value: float | None) -> float:
    return math.nan if value is None else value
