"""Four real processes that talk through gloo do what the virtual ranks did, operator by operator.

tests/torch_programs/fsdp_tp_llama.py (FSDP2 over tensor and sequence parallelism, clipping, AdamW)
runs twice: as four processes under a recorder of its own, and as ranks 0 and 3 of a world that is
not there. Operators of the second step, their shapes and types, collectives and their groups are
the same sequence (record_gloo.py gives CPUs a kernel for RMS norms), once these are left out:

- where the host waits (`wait_tensor`) and how autograd is told of it (`_wrap_tensor_autograd`): a
  real run waits at the first use, a virtual one at once;
- memory that is allocated and not written, values read by the host, marks for the profiler;
- how a number becomes a tensor (`lift_fresh` or `scalar_tensor`);
- results of attention beside the output and its statistics, which CPUs do not have;
- the split and the copy with which gloo makes a reduce-scatter from an all-reduce;
- the output among the inputs of c10d's collectives, which Flint counts as written.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from difflib import unified_diff
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from flint.frontends.torch_world.record.job import Job
from flint.frontends.torch_world.record.process import record
from flint.frontends.torch_world.record.recording import Recording
from tests.torch_programs.ranks import run_as_ranks

PROGRAMS = Path(__file__).resolve().parents[1] / "torch_programs"
SCRIPT = PROGRAMS / "fsdp_tp_llama.py"
WORLD, RANKS = 4, (0, 3)
LEFT_OUT = (
    "_c10d_functional.wait_tensor",
    "_c10d_functional._wrap_tensor_autograd",
    "aten.empty.memory_format",
    "aten._local_scalar_dense",
    "profiler.",
)
IN_PLACE = ("c10d._allgather_base_", "c10d._reduce_scatter_base_")
#: StableHLO's names of types, as recordings have them.
TYPES = {"bfloat16": "bf16", "float32": "f32", "int64": "i64", "bool": "i1"}

#: Name, inputs, outputs, ranks of the group.
Row = tuple[str, tuple[Any, ...], tuple[Any, ...], tuple[int, ...]]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[Row]]:
    """What the four processes did, by rank."""
    if not torch.distributed.is_gloo_available():
        pytest.skip("this PyTorch has no gloo")
    folder = tmp_path_factory.mktemp("gloo")
    result = str(folder / "{rank}")
    status, said = run_as_ranks(WORLD, PROGRAMS / "record_gloo.py", result, str(SCRIPT))
    if "Gloo connect" in said or "Unable to resolve hostname" in said:
        pytest.skip("gloo cannot connect processes on this machine")
    assert status == 0, said
    return {rank: real_rows(json.loads((folder / f"{rank}").read_text())) for rank in RANKS}


@pytest.fixture(scope="module")
def virtual() -> dict[int, list[Row]]:
    """What the same ranks of a world that is not there did."""
    job = Job.of_script(SCRIPT)
    jobs = [replace(job, world_size=WORLD, rank=rank) for rank in RANKS]
    found = record(jobs)
    return {rank: virtual_rows(recording) for rank, recording in zip(RANKS, found, strict=True)}


def real_rows(events: list[Any]) -> list[Row]:
    def described(tensors: list[Any]) -> tuple[Any, ...]:
        return tuple((tuple(shape), TYPES.get(dtype, dtype)) for shape, dtype in tensors)

    rows: list[Row] = []
    after_reduce_scatter = False
    for name, inputs, outputs, ranks in events:
        by_gloo = after_reduce_scatter and name in ("aten.split.Tensor", "aten.copy_.default")
        if not by_gloo and not name.startswith(LEFT_OUT):
            rows.append(normal(name, described(inputs), described(outputs), tuple(ranks)))
        after_reduce_scatter = by_gloo or name.startswith("c10d._reduce_scatter_base_")
    return rows


def virtual_rows(recording: Recording) -> list[Row]:
    return [
        normal(
            event.op,
            tuple((t.shape, t.dtype) for t in event.inputs),
            tuple((t.shape, t.dtype) for t in event.outputs),
            recording.groups[event.comm.group].ranks if event.comm else (),
        )
        for event in recording.events
        if not event.op.startswith(LEFT_OUT)
    ]


def normal(name: str, inputs: Any, outputs: Any, ranks: tuple[int, ...]) -> Row:
    if name in ("aten.lift_fresh.default", "aten.scalar_tensor.default"):
        return "a number", (), outputs, ranks
    if "flash_attention" in name:
        kept = 5 if "backward" in name else 3
        return name.replace("_for_cpu", ""), inputs[:kept], outputs[: kept - 1], ranks
    if name.startswith(IN_PLACE):
        return name, inputs[-1:], outputs, ranks
    return name, inputs, outputs, ranks


@pytest.mark.long
@pytest.mark.parametrize("rank", RANKS)
def test_the_same_operators_in_the_same_order(
    rank: int, real: dict[int, list[Row]], virtual: dict[int, list[Row]]
) -> None:
    assert len(real[rank]) > 600
    difference = unified_diff(
        list(map(str, real[rank])), list(map(str, virtual[rank])), "gloo", "virtual", n=1
    )
    assert not list(difference)


@pytest.mark.long
def test_the_collectives_are_those_of_the_plan(real: dict[int, list[Row]]) -> None:
    """2 layers: what is compared is what it should be."""
    counted = Counter((name.split(".")[1], ranks) for name, _, _, ranks in real[0] if ranks)
    assert counted == {
        ("_allgather_base_", (0, 2)): 4,  # root, two layers, the first of them again
        ("_reduce_scatter_base_", (0, 2)): 3,
        ("all_gather_into_tensor", (0, 1)): 10,  # 2 a layer and 1 for the head, and backward
        ("reduce_scatter_tensor", (0, 1)): 10,
        ("all_reduce", (0, 1)): 9,  # 5 norms' gradients, 3 of the loss, the norm of all
        ("all_reduce", (0, 2)): 1,  # the norm of all
    }
