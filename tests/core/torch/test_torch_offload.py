"""What a PyTorch step puts on its host is copied over the host's link and takes no device memory."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest

from flint.backends.cost.memory.memory import memory_use
from flint.frontends.torch_world.program.build import build_program
from flint.frontends.torch_world.record.recording import Event, HostCopy
from flint.ir.mesh import Mesh
from flint.ir.op_class import OpClass
from flint.ir.program import Collective, Kind, Program
from flint.tracing import trace_script
from tests.recordings import event, recording, stored, tensor

DEVICE, HOST, BACK, WEIGHT = (tensor(n, 8, 4) for n in (0, 1, 2, 3))


def rows(program: Program, op: OpClass) -> list[int]:
    return (program.op == op).nonzero()[0].tolist()


def built(*events: Event, **fields: Any) -> Program:
    return build_program(recording(*events, **fields), Mesh.parse("dp=2,tp=2")).program


def test_what_returns_was_stored() -> None:
    """No argument stands for it, and the copy back waits for the copy out, not for its source."""
    program = built(
        event("aten.relu", [DEVICE], [DEVICE_OUT := tensor(4, 8, 4)]),
        event("aten.copy_", [DEVICE_OUT], [HOST], writes=(1,), host=HostCopy.TO_HOST),
        event("aten._to_copy", [HOST], [BACK], host=HostCopy.FROM_HOST),
        event("aten.neg", [BACK], [tensor(5, 8, 4)]),
    )
    (store,), (load,) = rows(program, OpClass.TO_HOST), rows(program, OpClass.FROM_HOST)
    assert program.operand_bytes[store] == program.operand_bytes[load] == 8 * 4 * 4
    assert program.dependencies(load).tolist() == [store]
    assert (program.kind == Kind.PARAMETER).sum() == 1


def test_weights_that_live_on_the_host_are_copied_and_batches_are_there() -> None:
    """The storage of weights is listed as the host's; a batch has no role before it is copied."""
    program = built(
        event("aten._to_copy", [WEIGHT], [DEVICE], host=HostCopy.FROM_HOST),
        event("aten._to_copy", [HOST], [BACK], host=HostCopy.FROM_HOST),
        event("aten.add.Tensor", [DEVICE, BACK], [tensor(4, 8, 4)]),
        storages={3: stored("parameter", "w", WEIGHT, on_host=True)},
    )
    (weight,), (load,) = rows(program, OpClass.HOST_VALUE), rows(program, OpClass.FROM_HOST)
    assert program.dependencies(load).tolist() == [weight]
    assert (program.kind == Kind.PARAMETER).sum() == 1


def test_states_of_weights_that_live_on_the_host_are_there_too() -> None:
    program = built(
        event("aten._to_copy", [WEIGHT], [DEVICE], host=HostCopy.FROM_HOST),
        event("aten.relu", [DEVICE], [BACK]),
        storages={
            3: stored("parameter", "w", WEIGHT, on_host=True),
            4: stored("optimizer", "w/exp_avg", tensor(4, 8, 4), on_host=True),
        },
    )
    memory = memory_use(program)
    assert memory.host_breakdown == {"parameters": 8 * 4 * 4, "optimizer_state": 8 * 4 * 4}


PROGRAM = textwrap.dedent(
    """
    import torch
    import torch.distributed as dist
    from torch import nn

    dist.init_process_group("nccl")
    layers = [m for _ in range(3) for m in (nn.Linear(64, 64), nn.ReLU())]
    model = nn.Sequential(*layers).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        x = torch.randn(256, 64).to("cuda")
        with torch.autograd.graph.save_on_cpu(pin_memory=True):
            loss = model(x).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(loss.detach().cpu())
    """
)


@pytest.mark.long
def test_save_on_cpu_copies_what_backward_needs(tmp_path: Path) -> None:
    """By hand: each layer saves its input and its ReLU's result; all but the first its weight."""
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    found = trace_script(script, "dp=2")
    program = found.program
    saved, weight = 256 * 64 * 4, 64 * 64 * 4
    for opcode in (OpClass.TO_HOST, OpClass.FROM_HOST):
        copies = rows(program, opcode)
        assert sorted(program.operand_bytes[copies]) == [weight] * 2 + [saved] * 6
    (rank_class,) = found.estimate("h100-dgx").classes
    memory = rank_class.memory
    assert memory.host_bytes == 2 * weight + 6 * saved


ON_HOST = textwrap.dedent(
    """
    import torch
    import torch.distributed as dist
    from torch import nn

    dist.init_process_group("nccl")
    model = nn.Linear(64, 32).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        y = model(torch.randn(256, 64, device="cuda"))
        y.detach().to("meta")
        kept = y.detach().cpu().pin_memory().double()
        (y * kept.to("cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    """
)


@pytest.mark.long
def test_what_the_host_makes_of_offloaded_values_returns_too(tmp_path: Path) -> None:
    """One copy there, and one back of twice the size, after it; a copy to `meta` is none."""
    script = tmp_path / "train.py"
    script.write_text(ON_HOST)
    program = trace_script(script, "dp=2").program
    (store,), (load,) = rows(program, OpClass.TO_HOST), rows(program, OpClass.FROM_HOST)
    assert program.operand_bytes[[store, load]].tolist() == [256 * 32 * 4, 256 * 32 * 8]
    assert store in program.dependencies(load)


SHARDED = textwrap.dedent(
    """
    import sys
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard

    dist.init_process_group("nccl")
    model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(3)])  # on the CPU, as scripts have it
    policy = CPUOffloadPolicy() if sys.argv[1] == "offload" else OffloadPolicy()
    for layer in (*model, model):
        fully_shard(layer, offload_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        model(torch.randn(256, 64).to("cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    """
)


@pytest.mark.long
@pytest.mark.parametrize("where", ["offload", "keep"])
def test_fsdp_shards_a_model_that_was_made_on_the_cpu(where: str, tmp_path: Path) -> None:
    """By hand: shards of weight and bias come for each gather, their gradients go; or nothing does."""
    script = tmp_path / "train.py"
    script.write_text(SHARDED)
    found = trace_script(script, "dp=2", [where])
    program = found.program
    weight, bias = 64 * 64 * 4 // 2, 64 * 4 // 2
    gathers = program.collective == Collective.ALL_GATHER
    assert program.operand_bytes[gathers].tolist() == [weight + bias] * 6
    loads, stores = rows(program, OpClass.FROM_HOST), rows(program, OpClass.TO_HOST)
    offloaded = where == "offload"
    assert sorted(program.operand_bytes[loads]) == ([bias] * 6 + [weight] * 6) * offloaded
    assert sorted(program.operand_bytes[stores]) == ([bias] * 3 + [weight] * 3) * offloaded
    told = [warning for warning in found.warnings if "AdamW updates parameters" in warning]
    assert len(told) == offloaded
    (rank_class,) = found.estimate("h100-dgx").classes
    states = 2 * 3 * (weight + bias) * offloaded
    assert rank_class.memory.host_breakdown.get("optimizer_state", 0) == states
