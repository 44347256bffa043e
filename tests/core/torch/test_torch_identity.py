"""Parameters stay the objects that they are wherever a program moves them, as on CUDA."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

pytest.importorskip("torch")

from flint.tracing import Trace, trace_script

SCRIPT = """
import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("nccl")
m = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.Linear(64, 64))
m[3].weight = m[3].weight  # and one that is tied below
tied = nn.ModuleDict({{"a": m, "b": nn.Linear(64, 64)}})
tied["b"].weight = m[3].weight
before = [id(p) for p in tied.parameters()]
{first}
assert before == [id(p) for p in tied.parameters()]
assert tied["b"].weight is m[3].weight and isinstance(m[3].weight, nn.Parameter)
assert all(p.dtype == torch.bfloat16 and p.is_leaf and p.requires_grad for p in m.parameters())
for _ in range(3):
    loss = tied["b"](m(torch.randn(8, 64, device="cuda", dtype=torch.bfloat16))).sum()
    loss.backward()
    opt.step()
    opt.zero_grad()
"""
MOVE, OPTIMIZER = "tied.cuda().bfloat16()", "opt = torch.optim.AdamW(tied.parameters())"


def traced(tmp_path: Path, *lines: str) -> Trace:
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(SCRIPT).format(first="\n".join(lines)))
    return trace_script(script, "2")


def test_an_optimizer_may_be_made_before_the_model_is_moved(tmp_path: Path) -> None:
    """It was made of parameters that the program then no longer used: no update was recorded."""
    early, late = traced(tmp_path, OPTIMIZER, MOVE), traced(tmp_path, MOVE, OPTIMIZER)
    assert late.diff(early).is_equal
    (one,) = early.summary().classes
    weights = 64 * 128 + 128 + 128 * 64 + 64 + 2 * (64 * 64) - 64 * 64 + 64 + 64
    assert one.argument_bytes["optimizer"] >= 2 * 2 * weights
    assert not early.warnings


def test_the_part_of_a_sharded_parameter_stays_where_its_data_are_set(tmp_path: Path) -> None:
    """FSDP sets the data of tensors that autograd holds: they must not be exchanged for others."""
    sharded = "distribute_tensor(torch.zeros(64, 64), mesh, [Shard(0)])"
    lines = (
        "from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh",
        f"mesh = init_device_mesh('cuda', (2,)); a = nn.Parameter({sharded}); part = a._local_tensor",
        f"held = (a * 2).sum(); a.data = {sharded}; assert a._local_tensor is part",
    )
    assert not traced(tmp_path, *lines, MOVE, OPTIMIZER).warnings
