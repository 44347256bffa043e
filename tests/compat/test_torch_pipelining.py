"""Every schedule of torch.distributed.pipelining, from script to traces that are checked.

What each rank sends, receives and reduces is compared with what the schedule says: a microbatch
crosses each boundary between stages of different ranks once forward and once backward, and
gradients are reduced once a step.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from flint.backends.chakra import check, write
from flint.ir.program import Kind, Program
from flint.ir.workload import Workload

pytest.importorskip("torch")

PROGRAM = Path(__file__).parents[1] / "torch_programs" / "pipelines.py"
MICROBATCHES = 4
ACTIVATION = 2 * 32 * 64 * 4  # bytes: two sequences of 32 tokens, 64 wide, in float32
WEIGHTS = 2 * 64 * 256 * 4  # bytes of a stage: up and down
V_SHAPED = ("ScheduleZBVZeroBubble", "ScheduleDualPipeV")


@dataclass(frozen=True)
class Case:
    """Options of the program; the mesh is `pipe` x `data` x `model`."""

    options: str
    stages: int = 2
    pipe: int = 2
    data: int = 1
    model: int = 1

    @property
    def forward_only(self) -> bool:
        return "--eval" in self.options

    @property
    def mesh(self) -> str:
        return f"pipe={self.pipe},data={self.data},model={self.model}"

    def owner(self, stage: int) -> int:
        """The rank along `pipe` that runs a stage."""
        turn, position = divmod(stage, self.pipe)
        back = turn and self.options.startswith(V_SHAPED)
        return self.pipe - 1 - position if back else position

    def arguments(self) -> list[str]:
        sizes = f"--pipe {self.pipe} --stages {self.stages} --model {self.model}"
        return shlex.split(f"{self.options} {sizes} --microbatches {MICROBATCHES}")


CASES = {
    "gpipe-fsdp-traced": Case("ScheduleGPipe --parallel fsdp --trace spec", data=2),
    "1f1b-marked": Case("Schedule1F1B --trace marked", stages=3, pipe=3),
    "interleaved-fsdp-tp": Case(
        "ScheduleInterleaved1F1B --parallel fsdp", stages=4, data=2, model=2
    ),
    "looped-bfs-ddp": Case("ScheduleLoopedBFS --parallel ddp", stages=4, data=2),
    "interleaved-zero-bubble-fsdp": Case(
        "ScheduleInterleavedZeroBubble --parallel fsdp", stages=4, data=2
    ),
    "zero-bubble-v-tp": Case("ScheduleZBVZeroBubble", stages=4, model=2),
    "dual-pipe-v-fsdp": Case("ScheduleDualPipeV --parallel fsdp", stages=4, data=2),
    "interleaved-fsdp-eval": Case(
        "ScheduleInterleaved1F1B --parallel fsdp --eval", stages=4, data=2
    ),
}
#: Run where slow tests are left out.
QUICK = ("gpipe-fsdp-traced", "dual-pipe-v-fsdp")


@pytest.fixture(scope="module")
def captured() -> Iterator[Any]:
    """The workload of a case; two are captured at a time, those that are asked for first."""
    from flint.frontends.torch_distributed import capture_script

    pool = ThreadPoolExecutor(max_workers=2)
    futures: dict[str, Future[Workload]] = {}

    def start(name: str) -> Future[Workload]:
        case = CASES[name]
        steps = 0 if case.forward_only else 2
        return pool.submit(capture_script, PROGRAM, case.arguments(), case.mesh, steps=steps)

    def of(name: str, following: str | None) -> Workload:
        for each in (name, following):
            if each is not None and each not in futures:
                futures[each] = start(each)
        return futures[name].result()

    yield of
    pool.shutdown(wait=True, cancel_futures=True)


def following(name: str) -> str | None:
    """The case that is tested after this one."""
    group = [each for each in CASES if (each in QUICK) == (name in QUICK)]
    return dict(pairwise(group)).get(name)


def messages(program: Program) -> Counter[tuple[str, str, str, int]]:
    rows = map(program.row, range(len(program)))
    return Counter(
        (row.kind.name, str(row.route), row.phase.name, row.comm_bytes)
        for row in rows
        if row.kind in (Kind.SEND, Kind.RECV)
    )


def expected_messages(case: Case, rank: int) -> Counter[tuple[str, str, str, int]]:
    found: Counter[tuple[str, str, str, int]] = Counter()
    for stage in range(case.stages - 1):
        here, there = case.owner(stage), case.owner(stage + 1)
        if here == there:
            continue
        for phase, source, target in (("FORWARD", here, there), ("BACKWARD", there, here)):
            if case.forward_only and phase == "BACKWARD":
                continue
            route = f"pipe{target - source:+d} (no wrap)"
            for kind, end in (("SEND", source), ("RECV", target)):
                if end == rank:
                    found[kind, route, phase, ACTIVATION] += MICROBATCHES
    return found


def collectives(program: Program, axis: str) -> Counter[tuple[str, str, int]]:
    rows = map(program.row, range(len(program)))
    return Counter(
        (row.collective.name, row.phase.name, row.comm_bytes)
        for row in rows
        if row.kind is Kind.COLLECTIVE and str(row.group) == axis
    )


def expected_data(case: Case, stages: int) -> dict[tuple[str, str, int], int]:
    """Of the ranks of `data`: parameters are gathered and gradients reduced once a step."""
    whole = WEIGHTS // case.model
    if "fsdp" in case.options:
        gathered = {("ALL_GATHER", "FORWARD", whole // case.data): stages}
        reduced = {("REDUCE_SCATTER", "BACKWARD", whole): stages}
        return gathered if case.forward_only else gathered | reduced
    return {("ALL_REDUCE", "BACKWARD", whole): stages} if "ddp" in case.options else {}


def expected_model(case: Case, owned: list[int]) -> dict[tuple[str, str, int], int]:
    """Of the ranks of `model`: the output of each stage; its input's gradient, where it has one."""
    if case.model == 1:
        return {}
    inner = sum(stage > 0 for stage in owned)
    forward = ("ALL_REDUCE", "FORWARD", ACTIVATION)
    return {
        forward: MICROBATCHES * len(owned),
        ("ALL_REDUCE", "BACKWARD", ACTIVATION): MICROBATCHES * inner,
    }


def products(program: Program) -> int:
    rows = map(program.row, range(len(program)))
    return sum(row.opcode in ("aten.mm", "aten.addmm") for row in rows)


def expected_products(case: Case, owned: list[int]) -> int:
    """Two layers, forward and two gradients each; the batch needs no gradient."""
    if case.forward_only:
        return MICROBATCHES * 2 * len(owned)
    return MICROBATCHES * (6 * len(owned) - (0 in owned))


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.long) for n in CASES]
)
def test_what_ranks_exchange_is_what_the_schedule_says(
    name: str, captured: Any, tmp_path: Path
) -> None:
    case = CASES[name]
    workload = captured(name, following(name))
    assert [c.where for c in workload.classes] == [{"pipe": (k,)} for k in range(case.pipe)]
    for rank, program in enumerate(workload.programs):
        owned = [stage for stage in range(case.stages) if case.owner(stage) == rank]
        assert messages(program) == expected_messages(case, rank)
        assert products(program) == expected_products(case, owned)
        assert collectives(program, "data") == expected_data(case, len(owned))
        assert collectives(program, "model") == expected_model(case, owned)
    write(workload, tmp_path / "trace")
    report = check(tmp_path / "trace")
    assert report.ok and report.proved == "any-times", (report.findings, report.doubt)


CLOSURE = """
import sys
import flint, pipelines  # binds init_device_mesh before anything is replaced

def capture(*argv):
    def program():
        sys.argv = ["pipelines.py", *argv]
        pipelines.main()
    return flint.trace_distributed(program, "pipe=2,data=2,model=1")

workload = capture("Schedule1F1B", "--parallel", "fsdp").workload
print([c.where for c in workload.classes], [len(p) for p in workload.programs])
"""


@pytest.mark.long
def test_a_function_of_a_module_that_was_imported_before_is_captured_in_forks() -> None:
    paths = os.pathsep.join(map(str, (PROGRAM.parents[2], PROGRAM.parent)))
    environment = {**os.environ, "PYTHONPATH": paths}
    command = [sys.executable, "-c", CLOSURE]
    done = subprocess.run(
        command, check=False, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith("[{'pipe': (0,)}, {'pipe': (1,)}]")
