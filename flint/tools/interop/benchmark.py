"""A step as a benchmark that runs without Flint: what each rank class does, and the script that does it.

`nccl_tests` and `param` write the communication of the same plans for programs of others.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from flint.backends.chakra.writing.expand import expand
from flint.backends.cost.chips.kernel_table import kernels_of
from flint.backends.cost.chips.kernels import KernelKind
from flint.backends.cost.simulate.layers import untimed_nodes
from flint.errors import FlintError
from flint.io.outputs import OutputKind, refuse_to_replace, write_output
from flint.ir.op_class import OpClass
from flint.ir.program import Collective, Kind, Program
from flint.ir.workload import Workload
from flint.tools.interop import nccl_tests, param

#: What a folder of a benchmark may hold, beside `class_N.json` and `rank-N.json`.
_SCRIPT, _WORLD, _RUN = "benchmark.py", "world.json", "run.sh"
#: The first entry of each of its documents, by which Flint knows them again.
_SCHEMA = {"schema": "flint.benchmark/1"}
#: Names and texts.
_Files = Iterator[tuple[str, str]]
#: Steps of one rank above which nobody waits for the file to be read.
MOST_STEPS = 2_000_000


def write_benchmark(workload: Workload, folder: Path, runner: str = "torch") -> Mapping[str, int]:
    """Write a benchmark of a step to a folder; by name the numbers of what a rank of each class runs.

    `runner` runs it: `torch` kernels and communication, `nccl-tests` and `param` communication alone.
    Raises FlintError FL958 (the folder holds something else), FL508 (somebody else's file of the name of a
    part), FL959 (a step without kernels, or one too long to be run) and FL502 (cannot write).
    """
    nodes = untimed_nodes(workload, "kernel")
    plans = [_plan(nodes, number) for number in range(len(nodes.classes))]
    groups: dict[tuple[int, ...], None] = {}
    for plan in plans:
        for message in plan["messages"]:
            groups |= dict.fromkeys(tuple(ranks) for ranks in message["groups"] if len(ranks) > 1)
    world = {
        **_SCHEMA,
        "name": str(workload.metadata.get("name") or "program"),
        "ranks": workload.mesh.size,
        "class_of_rank": nodes.class_of_ranks().tolist(),
        "groups": list(groups),
    }
    there, files = _parts_in(folder), _RUNNERS[runner](plans, world)
    first = next(files)  # what cannot be written is refused before anything goes
    for path in there:  # parts of two steps would run together if this is interrupted
        path.unlink()
    for name, text in chain((first,), files):
        write_output(folder / name, text.encode(), OutputKind.BENCHMARK)
    told = ("kernel", "message") if runner == "torch" else ("message",)
    counts = [sum(what in told for what, *_ in plan["steps"]) for plan in plans]
    return {c.name: count for c, count in zip(nodes.classes, counts, strict=True)}


def _torch_files(plans: list[dict[str, Any]], world: dict[str, Any]) -> _Files:
    for number, plan in enumerate(plans):
        yield f"class_{number}.json", json.dumps(plan)
    yield _WORLD, json.dumps(world)
    # Read and not imported: it needs PyTorch, which is not there beside JAX.
    yield _SCRIPT, Path(__file__).with_name("torch_benchmark.py").read_text()


def _nccl_files(plans: list[dict[str, Any]], world: dict[str, Any]) -> _Files:
    yield _RUN, nccl_tests.script(plans, world)


_RUNNERS: Mapping[str, Callable[[list[dict[str, Any]], dict[str, Any]], _Files]] = {
    "torch": _torch_files,
    "nccl-tests": _nccl_files,
    "param": param.traces,
}


def _parts_in(folder: Path) -> list[Path]:
    """The parts of a benchmark that a folder holds.

    Raises FlintError FL958 unless it is new, empty or holds a benchmark; FL508 for others' files.
    """
    there = sorted(folder.iterdir()) if folder.is_dir() else [folder] if folder.exists() else []
    for path in there:
        is_part = path.name in (_SCRIPT, _WORLD, _RUN) or path.name.startswith(("class_", "rank-"))
        if path == folder or not (is_part or path.name in ("measured", "__pycache__")):
            raise FlintError(
                "FL958",
                f"{folder} holds {path.name}, which is no part of a benchmark",
                help="name a new folder, or one that holds a benchmark",
            )
    parts = [path for path in there if path.is_file()]
    for path in parts:
        refuse_to_replace(path, OutputKind.BENCHMARK)
    return parts


def _plan(workload: Workload, number: int) -> dict[str, Any]:
    """What a rank of a class runs: tables of distinct kernels and messages, and steps that name them."""
    found = workload.classes[number]
    program = workload.programs[found.program]
    kernels, kernel_of = _kernels(program)
    messages, message_of = _messages(program)
    nodes = expand(program)
    if len(nodes) > MOST_STEPS or not kernels:
        raise FlintError(
            "FL959",
            f"ranks as {found.name} run {len(nodes):,} kernels and messages a step: no benchmark",
            help=f"a benchmark has kernels, and at most {MOST_STEPS:,} steps: capture fewer layers",
        )
    kept = np.array([r in kernel_of or r in message_of for r in range(len(program))])[nodes.row]
    place = np.cumsum(kept) - 1
    steps, rows = [], nodes.row.tolist()
    reached: dict[int, frozenset[int]] = {}
    for node, row in enumerate(rows):
        deps = nodes.dependencies(node).tolist()
        waits = frozenset[int]().union(*([int(place[d])] if kept[d] else reached[d] for d in deps))
        if not kept[node]:
            reached[node] = waits
        elif row in kernel_of:
            steps.append(["kernel", kernel_of[row], int(program.stream[row]), sorted(waits)])
        else:
            steps.append(["message", message_of[row], int(program.stream[row]), sorted(waits)])
    tables = {"kernels": kernels, "messages": messages, "streams": program.streams}
    return {**_SCHEMA, **tables, "steps": steps}


def _kernels(program: Program) -> tuple[list[dict[str, Any]], dict[int, int]]:
    """Distinct kernels, and which one each row is."""
    table, rows = kernels_of(program)
    known: dict[str, int] = {}
    found: dict[int, int] = {}
    for at, row in enumerate(rows.tolist()):
        kernel = {
            "name": program.opcodes[int(program.opcode[row])],
            "kind": KernelKind(int(table.kind[at])).name.lower(),
            "dtype": table.dtypes[int(table.dtype[at])],
            "dims": table.dims[at].tolist(),
            "causal": bool(table.causal[at]),
            "read": int(table.read_bytes[at]),
            "written": int(table.written_bytes[at]),
            "flops": int(table.flops[at]),
        }
        found[row] = known.setdefault(json.dumps(kernel), len(known))
    return [json.loads(text) for text in known], found


def _messages(program: Program) -> tuple[list[dict[str, Any]], dict[int, int]]:
    """Distinct collectives and messages, and which one each row is."""
    known: dict[str, int] = {}
    found: dict[int, int] = {}
    for row in _communication(program):
        message: dict[str, Any] = {"what": _what(program, row), "groups": []}
        message["bytes"] = int(program.comm_bytes[row])
        message["dtype"] = program.dtypes[int(program.dtype[row])]
        if message["what"] in ("permute", "send", "recv"):
            route = program.routes[int(program.route[row])]
            message["targets"] = route.targets(program.mesh).tolist()
            message["sources"] = route.sources(program.mesh).tolist()
        else:
            members = program.groups[int(program.group[row])].members(program.mesh)
            message["groups"] = [ranks.tolist() for ranks in members]
        found[row] = known.setdefault(json.dumps(message), len(known))
    return [json.loads(text) for text in known], found


def _communication(program: Program) -> Iterator[int]:
    whole = (program.kind >= Kind.COLLECTIVE) & (program.op != OpClass.HOST)
    yield from np.flatnonzero(whole).tolist()


def _what(program: Program, row: int) -> str:
    kind = Kind(int(program.kind[row]))
    if kind is not Kind.COLLECTIVE:
        return kind.name.lower()
    return Collective(int(program.collective[row])).name.lower()
