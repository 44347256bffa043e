"""Recording -> Program: rows, dependencies by memory, groups, messages."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from flint.backends.chakra import check, write
from flint.backends.chakra.writing.expand import expand
from flint.backends.cost.memory.liveness import buffers
from flint.backends.summary.explain import explain_collective, explain_scope
from flint.backends.summary.summary import summarize
from flint.errors import FlintError
from flint.frontends.torch_world.program.build import build_program
from flint.frontends.torch_world.program.groups import Channels, group_of, mesh_of
from flint.frontends.torch_world.record.recording import (
    Comm,
    CommKind,
    DeviceMeshInfo,
    Freed,
    GroupInfo,
)
from flint.ir.mesh import AxisRef, Mesh
from flint.ir.op_class import OpClass
from flint.ir.program import Collective, Flag, Kind, Phase
from flint.ir.workload import Workload
from flint.passes.profiles import rewrite
from flint.passes.work.totals import totals
from tests.recordings import collective, event, part, recording, stored, tensor, update

MESH = Mesh(("dp", "tp"), (2, 2))


def build(*events, mesh=MESH, **fields):
    program = build_program(recording(*events, **fields), mesh).program
    program.verify()
    return program


def rows(program):
    return [program.row(i) for i in range(len(program))]


def named(program, opcode):
    found = [r for r in rows(program) if r.opcode == opcode]
    assert len(found) == 1, [r.opcode for r in rows(program)]
    return found[0]


def test_memory_that_is_read_first_is_an_argument():
    weight, x, y = tensor(1, 3, 5), tensor(2, 4, 3), tensor(3, 4, 5)
    program = build(
        event("aten.mm", [x, weight], [y], module="layers.0.wq", phase=Phase.FORWARD),
        update("aten.add_.Tensor", [weight, weight], phase=Phase.OPTIMIZER),
        storages={1: stored("parameter", "layers.0.wq.weight", weight)},
    )
    first, second, product, step = rows(program)
    assert {first.name, second.name} == {"parameter.layers.0.wq.weight", "other"}
    weight_row = first if first.name.startswith("parameter") else second
    assert weight_row.flags == Flag.DONATED and weight_row.kind is Kind.PARAMETER
    assert product.scope == "layers/0/wq" and product.phase is Phase.FORWARD
    assert (product.flops, product.operand_bytes, product.result_bytes) == (120, 108, 80)
    assert step.flags == Flag.IN_PLACE | Flag.LAUNCHED and step.alias == weight_row.number
    assert product.number in step.deps  # it must not be overwritten before it was read
    assert totals(program).matmul_flops == 120


def test_overwritten_memory_is_no_argument():
    buffer, x = tensor(1, 4), tensor(2, 4)
    program = build(update("aten.copy_", [buffer, x]), event("aten.neg", [buffer], [tensor(3, 4)]))
    assert [r.name for r in rows(program) if r.kind is Kind.PARAMETER] == ["other"]
    assert named(program, "aten.copy_").operand_bytes == 16


def test_memory_that_rows_are_put_into_was_allocated_for_them():
    base, rows_, at = tensor(1, 8, 4), tensor(2, 8, 4), tensor(3, 8, dtype="i64")
    program = build(event("aten.index_copy", [base, at, rows_], [tensor(4, 8, 4)]))
    arguments = [r for r in rows(program) if r.kind is Kind.PARAMETER]
    assert [r.result_bytes for r in arguments] == [64, 128]


def test_memory_from_before_the_step_that_is_filled_by_parts_is_an_argument():
    events = (
        update("aten.copy_", [part(1, 8, 8), tensor(2, 8)]),
        event("aten.sum", [tensor(1, 64)]),
    )
    assert buffers(build(*events, older={1: 256})).live_bytes.max() == 256 + 32
    allocated = event("aten.empty.memory_format", [], [tensor(1, 64)])
    assert buffers(build(allocated, *events)).live_bytes.max() == 256 + 32


def test_gradients_stay_until_the_step_is_over():
    weight, gradient = tensor(1, 4), tensor(2, 4)
    program = build(
        event("aten.neg", [weight], [gradient], phase=Phase.BACKWARD),
        update("aten.add_.Tensor", [weight, gradient], phase=Phase.OPTIMIZER),
        storages={1: stored("parameter", "w", weight), 2: stored("gradient", "w", gradient)},
    )
    last = rows(program)[-1]
    assert (last.op, last.deps) == (OpClass.RESULT, (named(program, "aten.neg").number,))


def test_untouched_state_holds_memory():
    idle = tensor(7, 10)
    program = build(storages={7: stored("buffer", "cache", idle), 8: stored("gradient", "g", idle)})
    assert [(r.name, r.result_bytes) for r in rows(program)] == [("buffer.cache", 40)]


def test_views_are_no_work_and_forward_their_memory():
    x, flat, y = tensor(1, 2, 3), tensor(1, 6), tensor(2, 6)
    program = build(
        event("aten.view", [x], [flat], is_view=True),
        event("aten.exp", [flat], [y]),
        update("aten.zero_", [x]),
        event("aten.log", [flat], [tensor(3, 6)]),
    )
    view, exp = named(program, "aten.view"), named(program, "aten.exp")
    assert (view.kind, view.flags, view.alias) == (Kind.VALUE, Flag.VIEW, 0)
    assert exp.deps == (view.number,)
    zero = named(program, "aten.zero_")
    assert exp.number in zero.deps
    assert named(program, "aten.log").deps == (zero.number,)  # the view is older than the write
    assert len(expand(program)) == 3


def test_results_in_memory_of_inputs_are_views():
    program = build(event("aten._unsafe_view", [tensor(1, 2, 3)], [tensor(1, 6)]))
    assert named(program, "aten._unsafe_view").kind is Kind.VALUE


def test_a_storage_written_in_parts_waits_for_all_parts():
    whole, part = tensor(1, 8), tensor(1, 4)
    program = build(
        event("aten.empty.memory_format", [], [whole]),
        update("aten.copy_", [part, tensor(2, 4)], stream=1),
        update("aten.copy_", [part, tensor(3, 4)]),
        event("aten.neg", [whole], [tensor(4, 8)]),
        streams=("compute", "copies"),
    )
    nodes = expand(program)
    first, second, reader = range(3)
    assert second in nodes.dependencies(reader) and first in nodes.dependencies(second)
    assert program.streams == ("compute", "copies")


def test_buckets_of_a_flat_buffer_wait_for_nothing_of_each_other():
    """Gradients are added to one bucket while another one is reduced; the norm reads both."""
    buffer, first, second = tensor(1, 8), part(1, 0, 4), part(1, 4, 4)
    reduced = collective(Collective.ALL_REDUCE, "dp", 16, is_async=True)
    program = build(
        update("aten.add_.Tensor", [first, tensor(2, 4)]),
        update("c10d.allreduce_", [first], comm=reduced, stream=1),
        update("aten.add_.Tensor", [second, tensor(3, 4)]),
        event("aten.linalg_vector_norm", [buffer], [tensor(4)]),
        storages={1: stored("gradient", "flat", buffer)},
        streams=("compute", "reduces"),
    )
    nodes = expand(program)
    add, reduce, other, norm = range(4)
    assert add in nodes.dependencies(reduce)
    assert reduce not in nodes.dependencies(other)
    assert {reduce, other} <= set(nodes.dependencies(norm))
    updates = [row for row in rows(program) if row.flags & Flag.IN_PLACE]
    assert [program.opcodes[program.opcode[r.number]] for r in updates][1] == "c10d.allreduce_"
    assert updates[0].alias == updates[2].alias != updates[1].alias


def test_an_expanded_view_reads_no_more_than_its_storage():
    row, wide = tensor(1, 1, 4), tensor(1, 1000, 4)
    program = build(
        event("aten.expand", [row], [wide], is_view=True),
        event("aten.exp", [wide], [tensor(2, 1000, 4)]),
    )
    assert named(program, "aten.exp").operand_bytes == 16


def test_waits_hold_for_the_rest_of_the_stream():
    program = build(
        event("aten.neg", [tensor(1, 4)], [tensor(2, 4)], stream=1),
        event("aten.exp", [tensor(3, 4)], [tensor(4, 4)], waits=(0,)),
        event("aten.log", [tensor(5, 4)], [tensor(6, 4)]),
        event("aten.sin", [tensor(7, 4)], [tensor(8, 4)], stream=1),
        streams=("compute", "side"),
    )
    neg, exp = named(program, "aten.neg").number, named(program, "aten.exp").number
    assert neg in named(program, "aten.exp").deps
    assert exp in named(program, "aten.log").deps
    assert neg in named(program, "aten.sin").deps  # streams beside compute run in order


def test_work_that_is_waited_for_holds_its_own_stream_up():
    """Nothing that follows reads what is reduced."""

    def after(comm):
        program = build(
            update("c10d.allreduce_", [tensor(1, 4)], comm=comm),
            event("aten.sin", [tensor(7, 4)], [tensor(8, 4)]),
            event("aten.view", [tensor(3, 4)], [tensor(3, 2, 2)], is_view=True, waits=(0,)),
            event("aten.exp", [tensor(3, 4)], [tensor(4, 4)]),
            event("aten.log", [tensor(5, 4)], [tensor(6, 4)]),
        )
        return program, named(program, "aten.exp").number

    reduced = collective(Collective.ALL_REDUCE, "tp", 16, is_async=True)
    program, exp = after(reduced)
    reduction = next(r for r in rows(program) if r.kind is Kind.COLLECTIVE).number
    assert reduction in named(program, "aten.exp").deps
    assert reduction not in named(program, "aten.sin").deps
    assert exp in named(program, "aten.log").deps
    alone, exp = after(replace(reduced, group="self"))
    assert exp not in named(alone, "aten.log").deps


def test_waiting_for_a_view_is_waiting_for_the_work_before_it():
    program = build(
        event("aten.neg", [tensor(1, 4)], [tensor(2, 4)], stream=1),
        event("aten.view", [tensor(3, 4)], [tensor(3, 2, 2)], is_view=True, stream=1),
        event("aten.log", [tensor(5, 4)], [tensor(6, 4)], waits=(1,)),
        streams=("compute", "side"),
    )
    assert named(program, "aten.neg").number in named(program, "aten.log").deps


def test_waits_of_an_event_without_a_row_pass_on():
    program = build(
        event("aten.neg", [tensor(1, 4)], [tensor(2, 4)], stream=1),
        event("aten.view", [tensor(3, 4)], [tensor(3, 2, 2)], is_view=True, waits=(0,)),
        event("aten.log", [tensor(5, 4)], [tensor(6, 4)]),
        streams=("compute", "side"),
    )
    assert named(program, "aten.neg").number in named(program, "aten.log").deps


def test_collectives_carry_group_bytes_and_reduction():
    x, y = tensor(1, 4), tensor(2, 8)
    program = build(
        event(
            "_c10d_functional.all_gather_into_tensor",
            [x],
            [y],
            comm=collective(Collective.ALL_GATHER, "tp", 16, is_async=True),
        ),
        event("_c10d_functional.wait_tensor", [y], [y], is_view=True),
        update(
            "c10d.allreduce_",
            [y],
            comm=collective(Collective.ALL_REDUCE, "world", 32, reduction="max"),
        ),
    )
    gather = named(program, "_c10d_functional.all_gather_into_tensor")
    assert gather.kind is Kind.COLLECTIVE and gather.flags == Flag.ASYNC
    assert (gather.comm_bytes, gather.operand_bytes, gather.result_bytes) == (16, 16, 32)
    assert str(gather.group) == "tp"
    wait = named(program, "_c10d_functional.wait_tensor")
    assert wait.kind is Kind.VALUE and wait.alias == gather.number
    reduce = named(program, "c10d.allreduce_[max]")
    assert str(reduce.group) == "dp,tp" and reduce.flags == Flag.IN_PLACE
    assert wait.number in reduce.deps


def test_collectives_of_one_rank_vanish():
    x, y = tensor(1, 4), tensor(2, 4)
    alone = collective(Collective.ALL_GATHER, "self", 16)
    program = build(
        event("_c10d_functional.all_gather_into_tensor", [x], [y], comm=alone),
        update("c10d.allreduce_", [y], comm=collective(Collective.ALL_REDUCE, "self", 16)),
        event("aten.neg", [y], [tensor(3, 4)]),
    )
    assert not totals(program).communication
    assert [r.opcode for r in rows(program)][1:] == ["flint.identity", "aten.neg"]
    identity = named(program, "flint.identity")
    assert (identity.flags, identity.alias, identity.result_bytes) == (Flag.VIEW, 0, 16)
    assert named(program, "aten.neg").deps == (1,)


def test_a_gather_of_one_rank_into_part_of_a_buffer_leaves_the_rest():
    """Who reads the whole buffer waits for those who wrote the other parts, too."""
    buffer, first, second = tensor(1, 8), part(1, 0, 4), part(1, 4, 4)
    alone = collective(Collective.ALL_GATHER, "self", 16)
    program = build(
        update("aten.neg_", [first]),
        event("aten.exp", [second], [tensor(3, 4)]),
        event("c10d._allgather_base_", [tensor(2, 4)], [second], writes=(1,), comm=alone),
        event("aten.neg", [buffer], [tensor(4, 8)]),
        storages={1: stored("buffer", "flat", buffer)},
    )
    nodes = expand(program)
    negated, read, reader = range(3)
    assert {negated, read} <= set(nodes.dependencies(reader))


def test_a_collective_of_one_rank_in_its_place_makes_nothing():
    """Megatron's buffers of one replica: all of a bucket is the shard that is gathered, or reduced."""
    bucket = part(1, 0, 8)
    for kind in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER):
        alone = collective(kind, "self", 32)
        program = build(
            update("aten.neg_", [bucket]),
            event("c10d._allgather_base_", [bucket], [bucket], writes=(1,), comm=alone),
            event("aten.exp", [bucket], [tensor(2, 8)]),
            storages={1: stored("buffer", "flat", tensor(1, 8))},
        )
        assert [r.opcode for r in rows(program)][1:] == ["aten.neg_", "aten.exp"]
        assert named(program, "aten.exp").deps == (1,)
        assert buffers(program).live_bytes.max() == 64


def test_waiting_for_what_did_not_run_is_no_dependency():
    """Nothing had run on the stream of the view: row 0 is none that anything waits for."""
    program = build(
        event("aten.exp", [tensor(1, 6)], [tensor(5, 6)]),
        event("aten.view", [tensor(5, 6)], [tensor(5, 2, 3)], is_view=True, stream=1),
        event(
            "aten.mm", [tensor(2, 4, 3), tensor(3, 3, 5)], [tensor(4, 4, 5)], stream=1, waits=(1,)
        ),
        streams=("compute", "side"),
    )
    assert named(program, "aten.exp").deps == (0,)
    product = named(program, "aten.mm")
    assert len(product.deps) == 2 and 0 not in product.deps


def test_unknown_operators_are_unpriced():
    program = build(event("mylib.mystery", [tensor(1, 4)], [tensor(2, 4)]))
    assert named(program, "mylib.mystery").flags == Flag.UNPRICED


def test_names_of_the_programs_own_mesh():
    assert mesh_of("2x2", recording()).names == ("dp", "tp")
    assert mesh_of("4", recording()).names == ("data",)
    assert mesh_of("a=2,b=2", recording()).names == ("a", "b")
    assert mesh_of(MESH, recording()) is MESH
    wide = DeviceMeshInfo(("pp", "dp", "tp"), (1, 2, 2), (0, 1, 2, 3))
    assert mesh_of("2x2", recording(meshes=(wide,))).names == ("dp", "tp")
    many = DeviceMeshInfo(("a", "b", "c", "d"), (1, 2, 2, 1), (0, 1, 2, 3))
    assert mesh_of("1x2x2x1", recording(meshes=(many,))).names == ("a", "b", "c", "d")
    assert mesh_of("1x2x2x1", recording()).names == ("axis0", "axis1", "axis2", "axis3")


def test_a_mesh_that_the_program_does_not_fill():
    with pytest.raises(
        FlintError, match="mesh dp=2,tp=2 of 4 ranks, but --mesh data=2,model=4"
    ) as at:
        mesh_of("2x4", recording(world_size=8))
    assert at.value.code == "FL232"
    whole = update(
        "c10d.allreduce_", [tensor(1, 4)], comm=collective(Collective.ALL_REDUCE, "all", 16)
    )
    groups = {"all": GroupInfo("", tuple(range(8))), "two": GroupInfo("", (0, 1))}
    assert mesh_of("2x4", recording(whole, world_size=8, groups=groups)).size == 8
    part = update(
        "c10d.allreduce_", [tensor(1, 4)], comm=collective(Collective.ALL_REDUCE, "two", 16)
    )
    assert mesh_of("2x4", recording(whole, part, world_size=8, groups=groups)).size == 8
    with pytest.raises(FlintError, match="FL232"):
        mesh_of("2x4", recording(part, world_size=8, groups=groups))


def test_groups_are_axes_by_name_or_by_ranks():
    own = recording()
    assert group_of("tp", own, MESH).axes == (AxisRef("tp"),)
    assert group_of("tp", own, Mesh(("a", "b"), (2, 2))).axes == (AxisRef("b"),)
    assert group_of("dp", own, Mesh(("all",), (4,))).axes == (AxisRef("all", 1, 2),)
    assert not group_of("self", own, MESH).axes
    swapped = recording(groups={"tp": GroupInfo("mesh_tp", (0, 2))})
    assert group_of("tp", swapped, MESH).axes == (AxisRef("dp"),)  # the ranks decide


def test_groups_of_a_huge_mesh_are_arithmetic():
    mesh = Mesh(("dp", "tp"), (1 << 17, 8))
    info = {"g": GroupInfo("mesh_tp", tuple(range(8))), "w": GroupInfo("", (0, 4))}
    big = recording(rank=0, world_size=mesh.size, groups=info)
    assert group_of("g", big, mesh).axes == (AxisRef("tp"),)
    assert group_of("w", big, mesh).axes == (AxisRef("tp", 1, 2),)


def test_groups_that_match_no_axis_are_listed():
    asked = ((0, 3), (1, 2), (0, 1))
    own = recording(groups={"odd": GroupInfo("", (0, 3))}, world_groups=asked)
    assert group_of("odd", own, MESH).ranks == ((0, 3), (1, 2))
    half = recording(groups={"g": GroupInfo("", (0, 1))}, world_groups=((0, 1), (1, 3)))
    assert group_of("g", half, MESH).ranks == ((0, 1),)  # (2, 3) was never asked for


def send(peer, storage=1):
    comm = Comm(CommKind.SEND, Collective.NONE, "dp", 16, peer=peer)
    return event("c10d.send", [tensor(storage, 4)], [], comm=comm)


def receive(peer, storage=2):
    comm = Comm(CommKind.RECV, Collective.NONE, "dp", 16, peer=peer)
    return update("c10d.recv_", [tensor(storage, 4)], comm=comm)


def test_both_ends_of_a_message_share_route_and_channel():
    channels = Channels()
    first = build_program(recording(send(2), send(2), receive(2)), MESH, channels).program
    groups = {"dp": GroupInfo("mesh_dp", (0, 2))}
    other = recording(receive(0), receive(0, 3), send(0), rank=2, groups=groups)
    second = build_program(other, MESH, channels).program
    ends = [[(r.channel, r.route) for r in rows(p) if r.channel >= 0] for p in (first, second)]
    assert ends[0] == ends[1]
    assert len({channel for channel, _ in ends[0]}) == 3
    route = ends[0][0][1]
    assert route.axes == (AxisRef("dp"),) and route.offset == 1 and not route.wrap


def test_messages_along_part_of_an_axis():
    flat = Mesh(("data",), (4,))
    program = build_program(recording(send(2)), flat).program
    (message,) = [r for r in rows(program) if r.kind is Kind.SEND]
    assert message.route.axes == (AxisRef("data", 1, 2),)
    assert message.route.targets(flat).tolist() == [2, 3, -1, -1]


def test_a_mesh_of_a_factor_that_the_script_splits():
    meshes = (DeviceMeshInfo(("pp", "dp"), (2, 2), (0, 1, 2, 3)),)
    assert mesh_of("2x2", recording(meshes=meshes)).names == ("pp", "dp")


def small_step():
    """A product, two element-wise operators that a compiler would merge, a sum over `tp`."""
    x, w, y = tensor(1, 4, 8), tensor(2, 8, 8), tensor(3, 4, 8)
    reduced = collective(Collective.ALL_REDUCE, "tp", y.num_bytes)
    return build(
        event("aten.mm", [x, w], [y], module="mlp", phase=Phase.FORWARD),
        event("aten.silu", [y], [tensor(4, 4, 8)]),
        event("aten.mul.Tensor", [tensor(4, 4, 8), y], [tensor(5, 4, 8)]),
        event("aten.view", [tensor(5, 4, 8)], [tensor(5, 32)], is_view=True),
        update("c10d.allreduce_", [tensor(5, 32)], comm=reduced),
        storages={2: stored("parameter", "mlp.weight", w)},
    )


def test_eager_operators_are_kernels_already():
    workload = Workload.single(small_step(), {"producer": "flint", "name": "step"})
    kernels = rewrite(workload, granularity="kernel").programs[0]
    works = [r.opcode for r in rows(kernels) if r.kind >= Kind.COMPUTE]
    assert works == ["aten.mm", "aten.silu", "aten.mul", "c10d.allreduce_"]


@pytest.mark.parametrize("granularity", ["op", "kernel"])
def test_recorded_programs_go_through_every_backend(granularity, tmp_path):
    workload = Workload.single(small_step(), {"producer": "flint", "name": "step"})
    read_back = Workload.from_bytes(workload.to_bytes())
    assert read_back.to_bytes() == workload.to_bytes()
    write(rewrite(read_back, granularity=granularity), tmp_path / "traces")
    assert not check(tmp_path / "traces").findings
    summary = summarize(workload).to_text()
    assert "all_reduce" in summary and "tp" in summary and "unpriced" not in summary
    program = workload.programs[0]
    told = explain_collective(program, 0).to_text()
    assert "over      tp: 2 groups of 2 ranks" in told and "aten.mul" in told
    assert explain_scope(program, "mlp").flops == 2 * 4 * 8 * 8


def random_events(random, count):
    """Operators that read, make, view and overwrite parts of a few storages on three streams."""
    alive, events = [1, 2], []
    for number in range(count):
        kind, stream = random.choice(["make", "make", "view", "add", "copy"]), random.randrange(3)
        first = [random.randrange(4) for _ in range(random.randint(1, 3))]
        inputs = [part(random.choice(alive), f, random.randint(1, 4 - f)) for f in first]
        if kind == "make":
            alive.append(1000 + number)
            events.append(event("aten.cat", inputs, [part(alive[-1], 0, 4)], stream=stream))
        elif kind == "view":
            seen = replace(inputs[0], shape=(1, *inputs[0].shape))
            events.append(event("aten.view", inputs[:1], [seen], is_view=True))
        else:
            op = "aten.add_.Tensor" if kind == "add" else "aten.copy_"
            events.append(update(op, inputs, stream=stream))
    return events


def run(events, order):
    """Memory after the events ran in `order`: what is stored is told by all that was read."""
    memory = {}
    for number in order:
        e = events[number]
        if not e.is_view:
            seen = [memory.get(place, place) for t in e.inputs for place in places(t)]
            result = hash((number, *seen))
            memory.update(dict.fromkeys(places(e.outputs[0]), result))
    return memory


def places(tensor):
    """The elements of its storage that a float32 tensor lies in."""
    first, end = tensor.extent
    return [(tensor.storage, element) for element in range(first // 4, end // 4)]


def test_kernels_of_several_products_count_whole():
    q, x, w = tensor(1, 2, 4, 8, 16), tensor(2, 2, 3, 8, 8), tensor(3, 6, 3, 3, 3)
    y = tensor(4, 2, 6, 8, 8)
    program = build(
        event(
            "aten._scaled_dot_product_flash_attention",
            [q, q, q],
            [tensor(5, 2, 4, 8, 16)],
            attributes={"is_causal": True},
        ),
        event(
            "aten.convolution_backward", [y, x, w], [tensor(6, 2, 3, 8, 8), tensor(7, 6, 3, 3, 3)]
        ),
    )
    assert program.opcodes[1] == "aten._scaled_dot_product_flash_attention[causal]"
    total = totals(program)
    assert total.matmul_flops == total.flops == 2 * 2 * 64 * 8 * 16 + 4 * 128 * 6 * 27


@pytest.mark.parametrize("seed", range(60))
def test_any_order_that_dependencies_allow_computes_the_same(seed):
    random = Random(seed)
    events = random_events(random, 40)
    built = build_program(recording(*events, streams=("c", "a", "b")), MESH)
    event_of = {row: number for number, row in enumerate(built.rows)}
    waits = {
        row: set(built.program.dependencies(row).tolist()) for row in range(len(built.program))
    }
    order = []
    while waits:
        row = random.choice([r for r, deps in waits.items() if not deps & waits.keys()])
        del waits[row]
        order += [event_of[row]] if row in event_of else []
    assert run(events, order) == run(events, range(len(events)))


MIB = 1 << 18  # elements


@pytest.mark.parametrize(
    ("freed", "peak"),
    [
        ((), 3),  # each is there until it was read last
        ((Freed(2, 4),), 4),  # it is held while the next ones are made
        ((Freed(2, 2), Freed(3, 3)), 3),
        ((Freed(2, 4), Freed(3, 4), Freed(4, 4)), 5),  # held when the step was over
    ],
)
def test_memory_is_there_until_the_program_lets_go_of_it(freed, peak):
    a, b, c, d, e = (tensor(n, MIB) for n in range(1, 6))
    steps = [event("aten.relu", [x], [y]) for x, y in ((a, b), (b, c), (c, d), (d, e))]
    program = build(*steps, freed=freed)
    assert buffers(program).live_bytes.max() == peak << 20
    kernels = rewrite(Workload.single(program), profile="inductor", granularity="kernel")
    assert OpClass.FREED not in kernels.programs[0].op


def test_one_of_several_results_goes_before_the_other():
    x, y, small, z = tensor(1, MIB), tensor(2, MIB), tensor(3, 64), tensor(4, MIB)
    steps = [
        event("aten.native_layer_norm", [x], [y, small]),
        event("aten.relu", [x], [z]),
        event("aten.add.Tensor", [z, small], [tensor(5, MIB)]),
    ]
    frees = [(Freed(2, end), Freed(3, 3)) for end in (1, 3)]
    assert [buffers(build(*steps, freed=f)).live_bytes.max() >> 20 for f in frees] == [3, 4]


def test_one_of_several_updates_goes_before_the_other():
    """FSDP splits what it gathers into memory that goes at once and memory that stays."""
    source, stays, goes = tensor(1, 2 * MIB), tensor(2, MIB), tensor(3, MIB)
    steps = [
        *(event("aten.empty.memory_format", [], [t]) for t in (stays, goes)),
        event("fsdp.split_with_sizes_copy", [source, stays, goes], writes=(2, 3)),
        event("aten.relu", [goes], [tensor(4, MIB)]),
        event("aten.relu", [source], [tensor(5, 2 * MIB)]),
        event("aten.relu", [stays], [tensor(6, MIB)]),
    ]
    of_both = (Freed(4, 4), Freed(5, 5))
    frees = [(Freed(2, 6), Freed(3, end), *of_both) for end in (4, 6)]
    assert [buffers(build(*steps, freed=f)).live_bytes.max() >> 20 for f in frees] == [5, 6]


@pytest.mark.parametrize(("loss", "peak"), [("mse_loss", 5), ("huber_loss", 4)])
def test_some_losses_stay_in_the_memory_of_those_of_all_elements(loss, peak):
    x, y, made, z = tensor(1, MIB), tensor(2, MIB), tensor(3), tensor(4, 2 * MIB)
    steps = [event(f"aten.{loss}", [x, y], [made]), event("aten.cat", [x, y], [z])]
    assert buffers(build(*steps, freed=(Freed(3, 2),))).live_bytes.max() >> 20 == peak


def test_what_a_step_holds_and_does_not_use_is_there():
    x, y = tensor(1, MIB), tensor(2, MIB)
    program = build(event("aten.relu", [x], [y]), older={1: 1 << 20, 7: 1 << 20})
    assert buffers(program).live_bytes.max() == 3 << 20


@pytest.mark.parametrize(("end", "peak"), [(0, 2), (1, 2), (2, 3)])
def test_what_a_step_finds_and_lets_go_of_unused_is_there_until_then(end, peak):
    """Two tensors of 1 MiB are made; another is left from the step before."""
    x, y, z = tensor(1, 64), tensor(2, MIB), tensor(3, MIB)
    steps = [event("aten.relu", [i], [o]) for i, o in ((x, y), (y, z), (x, tensor(4, 64)))]
    leaving = {9: 1 << 20} if end else {}
    program = build(*steps, leaving=leaving, freed=(Freed(9, end), Freed(2, 2), Freed(3, 2)))
    assert buffers(program).live_bytes.max() >> 20 == peak


def test_a_value_with_two_names_is_there_until_both_are_let_go_of():
    x, y, z = tensor(1, MIB), tensor(2, MIB), tensor(3, MIB)
    comm = collective(Collective.ALL_REDUCE, "tp", 1 << 20)
    steps = [
        event("_c10d_functional.all_reduce", [x], [y], comm=comm),
        event("_c10d_functional.wait_tensor", [y], [z]),
        event("aten.relu", [x], [tensor(4, MIB)]),
        event("aten.relu", [z], [tensor(5, MIB)]),
    ]
    program = build(*steps, freed=(Freed(2, 3), Freed(3, 4)))
    last = int(np.flatnonzero(program.kind == Kind.COMPUTE)[-1])
    assert buffers(program).live_bytes[2 * last] == 3 << 20


def test_what_was_emptied_is_made_anew_and_waits_for_no_reader_from_before():
    x, y, z = tensor(1, MIB), tensor(2, MIB), tensor(3, MIB)
    fill = event("aten.zero_", [y], [y], writes=(2,))
    steps = [
        fill,
        event("aten.add.Tensor", [x, y], [z]),
        fill,
        event("aten.relu", [y], [tensor(4, MIB)]),
    ]
    again = [build(*steps, freed=freed) for freed in ((), (Freed(2, 2),))]
    rows = [np.flatnonzero(p.flags & Flag.IN_PLACE).tolist() for p in again]
    assert len(rows[0]) == len(rows[1]) + 1


def test_listed_groups_are_entered_by_all_their_members(tmp_path):
    """Ranks 0 and 3, 1 and 2: every rank runs the program of rank 0 in its own group."""
    x = tensor(1, 4)
    odd = update("c10d.allreduce_", [x], comm=collective(Collective.ALL_REDUCE, "odd", 16))
    program = build(odd, groups={"odd": GroupInfo("", (0, 3))}, world_groups=((0, 3), (1, 2)))
    write(Workload.single(program, {"producer": "flint"}), tmp_path / "traces")
    assert not check(tmp_path / "traces").findings
    assert totals(program).communication[0].axes == "2 explicit groups of 2"
