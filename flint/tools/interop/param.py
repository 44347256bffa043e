"""The communication of a step as PyTorch execution traces that PARAM's comm_replay runs, one for each rank.

What it reads of a trace (groups from `process_group:init`, collectives from `record_param_comms`) is
in facebookresearch/param, et_replay/comm/commsTraceParser.py and et_replay/execution_trace.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from flint.errors import FlintError

#: The newest form of traces that the program reads.
_SCHEMA = "1.1.0-chakra.0.0.4"
_MOST_RECORDS = 2_000_000
#: PyTorch's names, as it records them.
_NAMES = {
    "all_reduce": "allreduce",
    "all_gather": "_allgather_base",
    "reduce_scatter": "_reduce_scatter_base",
    "all_to_all": "all_to_allv",
    "broadcast": "broadcast",
}
_TYPES = {
    "float32": "Float",
    "float16": "Half",
    "float64": "Double",
    "bfloat16": "BFloat16",
    "int32": "Int",
    "int64": "Long",
    "int16": "Short",
    "int8": "Char",
}
_THREAD = 2  # its node
_REQUEST = '"request"'
_NOTHING: dict[str, list[object]] = {"values": [], "shapes": [], "types": []}


def traces(plans: list[dict[str, Any]], world: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The name of each rank's file, and its trace.

    Collectives wait for one another, as kernels that could run beside them are not in the traces. A
    receive is waited for at once, and a send at the end of the step.
    Raises FlintError FL959 for a step without communication, or with too much of it.
    """
    messages = [
        [plan["messages"][index] for what, index, *_ in plan["steps"] if what == "message"]
        for plan in plans
    ]
    told = sum(len(messages[number]) for number in world["class_of_rank"])
    if not 0 < told <= _MOST_RECORDS:
        raise FlintError(
            "FL959",
            f"all ranks together run {told:,} collectives and messages a step: no traces for PARAM",
            help=f"they may run 1 to {_MOST_RECORDS:,}: capture fewer layers or a smaller mesh",
        )
    everyone = tuple(range(world["ranks"]))
    groups = [everyone, *(g for g in world["groups"] if g != everyone)]
    number_of = {ranks: number for number, ranks in enumerate(groups)}
    for plan in plans:
        for message in plan["messages"]:
            members = [(rank, number_of.get(tuple(g))) for g in message["groups"] for rank in g]
            message["group_of"] = {rank: number for rank, number in members if number is not None}
    for rank, number in enumerate(world["class_of_rank"]):
        yield f"rank-{rank}.json", _trace(_Rank(rank, groups), messages[number])


class _Rank:
    """A rank, the groups that it is in, and the calls that it makes."""

    def __init__(self, rank: int, groups: list[tuple[int, ...]]) -> None:
        self.rank = rank
        self.groups = {n: ranks for n, ranks in enumerate(groups) if rank in ranks}
        self._requests = 0
        self._sends: list[str] = []

    def calls(self, message: dict[str, Any]) -> Iterator[str]:
        """Records of what PyTorch would call, without their numbers."""
        if message["what"] in ("permute", "send", "recv"):
            yield from self._point_to_point(message)
        elif self.rank in message["group_of"]:
            group = message["group_of"][self.rank]
            yield self._record(message, _NAMES[message["what"]], group, 0)

    def _point_to_point(self, message: dict[str, Any]) -> Iterator[str]:
        source, target = message["sources"][self.rank], message["targets"][self.rank]
        calls = []
        if message["what"] != "send" and source >= 0:
            calls.append([self._record(message, "recv", 0, source), self._wait()])
        if message["what"] != "recv" and target >= 0:
            # Of two ranks that exchange, one has to send first: NCCL runs their calls in order.
            at = 0 if self.rank < target else len(calls)
            calls.insert(at, [self._record(message, "send", 0, target)])
            self._sends.append(self._wait())
        yield from (call[0] for call in calls)
        yield from (wait for call in calls for wait in call[1:])

    def waits(self) -> list[str]:
        """For what was sent."""
        return self._sends

    def _record(self, message: dict[str, Any], name: str, group: int, peer: int) -> str:
        self._requests += 1
        members = len(self.groups[group])
        return self._asked(_record(name, group, peer, members, message["dtype"], message["bytes"]))

    def _wait(self) -> str:
        return self._asked(_record("wait", 0, 0, len(self.groups[0]), "uint8", 0))

    def _asked(self, record: str) -> str:
        return record.replace(_REQUEST, str(self._requests), 1)


def _counted(dtype: str, size_bytes: int) -> tuple[str, int]:
    """PyTorch's name of a type, and how many of it there are; bytes if it has none or they do not fit."""
    name = _TYPES.get(dtype, "Byte")
    each = 1 if name == "Byte" else 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize
    return (name, size_bytes // each) if size_bytes % each == 0 else ("Byte", size_bytes)


@lru_cache(maxsize=2**16)
def _record(name: str, group: int, peer: int, members: int, dtype: str, size_bytes: int) -> str:
    """A `record_param_comms` without its number, and with a word for the number of its request."""
    kind, given = _counted(dtype, size_bytes)
    results = {"_allgather_base": given * members, "_reduce_scatter_base": given // members}
    request = ["request", name in ("send", "recv", "wait")]  # waits are for messages only
    values = [request, [str(group), "flint"], peer, name, [], [], 0, 1, members]
    types = ["Tuple[Int,Bool]", "Tuple[String,String]", "Int", "String"]
    types += ["GenericList[]", "GenericList[]", "Int", "Int", "Int"]
    told = {
        "collective_name": name,
        "dtype": kind,
        "in_msg_nelems": given,
        "out_msg_nelems": results.get(name, given),
        "in_split_size": "[]",
        "out_split_size": "[]",
        "pg_name": str(group),
        "pg_desc": "flint",
        "pg_size": members,
    }
    inputs = {"values": values, "shapes": [[] for _ in values], "types": types}
    return _node("record_param_comms", _THREAD, inputs, told)


def _node(name: str, parent: int, inputs: object, told: dict[str, object]) -> str:
    """A node's JSON behind its number."""
    attrs = [
        {"name": key, "type": "string" if isinstance(value, str) else "int64", "value": value}
        for key, value in {"op_schema": "", "tid": 1, **told}.items()
    ]
    node = {"name": name, "ctrl_deps": parent, "inputs": inputs, "outputs": _NOTHING}
    return json.dumps(node | {"attrs": attrs})[1:]


def _trace(rank: _Rank, messages: list[dict[str, Any]]) -> str:
    told = [
        {"pg_name": str(n), "pg_desc": "flint", "ranks": list(ranks), "group_size": len(ranks)}
        | {"backend_config": "", "group_count": len(rank.groups)}
        for n, ranks in rank.groups.items()
    ]
    inputs = {"values": [json.dumps(told)], "shapes": [[]], "types": ["String"]}
    nodes = [
        _node("[pytorch|profiler|execution_trace|thread]", 1, _NOTHING, {}),
        _node("## process_group:init ##", _THREAD, inputs, {}),
    ]
    for message in messages:
        nodes += rank.calls(message)
    nodes += rank.waits()
    head = (
        f'{{"flint": "flint.benchmark/1", "schema": "{_SCHEMA}", "pid": {rank.rank}, "nodes": [\n'
    )
    return head + ",\n".join(f'{{"id": {n}, {text}' for n, text in enumerate(nodes, 2)) + "\n]}\n"
