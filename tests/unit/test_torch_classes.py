"""Rank classes of distributed PyTorch programs: stages, uneven shards, derived recordings."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from flint.frontends.torch_world.build import build_program
from flint.frontends.torch_world.classes import rank_class, rank_classes, shard_labels
from flint.frontends.torch_world.derive import derive
from flint.frontends.torch_world.recording import (
    Comm,
    CommKind,
    DeviceMeshInfo,
    GroupInfo,
    Placement,
    Recording,
    TensorInfo,
)
from flint.frontends.torch_world.shards import Shards, chunk_size
from flint.mesh import Mesh
from flint.program import Collective, Phase
from flint.workload import Workload
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
        yield event("aten._foreach_lerp_.Scalar", [*state, *gradients], [], writes=changed)
        yield event("aten._foreach_sqrt", state, roots)
        changed = tuple(w.storage for w in weights)
        yield event("aten._foreach_addcdiv_.Scalar", [*weights, *state, *roots], [], writes=changed)


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


def test_even_shards_are_one_class_and_one_recording():
    program = Fsdp(16, 8)
    found = rank_classes(program.record, program.of(0), DP8)
    assert [c.name for c in found.classes] == ["all"] and program.recorded == []


@pytest.mark.parametrize("optimizer", ["foreach", "single"])
@pytest.mark.parametrize("rows", [(12,), (12, 6), (12, 6, 3, 16), (5, 6, 7)])
def test_derived_programs_are_those_recorded(rows, optimizer):
    fsdp = Fsdp(*rows, optimizer=optimizer)
    found = rank_classes(fsdp.record, fsdp.of(0), DP8)
    workload = Workload(DP8, found.programs, found.classes)
    workload.verify()
    assert len(fsdp.recorded) <= 1
    for rank in range(8):
        derived, real = workload.program_of(rank), build_program(fsdp.of(rank), DP8).program
        for column in ("opcode", "kind", "flops", "operand_bytes", "result_bytes", "dims", "deps"):
            assert (getattr(derived, column) == getattr(real, column)).all(), (rank, column)
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


def test_ranks_that_did_other_things_are_recorded():
    fsdp = Fsdp(12, 6, 3)

    def record(ranks):
        extra = event("aten.neg", [tensor(900, 2)], [tensor(901, 2)])
        made = fsdp.record(ranks)
        return [replace(r, events=(*r.events, extra)) if r.rank == 6 else r for r in made]

    found = rank_classes(record, fsdp.of(0), DP8)
    assert sorted(fsdp.recorded) == [3, 6]
    assert len(found.classes) == 3


def test_a_tensor_that_is_no_shard_is_not_derived():
    fsdp = Fsdp(12, 6, 3)
    first, last = (
        replace(r, events=(*r.events, event("aten.neg", [tensor(900, n)], [tensor(901, n)])))
        for r, n in ((fsdp.of(0), 9), (fsdp.of(7), 5))
    )
    assert derive(first, last, 3, DP8) is None


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
    from flint.backends.chakra import check, write

    asked = []

    def record(ranks):
        asked.extend(ranks)
        return [stage_recording(r) for r in ranks]

    found = rank_classes(record, stage_recording(0), mesh)
    assert asked == [2, 4] and len(found.classes) == 3
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
