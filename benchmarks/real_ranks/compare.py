"""What real ranks did against what recorded ranks did.

Left out of operators:

- where the host waits (`wait_tensor`) and how autograd is told of it: a real run waits at the first use, a
  virtual one at once;
- memory that is allocated and not written, values that the host reads, marks for the profiler;
- how a number becomes a tensor;
- the split and the copy with which gloo makes a reduce-scatter from an all-reduce;
- views, which move nothing, and what the optimizer counts on the host;
- results of attention beside the output and its statistics, which CPUs do not have;
- the output among the inputs of c10d's collectives, which Flint counts as written.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flint.backends.cost.memory.memory import layouts
from flint.errors import FlintError
from flint.frontends.torch_world.program.classes import RankClasses, Recordings, rank_classes
from flint.frontends.torch_world.program.groups import mesh_of
from flint.frontends.torch_world.record.job import Job
from flint.frontends.torch_world.record.process import RankProcesses, Relay
from flint.frontends.torch_world.record.recording import Recording
from flint.ir.op_class import ATTENTION, PRODUCT
from flint.ir.workload import Workload
from flint.steps.step import WorldStep

ROOT = Path(__file__).resolve().parents[2]
WORLD, RANKS = 4, (0, 1, 3)
LEFT_OUT = (
    "_c10d_functional.wait_tensor", "_c10d_functional._wrap_tensor_autograd", "profiler.",
    "aten._unsafe_view", "aten.empty", "aten.new_empty", "aten._local_scalar_dense",
    "aten.lift_fresh", "aten.scalar_tensor",
)  # fmt: skip
#: Which argument of c10d's operators goes into the network; the last one otherwise.
FIRST_GOES = ("c10d.allreduce_", "c10d.broadcast_", "c10d.send", "c10d.recv_")
#: StableHLO's names of types, as recordings have them.
TYPES = {
    "bfloat16": "bf16",
    "float16": "f16",
    "float32": "f32",
    "int64": "i64",
    "int32": "i32",
    "bool": "i1",
}

#: Name, inputs, outputs, ranks of the group.
Row = tuple[str, tuple[Any, ...], tuple[Any, ...], tuple[int, ...]]


@dataclass(frozen=True)
class Rank:
    """What one rank did."""

    rows: tuple[Row, ...]
    product_flops: int
    peak_bytes: int

    @property
    def collectives(self) -> list[Row]:
        """The rows that communicate."""
        return [row for row in self.rows if row[3]]


@dataclass(frozen=True)
class Compared:
    """Both sides of one rank, or why there is none."""

    real: Rank | str
    virtual: Rank | str
    told: tuple[str, ...] = ()

    def sides(self) -> tuple[Rank, Rank] | None:
        """Both, if both ran."""
        if isinstance(self.real, str) or isinstance(self.virtual, str):
            return None
        return self.real, self.virtual

    @property
    def is_equal(self) -> dict[str, bool]:
        """By quantity."""
        sides = self.sides()
        if sides is None:
            return dict.fromkeys(("collectives", "products", "operators", "memory"), False)
        real, virtual = sides
        return {
            "collectives": real.collectives == virtual.collectives,
            "products": real.product_flops == virtual.product_flops,
            "operators": real.rows == virtual.rows,
            "memory": abs(self.memory_error) <= 0.03,
        }

    @property
    def memory_error(self) -> float:
        """Of the recorded rank's peak, as a share."""
        sides = self.sides()
        return sides[1].peak_bytes / sides[0].peak_bytes - 1 if sides else float("nan")

    def difference(self) -> str:
        """Rows that one side has more often, or the first that stand elsewhere."""
        sides = self.sides()
        if sides is None:
            return f"{self.real if isinstance(self.real, str) else ''}{self.virtual}"
        real, virtual = (side.rows for side in sides)
        more = [(-n, row) for row, n in (Counter(real) - Counter(virtual)).items()]
        more += [(n, row) for row, n in (Counter(virtual) - Counter(real)).items()]
        pairs = enumerate(zip(real, virtual, strict=False))
        moved = next(((n, *rows) for n, rows in pairs if rows[0] != rows[1]), None)
        return "\n".join(f"{n:+d} {row}" for n, row in more) or str(moved or "")


def real_ranks(names: Sequence[str], folder: Path) -> dict[tuple[str, int], Rank | str]:
    """Run programs for real. Raises RuntimeError if the processes ended otherwise."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.real_ranks.real"]
    command += [str(folder), *names]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, check=False, env=environment, capture_output=True, text=True, timeout=1200
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    found: dict[tuple[str, int], Rank | str] = {}
    for name in names:
        for rank in RANKS:
            said = json.loads((folder / f"{name}.{rank}.json").read_text())
            found[name, rank] = said.get("error") or Rank(
                tuple(_real_rows(said["events"])), said["flops"], said["memory"]
            )
    return found


def _real_rows(events: list[Any]) -> Iterator[Row]:
    after_reduce_scatter = False
    for name, inputs, outputs, ranks in events:
        if name == "aten._foreach_add_.Tensor" and not any(shape for shape, _ in inputs):
            continue
        by_gloo = after_reduce_scatter and name in ("aten.split.Tensor", "aten.copy_.default")
        if not by_gloo and not name.startswith(LEFT_OUT):
            yield _row(name, _described(inputs), _described(outputs), tuple(ranks))
        after_reduce_scatter = by_gloo or name.startswith("c10d._reduce_scatter_base_")


def _described(tensors: list[Any]) -> tuple[Any, ...]:
    return tuple((tuple(shape), TYPES.get(dtype, dtype)) for shape, dtype in tensors)


def _row(name: str, inputs: Any, outputs: Any, ranks: tuple[int, ...]) -> Row:
    if "flash_attention" in name:  # beside the output and its statistics, CPUs have no results
        kept = 5 if "backward" in name else 3
        return name.replace("_for_cpu", ""), inputs[:kept], outputs[: kept - 1], ranks
    if not name.startswith("c10d."):
        return name, inputs, outputs, ranks
    if name.startswith("c10d.alltoall"):  # it returns no tensors
        outputs = inputs[: len(inputs) // 2]
    # Outputs and inputs are both among the arguments.
    sent = (
        inputs
        if name.startswith(FIRST_GOES)
        else inputs[len(inputs) - max(1, len(inputs) - len(outputs)) :]
    )
    return name, sent or outputs, (), ranks


def recorded_ranks(
    names: Sequence[str],
) -> Iterator[tuple[str, dict[int, Rank | str], tuple[str, ...]]]:
    """The same ranks recorded, what Flint makes of them, and its warnings."""
    from benchmarks.real_ranks.table import train

    with RankProcesses() as processes:
        for name in names:
            job = replace(
                Job.of_function(WorldStep(train, (name,))),
                world_size=WORLD,
                mesh_sizes=(WORLD,),
                mesh_names=("all",),
            )
            relay = Relay(job, processes.record)
            try:
                recordings = relay(RANKS)
                known = Recordings(relay, dict(zip(RANKS, recordings, strict=True)))
                mesh = mesh_of(f"all={WORLD}", recordings[0])
                classes = rank_classes(known.of, recordings[0], mesh)
                workload = Workload(mesh, classes.programs, classes.classes)
                made = zip(RANKS, _made(workload, classes), recordings, strict=True)
                yield (
                    name,
                    {n: replace(r, rows=tuple(_virtual_rows(v))) for n, r, v in made},
                    classes.warnings,
                )
            except FlintError as error:
                yield name, dict.fromkeys(RANKS, str(error)), ()


def _made(workload: Workload, classes: RankClasses) -> Iterator[Rank]:
    """FLOPs of products and peak memory of each of `RANKS`."""
    for rank in RANKS:
        at = next(n for n, c in enumerate(classes.classes) if c.mask(workload.mesh)[rank])
        program = classes.programs[classes.classes[at].program]
        products = [op in PRODUCT or op in ATTENTION for op in program.op]
        flops = int(program.flops[products].sum())
        device, host = (layout.live_bytes for layout in layouts(program))
        yield Rank((), flops, int((device + host).max()))  # real ranks have both in one


def _virtual_rows(recording: Recording) -> Iterator[Row]:
    for event in recording.events:
        is_view = event.is_view and not event.op.startswith(
            "fsdp."
        )  # these write what they are given
        if not event.op.startswith(LEFT_OUT) and not is_view:
            ranks = recording.groups[event.comm.group].ranks if event.comm else ()
            inputs, outputs = (
                tuple((t.shape, t.dtype) for t in tensors)
                for tensors in (event.inputs, event.outputs)
            )
            sent = event.op.startswith("c10d.")
            yield (
                (event.op, inputs or outputs, (), ranks)
                if sent
                else _row(event.op, inputs, outputs, ranks)
            )


def compared(names: Sequence[str], folder: Path) -> Iterator[tuple[str, dict[int, Compared]]]:
    """Each program on both sides, by rank."""
    real = real_ranks(names, folder)
    for name, virtual, told in recorded_ranks(names):
        yield name, {r: Compared(real[name, r], virtual[r], told) for r in RANKS}
