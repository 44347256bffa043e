"""Rank classes of distributed PyTorch programs: stages, uneven shards, derived recordings."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flint.backends.chakra import check, write
from flint.backends.chakra.writing.expand import expand
from flint.frontends.torch_world.program.build import build_program
from flint.frontends.torch_world.program.classes import rank_class, rank_classes, shard_labels
from flint.frontends.torch_world.program.derive import derive, resized
from flint.frontends.torch_world.program.shards import Shards, chunk_size
from flint.frontends.torch_world.record.recording import (
    Comm,
    CommKind,
    DeviceMeshInfo,
    GroupInfo,
    Placement,
    Recording,
    TensorInfo,
)
from flint.ir.mesh import Mesh
from flint.ir.program import COLUMNS, TABLES, Collective, Kind, Phase
from flint.ir.workload import Workload
from tests.recordings import collective, event, recording, stored, tensor, update

DP8 = Mesh(("dp",), (8,))


def shard(rows: int, parts: int, rank: int) -> int:
    full = -(-rows // parts)
    return max(0, min(full, rows - full * rank))


class Fsdp:
    """Eight ranks that train two matrices of `rows` and of 6 rows, sharded over them all.

    Gradients lie in one memory, as FSDP scatters them.
    """

    def __init__(self, *rows: int, columns: int = 4, optimizer: str = "foreach") -> None:
        self.rows, self.columns, self.optimizer = rows, columns, optimizer
        self.recorded: list[int] = []

    def record(self, ranks) -> list[Recording]:
        self.recorded += ranks
        return [self.of(r) for r in ranks]

    def tensors(self, first: int, rank: int, *, shared: int = 0) -> list[TensorInfo]:
        return [
            tensor(shared or first + i, shard(n, 8, rank), self.columns)
            for i, n in enumerate(self.rows)
        ]

    def of(self, rank: int) -> Recording:
        count, columns = len(self.rows), self.columns
        padded = sum(-(-n // 8) for n in self.rows) * columns
        weights, state = self.tensors(1, rank), self.tensors(101, rank)
        flat, gradients = tensor(500, padded), self.tensors(0, rank, shared=500)
        norms = [tensor(600 + i) for i in range(count)]
        scatter = collective(Collective.REDUCE_SCATTER, "dp", padded * 32)
        events = [
            event("c10d._reduce_scatter_base_", [tensor(400, 8 * padded)], [flat], comm=scatter),
            *(event("aten.as_strided", [flat], [g], is_view=True) for g in gradients),
            event("aten._foreach_norm.Scalar", gradients, norms, phase=Phase.OPTIMIZER),
            *self.steps(weights, gradients, state),
        ]
        storages = {
            s.storage: stored(
                role, f"w{i}{suffix}", s, placement=Placement(0, (n, columns), (0,), (False,))
            )
            for tensors, role, suffix in ((weights, "parameter", ""), (state, "optimizer", "/m"))
            for i, (s, n) in enumerate(zip(tensors, self.rows, strict=True))
        }
        for s, n in zip(weights, self.rows, strict=True):  # FSDP pads them
            padded_bytes = shard(n, 8, 0) * columns * 4
            storages[s.storage] = replace(storages[s.storage], num_bytes=padded_bytes)
        storages[500] = stored("gradient", "w0", gradients[0])
        return recording(
            *events,
            rank=rank,
            world_size=8,
            storages=storages,
            meshes=(DeviceMeshInfo(("dp",), (8,), tuple(range(8))),),
            groups={"dp": GroupInfo("mesh_dp", tuple(range(8)))},
        )

    def steps(self, weights, gradients, state):
        if self.optimizer == "single":
            for w, g, m in zip(weights, gradients, state, strict=True):
                yield update("aten.lerp_.Scalar", [m, g], phase=Phase.OPTIMIZER)
                yield update("aten.add_.Tensor", [w, m], phase=Phase.OPTIMIZER)
            return
        roots = [replace(m, storage=m.storage + 600) for m in state]
        changed = tuple(m.storage for m in state)
        step = {"phase": Phase.OPTIMIZER}
        yield event("aten._foreach_lerp_.Scalar", [*state, *gradients], writes=changed, **step)
        yield event("aten._foreach_sqrt", state, roots, **step)
        changed = tuple(w.storage for w in weights)
        lists = [*weights, *state, *roots]
        yield event("aten._foreach_addcdiv_.Scalar", lists, writes=changed, **step)


def test_chunks_are_those_of_torch():
    torch = pytest.importorskip("torch")
    for rows in range(20):
        for parts in range(1, 9):
            sizes = chunk_size(np.full(parts, rows), parts, np.arange(parts))
            chunks = [len(c) for c in torch.chunk(torch.empty(rows), parts)] if rows else []
            assert sizes.tolist() == chunks + [0] * (parts - len(chunks))


def test_strided_shards_split_what_tensor_parallelism_left():
    """FSDP over tensor parallelism: 10 rows over tp=2 are 5 each, then over dp=4: 2, 2, 1, 0."""
    mesh = Mesh(("dp", "tp"), (4, 2))
    info = DeviceMeshInfo(("dp", "tp"), (4, 2), tuple(range(8)))
    placement = Placement(0, (10, 3), (0, 0), (True, False))
    own = recording(
        world_size=8,
        meshes=(info,),
        storages={1: stored("parameter", "w", tensor(1, 2, 3), placement=placement)},
    )
    shards = Shards(own, mesh)
    assert [shards.local_shape(placement, r) for r in (0, 1, 2, 4, 7)] == [
        (2, 3), (2, 3), (2, 3), (1, 3), (0, 3),
    ]  # fmt: skip
    assert shard_labels(own, mesh).tolist() == [2, 2, 2, 2, 1, 1, 0, 0]


def test_even_shards_are_one_class_whose_last_rank_is_recorded_too():
    program = Fsdp(16, 8)
    found = rank_classes(program.record, program.of(0), DP8)
    assert [c.name for c in found.classes] == ["all"] and program.recorded == [7]


@pytest.mark.parametrize("optimizer", ["foreach", "single"])
@pytest.mark.parametrize(
    ("rows", "last_of_classes"),
    [((12,), [5, 7]), ((12, 6), [5, 7]), ((12, 6, 3, 16), [2, 5, 7]), ((5, 6, 7), [4])],
)
def test_derived_programs_are_those_recorded(rows, last_of_classes, optimizer):
    fsdp = Fsdp(*rows, optimizer=optimizer)
    found = rank_classes(fsdp.record, fsdp.of(0), DP8)
    workload = Workload(DP8, found.programs, found.classes)
    workload.verify()
    assert fsdp.recorded == last_of_classes
    for rank in range(8):
        derived, real = workload.program_of(rank), build_program(fsdp.of(rank), DP8).program
        for column in ("opcode", "kind", "flops", "operand_bytes", "result_bytes", "dims"):
            assert (getattr(derived, column) == getattr(real, column)).all(), (rank, column)
        assert (expand(derived).deps == expand(real).deps).all()  # views of one shape are alike
        assert [derived.shapes[s] for s in derived.shape] == [real.shapes[s] for s in real.shape]


def test_a_huge_mesh_has_few_classes():
    """Llama-3-70B over 4096: rows 128, 1024, 3584 and 4008 of 4096 hold a part of some matrix."""
    mesh = Mesh(("dp", "tp"), (4096, 8))
    info = DeviceMeshInfo(mesh.names, mesh.sizes, tuple(range(mesh.size)))
    storages = {
        i: stored(
            "parameter",
            f"w{i}",
            tensor(i, -(-rows // 4096), 2),
            placement=Placement(0, (rows * 8, 2), (0, 0), (True, False)),
        )
        for i, rows in enumerate((128, 1024, 3584, 16032, 8192))
    }
    own = recording(world_size=mesh.size, meshes=(info,), storages=storages)
    labels = shard_labels(own, mesh)
    assert len(np.unique(labels)) == 5
    classes = [rank_class(labels == n, 0, mesh) for n in np.unique(labels)]
    assert all(not c.ranks for c in classes)
    assert sorted(len(c.where["dp"]) for c in classes) == [88, 128, 424, 896, 2560]


@pytest.mark.parametrize(
    "touch",
    [
        lambda w: event(
            "aten.mm", [w, tensor(901, 4, 3)], [tensor(902, 2, 3)], phase=Phase.FORWARD
        ),
        lambda w: event("aten.cumsum", [w], [replace(w, storage=902)], phase=Phase.OPTIMIZER),
        lambda w: event("aten.sum", [w], [tensor(902, 2)], phase=Phase.OPTIMIZER),
        lambda w: event(
            "aten.neg", [replace(w, shape=(8,))], [tensor(902, 8)], phase=Phase.OPTIMIZER
        ),
    ],
    ids=["product", "along", "rows", "flat"],
)
def test_shards_that_something_else_touches_are_recorded(touch):
    fsdp = Fsdp(12, 6, 3)

    def of(rank):
        made = fsdp.of(rank)
        return replace(made, events=(*made.events, touch(fsdp.tensors(1, rank)[0])))

    def record(ranks):
        fsdp.recorded += ranks
        return [of(r) for r in ranks]

    found = rank_classes(record, of(0), DP8)
    assert 6 in fsdp.recorded  # rank 3 has as much of the first matrix as rank 0
    assert [c.name for c in found.classes] == ["dp=0-2", "dp=3-5", "dp=6-7"]


def test_padded_shards_on_their_way_to_a_collective_are_the_same_everywhere():
    first = Fsdp(12).of(0)
    flat = tensor(1, 8)
    events = (
        event(
            "fsdp.all_gather_copy_in",
            [flat, tensor(700, 64)],
            [tensor(700, 8)],
            phase=Phase.FORWARD,
        ),
        *first.events,
    )
    derived = derive(replace(first, events=events), 7, DP8)
    assert derived is not None
    assert derived.events[0] == events[0]
    assert derived.storages[1].shape == (0, 4)


def stage_recording(rank: int) -> Recording:
    """One stage of a pipeline over `pp` = 3 with tensor parallelism over 2."""
    stage, column = divmod(rank, 2)
    groups = {
        "pp": GroupInfo("mesh_pp", tuple(column + 2 * s for s in range(3))),
        "tp": GroupInfo("mesh_tp", (2 * stage, 2 * stage + 1)),
    }
    x, y = tensor(1, 4), tensor(2, 4)
    events = []
    if stage:
        comm = Comm(CommKind.RECV, Collective.NONE, "pp", 16, peer=rank - 2)
        events.append(update("c10d.recv_", [x], comm=comm))
    events.append(event("aten.exp", [x], [y]))
    events.append(update("c10d.allreduce_", [y], comm=collective(Collective.ALL_REDUCE, "tp", 16)))
    if stage < 2:
        comm = Comm(CommKind.SEND, Collective.NONE, "pp", 16, peer=rank + 2)
        events.append(event("c10d.send", [y], [], comm=comm))
    return recording(*events, rank=rank, world_size=6, groups=groups)


@pytest.mark.parametrize("mesh", [Mesh(("pp", "tp"), (3, 2)), Mesh(("data",), (6,))])
def test_each_stage_is_a_class_and_messages_match(mesh, tmp_path):
    asked = []

    def record(ranks):
        asked.extend(ranks)
        return [stage_recording(r) for r in ranks]

    found = rank_classes(record, stage_recording(0), mesh)
    assert asked == [2, 4, 1, 3, 5] and len(found.classes) == 3  # each stage's last rank, too
    workload = Workload(mesh, found.programs, found.classes)
    workload.verify()
    write(workload, tmp_path / "traces")
    assert not check(tmp_path / "traces").findings


def test_classes_are_coordinates_or_lists():
    mesh = Mesh(("a", "b"), (4, 2))
    mask = np.zeros(8, dtype=np.bool_)
    mask[[2, 3, 4, 5]] = True
    assert rank_class(mask, 0, mesh).where == {"a": (1, 2)}
    assert rank_class(mask, 0, mesh).name == "a=1-2"
    mask[0] = True
    listed = rank_class(mask, 1, mesh)
    assert listed.ranks == (0, 2, 3, 4, 5) and listed.name == "ranks 0 2-5"
    assert math.prod(mesh.sizes) == 8


SCRIPT = """
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

device = torch.accelerator.current_accelerator()
mesh = init_device_mesh(device.type, (6, 2), mesh_dim_names=("dp", "tp"))
with torch.device("meta"):
    model = nn.Sequential(nn.Linear(8, 9), nn.LayerNorm(9), nn.Linear(9, 4))
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for layer in model:
    fully_shard(layer, mesh=mesh["dp"], mp_policy=policy)
fully_shard(model, mesh=mesh["dp"], mp_policy=policy)
model.to_empty(device=device)
matrices = [p for p in model.parameters() if p.dim() > 1]
others = [p for p in model.parameters() if p.dim() == 1]
groups = [{"params": matrices}, {"params": others, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=1e-3, foreach=FOREACH)
for _ in range(2):
    for _ in range(2):  # gradients are accumulated
        model(torch.zeros(4, 8, device=device)).float().sum().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.long
@pytest.mark.parametrize("foreach", [True, False])
def test_derived_programs_are_those_that_ranks_really_run(foreach, tmp_path):
    pytest.importorskip("torch")
    from flint.frontends.torch_world.record.job import Job
    from flint.frontends.torch_world.record.process import record

    script = tmp_path / "train.py"
    script.write_text(SCRIPT.replace("FOREACH", str(foreach)))
    mesh = Mesh(("dp", "tp"), (6, 2))
    job = replace(Job.of_script(script), world_size=12, mesh_sizes=(6, 2))
    first, last = record([replace(job, rank=r) for r in (0, 8)])
    labels = shard_labels(first, mesh)
    assert len(np.unique(labels)) > 2
    derived = derive(first, 8, mesh)
    assert derived is not None
    ran, theirs = build_program(first, mesh), build_program(last, mesh).program
    for ours in (build_program(derived, mesh).program, resized(ran, first, derived)):
        for column in COLUMNS:
            assert (getattr(ours, column) == getattr(theirs, column)).all(), column
        for table in TABLES:
            assert getattr(ours, table) == getattr(theirs, table), table
    assert (ran.program.flops != theirs.flops).any()


@pytest.mark.long
def test_stages_of_a_real_schedule_agree(tmp_path):
    pytest.importorskip("torch")
    from flint.frontends.torch_distributed import capture_script

    script = Path(__file__).parents[3] / "examples" / "torch_pipeline.py"
    arguments = "--model debug --num-layers 4 --pipe 4 --microbatches 6 --seq 64 --steps 3"
    workload = capture_script(script, arguments.split(), "4x2")
    workload.verify()
    assert workload.mesh.names == ("pipe", "data")
    # The rank that prints the loss waits for it, and is a class of its own.
    assert {c.where["pipe"] for c in workload.classes} == {(n,) for n in range(4)}
    write(workload, tmp_path / "traces")
    assert not check(tmp_path / "traces").findings
    for kind in (Kind.SEND, Kind.RECV):
        channels = [c for p in workload.programs for c in p.channel[p.kind == kind].tolist()]
        assert sorted(set(channels)) == list(range(36))
