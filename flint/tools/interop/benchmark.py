"""A step as a benchmark that runs without Flint: what each rank class does, and the script that does it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
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
from flint.tools.interop import torch_benchmark

#: What a folder of a benchmark holds, beside `class_N.json`.
_SCRIPT, _WORLD = "benchmark.py", "world.json"
#: The first entry of each of its documents, by which Flint knows them again.
_SCHEMA = {"schema": "flint.benchmark/1"}
#: Steps of one rank above which nobody waits for the file to be read.
MOST_STEPS = 2_000_000


def write_benchmark(workload: Workload, folder: Path) -> Mapping[str, int]:
    """Write a benchmark of a step to a folder; by name the numbers of what a rank of each class runs.

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
    files = {f"class_{n}.json": json.dumps(plan) for n, plan in enumerate(plans)}
    files |= {_WORLD: json.dumps(world), _SCRIPT: Path(torch_benchmark.__file__).read_text()}
    _refuse_folder(folder)
    for name in files:
        refuse_to_replace(folder / name, OutputKind.BENCHMARK)
    for name, text in files.items():
        write_output(folder / name, text.encode(), OutputKind.BENCHMARK)
    return {c.name: len(p["steps"]) for c, p in zip(nodes.classes, plans, strict=True)}


def _refuse_folder(folder: Path) -> None:
    """Raise FlintError FL958 unless a folder is new, empty or holds a benchmark."""
    if folder.is_dir():
        others = sorted(
            p.name
            for p in folder.iterdir()
            if p.name not in (_SCRIPT, _WORLD, "measured", "__pycache__")
            and not p.name.startswith("class_")
        )
    else:
        others = [folder.name] if folder.exists() else []
    if others:
        raise FlintError(
            "FL958",
            f"{folder} holds {others[0]}, which is no part of a benchmark",
            help="name a new folder, or one that holds a benchmark",
        )


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
