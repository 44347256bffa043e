"""What is recorded of a program that is run as one rank of a world."""

from __future__ import annotations

import dataclasses
import io
import json
import pickle
import textwrap
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from flint.errors import FlintError
from flint.frontends.model_file import Target, importable, load_step
from flint.frontends.torch_weights import without_weights
from flint.frontends.torch_world.device.device import DeviceTimeline, Stream, StreamEvent
from flint.frontends.torch_world.device.fakes import Fakes, KnownResults, learn, told
from flint.frontends.torch_world.program.comms import NAMESPACES, family_of
from flint.frontends.torch_world.record.job import Job
from flint.frontends.torch_world.record.modules import ModulePaths, clean_path
from flint.frontends.torch_world.record.phases import Phases, StepDone
from flint.frontends.torch_world.record.process import RankProcesses
from flint.frontends.torch_world.record.recording import Event as Recorded
from flint.frontends.torch_world.record.recording import Freed, HostCopy, Recording
from flint.frontends.torch_world.record.storages import Storages
from flint.frontends.torch_world.runtime.files import SafeTensors
from flint.frontends.user_process import ProgramError
from flint.ir.program import Collective, Phase
from flint.steps.step import WorldStep
from flint.tracing import trace_step

# --- streams --------------------------------------------------------------------------------------


def test_a_stream_waits_for_what_was_on_the_other() -> None:
    timeline = DeviceTimeline()
    other = Stream(timeline)
    assert timeline.take_waits() == ()
    other.wait_stream(timeline.current)
    with other:
        assert timeline.take_waits() == (0,)
        assert timeline.take_waits() == ()
    assert timeline.current is timeline.default
    assert timeline.take_waits() == ()


def test_an_event_holds_what_its_stream_still_waited_for() -> None:
    timeline = DeviceTimeline()
    second, third = Stream(timeline), Stream(timeline)
    timeline.take_waits()
    second.wait_stream(timeline.current)
    third.wait_event(second.record_event())  # nothing ran on `second`, but it waits for event 0
    with third:
        assert timeline.take_waits() == (0,)


def test_an_event_that_was_never_recorded_is_no_wait() -> None:
    timeline = DeviceTimeline()
    timeline.take_waits()
    Stream(timeline).wait_event(StreamEvent(timeline))
    assert timeline.streams[1].pending == {}


def test_what_the_host_waited_for_is_over_on_all_streams() -> None:
    timeline = DeviceTimeline()
    other = Stream(timeline)
    with other:
        timeline.take_waits()
        mark = other.record_event()
    mark.synchronize()
    assert timeline.take_waits() == (0,)
    timeline.under_way.append(1)  # nobody has waited for event 1, which communicates
    timeline.synchronize()
    assert timeline.take_waits() == (0, 1)
    with Stream(timeline), Stream(timeline):  # made later
        assert timeline.take_waits() == (0, 1)
    other.synchronize()
    with other:
        assert timeline.take_waits() == (1,)


def test_events_before_the_recorded_step_are_no_waits() -> None:
    timeline = DeviceTimeline()
    other = Stream(timeline)
    timeline.take_waits()
    mark = timeline.current.record_event()
    timeline.restart()
    other.wait_event(mark)
    with other:
        assert timeline.take_waits() == ()


# --- steps and phases -----------------------------------------------------------------------------


def test_two_optimizers_without_a_forward_between_them_are_one_step() -> None:
    phases, seen = Phases(2), []
    phases.on_start = lambda: seen.append("start")
    phases.on_end = lambda: seen.append("end")
    with pytest.raises(StepDone):
        for _ in range(5):
            phases.module_starts(0)
            for optimizer in ("a", "b"):
                phases.optimizer_starts(optimizer)
                phases.optimizer_ends(optimizer)
    assert phases.done_steps == 2 and not phases.apart
    assert seen == ["start", "start", "end", "end"]


def test_optimizers_that_step_in_turn_are_noted() -> None:
    phases = Phases(2)
    with pytest.raises(StepDone):
        for optimizer in ("critic", "actor", "critic"):
            phases.module_starts(0)
            phases.optimizer_starts(optimizer)
            phases.optimizer_ends(optimizer)
    assert phases.done_steps == 2 and phases.apart


def test_phases() -> None:
    phases = Phases(2)
    phases.module_starts(0)
    assert phases.phase(1) is Phase.FORWARD
    assert phases.phase(0) is Phase.FORWARD  # the loss
    phases.backward_starts(0)
    assert phases.phase(0) is Phase.BACKWARD
    assert phases.phase(2) is Phase.REMAT
    phases.backward_ends()
    assert phases.phase(0) is Phase.OPTIMIZER  # gradient clipping
    phases.optimizer_starts(None)
    assert phases.phase(0) is Phase.OPTIMIZER


# --- modules --------------------------------------------------------------------------------------


def test_a_module_is_named_by_the_model_that_holds_it() -> None:
    paths = ModulePaths()
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Sequential(torch.nn.Linear(2, 2)))
    for parent, child in ((model, model[0]), (model, model[1]), (model[1], model[1][0])):
        paths.adopted(parent, "", child)
    paths.enter(model[1][0])  # called by itself, not through the model
    assert paths.current == "1.0"
    paths.leave()
    loss = torch.nn.MSELoss()
    paths.enter(loss)
    assert paths.current == "MSELoss"
    assert [name for name, _ in paths.named_parameters().values()] == [
        *("0.weight", "0.bias", "1.0.weight", "1.0.bias")
    ]


def test_wrappers_leave_no_trace_in_paths() -> None:
    assert clean_path("layers.0._checkpoint_wrapped_module.wq") == "layers.0.wq"
    assert clean_path("module.fc", drop_module=True) == "fc"


# --- communication --------------------------------------------------------------------------------


def test_every_operator_that_communicates_is_known_or_refused() -> None:
    import torch.distributed._functional_collectives

    unknown = set()
    for qualified in torch._C._dispatch_get_all_op_names():
        namespace, _, name = qualified.partition("::")
        if namespace in NAMESPACES and namespace != "symm_mem":
            try:
                family_of(namespace, name.partition(".")[0])
            except FlintError as error:
                assert error.code == "FL235"
                unknown.add(name)
    assert unknown == {"recv_any_source_", "batch_p2p_ops"}


# --- fake results ---------------------------------------------------------------------------------


class Remembering(TorchDispatchMode):  # type: ignore[misc]
    """Runs operators through a `Fakes`."""

    def __init__(self, fakes: Fakes) -> None:
        super().__init__()
        self.fakes = fakes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.fakes.call(func, args, kwargs or {})


def some_work() -> list[Any]:
    x = torch.empty(4, 6, 8, device="meta", requires_grad=True)
    y = x.transpose(1, 2)[:, 1:].contiguous()
    parts = y.split(3, dim=1)
    z = torch.cat([parts[1], parts[0] * 2.0], dim=-1).view(4, -1)
    z.add_(1)
    loss = (torch.nn.functional.softmax(z, -1) @ z.t()).to(torch.bfloat16).sum()
    (gradient,) = torch.autograd.grad(loss, x)
    norms = torch._foreach_norm([gradient, z])
    return [x, y, *parts, z, loss, gradient, *norms, x.detach(), z.expand(2, *z.shape)]


def described(tensors: list[Any]) -> list[Any]:
    storages: dict[int, int] = {}
    return [
        (
            *(tuple(t.shape), t.stride(), t.storage_offset(), t.dtype, t.device, t.requires_grad),
            storages.setdefault(t.untyped_storage()._cdata, len(storages)),
            t.untyped_storage().nbytes(),
            sorted(vars(t)),
        )
        for t in tensors
    ]


def test_remembered_results_are_those_of_fake_tensors() -> None:
    with FakeTensorMode() as mode:
        expected = described(some_work())
        fakes = Fakes(mode, torch.device("meta"))
        with Remembering(fakes):
            first = described(some_work())
            again = described(some_work())
    assert fakes._known, "something is remembered"
    assert first == expected
    assert again == expected


class OfTorch(pickle.Unpickler):
    """Reads only what stands in a module that every process which tells and learns has."""

    def find_class(self, module: str, name: str) -> object:
        assert "." not in name, f"{name} was found in {module}, which another process may not have"
        return super().find_class(module, name)


def test_other_processes_results_are_those_of_fake_tensors() -> None:
    ours: KnownResults = {}
    theirs: KnownResults = {}
    with FakeTensorMode() as mode, Remembering(Fakes(mode, torch.device("meta"), ours)):
        expected = described(some_work())
    learn(theirs, OfTorch(io.BytesIO(pickle.dumps(told(ours, 0)))).load())
    assert theirs == ours
    with FakeTensorMode() as mode, Remembering(Fakes(mode, torch.device("meta"), theirs)):
        assert described(some_work()) == expected
    assert told(theirs, len(ours)) == [], "nothing was looked up again"
    learn(theirs, [("nowhere.that.default", (), None)])
    assert len(theirs) == len(ours), "of a library that is not loaded here"


def views_of_a_buffer() -> list[Any]:
    flat = torch.empty(64, device="meta")
    seen = []
    for start in (0, 8, 24):
        part = flat.narrow(0, start, 16)
        rows = part.view(4, 4)
        seen += [rows, rows[1:], rows.t(), part.add_(1), torch.mul(rows, 2, out=rows)]
        seen += [part.as_strided((2, 2), (2, 1)), part.as_strided((2,), (1,), 3)]
    return seen


def test_views_elsewhere_in_a_buffer_are_remembered_from_where_they_start() -> None:
    with FakeTensorMode() as mode:
        expected = described(views_of_a_buffer())
        fakes = Fakes(mode, torch.device("meta"))
        with Remembering(fakes):
            assert described(views_of_a_buffer()) == expected
        names = [str(key[0]) for key in fakes._known]
        assert names.count("aten.view.default") == 1, "three places, one result"
        assert names.count("aten.as_strided.default") == 6, (
            "those are told from the storage's start"
        )


def test_a_storage_number_is_never_used_again() -> None:
    storages, numbers = Storages(lambda: 0), []
    for _ in range(50):
        numbers.append(storages.number(torch.empty(3)))
    assert numbers == list(range(50))
    tensor = torch.empty(2, 3)
    assert storages.number(tensor) == storages.number(tensor.t())


def test_what_the_program_lets_go_of_is_known_and_what_it_holds() -> None:
    now = 0
    storages = Storages(lambda: now)
    first, emptied, held, cyclic = (torch.empty(3) for _ in range(4))
    cycle: list[object] = [cyclic]
    cycle.append(cycle)
    numbers = [storages.number(t) for t in (first, emptied, held, cyclic)]
    now, first = 1, held
    now = 2
    storages.emptied(emptied.untyped_storage())
    del cyclic, cycle
    now = 7  # the step had five events
    assert storages.freed_in(5) == (Freed(0, 1), Freed(1, 2), Freed(1, 5), Freed(2, 5))
    assert numbers == [0, 1, 2, 3] and first is held


def test_memory_that_the_step_made_and_reads_before_it_wrote_is_no_argument() -> None:
    storages = Storages(lambda: 0)
    whole = storages.info(torch.empty(4, device="meta"))
    part = replace(whole, shape=(2,), num_bytes=8)
    for tensor, writes, allocated in ((whole, (), True), (whole, (0,), False), (part, (0,), True)):
        storages._unused[0] = whole
        assert list(storages.used([tensor], writes)) == [whole] * allocated


def test_what_the_step_before_left_goes_on_the_way_unless_it_is_used_or_stays() -> None:
    now = 0
    storages = Storages(lambda: now)
    at_once, unused, used, stays = (torch.empty(3, device="meta") for _ in range(4))
    storages._on_device.update(map(storages.number, (at_once, unused, used, stays)))
    storages.restart()
    of_used = storages.info(used)
    del at_once
    now = 1
    del unused, used
    events = [Recorded("aten.relu", (of_used,), (of_used,))] * 2
    now = 2
    assert storages.leaving(events) == {1: 12}
    assert stays is not None


# --- programs -------------------------------------------------------------------------------------

PROGRAM = textwrap.dedent(
    """
    import os
    import sys

    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel, RowwiseParallel, parallelize_module,
    )
    from torch.utils.checkpoint import checkpoint


    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.w1, self.w2 = nn.Linear(16, 32, bias=False), nn.Linear(32, 16, bias=False)

        def forward(self, x):
            return x + self.w2(F.relu(self.w1(x)))


    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(Block() for _ in range(2))

        def forward(self, x):
            for layer in self.layers:
                x = checkpoint(layer, x, use_reentrant=False)
            return x


    def fsdp_and_tp():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        mesh = init_device_mesh("cuda", (4, 2), mesh_dim_names=("dp", "tp"))
        with torch.device("meta"):
            model = Model()
        for layer in model.layers:
            plan = {"w1": ColwiseParallel(), "w2": RowwiseParallel()}
            parallelize_module(layer, mesh["tp"], plan)
            fully_shard(layer, mesh=mesh["dp"])
        fully_shard(model, mesh=mesh["dp"])
        model.to_empty(device="cuda")
        return model


    def moved_by_data():
        layer = nn.Linear(4, 4)
        weight = layer.weight
        for parameter in layer.parameters():
            parameter.data = parameter.data.to("cuda")
        assert layer.weight is weight and weight.is_leaf and weight.requires_grad
        with torch.autocast("cuda", dtype=torch.bfloat16):
            assert (weight @ weight).dtype == torch.bfloat16
        layer(torch.ones(2, 4, device="cuda")).sum().backward()
        hooked = nn.Linear(4, 4).weight
        hooked.register_hook(lambda gradient: 2 * gradient)
        hooked.data = hooked.data.to("cuda")
        assert hooked.is_cuda and hooked._backward_hooks, "the hook was forgotten"
        weight.data = weight.data.to(torch.bfloat16)
        assert weight.dtype == torch.bfloat16


    def plain():
        dist.init_process_group("nccl")
        moved_by_data()
        return nn.parallel.DistributedDataParallel(Model().cuda())


    def main(mode):
        if mode == "world":
            dist.init_process_group("nccl", rank=0, world_size=16)
        model = fsdp_and_tp() if mode == "fsdp" else plain()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        buffer = torch.ones(1000, device="cuda")
        if mode == "exits":
            sys.exit(0)
        if mode == "big":
            torch.empty(10 * 2**30, dtype=torch.uint8)
            nn.Linear(100_000, 60_000)
        if mode == "killed":
            os.kill(os.getpid(), 9)
        for step in range(3):
            x = torch.randn(5, 16, pin_memory=True).to("cuda", non_blocking=True)
            with torch.cuda.stream(torch.cuda.Stream()):
                work = dist.all_reduce(buffer, op=dist.ReduceOp.MAX, async_op=True)
            if mode == "raises":
                x = x[:, :7]
            loss = model(x).float().pow(2).mean()
            loss.backward()
            work.wait()
            buffer *= 2
            dist.all_reduce(buffer, op=dist.ReduceOp.MAX, async_op=True).wait()
            assert buffer.sum().item()
            with torch.cuda.stream(torch.cuda.Stream()):
                buffer.neg_()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            print("step", step, loss.item())


    if __name__ == "__main__":
        main(sys.argv[1])
    """
)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """What comes of the program in each of its modes: the process outlives those that end theirs."""
    script = tmp_path_factory.mktemp("world") / "train.py"
    script.write_text(PROGRAM)

    def run(mode: str, processes: RankProcesses) -> Any:
        job = dataclasses.replace(Job.of_script(script, [mode]), world_size=8, rank=5)
        try:
            return processes.record([job])[0]
        except FlintError as error:
            return error

    modes = ("fsdp", "ddp", "big", "world", "exits", "killed", "raises")
    with RankProcesses() as processes:
        done = {mode: run(mode, processes) for mode in modes}
    return done.__getitem__


def collectives(recording: Recording) -> Counter[Any]:
    return Counter(
        (e.comm.collective, recording.groups[e.comm.group].ranks, e.phase)
        for e in recording.events
        if e.comm and e.comm.reduction != "max"
    )


def matmuls(recording: Recording) -> list[Recorded]:
    return [e for e in recording.events if e.op.startswith(("aten.mm.", "aten.addmm."))]


def test_collectives_of_fsdp_and_tensor_parallelism(outcomes: Callable[[str], Any]) -> None:
    found = collectives(outcomes("fsdp"))
    dp, tp = (1, 3, 5, 7), (4, 5)
    expected = {
        (Collective.ALL_GATHER, dp, Phase.FORWARD): 2,
        (Collective.ALL_GATHER, dp, Phase.BACKWARD): 2,
        (Collective.REDUCE_SCATTER, dp, Phase.BACKWARD): 2,
        (Collective.ALL_REDUCE, tp, Phase.FORWARD): 2,
        (Collective.ALL_REDUCE, tp, Phase.BACKWARD): 1,  # no gradient of the first one's input
        (Collective.ALL_REDUCE, dp, Phase.OPTIMIZER): 1,  # the norm of the gradients
        (Collective.ALL_REDUCE, tp, Phase.OPTIMIZER): 1,
    }
    assert {key: count for key, count in found.items() if key[2] is not Phase.REMAT} == expected


def test_matmuls_have_local_shapes_modules_phases_and_places(
    outcomes: Callable[[str], Any],
) -> None:
    recording = outcomes("fsdp")
    products = matmuls(recording)
    phases = Counter(e.phase for e in products)
    # Recomputing stops at the last tensor that the backward pass wants: a block's last product
    # is none of them.
    assert phases == {Phase.FORWARD: 4, Phase.REMAT: 2, Phase.BACKWARD: 7}
    assert {e.module for e in products} == {f"layers.{i}.w{j}" for i in (0, 1) for j in (1, 2)}
    forward = [e for e in products if e.phase is Phase.FORWARD]
    assert [t.shape for t in forward[0].inputs] == [(5, 16), (16, 16)]
    assert {e.location for e in products} == {"train.py:23"}


def test_streams_and_waits(outcomes: Callable[[str], Any]) -> None:
    events = outcomes("fsdp").events
    gathers = [e for e in events if e.op.startswith("c10d._allgather_base_")]
    assert all(e.stream > 0 for e in gathers)
    assert all(w < i for i, e in enumerate(events) for w in e.waits)
    assert all(events[w].comm or events[w].stream != e.stream for e in events for w in e.waits)
    assert any(e.waits and e.stream == 0 for e in events), "compute waits for a gather"


def test_memory_has_roles_names_and_placements(outcomes: Callable[[str], Any]) -> None:
    recording = outcomes("fsdp")
    roles = Counter(info.role for info in recording.storages.values())
    assert roles["parameter"] == 4
    by_name = {info.name: info for info in recording.storages.values()}
    weight = by_name["layers.1.w1.weight"]
    assert (weight.shape, weight.dtype) == ((4, 16), "f32")
    assert weight.placement is not None
    assert weight.placement.global_shape == (32, 16)
    assert weight.placement.shards == (0, 0)
    assert weight.placement.strided == (True, False)
    assert recording.meshes[weight.placement.mesh].sizes == (4, 2)
    assert by_name["layers.0.w2.weight/exp_avg"].role == "optimizer"
    assert roles["input"] >= 1 and roles["gradient"] >= 1


def test_groups_of_all_ranks_are_known(outcomes: Callable[[str], Any]) -> None:
    recording = outcomes("fsdp")
    descriptions = {info.description for info in recording.groups.values()}
    assert descriptions == {"mesh_dp", "mesh_tp", "default_pg"}
    assert set(recording.world_groups) >= {(0, 2, 4, 6), (1, 3, 5, 7), (0, 1), (6, 7)}


def test_a_copy_from_the_host_is_work_of_the_host(outcomes: Callable[[str], Any]) -> None:
    recording = outcomes("ddp")
    copies = [e for e in recording.events if e.host is HostCopy.FROM_HOST]
    assert [e.outputs[0].shape for e in copies] == [(5, 16)]
    assert recording.storages[copies[0].outputs[0].storage].role == "input"
    assert copies[0].inputs[0].storage not in recording.storages


def test_ddp_reduces_gradients_and_the_reads_are_told(outcomes: Callable[[str], Any]) -> None:
    recording = outcomes("ddp")
    found = collectives(recording)
    assert found[Collective.ALL_REDUCE, tuple(range(8)), Phase.BACKWARD] >= 1
    assert any("train.py" in warning for warning in recording.warnings)


def test_waiting_for_a_collective_makes_the_stream_wait(outcomes: Callable[[str], Any]) -> None:
    events = outcomes("ddp").events
    reduced = next(i for i, e in enumerate(events) if e.comm and e.comm.reduction == "max")
    comm = events[reduced].comm
    assert (comm.is_async, comm.input_bytes, events[reduced].stream > 0) == (True, 4000, True)
    assert events[reduced].op == "c10d.allreduce_.default"
    first = next(i for i, e in enumerate(events) if reduced in e.waits)
    mul, _, added, negated = events[first : first + 4]
    assert (mul.op, mul.waits) == ("aten.mul_.Tensor", (reduced,))
    assert (added.op, added.waits) == ("aten.sum.default", (first + 1,)), "on the same stream"
    assert (negated.op, negated.waits) == ("aten.neg_.default", (first + 2,)), "the host read it"


def test_weights_are_not_allocated(outcomes: Callable[[str], Any]) -> None:
    assert len(outcomes("big").events) == len(outcomes("ddp").events)


@pytest.mark.parametrize(
    "mode, code, words",
    [
        ("world", "FL232", "16 ranks, but the mesh has 8"),
        ("exits", "FL231", "after 0 optimizer steps"),
        ("killed", "FL230", "killed by SIGKILL"),
        ("raises", "FL230", "RuntimeError"),
    ],
)
def test_errors_of_programs(
    outcomes: Callable[[str], Any], mode: str, code: str, words: str
) -> None:
    error = outcomes(mode)
    assert isinstance(error, FlintError)
    assert (error.code, words in error.message) == (code, True), str(error)


def test_a_program_that_raises_shows_its_line_and_its_traceback(
    outcomes: Callable[[str], Any],
) -> None:
    error = outcomes("raises")
    assert error.place.startswith("train.py:")
    assert isinstance(error.__cause__, ProgramError)
    assert "Traceback" in str(error.__cause__)


# --- jobs -----------------------------------------------------------------------------------------


def a_program(steps: int) -> None:
    """Only named, never run here."""


def test_functions_are_named_or_kept() -> None:
    named = Job.of_function(WorldStep(a_program, (3,)))
    assert named.function.endswith("a_program") and named.call is None
    kept = Job.of_function(WorldStep(lambda: None))
    assert kept.function == "" and kept.call is not None
    unpicklable = Job.of_function(WorldStep(a_program, (lambda: None,)))
    assert unpicklable.call is not None


MODEL = """
import dataclasses
import torch
import flint

@dataclasses.dataclass(frozen=True)
class How:
    width: int

def run(how):
    layer = torch.nn.Linear(how.width, 2, device="cuda")
    optimizer = torch.optim.SGD(layer.parameters())
    for _ in range(2):
        layer(torch.zeros(3, how.width, device="cuda")).sum().backward()
        optimizer.step()

@flint.entry()
def train(mesh):
    return flint.WorldStep(run, (How(8),))
"""


def test_arguments_may_be_of_a_class_of_the_model_file(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text(MODEL)
    with importable(tmp_path):
        loaded = load_step(Target(file), "data=2")
        program = trace_step(loaded.step, loaded.mesh).program
    assert 2 * 3 * 8 * 2 in program.flops.tolist()


def test_a_script_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FlintError) as caught:
        Job.of_script(tmp_path / "none.py")
    assert caught.value.code == "FL301"


def test_a_file_that_no_script_can_be_is_not_read(tmp_path: Path) -> None:
    """Neither as a script nor to see whether it uses PyTorch: 64 GiB, of which none is stored."""
    huge = tmp_path / "huge.py"
    with huge.open("wb") as file:
        file.truncate(64 * 2**30)
    for read in (Job.of_script, lambda path: without_weights(path).__enter__()):
        with pytest.raises(FlintError, match="a model file has at most 16,777,216"):
            read(huge)


# --- weights --------------------------------------------------------------------------------------


def test_safetensors_are_read_without_their_values(tmp_path: Path) -> None:
    entries = {
        "__metadata__": {"format": "pt"},
        "w": {"dtype": "BF16", "shape": [100_000, 100_000], "data_offsets": [0, 2 * 10**10]},
        "n": {"dtype": "I64", "shape": [], "data_offsets": [2 * 10**10, 2 * 10**10 + 8]},
    }
    header = json.dumps(entries).encode()
    file = tmp_path / "model.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header)
    with FakeTensorMode():
        opened = SafeTensors(file)
        loaded = {name: opened.get_tensor(name) for name in opened}
        with SafeTensors(file) as opened:
            assert opened.keys() == ["w", "n"]
            assert opened.metadata() == {"format": "pt"}
    assert (loaded["w"].shape, loaded["w"].dtype) == ((100_000, 100_000), torch.bfloat16)
    assert (loaded["n"].shape, loaded["n"].dtype) == ((), torch.int64)
