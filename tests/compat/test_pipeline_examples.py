"""The pipelines among the examples, cut short: messages, collectives, reductions, and `check`."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flint.backends.chakra import check
from flint.frontends.model_file import Target, importable, load_step
from flint.ir.program import Collective, Kind, Program
from flint.steps.options import PipelineOptions
from flint.tracing import Trace, trace_step
from tests.long import long_but

pytest.importorskip("jax", reason="captures JAX programs")

EXAMPLES = Path(__file__).parents[2] / "examples"
#: Bytes between the stages of GPT-3: sequence 2048, width 12288, bfloat16, over 8 ranks.
BOUNDARY = 2048 * 12288 * 2 // 8


@cache
def capture(model: str, mesh: str, settings: str = "", **options: Any) -> Trace:
    """What `flint capture examples/MODEL --mesh MESH` makes; `settings` are "name=value ..."."""
    chosen = PipelineOptions(**options)
    target = Target.parse(str(EXAMPLES / model))
    with importable(target.path.parent):
        values = dict(pair.split("=", 1) for pair in settings.split())
        loaded = load_step(target, mesh, settings=values, offered=chosen.offered())
        return trace_step(chosen.applied_to(loaded.step), loaded.mesh, name=loaded.name)


def gpt3(mesh: str, settings: str = "num_layers=4", **options: Any) -> Trace:
    return capture("gpt3_jax.py", mesh, settings, **options)


def positions(trace: Trace) -> list[Program]:
    """The program of each position along the pipeline's axis."""
    by_position = {c.where["pipe"]: c.program for c in trace.workload.classes}
    return [trace.workload.programs[by_position[key]] for key in sorted(by_position)]


def executed(program: Program, rows: Any) -> Counter[tuple[str, str, int]]:
    """Kind, axes and bytes of communications, by how often they are executed."""
    found: Counter[tuple[str, str, int]] = Counter()
    for row in map(program.row, np.flatnonzero(rows).tolist()):
        name = row.kind.name if row.kind is not Kind.COLLECTIVE else row.collective.name
        where = str(row.group or row.route)
        found[name, where, row.comm_bytes] += int(program.trips[row.number])
    return found


def sent_and_received(program: Program) -> tuple[Counter[int], Counter[int]]:
    """How many messages of how many bytes leave and arrive."""
    found: list[Counter[int]] = []
    for kind in (Kind.SEND, Kind.RECV):
        counter: Counter[int] = Counter()
        for (_, _, size), times in executed(program, program.kind == kind).items():
            counter[size] += times
        found.append(counter)
    return found[0], found[1]


def over(program: Program, axes: str) -> Counter[tuple[str, int]]:
    """Collectives over exactly these axes: kind and bytes, by how often."""
    found = executed(program, program.kind == Kind.COLLECTIVE)
    return Counter({(kind, size): n for (kind, at, size), n in found.items() if at == axes})


def test_gpt3_messages_of_each_class() -> None:
    """Microbatches there, as many gradients back, sharded over the sequence and the model ranks."""
    first, *middle, last = positions(gpt3("pipe=4,data=2,model=4", microbatches=4))
    assert len(middle) == 2
    size = BOUNDARY * 8 // 4
    for end in (first, last):
        assert sent_and_received(end) == ({size: 4}, {size: 4})
    for inner in middle:
        assert sent_and_received(inner) == ({size: 8}, {size: 8})


@pytest.mark.long  # with layers that are recomputed, the next test counts them as well
@pytest.mark.parametrize("microbatches", [4, 8])
def test_gpt3_collectives_of_a_layer_are_those_of_xla(microbatches: int) -> None:
    """Those of Megatron: 4 gathers, 4 reduce-scatters, and what enters the 2 blocks is gathered for their weights.

    XLA gathers the gradients of the 2 blocks twice, for the inputs and for the weights, as its whole
    compiler for GPUs does (64 gathers with `compiler="xla-gpu"` and 4 microbatches).
    """
    inner = positions(gpt3("pipe=4,data=1,model=8", microbatches=microbatches))[1]
    layers = 1
    found = over(inner, "model")
    assert found["ALL_GATHER", BOUNDARY] == (4 + 2 + 2) * layers * microbatches
    assert found["REDUCE_SCATTER", 8 * BOUNDARY] == 4 * layers * microbatches
    # What is left is once in a step: gradients of norms and biases, which see parts of sequences.
    rest = {k: n for k, n in found.items() if k[1] not in (4, BOUNDARY, 8 * BOUNDARY)}
    assert rest == {("ALL_REDUCE", 12_288 * 2): 6 * layers}


@pytest.mark.parametrize("remat", long_but(["full"], ["none", "selective", "full"]))
def test_gpt3_recomputation_costs_what_it_should(remat: str) -> None:
    """Recomputing attention takes no communication, recomputing a layer does."""
    recomputed = f" remat={remat}" if remat != "none" else ""  # which is what it is unless told
    trace = gpt3("pipe=4,data=1,model=8", f"num_layers=4{recomputed}", microbatches=4)
    found = over(positions(trace)[1], "model")
    layers = 1
    gathers, scatters = {"none": (8, 4), "selective": (8, 4), "full": (10, 5)}[remat]
    assert found["ALL_GATHER", BOUNDARY] == gathers * layers * 4
    assert found["REDUCE_SCATTER", 8 * BOUNDARY] == scatters * layers * 4
    rest = {k: n for k, n in found.items() if k[1] not in (4, BOUNDARY, 8 * BOUNDARY)}
    assert rest == {("ALL_REDUCE", 12_288 * 2): 6 * layers}  # once in a step


def parameter_bytes(program: Program, name: str = "") -> int:
    """Bytes of the weights of a stage on one device."""
    rows = [program.row(i) for i in np.flatnonzero(program.kind == Kind.PARAMETER).tolist()]
    return sum(r.result_bytes for r in rows if r.dtype == "bfloat16" and name in r.name)


@pytest.mark.parametrize(
    ("microbatches", "dtype", "factor"),
    long_but(
        [(4, "", 1)],
        [(m, dtype, factor) for m in (1, 4) for dtype, factor in (("", 1), ("float32", 2))],
    ),
)
def test_gpt3_reduces_each_gradient_once_a_step(microbatches: int, dtype: str, factor: int) -> None:
    """Over data there are as many bytes as weights, whatever the number of microbatches."""
    settings = f"num_layers=4 gradient_dtype={dtype}" if dtype else "num_layers=4"
    trace = gpt3("pipe=4,data=2,model=4", settings, microbatches=microbatches)
    for program in positions(trace):
        found = executed(program, program.kind == Kind.COLLECTIVE)
        reductions = {k: n for k, n in found.items() if "data" in k[1] and k[2] > 64}
        assert {kind for kind, _, _ in reductions} == {"ALL_REDUCE"}
        moved = sum(size * n for (_, _, size), n in reductions.items())
        # Positions are whole on each rank, their gradient comes in parts of the sequence.
        elsewhere = parameter_bytes(program, "positions") * 3 // 4
        assert moved == factor * (parameter_bytes(program) - elsewhere)


def test_gpt3_ties_its_tables_between_the_first_and_the_last_stage() -> None:
    first, inner, _, last = positions(gpt3("pipe=4,data=2,model=4", microbatches=4))
    table = 51_200 // 4 * 12_288 * 2
    for end in (first, last):
        tied = [k for k in executed(end, end.kind == Kind.COLLECTIVE) if "pipe" in k[1]]
        assert [k[2] for k in tied if k[2] > 64] == [table]
    assert all(k[2] <= 64 for k in executed(inner, inner.kind == Kind.COLLECTIVE) if "pipe" in k[1])


@pytest.mark.parametrize(
    ("parallel", "layers"),
    long_but(
        [("tp+sp", "scan")],
        [(p, layers) for p in ("tp+sp", "tp", "fsdp+tp+sp") for layers in ("scan", "unrolled")],
    ),
)
def test_llama_messages_are_sharded_as_its_activations(parallel: str, layers: str) -> None:
    settings = f"num_layers=6 seq=1024 parallel={parallel} layers={layers}"
    trace = capture("llama_jax.py:pipelined", "pipe=4,data=2,model=2", settings, microbatches=4)
    size = 1024 * 4096 * 2 // (2 if "sp" in parallel.split("+") else 1)
    first, second, third, last = positions(trace)
    for end in (first, last):
        assert sent_and_received(end) == ({size: 4}, {size: 4})
    for inner in (second, third):
        assert sent_and_received(inner) == ({size: 8}, {size: 8})


@pytest.mark.long
def test_llama_keeps_gathered_weights_if_told_to() -> None:
    """Gathers of weights over data: for each microbatch and pass, or once in a step."""
    bytes_gathered = []
    for reshard in ("", " reshard=false"):
        settings = f"num_layers=6 seq=1024 parallel=fsdp+tp+sp layers=scan{reshard}"
        trace = capture("llama_jax.py:pipelined", "pipe=4,data=2,model=2", settings, microbatches=4)
        found = over(positions(trace)[1], "data")
        bytes_gathered.append(sum(s * n for (kind, s), n in found.items() if kind == "ALL_GATHER"))
    again, once = bytes_gathered
    inner = positions(trace)[1]
    assert once == parameter_bytes(inner) - parameter_bytes(inner, "norm")
    assert again == 2 * 4 * once


#: Model, settings.
SMALL = {
    "gpt3_jax.py": "num_layers=8 model=6.7b",
    "llama_jax.py:pipelined": "num_layers=8 seq=1024",
}
SCHEDULES = ("gpipe", "1f1b", "zb-h1", "interleaved-1f1b", "zb-v", "dualpipev")


#: Each schedule with both models and both meshes in turn.
RUNS = [
    *((m, s, "pipe=4,data=2,model=2") for m, s in zip([*SMALL] * 3, SCHEDULES, strict=True)),
    *((m, s, "pipe=2,data=1,model=2") for m, s in zip([*SMALL] * 3, SCHEDULES[::-1], strict=True)),
]


@pytest.mark.long  # tests/oracle/test_pipeline_timing.py runs traces of all schedules
@pytest.mark.parametrize(("model", "schedule", "mesh"), RUNS)
def test_traces_run_to_their_end(model: str, schedule: str, mesh: str, tmp_path: Path) -> None:
    chunks = 1 if schedule in ("gpipe", "1f1b", "zb-h1") else 2
    microbatches = 8 if schedule == "dualpipev" else 4
    trace = capture(
        model, mesh, SMALL[model], microbatches=microbatches, schedule=schedule, chunks=chunks
    )
    trace.workload.verify()
    trace.save(tmp_path / "out")
    report = check(tmp_path / "out")
    assert report.ok and report.proved == "any-times", (report.findings, report.doubt)
    for program in positions(trace):
        sent, received = sent_and_received(program)
        assert sum(sent.values()) == sum(received.values())


@pytest.mark.long
def test_torch_llama_is_cut_alike(tmp_path: Path) -> None:
    """The same messages as the JAX model with the same layout."""
    pytest.importorskip("torch", reason="captures a PyTorch module")
    settings = "num_layers=4 seq=1024 parallel=tp+sp"
    mesh = "pipe=2,data=2,model=2"
    torch = capture("torch_llama.py", mesh, settings, cut="layers", microbatches=4)
    jax = capture("llama_jax.py:pipelined", mesh, settings, cut="layers", microbatches=4)
    for ours, theirs in zip(positions(torch), positions(jax), strict=True):
        assert sent_and_received(ours) == sent_and_received(theirs)
    torch.save(tmp_path / "out")
    report = check(tmp_path / "out")
    assert report.ok and report.proved == "any-times", (report.findings, report.doubt)


def test_collectives_are_those_of_the_enumeration() -> None:
    """Nothing of a pipeline is a permutation: messages are sends and receives."""
    for program in positions(gpt3("pipe=4,data=2,model=4", microbatches=4)):
        assert not (program.collective == Collective.PERMUTE).any()
