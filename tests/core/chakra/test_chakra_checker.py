"""`check` names every fault of a trace that a simulator hides."""

from __future__ import annotations

import gzip
import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flint.backends.chakra import CODES, check
from flint.backends.chakra.reading.trace_files import Membership
from flint.backends.chakra.schema import NodeType
from flint.errors import FlintError
from tests.chakra_traces import coll, comp, node, put_traces, recv, send, trace_bytes

PAIR = {"1": [0, 1]}
Ranks = list[list[Any]]


def two(first: list[Any], second: list[Any] | None = None) -> Ranks:
    return [first, first if second is None else second]


def alike(nodes: list[Any]) -> list[Any]:
    """Executions of one operation: their names are equal."""
    for each in nodes:
        each.name = nodes[0].name
    return nodes


#: fault -> (code that names it, traces of ranks 0 and on, groups). The first part is chakra.md's
#: table of hangs; the second is what only some readers trip over.
FAULTS: dict[str, tuple[str, Ranks, dict[str, list[int]]]] = {
    "collective on a group of one": ("group-of-one", [[coll(1, "1")], []], {"1": [0]}),
    "all dimensions false": (
        "group-of-one",
        two([node(1, NodeType.COMM_COLL, comm_type=0, comm_size=8, involved_dim=(
            "bool_list", [False]))]),
        {},
    ),
    "collectives in another order": (
        "collective-order",
        two([coll(1, "1"), coll(2, "1", comm_size=8)], [coll(1, "1", comm_size=8), coll(2, "1")]),
        PAIR,
    ),
    "collectives of another kind": (
        "collective-kind", two([coll(1, "1")], [coll(1, "1", comm_type=2)]), PAIR,
    ),
    "collectives of another size": (
        "collective-size", two([coll(1, "1")], [coll(1, "1", comm_size=65)]), PAIR,
    ),
    "another number of collectives": (
        "collective-count", two([coll(1, "1"), coll(2, "1")], [coll(1, "1")]), PAIR,
    ),
    "a cyclic order of groups over three ranks": (
        "one-slot-deadlock",
        [
            [coll(1, "1"), coll(2, "3", (1,))],
            [coll(1, "2"), coll(2, "1", (1,))],
            [coll(1, "3"), coll(2, "2", (1,))],
        ],
        {"1": [0, 1], "2": [1, 2], "3": [0, 2]},
    ),
    "a member that never issues": ("missing-participant", two([coll(1, "1")], [comp(1)]), PAIR),
    "a receive without a send": ("recv-without-send", two([comp(1)], [recv(1, 1, 0)]), {}),
    "a message of another tag": (
        "message-tag", two([send(1, 0, 1)], [recv(1, 1, 0, comm_tag=8)]), {},
    ),
    "a message of another size": (
        "message-size", two([send(1, 0, 1)], [recv(1, 1, 0, comm_size=65)]), {},
    ),
    "a send without a receive": ("send-without-recv", two([send(1, 0, 1)], [comp(1)]), {}),
    "both ranks receive before they send": (
        "recv-before-send",
        two([recv(1, 0, 1), send(2, 0, 1, (1,))], [recv(1, 1, 0), send(2, 1, 0, (1,))]),
        {},
    ),
    "two messages with each other's tags": (
        "message-order",
        two(
            alike([send(1, 0, 1, comm_tag=8), send(2, 0, 1, (1,))]),
            alike([recv(1, 1, 0), recv(2, 1, 0, (1,), comm_tag=8)]),
        ),
        {},
    ),
    "a computation of no bytes": ("zero-tensor-size", two([comp(1, tensor_size=0)]), {}),
    "a computation of no operations": ("zero-num-ops", two([comp(1, num_ops=0)]), {}),
    "an INVALID node with children": (
        "invalid-node", two([node(1, NodeType.INVALID), comp(2, (1,))]), {},
    ),
    "a METADATA node": ("metadata-node", two([node(1, NodeType.METADATA), comp(2)]), {}),
    "a send to the rank itself": ("send-to-self", two([send(1, 0, 0)], []), {}),
    "a collective of size 0": ("zero-comm-size", two([coll(1, "1", comm_size=0)]), PAIR),
    "a negative tag": ("negative-tag",
        two([send(1, 0, 1, comm_tag=-1)], [recv(1, 1, 0, comm_tag=-1)]),
        {},
   ),
    "a wrong comm_src": ("wrong-rank", two([send(1, 1, 1)], []), {}),
    "a peer outside the mesh": ("wrong-rank", two([send(1, 0, 9)], []), {}),
    "a partial cycle": ("dependency-cycle", two([comp(1), comp(2, (3,)), comp(3, (2,))]), {}),
    "a node that waits for itself": ("dependency-cycle", two([comp(1), comp(2, (2,))]), {}),
    "a duplicate id": ("duplicate-id", two([comp(1), comp(1, num_ops=3)]), {}),
    # What only some readers trip over.
    "a dependency named twice": ("repeated-dependency", two([comp(1), comp(2, (1, 1))]), {}),
    "a dependency that is not there": ("unknown-dependency", two([comp(2, (1,))]), {}),
    "comm_size of the wrong type": (
        "attribute-type", two([coll(1, "1", comm_size=("uint64_val", 64))]), PAIR,
    ),
    "an attribute without a value": (
        "attribute-type", two([coll(1, "1", comm_size=("int32_val", 64))]), PAIR,
    ),
    "a send without comm_tag": (
        "attribute-missing",
        two([node(1, NodeType.COMM_SEND, comm_size=64, comm_dst=1)], [recv(1, 1, 0, comm_tag=0)]),
        {},
    ),
    "a broadcast": ("unsupported-collective", two([coll(1, "1", comm_type=5)]), PAIR),
    "a barrier": ("unsupported-collective", two([coll(1, "1", comm_type=9)]), PAIR),
    "a CPU operation": ("cpu-op", two([comp(1, is_cpu_op=True)]), {}),
    "a group that the file lacks": ("unknown-group", two([coll(1, "5")]), PAIR),
    "a group without the rank": ("rank-not-in-group", [[], [], [coll(1, "1")]], PAIR),
    "dimensions of another network": (
        "bad-dimensions",
        two([node(1, NodeType.COMM_COLL, comm_type=0, comm_size=8, involved_dim=(
            "bool_list", [True, False, True]))]),
        {},
    ),
    "an order that only the slot forbids": (
        "one-slot-deadlock",
        two([coll(1, "1"), coll(2, "2", comm_size=8)], [coll(2, "1"), coll(1, "2", comm_size=8)]),
        {"1": [0, 1], "2": [1, 0]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_named(fault: str, tmp_path: Path) -> None:
    code, ranks, groups = FAULTS[fault]
    if code == "group-of-one" or "dimensions" in fault:
        (tmp_path / "network.yml").write_text(f"npus_count: [ {len(ranks)} ]\n")
    report = check(put_traces(tmp_path, ranks, groups))
    assert not report.ok
    assert {f.code for f in report.findings} == {code}, report.findings
    assert all(f.sentence for f in report.findings)


def test_every_code_is_planted() -> None:
    planted = {code for code, _, _ in FAULTS.values()}
    files = {"unreadable", "no-metadata", "missing-rank"}  # planted below
    files |= {"changed-file", "missing-file"}  # planted in test_chakra_listed_files.py
    files.add("unsupported-node")  # planted in test_remote_memory.py
    of_algorithms = {"wrong-result", "missing-contribution", "repeated-contribution"}
    assert planted | files | of_algorithms == set(CODES)


def file_fault(folder: Path, change: Callable[[bytes], bytes]) -> list[str]:
    ranks = [[comp(1), coll(2, "1", (1,))] for _ in range(2)]
    put_traces(folder, ranks, PAIR)
    path = folder / "t.1.et"
    path.write_bytes(change(path.read_bytes()))
    return [f.code for f in check(folder).findings]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda data: data[:-3], "unreadable"),
        (lambda data: b"", "unreadable"),
        (lambda data: data + b"\x00", "unreadable"),
        (lambda data: bytes(range(256)) * 4, "unreadable"),
        (gzip.compress, "unreadable"),
        (lambda data: trace_bytes([comp(1), coll(2, "1", (1,))], metadata=False), "no-metadata"),
    ],
    ids=["truncated", "no bytes", "blank record", "random", "compressed", "no metadata"],
)
def test_file_fault_is_named(change: Callable[[bytes], bytes], code: str, tmp_path: Path) -> None:
    assert code in file_fault(tmp_path, change)


def test_absent_rank_is_named(tmp_path: Path) -> None:
    folder = put_traces(tmp_path, [[coll(1, "1")] for _ in range(3)], {"1": [0, 1, 2]})
    (folder / "t.1.et").unlink()
    assert [(f.code, f.rank) for f in check(folder).findings] == [("missing-rank", 1)]


def good_traces(folder: Path) -> Path:
    ranks = [
        [
            comp(0),
            coll(1, "1", (0,)),
            send(2, r, 1 - r, (1,)),
            recv(3, r, 1 - r, (1,)),
            coll(4, "0", (3,)),
        ]
        for r in range(2)
    ]
    return put_traces(folder, ranks, PAIR)


def test_good_traces_of_others_pass(tmp_path: Path) -> None:
    report = check(good_traces(tmp_path) / "t")
    assert report.ok
    assert report.deadlock_examined
    assert (report.ranks, report.nodes, report.groups) == (2, 10, 2)


def test_children_may_stand_before_their_parents(tmp_path: Path) -> None:
    ranks = [[coll(5, "1", (9,)), comp(9), comp(2, (5,))] for _ in range(2)]
    report = check(put_traces(tmp_path, ranks, PAIR))
    assert report.ok and report.deadlock_examined


def test_a_finding_says_who_waits_for_whom(tmp_path: Path) -> None:
    _, ranks, groups = FAULTS["a cyclic order of groups over three ranks"]
    (finding,) = check(put_traces(tmp_path, ranks, groups)).findings
    assert str(finding) == (
        "one-slot-deadlock rank 0 node 1: rank 0 holds its slot for node 1 until rank 1 joins; "
        "rank 1 holds its slot for node 1 until rank 2 joins; "
        "rank 2 holds its slot for node 1 until rank 0 joins"
    )


@pytest.mark.parametrize(("ranks", "left_out"), [(6, 0), (7, 2), (9, 4)])
def test_a_long_circle_is_told_in_part(ranks: int, left_out: int, tmp_path: Path) -> None:
    circle: Ranks = [
        [recv(0, r, (r - 1) % ranks), send(1, r, (r + 1) % ranks, (0,))] for r in range(ranks)
    ]
    (finding,) = check(put_traces(tmp_path, circle)).findings
    said = str(finding).partition("node 0: ")[2].split("; ")
    shown = [
        f"rank {-r % ranks} waits in node 0 for a message of rank {(-r - 1) % ranks}"
        for r in range(ranks - left_out)
    ]
    assert said == shown + ([f"... {left_out} more"] if left_out else [])


def test_group_file_may_lie_elsewhere(tmp_path: Path) -> None:
    folder = good_traces(tmp_path / "traces")
    (folder / "comm_group.json").rename(tmp_path / "groups.json")
    assert not check(folder).ok
    assert check(folder, comm_groups=tmp_path / "groups.json").ok


def test_progress_ends_with_all_ranks(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    check(good_traces(tmp_path), progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (2, 2)


def test_progress_is_told_every_sixteen_ranks(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    folder = put_traces(tmp_path, [[comp(1)]] * 35)
    check(folder, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(16, 35), (32, 35), (35, 35)]


def test_the_first_of_several_differences_is_named(tmp_path: Path) -> None:
    first = [coll(n, "1", comm_size=size) for n, size in ((1, 8), (2, 16), (3, 32))]
    second = [coll(n, "1", comm_size=size) for n, size in ((1, 8), (2, 24), (3, 40))]
    (finding,) = check(put_traces(tmp_path, [first, second], PAIR)).findings
    assert str(finding) == (
        "collective-size rank 1: on group 1 its collective 1 is ALL_REDUCE of 24 bytes, that of "
        "rank 0 is ALL_REDUCE of 16 bytes"
    )


def test_every_absent_rank_is_named_and_counted(tmp_path: Path) -> None:
    """The first twenty, and then how many there are."""
    folder = put_traces(tmp_path, [[comp(1)]] * 4)
    (folder / "t.1.et").rename(folder / "t.9.et")
    absent = [f.rank for f in check(folder).findings if f.code == "missing-rank"]
    assert absent == [1, 4, 5, 6, 7, 8]
    (folder / "t.9.et").rename(folder / "t.40.et")
    report = check(folder)
    absent = [f.rank for f in report.findings if f.code == "missing-rank"]
    assert absent == [1, *range(4, 23)]
    assert report.counts == {"missing-rank": 37}


def test_ranks_may_be_padded_with_zeros_to_twenty_digits(tmp_path: Path) -> None:
    folder = put_traces(tmp_path, [[comp(1)]] * 2)
    (folder / "t.1.et").rename(folder / f"t.{1:020}.et")
    report = check(folder)
    assert report.ok and report.ranks == 2
    (folder / f"t.{1:020}.et").rename(folder / f"t.{1:021}.et")
    with pytest.raises(FlintError, match="a rank that no system has"):
        check(folder)


@pytest.mark.parametrize("dimensions", [(2, 3, 4), (4, 1, 2), (5,)])
def test_dimensions_join_ranks_that_differ_in_them_alone(dimensions: tuple[int, ...]) -> None:
    """The first dimension varies fastest, as ASTRA-sim numbers its ranks."""
    world = math.prod(dimensions)
    ranks = np.arange(world, dtype=np.int64)
    places = np.array(np.unravel_index(ranks, dimensions, order="F")).T
    for involved in itertools.product((False, True), repeat=len(dimensions)):
        membership = Membership(world, None, dimensions)
        numbers = membership.resolve(involved, ranks)
        assert isinstance(numbers, np.ndarray)
        outside = ~np.array(involved)
        for rank, number in enumerate(numbers.tolist()):
            alike = (places[:, outside] == places[rank, outside]).all(axis=1)
            assert list(membership.members[number]) == np.flatnonzero(alike).tolist()
            assert membership.lists(number, ranks).tolist() == alike.tolist()


def test_a_group_that_cannot_be_told_says_why() -> None:
    ranks = np.arange(4, dtype=np.int64)
    unnamed = Membership(4, None, None)
    assert unnamed.resolve("7", ranks) == "group '7' is not in the communicator group file"
    assert unnamed.resolve((True, False), ranks) == (
        "involved_dim has 2 entries, but the network dimensions are unknown"
    )
    assert unnamed.resolve((True, True), ranks) == pytest.approx([0, 0, 0, 0])
    assert Membership(4, {}, (2, 2)).resolve((True,), ranks) == (
        "involved_dim has 1 entries, but the network dimensions are 2"
    )


@pytest.mark.parametrize("text", ['{"world": [0]}', "[]", "{", '{"1": [0, "a"]}', '{"0": [0]}'])
def test_broken_group_file_is_an_error(text: str, tmp_path: Path) -> None:
    folder = good_traces(tmp_path)
    (folder / "comm_group.json").write_text(text)
    with pytest.raises(FlintError) as caught:
        check(folder)
    assert caught.value.code == "FL605"


def test_no_traces_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FlintError) as caught:
        check(tmp_path)
    assert caught.value.code == "FL601"
    with pytest.raises(FlintError) as caught:
        check(tmp_path / "absent" / "trace")
    assert caught.value.code == "FL602"


def test_two_prefixes_are_an_error(tmp_path: Path) -> None:
    folder = good_traces(tmp_path)
    (folder / "other.0.et").write_bytes((folder / "t.0.et").read_bytes())
    with pytest.raises(FlintError) as caught:
        check(folder)
    assert caught.value.code == "FL601"
    assert check(folder / "t").ok


def test_dimensions_group_ranks_as_the_network_does(tmp_path: Path) -> None:
    """On 2 x 3 ranks dimension 1 joins 0, 2, 4: rank 4 that lacks its collective is missed."""

    def along(flags: list[bool]) -> Any:
        return node(
            1, NodeType.COMM_COLL, comm_type=0, comm_size=8, involved_dim=("bool_list", flags)
        )

    ranks: Ranks = [[along([False, True])] for _ in range(6)]
    folder = put_traces(tmp_path, ranks)
    (folder / "network.yml").write_text("npus_count: [ 2, 3 ]\n")
    report = check(folder)
    assert report.ok and report.groups == 2
    (folder / "t.4.et").write_bytes(trace_bytes([comp(1)]))
    assert [(f.code, f.rank) for f in check(folder).findings] == [("missing-participant", 4)]


def test_findings_of_one_code_are_counted_not_listed(tmp_path: Path) -> None:
    ranks: Ranks = [[comp(i, num_ops=0) for i in range(40)]]
    report = check(put_traces(tmp_path, ranks))
    assert report.counts == {"zero-num-ops": 40}
    assert len(report.findings) == 20


def test_order_of_groups_in_the_file_does_not_matter(tmp_path: Path) -> None:
    folder = good_traces(tmp_path)
    (folder / "comm_group.json").write_text(json.dumps({"2": [0, 1], "1": [0, 1]}))
    assert check(folder).ok


def test_huge_and_odd_numbers_are_findings_not_crashes(tmp_path: Path) -> None:
    odd = [
        comp(1 << 63, num_ops=("double_val", float("inf"))),
        comp((1 << 64) - 1, (1 << 63,), tensor_size=(1 << 64) - 1),
        coll(3, "1", comm_size=("uint64_val", (1 << 64) - 1), comm_tag=("int64_val", -(1 << 63))),
        coll(4, "1", pg_name=("bytes_val", b"\xff"), comm_type=("string_val", "x")),
    ]
    report = check(put_traces(tmp_path, two(odd), PAIR))
    assert {f.code for f in report.findings} == {
        "attribute-type",
        "negative-tag",
        "unknown-group",
    }


def test_rank_far_beyond_the_others(tmp_path: Path) -> None:
    folder = good_traces(tmp_path)
    (folder / "t.999999999.et").write_bytes(trace_bytes([comp(1)]))
    report = check(folder)
    assert report.counts["missing-rank"] == 10**9 - 3
    assert len([f for f in report.findings if f.code == "missing-rank"]) == 20


@pytest.mark.parametrize("same_length", [True, False])
def test_ranks_that_differ_in_more_than_peers_are_read_in_full(
    same_length: bool, tmp_path: Path
) -> None:
    """Files like an earlier one are compared with it: a difference must not be overlooked."""
    ranks: Ranks = [[comp(1), send(2, r, (r + 1) % 4), recv(3, r, (r - 1) % 4)] for r in range(4)]
    ranks[2][0] = comp(1, num_ops=0 if same_length else 100_000, tensor_size=20)
    codes = [(f.code, f.rank) for f in check(put_traces(tmp_path, ranks)).findings]
    assert codes == ([("zero-num-ops", 2)] if same_length else [])


def test_group_in_a_name_is_not_mistaken_for_the_group(tmp_path: Path) -> None:
    """The bytes of an attribute may stand in a name; there a difference is no other group."""
    ranks: Ranks = [[coll(1, "1")], [coll(1, "1")], [coll(1, "1")]]
    for rank, nodes in enumerate(ranks):
        nodes[0].name = "R\x0e\n\x08comm_dst8" + chr(1 + rank)
    report = check(put_traces(tmp_path, ranks, {"1": [0, 1, 2]}))
    assert report.ok and report.deadlock_examined


def test_equal_messages_take_turns_by_dependencies(tmp_path: Path) -> None:
    """Not by their ids: the first send of rank 0 has the larger one."""
    first = [send(9, 0, 1), recv(10, 0, 1, (9,), comm_tag=8), send(5, 0, 1, (10,))]
    second = [recv(3, 1, 0), send(4, 1, 0, (3,), comm_tag=8), recv(6, 1, 0, (4,))]
    report = check(put_traces(tmp_path, [first, second]))
    assert report.ok and report.proved == "any-times"


@pytest.mark.parametrize(
    ("size", "first", "is_noted"),
    [
        (2, "send", True),  # each waits until the other one receives
        (2, "odd ranks receive", False),
        (2, "both at once", False),
        (6, "send", True),  # a ring: nobody receives
        (6, "odd ranks receive", False),
    ],
)
def test_sends_that_wait_for_their_receive(
    size: int, first: str, is_noted: bool, tmp_path: Path
) -> None:
    """The simulator's sends end at once, so the traces are sound; NCCL's wait, which is noted."""
    ranks: Ranks = []
    for rank in range(size):
        left, right = (rank - 1) % size, (rank + 1) % size
        if first == "odd ranks receive" and rank % 2:
            ranks.append([recv(1, rank, left), send(2, rank, right, (1,))])
        else:
            after = () if first == "both at once" else (1,)
            ranks.append([send(1, rank, right), recv(2, rank, left, after)])
    report = check(put_traces(tmp_path, ranks))
    assert report.ok and report.proved == "any-times"
    assert any("rank 0 sends in node 1 until rank 1" in note for note in report.notes) == is_noted


def test_a_rank_that_only_the_network_names_is_missing(tmp_path: Path) -> None:
    ranks: Ranks = [[coll(1, "")] for _ in range(3)]
    folder = put_traces(tmp_path, ranks)
    assert check(folder).ok
    (folder / "network.yml").write_text("npus_count: [ 4 ]\n")
    report = check(folder)
    assert [(f.code, f.rank) for f in report.findings][:1] == [("missing-rank", 3)]
    assert not report.deadlock_examined


def test_group_zero_with_dimensions_means_the_dimensions(tmp_path: Path) -> None:
    """As in ASTRA-sim, which takes the name 0 for none."""
    row = {"involved_dim": [True, False]}
    ranks: Ranks = [[coll(1, "0", **row)], [coll(1, "0", **row)], [comp(1)], [comp(1)]]
    folder = put_traces(tmp_path, ranks)
    (folder / "network.yml").write_text("npus_count: [ 2, 2 ]\n")
    assert check(folder).ok
