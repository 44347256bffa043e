"""RMS norms in recorded programs: one kernel forward and one backward, as on CUDA."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from flint.backends.cost.chips.kernel_table import kernels_of
from flint.backends.cost.chips.kernels import KernelKind
from flint.frontends.torch_world.program.build import build_program
from flint.frontends.torch_world.record.job import Job
from flint.frontends.torch_world.record.process import record
from flint.frontends.torch_world.record.recording import Event, Recording
from flint.ir.mesh import Mesh
from flint.ir.program import Phase
from flint.passes.base import run_passes
from flint.passes.profiles import profile

FORWARD, BACKWARD = "aten._fused_rms_norm.default", "aten._fused_rms_norm_backward.default"
SCRIPT = """
import sys

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

mode = sys.argv[1]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 64, bias=False)
        self.scaled = nn.RMSNorm(64)
        self.plain = nn.RMSNorm(64, elementwise_affine=False)

    def forward(self, x):
        again = lambda x: self.scaled(self.linear(x))
        x = checkpoint(again, x, use_reentrant=False) if mode == "remat" else again(x)
        return self.plain(x.transpose(0, 1))


model = Model().cuda()
if mode != "autocast":
    model.to(torch.bfloat16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    x = torch.zeros(4, 8, 64, device="cuda", dtype=torch.bfloat16)
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=mode == "autocast"):
        loss = model(x).float().pow(2).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Recording]:
    """The program in one of its modes."""
    script = tmp_path_factory.mktemp("norms") / "train.py"
    script.write_text(SCRIPT)
    modes = ("bf16", "autocast", "remat")
    jobs = [replace(Job.of_script(script, [mode]), world_size=1, rank=0) for mode in modes]
    return dict(zip(modes, (record([job])[0] for job in jobs), strict=True)).__getitem__


def described(event: Event) -> tuple[Any, ...]:
    inputs, outputs = (
        tuple((t.shape, t.dtype) for t in side) for side in (event.inputs, event.outputs)
    )
    return event.op, event.phase, event.module, inputs, outputs


def norms(recording: Recording) -> list[tuple[Any, ...]]:
    return [described(e) for e in recording.events if "rms_norm" in e.op]


def expected(dtype: str) -> list[tuple[Any, ...]]:
    """Results and 1 / root mean squares, which are f32; x, these and the weight come back."""
    x, weight, kept = ((4, 8, 64), dtype), ((64,), dtype), ((4, 8, 1), "f32")
    turned, also_kept = ((8, 4, 64), dtype), ((8, 4, 1), "f32")
    return [
        (FORWARD, Phase.FORWARD, "scaled", (x, weight), (x, kept)),
        (FORWARD, Phase.FORWARD, "plain", (turned,), (turned, also_kept)),
        (BACKWARD, Phase.BACKWARD, "plain", (turned, turned, also_kept), (turned,)),
        (BACKWARD, Phase.BACKWARD, "scaled", (x, x, kept, weight), (x, weight)),
    ]


def test_one_operator_forward_and_one_backward(recorded: Callable[[str], Recording]) -> None:
    found = recorded("bf16")
    assert norms(found) == expected("bf16")
    assert not [e.op for e in found.events if e.op.startswith(("aten.rsqrt", "aten.mean"))]


def test_autocast_runs_them_in_f32(recorded: Callable[[str], Recording]) -> None:
    assert norms(recorded("autocast")) == expected("f32")


def test_recomputed_norms_belong_to_recomputing(recorded: Callable[[str], Recording]) -> None:
    found = norms(recorded("remat"))
    again = [(op, module) for op, phase, module, *_ in found if phase is Phase.REMAT]
    assert again == [(FORWARD, "scaled")]
    assert [row for row in found if row[1] is not Phase.REMAT] == expected("bf16")


def test_the_backward_pass_reads_what_the_forward_pass_kept(
    recorded: Callable[[str], Recording],
) -> None:
    by_module: dict[str, list[Event]] = {}
    for event in recorded("bf16").events:
        if event.op in (FORWARD, BACKWARD):
            by_module.setdefault(event.module, []).append(event)
    for forward, backward in by_module.values():
        assert backward.inputs[1].storage == forward.inputs[0].storage
        assert backward.inputs[2].storage == forward.outputs[1].storage


@pytest.mark.parametrize("name", ("eager", "inductor"))
def test_they_are_priced_as_norms(recorded: Callable[[str], Recording], name: str) -> None:
    program = build_program(recorded("bf16"), Mesh(("data",), (1,))).program
    chosen = profile(name)
    kernels, _ = kernels_of(run_passes(program, [*chosen.passes, *chosen.kernels]))
    priced = np.flatnonzero(kernels.kind == KernelKind.NORM)
    assert len(priced) == 4
    elements = 4 * 8 * 64
    assert kernels.flops[priced].tolist() == [4 * elements] * 2 + [10 * elements] * 2
    assert (kernels.dims[priced] == (1, 32, 1, 64)).all()
    moved = 2 * elements * 2 + 32 * 4
    assert kernels.moved_bytes[priced].tolist() == [
        *(moved + 64 * 2, moved),
        *(moved + elements * 2, moved + elements * 2 + 2 * 64 * 2),
    ]
