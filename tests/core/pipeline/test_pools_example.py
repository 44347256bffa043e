"""Disaggregated Llama 3 8B: messages and bytes between the pools as computed by hand."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jax")

from flint.backends.chakra import check, read, write
from flint.backends.chakra.schema import NodeType
from flint.frontends.model_file import Target, importable, load_step
from flint.ir.workload import Workload
from flint.passes.work.totals import CommunicationTotal, totals
from flint.steps.pools import Disaggregated
from flint.tracing_pools import trace_pools

EXAMPLE = Path(__file__).parents[3] / "examples" / "disaggregated_jax.py"
#: Llama 3 8B: layers, key-value heads, their size; bfloat16.
LAYERS, KV_HEADS, HEAD_DIM, BYTES = 32, 8, 128, 2
PROMPT = 4096
TEXT = re.sub(r"\\+\n +", "", EXAMPLE.read_text("utf-8"))
COMMANDS = re.findall(r"--mesh (pool=\S+)((?: --set \S+)*)", TEXT)


@cache
def capture(mesh: str, settings: str = "") -> Workload:
    """What `flint capture` makes of the example; `settings` are "name=value ..."."""
    target = Target.parse(str(EXAMPLE))
    with importable(target.path.parent):
        values = dict(pair.split("=", 1) for pair in settings.split())
        loaded = load_step(target, mesh, settings=values)
    step: Any = loaded.step
    assert isinstance(step, Disaggregated)
    return trace_pools(step, loaded.mesh)


def between(workload: Workload, pool: int) -> list[CommunicationTotal]:
    """Messages of one rank of a pool, the largest first."""
    found = totals(workload.programs[pool]).communication
    return sorted((c for c in found if c.kind in ("send", "recv")), key=lambda c: -c.comm_bytes)


def cache_bytes(requests: int, tensor_parallel: int) -> int:
    """Keys and values of all layers, of one rank."""
    layer = 2 * requests * PROMPT * KV_HEADS // tensor_parallel * HEAD_DIM * BYTES
    return LAYERS * layer


@pytest.mark.parametrize(("tensor_parallel", "requests"), [(4, 1), (8, 3)])
def test_one_to_one(tensor_parallel: int, requests: int) -> None:
    """Shard to shard: a message for the keys and one for the values of each layer, and the token."""
    mesh = f"pool=2,data=1,model={tensor_parallel}"
    workload = capture(mesh, f"prompts={requests}")
    for pool, kind in enumerate(("send", "recv")):
        [all_of_it] = between(workload, pool)
        assert (all_of_it.kind, all_of_it.count) == (kind, 2 * LAYERS + 1)
        token = 4 * requests
        assert all_of_it.comm_bytes == cache_bytes(requests, tensor_parallel) + token


def test_one_prefills_for_three() -> None:
    """The prefill rank sends to each decode position, which gets the cache of one prompt."""
    workload = capture("pool=4,data=1,model=8")
    [sent], [received] = (between(workload, pool) for pool in (0, 1))
    assert (sent.count, received.count) == (3 * (2 * LAYERS + 1), 2 * LAYERS + 1)
    assert sent.comm_bytes == 3 * received.comm_bytes
    assert received.comm_bytes == cache_bytes(1, 8) + 4


def test_more_tensor_parallelism_to_prefill() -> None:
    """A decode rank reads two heads of one of two requests: a message from each of two ranks."""
    workload = capture("pool=2,major=2,minor=4", "prefill_tp=major+minor decode_tp=minor prompts=2")
    for pool in (0, 1):
        caches, *_ = between(workload, pool)
        assert caches.count == 2 * LAYERS * 2
        assert caches.comm_bytes == cache_bytes(1, 4)
        assert caches.comm_bytes == cache_bytes(2, 8)  # what the prefill rank has


def test_ranks_of_the_traces(tmp_path: Path) -> None:
    """The rank at the same place of the next position gets what a rank sends, in its order."""
    write(capture("pool=2,data=1,model=4", "num_layers=2"), tmp_path / "out")
    assert check(tmp_path / "out").ok
    ends = []
    for rank, peer, kind in (
        (1, "comm_dst", NodeType.COMM_SEND),
        (5, "comm_src", NodeType.COMM_RECV),
    ):
        nodes = [n for n in read(tmp_path / "out" / f"trace.{rank}.et").nodes if n.type == kind]
        values = [{name: value for name, (_, value) in n.attributes.items()} for n in nodes]
        assert {of[peer] for of in values} == {6 - rank}
        ends.append({of["comm_tag"]: of["comm_size"] for of in values})
    assert ends[0] == ends[1] and len(ends[0]) == 2 * 2 + 1


@pytest.mark.parametrize(("mesh", "options"), COMMANDS)
def test_documented_command(mesh: str, options: str, tmp_path: Path) -> None:
    settings = " ".join(re.findall(r"--set (\S+)", options))
    write(capture(mesh, f"{settings} num_layers=2"), tmp_path / "out")
    report = check(tmp_path / "out")
    assert report.ok and report.proved == "any-times", (report.findings, report.doubt)


def test_tokens_in_a_loop(tmp_path: Path) -> None:
    """The caches arrive once, before the loop over tokens."""
    write(capture("pool=2,data=1,model=2", "num_layers=2 tokens=3"), tmp_path / "out")
    assert check(tmp_path / "out").ok
