"""Which lines of a program are questions about its rank, by their text, and how differences are said."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("torch")

from flint.backends.cost.notes import stood_in_notes
from flint.frontends.torch_world.program.alike import Ranks
from flint.frontends.torch_world.program.deeds import difference
from flint.frontends.torch_world.record.rank_questions import rank_questions
from flint.frontends.torch_world.record.recording import Event, Recording, TensorInfo
from flint.ir.mesh import Mesh
from flint.ir.stood_in import StoodIn

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
    "one seed": ("random.seed(7)\nmodel(torch.ones(random.randint(4, 9), 4))", 0),
    "a method of that name": ("random.seed(r)\ndef sample(x): return x\nmodel(sample(r0))", 0),
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
