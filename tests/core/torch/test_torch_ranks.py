"""Ranks that do not do the same: found by recording several, told, and proved by `check`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from flint.backends.chakra import check, write
from flint.backends.cost.notes import stood_in_notes
from flint.errors import FlintError
from flint.frontends.torch_world.program.classes import RankClasses, Ranks, rank_classes
from flint.frontends.torch_world.program.deeds import difference
from flint.frontends.torch_world.record.job import Job
from flint.frontends.torch_world.record.process import RankProcesses, Relay
from flint.frontends.torch_world.record.rank_questions import rank_questions
from flint.frontends.torch_world.record.recording import (
    Event,
    RankQuestion,
    Recording,
    TensorInfo,
)
from flint.ir.made_by import StoodIn
from flint.ir.mesh import Mesh
from flint.ir.workload import Workload
from tests.long import long_but

PROGRAM = """
import os, torch, torch.nn as nn, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
torch.cuda.set_device(int(os.environ["LOCAL_RANK"])); dist.init_process_group("nccl")
torch.manual_seed(dist.get_rank())
x, many = torch.randn(8, 64, device="cuda"), dist.get_world_size()
m = nn.Linear(64, 64).cuda(); o = torch.optim.SGD(m.parameters(), .1)
BEFORE
for _ in range(2):
    l = m(x).sum(); l.backward()
    for p in m.parameters(): dist.all_reduce(p.grad)
    IN_STEP
    o.step(); o.zero_grad()
    if dist.get_rank() == 0: print(l.item())
"""


TWO, FOUR = (Mesh(("data",), (n,)) for n in (2, 4))


@dataclass(frozen=True)
class Found:
    """What became of a program, and which ranks ran for it."""

    classes: RankClasses
    findings: tuple[str, ...]
    ran: list[int]


Capture = Callable[..., Found]


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Capture]:
    with RankProcesses() as processes:

        def run(in_step: str, before: str = "pass", mesh: Mesh | None = None) -> Found:
            folder = tmp_path_factory.mktemp("ranks")
            script = folder / "train.py"
            script.write_text(PROGRAM.replace("BEFORE", before).replace("IN_STEP", in_step))
            return _found(script, mesh or FOUR, processes, folder / "traces")

        yield run


def _found(script: Path, mesh: Mesh, processes: RankProcesses, traces: Path) -> Found:
    ran: list[int] = []

    def record(jobs):
        ran.extend(job.rank for job in jobs)
        return processes.record(jobs)

    job = replace(
        Job.of_script(script),
        world_size=mesh.size,
        mesh_sizes=mesh.sizes,
        mesh_names=mesh.names,
    )
    relay = Relay(job, record)
    found = rank_classes(relay, relay([0])[0], mesh)
    workload = Workload(mesh, found.programs, found.classes)
    workload.verify()
    write(workload, traces)
    return Found(found, tuple(sorted({f.code for f in check(traces).findings})), ran)


#: Programs that hang or mix up memory on every cluster: in the step, before it.
FAULTS = {
    "one rank reduces": ("if dist.get_rank() == 0: dist.all_reduce(x)", "pass"),
    "one rank does not": (
        "int(os.environ['RANK']) == many - 1 or dist.all_reduce(x.sum())",
        "pass",
    ),
    "another order": (
        (
            "[dist.all_reduce(t) if k else dist.all_gather_into_tensor(big, x) "
            "for k in ((0, 1) if first else (1, 0))]"
        ),
        "t, big, first = x[0].clone(), x.new_empty(8 * many, 64), dist.get_rank() < 1",
    ),
    "another collective": (
        "(dist.broadcast if odd else dist.all_reduce)(x, **({'src': 0} if odd else {}))",
        "odd = dist.get_rank() % 2",
    ),
    "another group": (
        "dist.all_reduce(x, group=half if dist.get_rank() == 0 else None)",
        "half = dist.new_group([0, 1])",
    ),
    "another shape": ("dist.all_reduce(y)", "y = x.new_ones(4 + dist.get_rank())"),
    "more often": (
        "for _ in range(1 + first): dist.all_reduce(x)",
        "first = init_device_mesh('cuda', (many,), mesh_dim_names=('data',)).get_coordinate()[0] == 0",
    ),
    "one rank's module": (
        "log(l)",
        (
            "def log(l):\n    if torch.cuda.current_device() == 0: print(mean(l))\n"
            "def mean(l):\n    dist.all_reduce(l.detach()); return l.item() / many"
        ),
    ),
    "no text asks": ("for _ in range(n): dist.all_reduce(x)", "n = int(str(x.device)[-1])"),
    "one rank's barrier": ("r or dist.barrier(); dist.all_reduce(x)", "r = dist.get_rank()"),
    "one rank's objects": (
        "dist.get_rank() or dist.broadcast_object_list([1], 0, half)",
        "half = dist.new_group([0, 1])",
    ),
    "a message": ("dist.get_rank() == 1 and dist.send(x, 0)", "pass"),
    "a smaller message": (
        "(dist.send if r == 1 else dist.recv)(x[: 4 + r].clone(), 1 - r) if r < 2 else None",
        "r = dist.get_rank()",
    ),
}


#: One for each kind of difference; the others differ in how the text asks, as TEXTS below do.
QUICK = {"one rank reduces", "another order", "another group", "another shape", "no text asks"}
QUICK |= {"one rank's barrier", "a smaller message"}


@pytest.mark.parametrize("name", long_but(QUICK, FAULTS))
def test_what_hangs_is_told_and_found_by_check(name: str, capture: Capture) -> None:
    found = capture(*FAULTS[name], FOUR if name == "another group" else TWO)
    told = [w for w in found.classes.warnings if "hangs" in w]
    assert told and "train.py" in told[0] and "rank 0" in told[0], found.classes.warnings
    assert found.findings, told


def test_parts_of_an_exchange_that_do_not_fit_are_refused(capture: Capture) -> None:
    before = "r = dist.get_rank(); y = x.new_empty(8, 64); s = [4, 4] if r else [7, 1]"
    step = "dist.all_to_all_single(y, x, [4, 4], s)"
    with pytest.raises(FlintError, match="rank 0 sends 7 to rank 0.*expects 4") as caught:
        capture(step, before, TWO)
    assert caught.value.code == "FL250"
    with pytest.raises(
        FlintError, match="rank 0 sends 1 to rank 1.*expects 7"
    ):  # alike on all ranks, and wrong
        capture("dist.all_to_all_single(x.clone(), x, [7, 1], [7, 1])", "pass", TWO)


def test_messages_of_two_groups_of_the_same_ranks_do_not_meet(capture: Capture) -> None:
    before = (
        "a, b = [dist.new_group([0, 1]) for _ in range(2)]; got = torch.empty_like(x); h = x[:4]\n"
        "def both(move, *of): return [move(t, 1 - dist.get_rank(), group=g) for t, g in of]"
    )
    step = (
        "ws = both(dist.irecv, (h, b), (got, a)) if dist.get_rank() else both(dist.isend, (x, a), (h, b))\n"
        "    [w.wait() for w in ws]"
    )
    found = capture(step, before, TWO)
    assert len(found.classes.classes) == 2 and not found.findings
    assert not [w for w in found.classes.warnings if "hangs" in w]


def test_an_order_of_two_groups_of_the_same_ranks_that_hangs_is_found(capture: Capture) -> None:
    before = "pairs = [dist.new_group([0, 1]), dist.new_group([0, 1])]; r = dist.get_rank()"
    found = capture("[dist.all_reduce(x, group=g) for g in pairs[:: -1 if r else 1]]", before, TWO)
    assert len(found.classes.classes) == 2 and found.findings
    assert {g.copy for p in found.classes.programs for g in p.groups} >= {1, 2}


#: What is wrong and looks alike in traces: step, before it, what is said.
REFUSED = {
    "type": (
        "dist.all_reduce(y)",
        "y = x.new_ones(8, dtype=torch.bfloat16).view(torch.int16 if dist.get_rank() else torch.bfloat16)",
        r"rank 0 issues .* of bf16\[8\] .*rank 1 issues .* of i16\[8\]",
    ),
    "reduction": (
        "dist.all_reduce(x, op=dist.ReduceOp.MAX if dist.get_rank() else dist.ReduceOp.SUM)",
        "pass",
        r"allreduce_ of .*allreduce_\[max\]",
    ),
    "root": ("dist.broadcast(x, src=dist.get_rank())", "pass", "with root 0 .*with root 1"),
}


@pytest.mark.long
@pytest.mark.parametrize("name", REFUSED)
def test_what_traces_cannot_show_is_refused(name: str, capture: Capture) -> None:
    step, before, said = REFUSED[name]
    with pytest.raises(FlintError, match=said) as caught:
        capture(step, before)
    assert caught.value.code == "FL251" and "train.py" in str(caught.value.place)


#: Programs whose ranks do different work, and nothing is wrong: step, before it, how many classes.
OTHER_WORK = {
    "rows": ("m(y).sum().backward()", "y = x.new_ones(8 + 4 * dist.get_rank(), 64)", 4),
    "assigned by one rank": (
        "m(x.new_ones(n, 64))",
        "n = 8\nif dist.get_rank() == 3: n = 16",
        2,
    ),
    "dealt out": (
        "[m(t) for t in mine]",
        (
            "mine = []\nfor i in range(6):\n    if i % many == dist.get_rank(): "
            "mine.append(x.new_ones(1 + i, 64))"
        ),
        2,
    ),
    "skipped": (
        "for i in range(5):\n        if i % many != r: continue\n        m(x)",
        "r = dist.get_rank()",
        2,
    ),
    "one rank evaluates": ("if dist.get_rank() == 0: m(x)", "pass", 2),
    "lengths by a seed": (
        "m(x.new_ones(n, 64))",
        "import random; random.seed(dist.get_rank()); n = random.randrange(1, 1 << 20)",
        2,
    ),
    "uneven exchange": (
        "dist.all_to_all_single(x.new_empty(own * many, 64), y, [own] * many, c)",
        "c = [3, 1]; own = c[dist.get_rank()]; y = x.new_ones(4, 64)",
        2,
    ),
    "uneven gather": (
        "dist.all_gather([x.new_empty(1 + r, 64) for r in range(many)], y)",
        "y = x.new_ones(1 + dist.get_rank(), 64)",
        2,
    ),
    "scatter from one": (
        "dist.scatter(x[0], [x[0].clone() for _ in range(many)] if dist.get_rank() == 0 else None)",
        "pass",
        2,
    ),
}


@pytest.mark.parametrize(
    "name", long_but({"rows", "skipped", "uneven exchange", "scatter from one"}, OTHER_WORK)
)
def test_other_work_is_a_class_of_its_own(name: str, capture: Capture) -> None:
    step, before, count = OTHER_WORK[name]
    mesh = FOUR if name in ("rows", "assigned by one rank") else TWO
    found = capture(step, before, mesh)
    assert len(found.classes.classes) == count and not found.findings
    assert not [w for w in found.classes.warnings if "hangs" in w]
    assert [w for w in found.classes.warnings if "differ" in w and "train.py" in w]
    assert sorted(set(found.ran)) == list(range(mesh.size))


#: Programs that are alike: step, before it, ranks that ran.
ALIKE = {
    "prints": ("pass", "pass", [0, 3]),
    "devices": ("pass", "d = f'cuda:{int(os.environ[\"LOCAL_RANK\"])}'; z = x.to(d)", [0, 3]),
    "own choice": (
        "[m, m][c](x)",
        "import random; random.seed(dist.get_rank()); c = random.choice([0, 1])",
        [0, 1, 2, 3],
    ),
    "early return": (
        "say(l)",
        "def say(l):\n    if dist.get_rank() != 0: return\n    print(l.item())",
        [0, 3],
    ),
    "broadcast": (
        "m(x[:n])",
        (
            "n = torch.tensor([2 + dist.get_rank()], device='cuda')\n"
            "dist.broadcast(n, src=2)\ndist.broadcast(n, src=0); n = int(n.item())"
        ),
        [0, 1, 2, 3],
    ),
    "parts of a flat buffer": ("y = m.weight[:n] * 2", "n = 8 + int(str(x.device)[-1])", [0, 3]),
    "own offset": ("y = m.weight[s : s + 16] * 2", "s = 16 * dist.get_rank()", [0, 1, 2, 3]),
    "own group": (
        "dist.all_reduce(x, group=mine)",
        (
            "pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]\n"
            "mine = pairs[dist.get_rank() // 2]"
        ),
        [0, 1, 2, 3],
    ),
    "a barrier before or behind": (
        "r or dist.barrier(); m(x); r and dist.barrier(); dist.all_gather_object([0] * many, 1)",
        "r = dist.get_rank()",
        [0, 1, 2, 3],
    ),
    "ring": (
        (
            "[w.wait() for w in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, (r + 1) % many), "
            "dist.P2POp(dist.irecv, torch.empty_like(x), (r - 1) % many)])]"
        ),
        "r = dist.get_rank()",
        [0, 1, 2, 3],
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("name", ALIKE)
def test_what_is_alike_raises_no_alarm(name: str, capture: Capture) -> None:
    step, before, ran = ALIKE[name]
    found = capture(step, before)
    assert not found.findings and sorted(set(found.ran)) == ran
    assert not [w for w in found.classes.warnings if "hangs" in w or "differ" in w]


def test_a_witness_that_fails_unasked_is_told(capture: Capture) -> None:
    found = capture("m(x)", "n = int(str(x.device)[-1]); torch.ones(4)[:, n] if n else None")
    assert len(found.classes.classes) == 1 and not found.findings
    (told,) = [w for w in found.classes.warnings if "could not be recorded" in w]
    assert told.startswith("rank 3") and told.endswith("it is taken to do what rank 0 does")


def test_hosts_have_names_of_their_own(capture: Capture) -> None:
    wide = Mesh(("data",), (16,))
    found = capture("if here == name(): m(x)", HOSTS, wide)
    first, rest = found.classes.classes
    assert first.mask(wide).nonzero()[0].tolist() == list(range(8)), rest


HOSTS = """
import platform, socket
name = socket.gethostname
here = name().removesuffix('-node1')
assert platform.node() == name()
"""


def test_of_many_ranks_some_are_recorded_and_told(capture: Capture) -> None:
    wide = Mesh(("data",), (64,))
    step = "if int(os.environ['LOCAL_RANK']) == 0: m(x)"
    found = capture(step, "pass", wide)
    first, rest = found.classes.classes
    assert first.mask(wide).nonzero()[0].tolist() == list(range(0, 64, 8))
    assert (rest.mask(wide) ^ first.mask(wide)).all() and len(set(found.ran)) <= 16
    told = [w for w in found.classes.warnings if "were recorded" in w]
    assert "of 64 ranks" in told[0]


# questions, by the text of a program, and how differences are said ---------------------------------

START = """
import os, random, numpy as np, torch, torch.distributed as dist
r = dist.get_rank()
def model(x): return torch.mm(x, x)
"""
#: What is a question, by the line after START that asks (0: nothing is).
TEXTS = {
    # Seeds, and what is drawn of them on the host.
    "lengths by random": ("random.seed(r)\nn = random.randint(4, 9)\nmodel(torch.ones(n, 4))", 3),
    "lengths by numpy": ("g = np.random.default_rng(r)\nmodel(torch.ones(g.integers(9), 4))", 2),
    "lengths by torch": ("torch.manual_seed(r)\nn = torch.randint(9, (1,)).item()\nmodel(torch.ones(n))", 3),
    "a layer is dropped": ("np.random.seed(1 + r)\nif np.random.rand() < .5: model(r0)", 2),
    "seeded in a function": (
        "def fix(seed):\n    random.seed(seed)\nfix(seed=r)\nmodel(torch.ones(random.choice(parts)))", 4),
    "seeds alone": ("random.seed(r); np.random.seed(r); torch.manual_seed(r)\nmodel(r0)", 0),
    "masks of a device": ("torch.manual_seed(r)\nmodel(torch.rand(4, 4) * torch.randint(9, (4, 4)))", 0),
    "a draw that is printed": ("random.seed(r)\nprint(random.random())", 0),
    "another name": ("from torch.distributed import get_rank as me\nmodel(torch.ones(me(), 4))", 2),
    "by getattr": ("model(torch.ones(getattr(dist, 'get_rank')(), 4))", 1),
    "a device's number": ("model(torch.ones(4 + r0.device.index, 4))", 1),
    "not in a group": ("if group != dist.GroupMember.NON_GROUP_MEMBER: model(r0)", 1),
    "an optimizer in shards": ("o = ZeroRedundancyOptimizer(model.parameters(), Adam)\no.step()", 2),
    "appended": ("c = []\nc.append(r)\nmodel(torch.ones(c[0], 4))", 3),
    "a type": ("model(r0.to(torch.bfloat16 if r else torch.float16))", 1),
    "one seed": ("random.seed(7)\nmodel(torch.ones(random.randint(4, 9), 4))", 0),
    "a method of that name": ("random.seed(r)\ndef sample(x): return x\nmodel(sample(r0))", 0),
    "the whole environment": ("cfg = {k.lower(): v for k, v in os.environ.items()}\nmodel(r0)", 1),
    "a copy of it": ("model(**dict(os.environ))", 1),
    "in small letters": ("model(torch.ones(int(cfg['local_rank'])))", 1),
    "one variable": ("e = os.environ\ne['X'] = '1'\nprint('X' in os.environ, os.environ.get('X'))\nmodel(r0)", 0),
    # Ranks that leave early.
    "returns before it prints": ("def say(x):\n    if r != 0: return\n    print(x)\nsay(1)", 0),
    "returns nothing": ("def say(x):\n    if r: return None\n    print(x); print(x)\nsay(1)", 0),
    "goes on before it prints": ("for i in range(3):\n    model(r0)\n    if r != 0: continue\n    print(i)", 0),
    "returns before it works": ("def f(x):\n    if r != 0: return\n    model(x)\nf(r0)", 2),
    "goes on before it works": ("for i in range(3):\n    if r != 0: continue\n    model(i)", 2),
    "returns from a loop": ("def f(x):\n    for i in x:\n        if r: return\n        print(i)\n    model(x)", 3),
    "returns a number": ("def f(x):\n    if r: return 1\n    return x\nmodel(torch.ones(f(3)))", 4),
    "leaves a loop": ("for i in range(3):\n    if r != 0: break\n    print(i)", 2),
}  # fmt: skip


@pytest.mark.parametrize("name", TEXTS)
def test_questions_by_the_text(name: str) -> None:
    text, line = TEXTS[name]
    first = START.count("\n")
    found = rank_questions({"train.py": START + text})
    assert [q.place for q in found] == ([f"train.py:{first + line}"] if line else [])


#: Numbers that a text holds ranks against.
NUMBERS = {
    "if r == 5: model(r0)": [5],
    "leads = r == 5\nif leads: model(r0)": [5],
    "if 2 <= r < 4: model(r0)": [2, 4],
    "if r in (3, 9) or os.environ['RANK'] == '7': model(r0)": [3, 7, 9],
    "LEADER = 6\nif LEADER == r: model(r0)": [6],
    "if not r % 4: model(r0)": [4],
    "match r:\n    case 5 | 6: model(r0)": [5, 6],
    "model(torch.ones([8, 8, 8, 9, 8, 8][r]))": [3, 4],
    "sizes = {0: 8, 5: 9}\nmodel(torch.ones(sizes[r]))": [5],
    "model(torch.ones(8 + 4 * r))": [],
}


@pytest.mark.parametrize("text", NUMBERS)
def test_numbers_that_a_rank_is_held_against(text: str) -> None:
    found = rank_questions({"train.py": START + text})
    assert found and {q.numbers for q in found} == {tuple(NUMBERS[text])}


@pytest.mark.parametrize("axis", ["", "model", "unknown"])
def test_ranks_of_these_numbers_are_held_against_the_others(axis: str) -> None:
    mesh = Mesh(("data", "model"), (4, 16))
    ran: list[int] = []

    def of(rank: int) -> Recording:
        ran.append(rank)
        asks = (RankQuestion("train.py:3", axis, (5,)),)
        events = (event((8 + (rank % 16 == 5),)),)
        return cast("Recording", SimpleNamespace(rank=rank, events=events, asks=asks))

    ranks = Ranks(mesh, 8, lambda asked: [of(rank) for rank in asked])
    like_first, like_fifth = (mask for mask, _ in ranks.parts(np.ones(64, dtype=bool), of(0)))
    assert (
        np.flatnonzero(like_fifth).tolist() == [5, 21, 37, 53]
        and not (like_first & like_fifth).any()
    )
    assert "ranks 0 and 5 differ" in ranks.warnings[0] and len(ran) <= 64

    alike = np.arange(64) % 16 != 5
    ran.clear()
    ((mask, _),) = ranks.parts(alike, of(0))
    assert mask is alike and "train.py:3 asks which rank it runs as: " in ranks.warnings[-1]


def event(*shapes: tuple[int, ...]) -> Event:
    tensors = tuple(TensorInfo(n, shape, "f32", 4) for n, shape in enumerate(shapes))
    return Event("aten._foreach_add_.List", tensors, (), writes=(0,), location="train.py:9")


@pytest.mark.parametrize(
    ("mine", "theirs", "said"),
    [
        (((8,), (4,)), ((8,), (6,)), "of f32[4] (tensor 2 of 2) at train.py:9, rank 3"),
        (((8,),), ((9,),), "of f32[8] at train.py:9, rank 3"),
        (((8,), (4,)), ((8,),), "of 1 tensors at train.py:9"),
    ],
)
def test_the_tensor_that_differs_is_said(mine: Any, theirs: Any, said: str) -> None:
    one, other = (
        cast("Recording", SimpleNamespace(rank=n, events=(event(*s),)))
        for n, s in ((0, mine), (3, theirs))
    )
    text = difference(one, other, Mesh(("data",), (4,)))
    first, _, second = text.partition(", rank 3")
    assert said in text and first != second, text


def test_equal_warnings_of_several_classes_are_one() -> None:
    ranks = Ranks(Mesh(("data",), (8,)), 8, lambda _: ())
    for n in (0, 2, 4):
        ranks._tell(f"ranks {n} and {n + 1} differ: rank {n} runs a, rank {n + 1} runs b")
    ranks._tell("ranks 0 and 6 differ: rank 0 runs a, rank 6 runs c")
    assert ranks.warnings == [
        "ranks 0 and 1 differ: rank 0 runs a, rank 1 runs b (so do ranks of 2 more classes)",
        "ranks 0 and 6 differ: rank 0 runs a, rank 6 runs c",
    ]


def test_an_estimate_says_that_tokens_were_sent_evenly() -> None:
    for found, told in (
        (StoodIn(("deep_ep",)), True),
        (StoodIn(("deep_ep",), shares=("train.py:3",)), False),  # said of the experts already
        (StoodIn(("apex",)), False),
    ):
        workload = cast("Any", SimpleNamespace(stood_in=found))
        notes = stood_in_notes(workload, "eager", routed=True)
        assert any("equally many tokens" in n for n in notes) == told
