"""Collectives that somebody wrote: what is wrong with them, what they take, and their traces for ASTRA-sim."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import flint
from flint.backends.chakra import check
from flint.backends.cost.astrasim.run import simulate_traces
from flint.backends.cost.collectives import duration_ns
from flint.backends.cost.collectives.algorithm import CollectiveCall
from flint.backends.cost.collectives.choose import plan_ns, plans, speeds_of
from flint.backends.cost.network.placement import NetworkPlacement
from flint.cli.command_line import app
from flint.cluster.named import load_cluster
from flint.errors import FlintError
from flint.io.scratch import scratch_folder
from flint.ir.mesh import AxisRef, Group, Mesh
from flint.ir.op_class import Collective
from flint.tools.interop.algorithms.checking import check_algorithm, proved_algorithm
from flint.tools.interop.algorithms.custom import write_custom_collective
from flint.tools.interop.algorithms.pricing import PricedAlgorithm, WrittenAlgorithms
from tests.algorithms import (
    Draft,
    binary_tree,
    chains,
    direct_all_to_all,
    hierarchical_all_gather,
    recursive_doubling,
    ring,
    rotated,
)
from tests.estimates import pipelined, zoo
from tests.machine_output import valid

RING = ring("allreduce", [range(4)])
KINDS = {
    "allreduce": Collective.ALL_REDUCE,
    "allgather": Collective.ALL_GATHER,
    "reducescatter": Collective.REDUCE_SCATTER,
}
drafts = st.one_of(
    st.builds(
        lambda coll, n, c: ring(coll, rotated(1, n)[: min(c, n)]),
        *(st.sampled_from(sorted(KINDS)), st.integers(2, 6), st.integers(1, 3)),
    ),
    st.builds(binary_tree, st.integers(2, 9)),
    st.builds(recursive_doubling, st.sampled_from([2, 4, 8])),
    st.builds(direct_all_to_all, st.integers(2, 5)),
    st.builds(hierarchical_all_gather, st.integers(1, 3), st.integers(2, 3)),
)


def put(folder: Path, text: str | Draft) -> Path:
    path = folder / "algo.xml"
    path.write_text(text if isinstance(text, str) else text.text())
    return path


def found(draft: Draft) -> list[str]:
    """What is wrong with an algorithm, as check says it."""
    with scratch_folder() as folder:
        return [str(f) for f in check_algorithm(put(folder, draft)).findings]


@given(drafts)
def test_correct_algorithms_pass_and_so_do_their_traces(draft: Draft) -> None:
    assert found(draft) == []
    with scratch_folder() as folder:
        _, nodes = write_custom_collective(put(folder, draft), f"{draft.chunks}KiB", folder / "t")
        report = check(folder / "t" / "algo")
        assert report.ok and report.ranks == draft.ranks and report.nodes == nodes


def drop(draft: Draft, pick: Callable[[list[Any]], Any]) -> None:
    block, at = pick([(b, n) for b, steps in draft.blocks.items() for n in range(len(steps))])
    step = draft.blocks[block][at]
    step |= {"type": "nop", "cnt": "0"} if step["type"] != "nop" else {"deps": "99"}


def swap(draft: Draft, pick: Callable[[list[Any]], Any]) -> None:
    block = pick(
        [b for b, s in draft.blocks.items() if b[1] >= 0 and any("s" in x["type"] for x in s)]
    )
    peer = pick([r for r in range(-1, draft.ranks + 1) if r != block[1]])
    draft.blocks = {(b[0], peer, *b[2:]) if b == block else b: s for b, s in draft.blocks.items()}


def repeat(draft: Draft, pick: Callable[[list[Any]], Any]) -> None:
    """Add what arrives to what is there, where it should take its place or is added once."""
    steps = [s for steps in draft.blocks.values() for s in steps]
    step = pick([s for s in steps if s["type"] == "r" and draft.coll == "allreduce"] or [None])
    if step is None:  # no such step: the rank's own part is added once more
        block = (0, -1, -1, 9)
        place = ("o" if draft.coll == "allgather" else "i", 0)
        waits = [(b, len(s) - 1) for b, s in draft.blocks.items() if b[0] == 0]
        target = ("o", 0) if not draft.in_place else place
        draft.add(block, "re", place, target, after=waits)
    else:
        step |= {"type": "rrc"}


def turn(draft: Draft, pick: Callable[[list[Any]], Any]) -> None:
    """Let the first step of a block wait for the last one."""
    block = pick(list(draft.blocks))
    steps = draft.blocks[block]
    steps[-1]["hasdep"] = "1"
    steps[0] |= {"depid": str(draft.id_of(block)), "deps": str(len(steps) - 1)}


def count(draft: Draft, pick: Callable[[list[Any]], Any]) -> None:
    step = pick([s for steps in draft.blocks.values() for s in steps if s["type"] != "nop"])
    step["cnt"] = str(int(step["cnt"]) + pick([-1, 1]))


@pytest.mark.parametrize("fault", [drop, swap, repeat, turn, count])
@given(draft=drafts, data=st.data())
def test_a_planted_fault_is_found(
    fault: Callable[[Draft, Any], None], draft: Draft, data: st.DataObject
) -> None:
    fault(draft, lambda options: data.draw(st.sampled_from(options)))
    try:
        assert found(draft)
    except FlintError as error:  # it does not even fit into its buffers, or a step has no peer
        assert error.code == "FL608"


def test_what_is_wrong_is_named_with_rank_and_chunk() -> None:
    lacking, twice = (ring("allreduce", [range(4)]) for _ in range(2))
    lacking.blocks[1, 2, 0, 0][1]["type"] = "r"  # overwrites what rank 1 has of chunk 3
    assert any(
        "missing-contribution rank 0: chunk 3 of its result lacks" in f for f in found(lacking)
    )
    twice.blocks[2, 3, 1, 0][-1]["type"] = "rrc"
    (said,) = found(twice)
    assert said.startswith("repeated-contribution rank 2: chunk 3 of its result counts what rank 0")
    early = recursive_doubling(4)  # the second exchange does not wait for the first
    for step in early.blocks[0, 2, 2, 0]:
        step |= {"depid": "-1", "deps": "-1"}
    assert any("contribut" in f for f in found(early))


def calls(draft: Draft, cluster: str, mesh: Mesh, num_bytes: int) -> tuple[Any, CollectiveCall]:
    """A cluster, and a call of the draft's kind over axis x."""
    place = NetworkPlacement(mesh, load_cluster(cluster))
    group, kind = Group((AxisRef("x"),)), KINDS.get(draft.coll, Collective.ALL_TO_ALL)
    with scratch_folder() as folder:
        priced = PricedAlgorithm(proved_algorithm(put(folder, draft)))
    call = CollectiveCall(kind, num_bytes, place.spans_of_group(group))
    written = WrittenAlgorithms({(kind, draft.ranks): [priced]})
    return place.cluster, written.on(call, group, place)


def built_in(call: CollectiveCall, cluster: Any, name: str) -> float:
    """What Flint's own algorithm of a name takes, with the faster protocol."""
    speeds = speeds_of(cluster)
    own = plans(CollectiveCall(call.collective, call.comm_bytes, call.spans), cluster, speeds)
    named = [p for p in own if {leg.schedule.algorithm for leg in p} == {name}]
    return min(plan_ns(p, speeds[0].a0_ns) for p in named)


@pytest.mark.parametrize("num_bytes", [1000, 1 << 20, 1 << 28])
@pytest.mark.parametrize(
    ("cluster", "sizes", "draft", "name"),
    [
        *(("h100-dgx", (8,), ring(c, [range(8)]), "ring") for c in KINDS),
        ("a100-80-dgx", (8,), ring("allreduce", rotated(1, 8)[:4]), "ring"),
        ("l40s", (4,), ring("allreduce", [[0, 2, 1, 3]]), "ring"),
        ("h100-dgx", (4, 8), ring("allreduce", [range(4)]), "ring"),  # one rank of each host
        ("h100-dgx", (16,), ring("allreduce", rotated(2, 8)), "flat ring"),
        ("h100-dgx", (16,), ring("allgather", rotated(2, 8)), "flat ring"),
        ("gb200-nvl72", (16,), chains(2, 8), "tree"),
        ("mi300x", (8,), direct_all_to_all(8), "direct"),
    ],
)
def test_rings_and_trees_take_what_flints_own_take(
    cluster: str, sizes: tuple[int, ...], draft: Draft, name: str, num_bytes: int
) -> None:
    on, call = calls(draft, cluster, Mesh(("x", "y")[: len(sizes)], sizes), num_bytes)
    assert duration_ns(call, on) == pytest.approx(built_in(call, on, name), rel=1e-6)


def test_ports_links_and_thread_blocks_limit_what_is_sent() -> None:
    """By hand, for many bytes: factors of the ring's."""
    one, many = Mesh(("x",), (8,)), 1 << 32

    def against_ring(draft: Draft, cluster: str = "h100-dgx", mesh: Mesh = one) -> float:
        whole = ring("allreduce", rotated(mesh.size // 8, 8))
        other = duration_ns(*calls(whole, cluster, mesh, many)[::-1])
        return duration_ns(*calls(draft, cluster, mesh, many)[::-1]) / other

    # Rank 1 receives from two children and its parent; a ring's ranks 2 * 7/8, and copy 0.4 * 1/8.
    assert against_ring(binary_tree(8)) == pytest.approx(3 / 1.8, rel=1e-2)
    # One ring leaves each host at one rank, eight at each of them.
    wide = Mesh(("x",), (16,))
    assert against_ring(ring("allreduce", [range(16)]), mesh=wide) > 5
    # Of the seven links of a rank of a mesh one ring uses one.
    apart = [[k * step % 8 for k in range(8)] for step in (1, 3, 5, 7)]
    mesh_of = [ring("allreduce", apart[:n]) for n in (1, 4)]
    times = [duration_ns(*calls(d, "mi300x", one, many)[::-1]) for d in mesh_of]
    assert times[0] / times[1] == pytest.approx(4, rel=0.05)
    # A thread block that waits for the answer does not send the next part meanwhile.
    assert against_ring(chains(1, 8, together=True)) == pytest.approx(14 / 1.8, rel=1e-2)


@pytest.mark.parametrize("name", ["llama_fsdp_tp", "pipeline"])
def test_a_ring_changes_nothing_of_a_step_and_what_it_is_for_is_said(
    name: str, tmp_path: Path
) -> None:
    trace = flint.Trace(pipelined().workload) if name == "pipeline" else zoo(name)
    size = trace.mesh.sizes[-1]
    asked = f"all-reduce={put(tmp_path, ring('allreduce', [range(size)]))}"
    e = trace.estimate("a100-80-dgx", collective_algorithm=[asked])
    assert e.step_time_ns == trace.estimate("a100-80-dgx").step_time_ns
    assert any(f"all-reduce of {size} ranks runs as algo.xml says" in n for n in e.notes)
    assert any(f"--collective-algorithm {asked} changes nothing" in n for n in e.notes)


def test_a_file_is_for_its_bytes(tmp_path: Path) -> None:
    def estimate(*files: str) -> Any:
        asked = [f"all-reduce={tmp_path / name}" for name in files]
        return zoo("llama_fsdp_tp").estimate("a100-80-dgx", collective_algorithm=asked)

    tree = binary_tree(4).text()
    for name, limits in {"all": "", "few": 'maxBytes="9"', "many": 'minBytes="10"'}.items():
        (tmp_path / name).write_text(tree.replace("<algo", f"<algo {limits}"))
    found = estimate("few", "many")
    assert found.step_time_ns == estimate("all").step_time_ns
    assert found.step_time_ns != zoo("llama_fsdp_tp").estimate("a100-80-dgx").step_time_ns
    with pytest.raises(FlintError, match="FL610.*the same bytes"):
        estimate("few", "all")


BAD = {
    "not XML": ("FL607", "<algo"),
    "another root": ("FL607", "<a/>"),
    "entities": ("FL607", '<!DOCTYPE a [<!ENTITY x "xx"><!ENTITY y "&x;&x;">]><algo>&y;</algo>'),
    "an unknown step": ("FL607", RING.text().replace("'rrc'", "'rrx'")),
    "no number": ("FL607", RING.text().replace('ngpus="4"', 'ngpus="four"')),
    "other gpus": ("FL608", RING.text().replace('ngpus="4"', 'ngpus="5"')),
    "outside of a buffer": ("FL608", RING.text().replace("srcoff='3'", "srcoff='4'")),
    "an unknown kind": ("FL609", RING.text().replace('coll="allreduce"', 'coll="alltonext"')),
}


@pytest.mark.parametrize("what", BAD)
def test_a_file_that_cannot_be_used_is_one_error(what: str, tmp_path: Path) -> None:
    code, text = BAD[what]
    with pytest.raises(FlintError) as error:
        check_algorithm(put(tmp_path, text))
    assert error.value.code == code


@pytest.mark.parametrize(
    ("code", "draft", "asked"),
    [
        ("FL610", RING, "all-reduce"),
        ("FL610", RING, "all-reduced={}"),
        ("FL609", RING, "all-gather={}"),
        ("FL610", ring("allreduce", [range(3)]), "all-reduce={}"),
        ("FL611", Draft("allreduce", 4, 1, (1, 1, 0)), "all-reduce={}"),
    ],
)
def test_an_option_that_cannot_be_is_one_error(
    code: str, draft: Draft, asked: str, tmp_path: Path
) -> None:
    path = put(tmp_path, draft)
    with pytest.raises(FlintError) as error:
        zoo("llama_fsdp_tp").estimate("h100-dgx", collective_algorithm=[asked.format(path)])
    assert error.value.code == code


def test_commands(tmp_path: Path) -> None:
    def run(*arguments: object) -> Any:
        return CliRunner().invoke(app, [str(a) for a in arguments])

    path = put(tmp_path, RING)
    done = run("check", path, "--json")
    assert done.exit_code == 0 and valid(done.stdout, "flint.check/1")["nodes"] == 48
    export = ("export", path, "--custom-collective", "4KiB", "-o", tmp_path / "t")
    done = run(*export)
    assert done.exit_code == 0
    told = json.loads("{" + done.stderr.partition("for system.json: ")[2] + "}")
    assert told == {"all-reduce-implementation-custom": [str(tmp_path / "t" / "algo")]}
    assert "error[FL501]" in run(*export).stderr  # it holds files that Flint does not know
    zoo("llama_fsdp_tp").save(tmp_path / "trace")
    assert "error[FL612]" in run(*export[:-1], tmp_path / "trace").stderr
    assert "error[FL612]" in run(*export[:-3], "1001", "-o", tmp_path / "other").stderr
    assert "error[FL218]" in run(*export[:-2]).stderr
    assert run("check", put(tmp_path, Draft("allreduce", 2, 1, (1, 1, 0)))).exit_code == 1


def test_flints_rules_refuse_custom_collectives(tmp_path: Path) -> None:
    zoo("llama_fsdp_tp").save(tmp_path)
    settings = json.loads((tmp_path / "system.json").read_text())
    settings["all-reduce-implementation-custom"] = ["algo"]
    (tmp_path / "system.json").write_text(json.dumps(settings))
    with pytest.raises(FlintError, match="all-reduce-implementation-custom is not modeled"):
        simulate_traces(tmp_path / "trace", tmp_path / "network.yml", tmp_path / "system.json")
