"""Stacks: whose software runs on a machine, and what it changes of an estimate."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from flint.backends.cost.chips.families.gpu.constants import constants_of
from flint.backends.cost.collectives import duration_ns
from flint.backends.cost.collectives.algorithm import CollectiveCall
from flint.backends.cost.estimate import estimate
from flint.backends.cost.network.torus import Span
from flint.backends.cost.setting import setting_of
from flint.backends.cost.simulate.timeline import POLICIES
from flint.backends.cost.software import stack_for, with_libraries, with_stack
from flint.backends.cost.trace_timing import timed_kernels
from flint.cluster.models import Cluster
from flint.cluster.stack import Stack, shipped_stacks
from flint.cluster.tables import Quantity, SourceKind
from flint.errors import FlintError
from flint.frontends.torch_world.program.build import build_program
from flint.frontends.torch_world.program.classes import rank_classes
from flint.frontends.torch_world.record.compiled import CompiledCall
from flint.ir.made_by import StoodIn
from flint.ir.mesh import Mesh
from flint.ir.op_class import Collective
from flint.ir.workload import Workload
from flint.passes.profiles import PROFILES
from flint.requests.estimate import EstimateRequest
from flint.tools.share.redact import neutral_metadata
from flint.tracing import Trace
from tests.estimates import zoo
from tests.measured_programs import one_rank
from tests.recordings import event, recording, tensor

H100 = Cluster.load("h100-dgx")


@pytest.mark.parametrize("stack", shipped_stacks(), ids=lambda s: s.name)
def test_a_shipped_stack_names_what_there_is(stack: Stack) -> None:
    assert set(stack.profiles) <= {*PROFILES, "recorded"}
    assert stack.policy in POLICIES
    assert Stack.load(stack.name) == stack


def test_every_profile_of_kernels_means_a_stack_on_the_chips_that_run_it() -> None:
    meant = {
        p: stack_for(p, Cluster.load("v5p" if p == "xla-tpu" else "h100-dgx")).name
        for p in PROFILES
    }
    assert meant == {
        "none": "unknown",
        "xla-gpu": "xla",
        "xla-gpu+flash": "xla",
        "xla-tpu": "xla-tpu",
        "inductor": "inductor",
        "torch": "inductor",
        "eager": "pytorch-eager",
        "megatron": "megatron",
    }


def _with_library(cluster: Cluster, library: str, **constants: float) -> Cluster:
    table = {
        n.replace("_", ".", 1): Quantity(value=v, kind=SourceKind.MEASURED, source="this test")
        for n, v in constants.items()
    }
    gpu = cluster.chip.gpu.model_copy(update={"libraries": {library: table}})
    return cluster.model_copy(update={"chip": cluster.chip.model_copy(update={"gpu": gpu})})


def _stack(*libraries: str) -> Stack:
    return Stack(name="t", title="t", chips=("gpu",), profiles=("eager",), libraries=libraries)


def test_constants_of_a_library_stand_before_those_of_the_chip() -> None:
    plain = constants_of(H100.chip)["softmax.launch_ns"]
    ours = _with_library(H100, "aten", softmax_launch_ns=plain + 500)
    assert constants_of(ours.chip)["softmax.launch_ns"] == plain
    on = with_stack(ours, _stack("aten"))
    assert constants_of(on.chip)["softmax.launch_ns"] == plain + 500
    assert constants_of(on.chip)["norm.launch_ns"] == constants_of(H100.chip)["norm.launch_ns"]
    assert constants_of(with_stack(ours, _stack("triton")).chip)["softmax.launch_ns"] == plain


def test_what_the_file_of_a_machine_says_stays() -> None:
    launch = Quantity(value=7e3, kind=SourceKind.MEASURED, source="this test")
    theirs = _stack("aten").model_copy(update={"host_launch_ns": launch})
    assert with_stack(H100, theirs).host_launch_ns == launch
    own = H100.model_copy(update={"host_launch_ns": launch.model_copy(update={"value": 9e3})})
    assert with_stack(own, theirs).host_launch_ns.value == 9e3


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "ours.toml"
    file.write_text(
        'name = "ours"\ntitle = "ours"\nchips = ["gpu"]\nprofiles = ["xla-gpu"]\npolicy = "xla"\n'
        'host_launch_ns = { value = 1e6, kind = "measured", source = "a trace" }\n'
    )
    trace = zoo("llama_fsdp_tp")
    plain, ours = trace.estimate("h100-dgx"), trace.estimate("h100-dgx", stack=file)
    assert (ours.stack.name, ours.policy.name) == ("ours", "xla")
    assert ours.step_time_ns > plain.step_time_ns
    assert trace.estimate("h100-dgx", stack=file, policy="in-order").policy.name == "in-order"
    file.write_text(file.read_text().replace('"xla-gpu"]', '"xla-gpu"]\nlibraries = ["atn"]'))
    with pytest.raises(FlintError, match="'atn' is not a known library; did you mean 'aten'") as e:
        trace.estimate("h100-dgx", stack=file)
    assert e.value.code == "FL701" and e.value.place.endswith(":5")


def test_stacks_that_do_not_fit() -> None:
    trace = zoo("llama_fsdp_tp")
    for stack, chip, said in (
        ("megatorn", "h100-dgx", "did you mean 'megatron'"),
        ("megatron", "v5p", "does not run on TPU v5p"),
        ("maxtext", "h100-dgx", "does not run on H100"),
    ):
        with pytest.raises(FlintError, match=said) as e:
            trace.estimate(chip, stack=stack)
        assert e.value.code == "FL725"


def test_an_estimate_prints_its_stack() -> None:
    estimate = zoo("llama_fsdp_tp").estimate("h100-dgx")
    assert "stack      xla" in estimate.to_text()
    assert estimate.to_json()["stack"] == "xla"


BASE = """name = "base"
title = "base"
base = "h100-dgx"

[chip.gpu.libraries.sustained]
"gemm.epilogue_k" = { value = 99, kind = "measured", source = "this test" }
"softmax.launch_ns" = { value = 7777, kind = "measured", source = "this test" }
"""
OWN = """name = "own"
title = "own"
base = "base.toml"

[chip.gpu.constants]
"gemm.launch_ns" = { value = 2222, kind = "measured", source = "this test" }
"""


def test_constants_of_ones_own_stand_before_the_libraries_of_the_base(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text(BASE)
    (tmp_path / "own.toml").write_text(OWN)
    base, own = (
        constants_of(with_stack(Cluster.load(tmp_path / f), Stack.load("megatron")).chip)
        for f in ("base.toml", "own.toml")
    )
    plain = constants_of(H100.chip)
    assert (base["gemm.epilogue_k"], base["softmax.launch_ns"]) == (99, 7777)
    assert own["gemm.launch_ns"] == 2222
    assert own["gemm.epilogue_k"] == plain["gemm.epilogue_k"]  # products are as the user says
    assert own["softmax.launch_ns"] == 7777  # of which nothing is said


def test_traces_have_the_times_of_the_stack(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text(BASE.replace("softmax.launch_ns", "elementwise.launch_ns"))
    slow = Cluster.load(tmp_path / "base.toml")
    trace = zoo("llama_fsdp_tp")
    estimated = trace.estimate(slow)
    _, timing = timed_kernels(trace.workload, slow)
    ours, plain = (
        sum(float(d.sum()) for d in timed_kernels(trace.workload, c)[1].duration_ns)
        for c in (slow, H100)
    )
    assert ours > plain
    assert estimated.step_time_ns > trace.estimate(H100).step_time_ns
    assert timing.cluster == "base"


def test_the_host_of_a_stack_is_scaled_as_one_of_a_file() -> None:
    trace = zoo("llama_fsdp_tp")

    def launch(*scale: str) -> float:
        found = trace.estimate(H100, profile="eager", scale=scale).cluster.host_launch_ns
        assert found is not None
        return found.value

    assert launch("host=2x") == launch() / 2 > 0


def test_a_recorded_host_is_no_stacks() -> None:
    e = Trace(one_rank()).estimate()
    assert e.cluster.host_launch_ns is None
    assert not any("host launches" in n for n in e.notes)
    assert e.cluster.chip.gpu.uses == e.stack.libraries


OLD_NCCL = """
name = "ours"
title = "Ours"
base = "h100-dgx"
[[network]]
name = "nvlink"
library = "nccl-2-20"
"""


def test_who_says_which_nccl_runs(tmp_path: Path) -> None:
    (tmp_path / "ours.toml").write_text(OLD_NCCL)
    ours, trace = Cluster.load(tmp_path / "ours.toml"), zoo("llama_fsdp_tp")
    call = CollectiveCall(Collective.ALL_REDUCE, 1 << 17, (Span(0, 8),))
    old = with_libraries(H100, ("aten", "nccl-2-20"))
    assert duration_ns(call, ours) == duration_ns(call, old) > 1.5 * duration_ns(call, H100)
    assert with_libraries(ours, ("nccl-2-29",)).network == ours.network  # which has no such table
    assert "nccl-2-20" in trace.estimate(ours).to_text().splitlines()[2]
    (tmp_path / "ours.toml").write_text(OLD_NCCL.replace("2-20", "2-21"))
    with pytest.raises(
        FlintError, match="network.0.library' 'nccl-2-21' is not a known library"
    ) as caught:
        Cluster.load(tmp_path / "ours.toml")
    assert caught.value.code == "FL701"


def test_rates_of_bursts_are_said_where_no_others_are_known(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text(BASE)
    said = "kernels have burst rates"
    bare = H100.chip.gpu.model_copy(update={"libraries": {}})
    plain = H100.model_copy(update={"chip": H100.chip.model_copy(update={"gpu": bare})})
    trace = zoo("llama_fsdp_tp")
    assert said in trace.estimate(plain).to_text()
    assert said not in trace.estimate(tmp_path / "base.toml").to_text()
    assert (
        "stack      xla (cudnn, triton, cublaslt, sustained, nccl-2-29)"
        in trace.estimate(tmp_path / "base.toml").to_text()
    )
    assert said not in trace.estimate("v5p").to_text()
    launch = {"gemm.launch_ns": H100.chip.gpu.libraries["sustained"]["gemm.launch_ns"]}
    without = H100.chip.gpu.model_copy(update={"libraries": {"sustained": launch}})
    chip = H100.chip.model_copy(update={"gpu": without})
    starts_only = trace.estimate(H100.model_copy(update={"chip": chip})).to_text()
    assert (
        said in starts_only and "sustained" not in starts_only.split("stack", 1)[1].splitlines()[0]
    )
    for preset in ("b200-dgx", "gb200-nvl72", "gb300-nvl72", "b300-hgx"):
        assert said not in trace.estimate(preset).to_text()
    alike = plain.chip.gpu.model_copy(update={"constants": {}, "like": "b200-dgx"})
    lent = plain.model_copy(update={"chip": plain.chip.model_copy(update={"gpu": alike})})
    assert (
        "stack      xla (cudnn, triton, cublaslt, sustained, nccl-2-29)"
        in trace.estimate(lent).to_text()
    )


def recorded(**stood_in: object) -> Workload:
    """A program that was recorded with stand-ins."""
    x, y = tensor(1, 1024, 1024), tensor(2, 1024, 1024)
    program = build_program(recording(event("aten.mm", [x, x], [y])), Mesh(("data",), (4,))).program
    about = {"stood_in": StoodIn(**stood_in).to_json()} if stood_in else {}  # type: ignore[arg-type]
    return Workload.single(program, about)


def test_a_program_runs_on_the_stack_of_packages_that_worked_in_it() -> None:
    workload = recorded(packages=("transformer_engine",), stack="megatron")
    own = estimate(workload, EstimateRequest(H100))
    assert own.stack.name == "megatron"
    assert any(n.startswith("priced as megatron") and "transformer_engine" in n for n in own.notes)
    other = estimate(workload, EstimateRequest(H100, stack="inductor"))
    assert other.stack.name == "inductor"
    assert any(n.startswith("priced as inductor, though") for n in other.notes)
    assert estimate(recorded(), EstimateRequest(H100)).stack.name != "megatron"
    assert (
        estimate(workload, EstimateRequest(Cluster.load("v5p"))).stack.name != "megatron"
    )  # it does not run there


@pytest.mark.parametrize("stack", [None, "inductor"])
def test_traces_of_a_recording_have_the_times_of_its_estimate(stack: str | None) -> None:
    workload = recorded(packages=("transformer_engine",), stack="megatron")
    request = EstimateRequest(H100, stack=stack)
    kernels, timing = timed_kernels(workload, H100, request)
    found = estimate(workload, request)
    assert kernels.metadata["profile"] == found.profile
    assert sum(float(d.sum()) for d in timing.duration_ns) == pytest.approx(
        found.classes[0].compute_ns
    )


@pytest.mark.parametrize(
    ("locations", "op", "stack", "packages"),
    [
        ("torchtitan/train.py:3", "aten.mm", "torchtitan", ("torchtitan",)),
        ("llmfoundry/models/a.py:3", "aten.mm", "composer", ("llmfoundry",)),
        ("deepspeed/runtime/a.py:3", "te.gemm", "deepspeed", ("deepspeed", "transformer_engine")),
        ("megatron/core/a.py:3 megatron/b.py:4 deepspeed/a.py:3", "aten.mm", "megatron", ("deepspeed", "megatron")),
        ("train.py:3", "te.gemm", "megatron", ("transformer_engine",)),
        ("megatron.py:3 src/torchtitan/a.py:3", "aten.mm", "", ()),
    ],
)  # fmt: skip
def test_the_framework_that_launched_most_says_the_stack(
    locations: str, op: str, stack: str, packages: tuple[str, ...]
) -> None:
    x, y = tensor(1, 64, 64), tensor(2, 64, 64)
    first = recording(*(event(op, [x, x], [y], location=at) for at in locations.split()))
    found = rank_classes(
        lambda ranks: [replace(first, rank=r) for r in ranks], first, Mesh(("data",), (4,))
    )
    assert found.stood_in == StoodIn(packages, stack)


def test_a_stack_keeps_what_a_recorded_program_compiled() -> None:
    x, y, z = (tensor(n, 1024, 1024) for n in (1, 2, 3))
    calls = [CompiledCall(number) for number in (1, 0)]
    for call, profile in zip(calls, ("torch", "eager"), strict=True):
        steps = [event("aten.silu", [x], [y], call=call), event("aten.mul", [y, x], [z], call=call)]
        workload = Workload.single(build_program(recording(*steps), Mesh(("data",), (4,))).program)
        for asked in ("megatron", "composer", "deepspeed", "inductor"):
            found = setting_of(workload, EstimateRequest(H100, stack=asked))
            assert found.profile == (
                "inductor" if asked == "inductor" and not call.number else profile
            )


def test_rows_of_experts_that_were_made_up_are_told() -> None:
    workload = recorded(shares=("train.py:80",))
    told = [n for n in estimate(workload, EstimateRequest(H100)).notes if "train.py:80" in n]
    assert len(told) == 1 and "1.2 to 1.3 times" in told[0]
    routed = estimate(workload, EstimateRequest(H100, routing="power-law:1.2")).notes
    assert not [n for n in routed if "train.py:80" in n]


def test_without_names_the_stack_stays_and_lines_go() -> None:
    about = {"stood_in": StoodIn(("transformer_engine",), "megatron", ("train.py:80",)).to_json()}
    kept = StoodIn.from_json(neutral_metadata(about, {})["stood_in"])
    assert kept == StoodIn(stack="megatron")
