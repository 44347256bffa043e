"""What a recorded program compiles is marked, and only that becomes Inductor's kernels."""

from __future__ import annotations

import textwrap
from collections import Counter
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from flint.frontends.torch_world.program.build import build_program
from flint.frontends.torch_world.record.compiled import EAGER, CompiledCall, CompiledCalls
from flint.frontends.torch_world.record.job import Job
from flint.frontends.torch_world.record.process import record
from flint.ir.mesh import Mesh
from flint.ir.program import Flag, Kind, Phase, Program
from flint.ir.rank_class import RankClass
from flint.ir.text.parser import parse_program
from flint.ir.text.printer import print_program
from flint.ir.workload import Workload
from flint.passes.base import run_passes
from flint.passes.profiles import PROFILES
from tests.recordings import event, recording, tensor

MESH = Mesh(("dp", "tp"), (2, 2))
PROGRAM = """
    import torch, torch.distributed as dist, torch._inductor.config
    torch._inductor.config._micro_pipeline_tp = True
    dist.init_process_group("nccl")
    weight = torch.nn.Parameter(torch.empty(64, 64, device="cuda"))
    optimizer = torch.optim.SGD([weight], lr=0.1, foreach=False)

    def activation(x):
        return torch.relu(x * 2 + 1)

    compiled = torch.compile(activation)
    left_out = torch.compile(torch.compiler.disable(activation))
    graphed = torch.compile(activation, mode="reduce-overhead", backend="cudagraphs")
    as_it_is = torch.compile(activation, backend="eager")

    class Net(torch.nn.Module):
        def forward(self, x):
            y = compiled(x @ weight)
            y = activation(as_it_is(y))
            return graphed(compiled(left_out(y))).sum()

    net = Net()
    for _ in range(3):
        net(torch.empty(8, 64, device="cuda")).backward()
        optimizer.step()
"""


def chain(*numbers: int) -> Program:
    """Element-wise operators one after the other, each of the call with that number."""
    events = [
        event("aten.relu", [tensor(i, 8, 8)], [tensor(i + 1, 8, 8)], call=CompiledCall(number))
        for i, number in enumerate(numbers)
    ]
    return build_program(recording(*events), MESH).program


def kernels(program: Program, profile: str = "torch") -> int:
    found = run_passes(program, PROFILES[profile].kernels)
    return int((found.kind == Kind.COMPUTE).sum())


@pytest.mark.parametrize(
    ("numbers", "count"),
    [
        ((0, 0, 0), 3),  # eager
        ((1, 1, 1), 1),
        ((1, 1, 2, 2), 2),  # two graphs
        ((0, 1, 1, 0, 2, 2, 2), 4),
    ],
)
def test_only_rows_of_one_call_are_a_kernel(numbers: tuple[int, ...], count: int) -> None:
    program = chain(*numbers)
    assert kernels(program) == count
    assert kernels(program, "eager") == len(numbers)
    assert kernels(program, "inductor") == 1


def test_the_column_is_kept_by_text_and_file_and_left_out_of_files_without_it() -> None:
    for program in (chain(1, 0, 2), chain(0, 0)):
        workload = Workload(MESH, (program,), (RankClass("all", 0),), {})
        read = Workload.from_bytes(workload.to_bytes(), "a.flint").programs[0]
        again = parse_program(print_program(program))
        for other in (read, again):
            assert other.compiled.tolist() == program.compiled.tolist()
    assert b"compiled" not in workload.to_bytes()


def test_a_call_inside_of_another_is_part_of_it() -> None:
    calls = CompiledCalls()
    with calls.call():
        with calls.call(replays=True):
            assert calls.current == CompiledCall(1, True)
        with calls.outside(), calls.call():
            assert calls.current.number == 2
        assert calls.current == CompiledCall(1)
    assert calls.current == EAGER


def test_a_program_is_marked_where_it_compiles(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(PROGRAM))
    job = Job(rank=0, world_size=4, script=str(script), steps=2)
    (found,) = record([job])
    program = build_program(found, MESH).program
    worked = [program.row(i) for i in range(len(program)) if program.kind[i] == Kind.COMPUTE]
    by_call = Counter(r.compiled for r in worked if r.phase is Phase.FORWARD)
    # x @ w, activation: eager, by backend eager, left out, in a graph; sum, the gradient of 1
    assert by_call == {0: 1 + 3 * 4 + 1 + 1, 4: 3, 6: 3}
    back = Counter(r.compiled for r in worked if r.phase is Phase.BACKWARD)
    assert back[4] == back[6] == 2  # threshold_backward and mul
    replayed = [r for r in worked if r.flags & Flag.REPLAYED]
    assert Counter(r.phase for r in replayed) == {Phase.FORWARD: 3, Phase.BACKWARD: 2}
    eager = sum(1 for r in worked)
    assert kernels(program) == eager - 2 * (3 - 1) - 2 * (2 - 1)
    assert any("async tensor parallelism was not followed" in w for w in found.warnings)


CAPTURED = """
    import torch, torch.distributed as dist
    dist.init_process_group("nccl")
    model = torch.nn.Linear(64, 8, bias=False).cuda()
    optimizer = torch.optim.SGD(model.parameters(), foreach=False)
    x = torch.empty(16, 64, device="cuda")
    model(x).sum().backward()
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad()
    with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
        model(x).sum().backward()
        optimizer.step()
    for _ in range(3):
        x.copy_(torch.empty(16, 64, device="cuda"))
        graph.replay()
"""


def test_a_cuda_graph_is_recorded_where_it_is_replayed(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(CAPTURED))
    (found,) = record([Job(rank=0, world_size=4, script=str(script), steps=2)])
    program = build_program(found, MESH).program
    worked = [program.row(i) for i in range(len(program)) if program.kind[i] == Kind.COMPUTE]
    replayed = [(r.opcode, r.phase) for r in worked if r.flags & Flag.REPLAYED]
    assert replayed[:3] == [
        ("aten.mm", Phase.FORWARD),
        ("aten.sum", Phase.FORWARD),
        ("aten.ones_like", Phase.FORWARD),
    ]
    assert ("aten.mm", Phase.BACKWARD) in replayed
    assert ("aten.add_", Phase.OPTIMIZER) in replayed
    assert [r.opcode for r in worked].count("aten.mm") == 2  # once a step
    (copied,) = [r for r in worked if r.opcode == "aten.copy_"]
    assert not copied.flags & Flag.REPLAYED
