"""The collectives of a step as a script that runs nccl-tests, one program for each size and group.

Options, and which buffer a size is, are those of NVIDIA/nccl-tests (README.md, src/common.cu).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from flint.errors import FlintError
from flint.text import one_line

_PROGRAMS = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "all_to_all": "alltoall",
    "broadcast": "broadcast",
}
#: Types that are nccl-tests' own; any other type is bytes.
_TYPES = {
    "float32": "float",
    "float16": "half",
    "float64": "double",
    "bfloat16": "bfloat16",
    "int32": "int32",
    "int64": "int64",
    "uint32": "uint32",
    "uint64": "uint64",
    "int8": "int8",
    "float8_e4m3fn": "f8e4m3",
    "float8_e5m2": "f8e5m2",
}
_HEAD = """\
#!/bin/sh
# The collectives of a step for nccl-tests: {name}, {ranks} ranks, one GPU each.
# BIN is the folder of its programs, built with MPI=1. MPIRUN starts {ranks} processes in the order of ranks.
# Each line: how ranks are split into groups, the program, bytes, type, and how often a step runs it.
set -eu
MPIRUN=${{MPIRUN:-mpirun -np {ranks}}} BIN=${{BIN:-build}} OUT=${{OUT:-measured}}
mkdir -p "$OUT"
number=0
run() {{
  number=$((number + 1))
  $MPIRUN env NCCL_TESTS_SPLIT="$1" "$BIN/$2_perf" -g 1 -b "$3" -e "$3" -d "$4" -n 20 -w 5 -c 0 \\
    -J "$OUT/$number.$2.json"
}}
"""


def script(plans: list[dict[str, Any]], world: dict[str, Any]) -> str:
    """The script; what nccl-tests cannot run stands in it as comments.

    Raises FlintError FL959 for a step without collectives that it can run.
    """
    lines, others = [], Counter[str]()
    for message, count in _counted(plans):
        groups = [ranks for ranks in message["groups"] if len(ranks) > 1]
        if not groups:
            others[message["what"]] += count
            continue
        split = _split(groups, world["ranks"])
        program = _PROGRAMS.get(message["what"])
        if split is None or program is None:
            others[f"{message['what']} in groups as {groups[0]}"] += count
        else:
            # Its size is the larger buffer: of an all-gather the result.
            size = message["bytes"] * (len(groups[0]) if program == "all_gather" else 1)
            kind = _TYPES.get(message["dtype"], "uint8")
            lines.append(f'run "{split}" {program} {size} {kind}  # {count}')
    if not lines:
        raise FlintError(
            "FL959",
            "the step has no collectives that nccl-tests can run",
            help="--benchmark torch runs kernels, sends and receives as well",
        )
    lines += [f"# not run: {what}, {count} times a step" for what, count in sorted(others.items())]
    head = _HEAD.format(name=one_line(world["name"]), ranks=world["ranks"])  # in a comment
    return head + "\n".join(lines) + "\n"


def _counted(plans: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], int]]:
    """Distinct messages, and how often a rank that takes part most often runs each."""
    counts: dict[str, int] = {}
    messages: dict[str, dict[str, Any]] = {}
    for plan in plans:
        told = Counter(index for what, index, *_ in plan["steps"] if what == "message")
        for index, count in told.items():
            message = plan["messages"][index]
            key = str(message)
            messages[key], counts[key] = message, max(count, counts.get(key, 0))
    for key, message in messages.items():
        yield message, counts[key]


def _split(groups: list[list[int]], ranks: int) -> str | None:
    """NCCL_TESTS_SPLIT that gives these groups; None if there is none.

    Groups of a part of the ranks are split with all others, which then run the same at the same time.
    """
    member = np.concatenate([np.asarray(each) for each in groups])
    wanted = np.repeat(np.arange(len(groups)), [len(each) for each in groups])
    differing = int(np.bitwise_or.reduce(np.asarray(groups[0]) ^ groups[0][0]))
    mask = ((1 << (ranks - 1).bit_length()) - 1) & ~differing
    extent = max(groups[0]) - min(groups[0])
    stride = max(1, extent // (len(groups[0]) - 1))
    candidates = [("DIV", ranks), ("DIV", extent + 1), ("MOD", stride), ("AND", mask)]
    for name, value in candidates:
        operation = {"DIV": np.floor_divide, "MOD": np.mod, "AND": np.bitwise_and}[name]
        colors = operation(member, value)
        sizes = np.bincount(operation(np.arange(ranks), value))
        pairs = len(np.unique(np.stack([colors, wanted]), axis=1).T)
        whole = set(sizes[np.unique(colors)].tolist()) == {len(each) for each in groups}
        if whole and pairs == len(np.unique(colors)) == len(groups):
            return f"{name} {value}"
    return None
