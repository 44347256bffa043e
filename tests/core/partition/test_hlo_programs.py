"""HLO text and protobuf to Programs: hand-written modules, one construct each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("jaxlib", reason="XLA's parser of HLO text is in jaxlib")

from flint.errors import FlintError
from flint.frontends.files.hlo import load_hlo, read_hlo
from flint.ir.mesh import AxisRef, Group, Mesh, Route
from flint.ir.op_class import OpClass
from flint.ir.program import Collective, Flag, Kind, Phase, Program, RegionKind, Row
from flint.passes.hlo.module import decode_module, message_class
from flint.passes.partition.xla_child import parse_text
from tests.hlo_programs import hlo_to_program

MESH = Mesh.parse("data=4,model=2")
ADD = """
add { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b) }
max { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] maximum(a, b) }
"""


def program(body: str, *, before: str = ADD, header: str = "", **options: Any) -> Program:
    text = f"HloModule m, num_partitions=8{header}\n{before}\nENTRY e {{\n{body}\n}}\n"
    proto = parse_text(text.encode())  # in this process: these texts are good, and it is quick
    made = hlo_to_program(proto, MESH, **options)
    made.verify()
    return made


def rows(p: Program, opcode: str) -> list[Row]:
    return [p.row(i) for i in range(len(p)) if p.row(i).opcode == opcode]


def only(p: Program, opcode: str) -> Row:
    (found,) = rows(p, opcode)
    return found


BARRIER = """x = f32[4,4] parameter(0)
        y = f32[4,4] parameter(1)
        late = f32[4,4] multiply(x, x)
        unread = f32[4,4] negate(y)
        passing = (f32[4,4], f32[4,4], f32[4,4]) tuple(y, late, unread)
        {barrier}
        early = f32[4,4] get-tuple-element({of}), index=0
        after = f32[4,4] get-tuple-element({of}), index=1
        ROOT r = f32[4,4] add(early, after)"""
KEEPER = "kept = (f32[4,4], f32[4,4], f32[4,4]) opt-barrier(passing)"


@pytest.mark.parametrize(
    ("barrier", "of", "header", "waits"),
    [
        (KEEPER, "kept", "", True),
        (KEEPER, "kept", ", is_scheduled=true", True),
        ("", "passing", ", is_scheduled=true", True),  # what XLA leaves of a barrier
        ("", "passing", "", False),
    ],
)
def test_what_passes_a_barrier_waits_for_all_that_is_read(
    barrier: str, of: str, header: str, waits: bool
) -> None:
    p = program(BARRIER.format(barrier=barrier, of=of), header=header)
    early, late = 1, next(i for i in range(len(p)) if p.row(i).opcode == "hlo.multiply")
    read = p.dependencies(len(p) - 2).tolist()
    if not waits:
        assert read == [early, late]
        return
    assert p.alias[read].tolist() == [early, late]
    for view, shown in zip(read, (early, late), strict=True):
        assert p.row(view).flags == Flag.VIEW
        (wait,) = (d for d in p.dependencies(view).tolist() if d != shown)
        assert sorted(p.dependencies(wait).tolist()) == [early, late]  # nobody reads the third


def test_nobody_waits_where_a_barrier_passes_what_is_there() -> None:
    p = program("""x = f32[4,4] parameter(0)
        y = f32[4,4] parameter(1)
        passing = (f32[4,4], f32[4,4]) tuple(x, y)
        kept = (f32[4,4], f32[4,4]) opt-barrier(passing)
        a = f32[4,4] get-tuple-element(kept), index=0
        b = f32[4,4] get-tuple-element(kept), index=1
        ROOT r = f32[4,4] add(a, b)""")
    assert [p.row(i).opcode for i in range(len(p))] == ["hlo.parameter"] * 2 + [
        "hlo.add",
        "hlo.ROOT",
    ]


def test_metadata_shapes_and_results() -> None:
    p = program(
        """x = bf16[8,16] parameter(0), metadata={op_name="params['w']" source_file="/a/b/model.py" source_line=7}
        y = bf16[16,4] parameter(1)
        d = bf16[8,4] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="jit(step)/transpose(jvp(layers))/mlp/dot_general" source_file="/a/b/model.py" source_line=12}
        ROOT t = (bf16[8,4]) tuple(d)""",
        header=", input_output_alias={ {0}: (0, {}, may-alias) }",
    )
    first = p.row(0)
    assert (first.kind, first.name, first.result_bytes) == (Kind.PARAMETER, "params['w']", 256)
    assert first.flags == Flag.DONATED and not p.row(1).flags
    dot = only(p, "hlo.dot")
    assert (dot.flops, dot.dims, dot.dtype) == (2 * 8 * 4 * 16, (1, 8, 4, 16), "bfloat16")
    assert (dot.operand_bytes, dot.result_bytes, dot.shape) == (256 + 128, 64, (8, 4))
    assert (dot.scope, dot.phase, dot.location) == ("layers/mlp", Phase.BACKWARD, "model.py:12")
    assert dot.deps == (0, 1)
    assert only(p, "hlo.ROOT").deps == (dot.number,)


@pytest.mark.parametrize(
    ("line", "kind", "opcode", "comm_bytes", "axes"),
    [
        (
            (
                "f32[64] all-reduce(x), channel_id=1, replica_groups=[4,2]<=[8], "
                "use_global_device_ids=true, to_apply=add"
            ),
            Collective.ALL_REDUCE,
            "hlo.all-reduce",
            256,
            ("model",),
        ),
        (
            (
                "f32[64] all-reduce(x), channel_id=1, replica_groups={{0,1},{2,3},{4,5},{6,7}}, "
                "use_global_device_ids=true, to_apply=max"
            ),
            Collective.ALL_REDUCE,
            "hlo.all-reduce[maximum]",
            256,
            ("model",),
        ),
        (
            (
                "f32[256] all-gather(x), channel_id=1, replica_groups=[2,4]<=[4,2]T(1,0), "
                "use_global_device_ids=true, dimensions={0}"
            ),
            Collective.ALL_GATHER,
            "hlo.all-gather",
            256,
            ("data",),
        ),
        (
            (
                "f32[16] reduce-scatter(x), channel_id=1, replica_groups=mesh['a'=4,'b'=2] {'a'}, "
                "use_global_device_ids=true, dimensions={0}, to_apply=add"
            ),
            Collective.REDUCE_SCATTER,
            "hlo.reduce-scatter",
            256,
            ("data",),
        ),
        (
            (
                "f32[64] all-to-all(x), channel_id=1, replica_groups={{0,2,4,6},{1,3,5,7}}, "
                "dimensions={0}"
            ),
            Collective.ALL_TO_ALL,
            "hlo.all-to-all",
            256,
            ("data",),
        ),
        (
            "f32[64] collective-broadcast(x), channel_id=1, replica_groups={{0,2,4,6},{1,3,5,7}}",
            Collective.BROADCAST,
            "hlo.collective-broadcast",
            256,
            ("data",),
        ),
    ],
)
def test_collectives(
    line: str, kind: Collective, opcode: str, comm_bytes: int, axes: tuple[str, ...]
) -> None:
    row = only(program(f"x = f32[64] parameter(0)\nROOT r = {line}"), opcode)
    assert (row.kind, row.collective, row.comm_bytes) == (Kind.COLLECTIVE, kind, comm_bytes)
    assert row.group is not None
    assert row.group.axes == tuple(AxisRef(a) for a in axes)


def test_a_combined_collective_is_one_row() -> None:
    p = program(
        """x = f32[64] parameter(0)
        y = bf16[32] parameter(1)
        r = (f32[64], bf16[32]) all-reduce(x, y), channel_id=1, replica_groups=[4,2]<=[8], use_global_device_ids=true, to_apply=add
        a = f32[64] get-tuple-element(r), index=0
        b = bf16[32] get-tuple-element(r), index=1
        n = f32[64] negate(a)
        m = bf16[32] negate(b)
        ROOT t = (f32[64], bf16[32]) tuple(n, m)"""
    )
    row = only(p, "hlo.all-reduce")
    assert row.comm_bytes == 64 * 4 + 32 * 2
    parts = rows(p, "hlo.get-tuple-element")
    assert [(r.deps, r.result_bytes) for r in parts] == [((row.number,), 256), ((row.number,), 64)]
    assert [r.deps for r in rows(p, "hlo.negate")] == [(r.number,) for r in parts]


def test_a_permutation_is_a_route() -> None:
    p = program(
        """x = f32[64] parameter(0)
        y = f32[64] collective-permute(x), channel_id=1, source_target_pairs={{0,2},{2,4},{4,6},{6,0},{1,3},{3,5},{5,7},{7,1}}
        ROOT z = f32[64] collective-permute(y), channel_id=2, source_target_pairs={{0,0},{1,1}}"""
    )
    moved, stays = rows(p, "hlo.collective-permute")
    assert (moved.collective, moved.route) == (Collective.PERMUTE, Route((AxisRef("data"),), 1))
    assert stays.kind == Kind.VALUE


def test_groups_of_one_and_empty_payloads_are_no_communication() -> None:
    p = program(
        """x = f32[64] parameter(0)
        z = f32[0] parameter(1)
        y = f32[64] all-reduce(x), channel_id=1, replica_groups=[8,1]<=[8], use_global_device_ids=true, to_apply=add
        e = f32[0] all-reduce(z), channel_id=2, replica_groups=[1,8]<=[8], use_global_device_ids=true, to_apply=add
        ROOT t = (f32[64], f32[0]) tuple(y, e)"""
    )
    assert [r.kind for r in rows(p, "hlo.all-reduce")] == [Kind.VALUE, Kind.VALUE]


def test_ragged_all_to_all_counts_its_data() -> None:
    p = program(
        """x = f32[64,4] parameter(0)
        o = f32[64,4] parameter(1)
        i = s64[4] parameter(2)
        ROOT r = f32[64,4] ragged-all-to-all(x, o, i, i, i, i), channel_id=1, replica_groups={{0,2,4,6},{1,3,5,7}}"""
    )
    row = only(p, "hlo.ragged-all-to-all")
    assert (row.collective, row.comm_bytes) == (Collective.ALL_TO_ALL, 1024)


def test_asynchronous_collectives_overlap_what_does_not_depend_on_them() -> None:
    p = program(
        """x = f32[64] parameter(0)
        s = f32[64] all-reduce-start(x), channel_id=1, replica_groups=[4,2]<=[8], use_global_device_ids=true, to_apply=add
        g = (f32[64], f32[256]) all-gather-start(x), channel_id=2, replica_groups=[2,4]<=[4,2]T(1,0), use_global_device_ids=true, dimensions={0}
        c = (f32[64], f32[64]) collective-permute-start(x), channel_id=3, source_target_pairs={{0,1},{1,0}}
        n = f32[64] negate(x)
        cd = f32[64] collective-permute-done(c)
        gd = f32[256] all-gather-done(g)
        d = f32[64] all-reduce-done(s)
        m = f32[64] add(d, n)
        ROOT t = (f32[64], f32[256], f32[64]) tuple(m, gd, cd)"""
    )
    reduce, gather = only(p, "hlo.all-reduce"), only(p, "hlo.all-gather")
    permute = only(p, "hlo.collective-permute")
    assert reduce.flags == gather.flags == permute.flags == Flag.ASYNC
    assert (gather.shape, gather.result_bytes, gather.comm_bytes) == ((256,), 1024, 256)
    assert only(p, "hlo.negate").deps == (0,)
    done = only(p, "hlo.all-reduce-done")
    assert (done.kind, done.deps) == (Kind.VALUE, (reduce.number,))
    assert done.number in only(p, "hlo.add").deps
    assert reduce.number not in only(p, "hlo.add").deps


def test_generic_asynchronous_wrapping() -> None:
    p = program(
        """x = f32[64] parameter(0)
        s = ((f32[64]), f32[16], u32[]) async-start(x), calls=wrapped
        u = ((f32[64]), f32[16], u32[]) async-update(s)
        n = f32[64] negate(x)
        d = f32[16] async-done(u)
        ROOT t = (f32[64], f32[16]) tuple(n, d)""",
        before=ADD
        + """wrapped { p = f32[64] parameter(0)
        ROOT r = f32[16] reduce-scatter(p), channel_id=1, replica_groups=[2,4]<=[4,2]T(1,0), use_global_device_ids=true, dimensions={0}, to_apply=add }""",
    )
    row = only(p, "hlo.reduce-scatter")
    assert (row.flags, row.deps) == (Flag.ASYNC, (0,))
    assert only(p, "hlo.async-done").deps == (row.number,)
    assert only(p, "hlo.negate").deps == (0,)


def test_an_asynchronous_operation_begins_where_it_is_handed_its_operands() -> None:
    """Newer XLA:TPU starts a gather without operands, early, and an update hands them over."""
    text = """HloModule m, num_partitions=8
        wrapped { p = f32[64] parameter(0)
        ROOT r = f32[64] sine(p) }
        ENTRY e { x = f32[64] parameter(0)
        y = f32[64] negate(x)
        s = ((f32[64]), f32[64], u32[]) async-start(y), calls=wrapped
        u = ((f32[64]), f32[64], u32[]) async-update(s)
        ROOT d = f32[64] async-done(u) }"""
    known = parse_text(text.encode())
    late = decode_module(known).proto
    x, y, start, update, done = late.computations[-1].instructions
    update.operand_ids.extend(start.operand_ids)
    del start.operand_ids[:]
    moved = [type(i).FromString(i.SerializeToString()) for i in (x, start, y, update, done)]
    del late.computations[-1].instructions[:]
    late.computations[-1].instructions.extend(moved)
    ours, told = (hlo_to_program(m, MESH) for m in (late.SerializeToString(), known))
    assert only(ours, "hlo.sine").flags == Flag.ASYNC
    assert [ours.row(i) for i in range(len(ours))] == [told.row(i) for i in range(len(told))]


def test_send_and_recv_share_a_channel() -> None:
    p = program(
        """x = f32[64] parameter(0)
        t0 = token[] after-all()
        r = (f32[64], u32[], token[]) recv(t0), channel_id=5, frontend_attributes={_xla_send_recv_source_target_pairs="{{0,2},{2,4},{4,6},{1,3},{3,5},{5,7}}"}
        s = (f32[64], u32[], token[]) send(x, t0), channel_id=5, frontend_attributes={_xla_send_recv_source_target_pairs="{{0,2},{2,4},{4,6},{1,3},{3,5},{5,7}}"}
        rd = (f32[64], token[]) recv-done(r), channel_id=5
        sd = token[] send-done(s), channel_id=5
        ROOT v = f32[64] get-tuple-element(rd), index=0"""
    )
    send, recv = only(p, "hlo.send"), only(p, "hlo.recv")
    assert (send.kind, recv.kind) == (Kind.SEND, Kind.RECV)
    assert send.channel == recv.channel == 0
    assert send.route == recv.route == Route((AxisRef("data"),), 1, wrap=False)
    assert send.comm_bytes == recv.comm_bytes == 256
    assert only(p, "hlo.ROOT").deps == (only(p, "hlo.recv-done").number,)


def test_a_fusion_is_one_row_that_moves_what_crosses_its_edges() -> None:
    p = program(
        """x = f32[100,64] parameter(0)
        i = s32[] parameter(1)
        w = f32[64,32] parameter(2)
        ROOT f = f32[1,32] fusion(x, i, w), kind=kOutput, calls=fused""",
        before="""fused { p0 = f32[100,64] parameter(0)
        p1 = s32[] parameter(1)
        p2 = f32[64,32] parameter(2)
        z = s32[] constant(0)
        row = f32[1,64] dynamic-slice(p0, p1, z), dynamic_slice_sizes={1,64}
        e = f32[1,64] exponential(row)
        ROOT d = f32[1,32] dot(e, p2), lhs_contracting_dims={1}, rhs_contracting_dims={0} }""",
    )
    row = only(p, "hlo.fusion")
    assert (row.flops, row.dims) == (64 + 2 * 64 * 32, (1, 1, 32, 64))
    assert row.operand_bytes == 64 * 4 + 4 + 64 * 32 * 4
    assert row.result_bytes == 32 * 4


ROWS = """\ns = f32[8] reduce(e, z), dimensions={1}, to_apply=add
w = f32[8,16] broadcast(s), dimensions={0}"""
COLUMNS = "\ns = f32[8] reduce(e, z), dimensions={0}, to_apply=add"


@pytest.mark.parametrize(
    ("body", "root", "expected"),
    [
        ("e = f32[8,16] exponential(p)" + ROWS, "divide(e, w)", "fusion.softmax"),
        ("e = f32[8,16] multiply(p, p)" + ROWS, "multiply(p, w)", "fusion.norm"),
        ("e = f32[16,8] multiply(p, p)" + COLUMNS, "negate(s)", "fusion.reduction"),
        ("e = f32[8,16] negate(p)", "multiply(e, e)", "fusion"),
        ("e = f32[8,16] slice(p), slice={[0:8], [0:16]}", "copy(e)", "fusion.layout"),
    ],
)
def test_a_fusion_is_called_as_the_kernels_of_flint(body: str, root: str, expected: str) -> None:
    shape = "f32[16,8]" if "dimensions={0}, to_apply" in body else "f32[8,16]"
    result = "f32[8]" if root == "negate(s)" else "f32[8,16]"
    p = program(
        f"""x = {shape} parameter(0)
        ROOT f = {result} fusion(x), kind=kInput, calls=fused""",
        before=f"""{ADD} fused {{ p = {shape} parameter(0)
        z = f32[] constant(0)
        {body}
        ROOT r = {result} {root} }}""",
    )
    assert rows(p, expected)


def test_a_fusion_that_updates_in_place() -> None:
    p = program(
        """x = f32[100,64] parameter(0)
        u = f32[1,64] parameter(1)
        i = s32[] parameter(2)
        ROOT f = f32[100,64] fusion(x, u, i), kind=kLoop, calls=fused""",
        before="""fused { p0 = f32[100,64] parameter(0)
        p1 = f32[1,64] parameter(1)
        p2 = s32[] parameter(2)
        z = s32[] constant(0)
        ROOT d = f32[100,64] dynamic-update-slice(p0, p1, p2, z) }""",
    )
    row = only(p, "hlo.fusion")
    assert (row.operand_bytes, row.result_bytes, row.flags) == (260, 256, Flag.IN_PLACE)


def test_a_fusion_reads_of_an_array_what_its_slices_need() -> None:
    """Seen differently, converted, and then sliced: only that part is read."""
    p = program(
        """x = bf16[100,64] parameter(0)
        i = s32[] parameter(1)
        ROOT f = (f32[1,64], f32[10,10,64]) fusion(x, i), kind=kLoop, calls=fused""",
        before="""fused { p0 = bf16[100,64] parameter(0)
        p1 = s32[] parameter(1)
        z = s32[] constant(0)
        b = bf16[10,10,64] bitcast(p0)
        c = f32[10,10,64] convert(b)
        s = f32[1,1,64] dynamic-slice(c, p1, z, z), dynamic_slice_sizes={1,1,64}
        e = f32[1,64] bitcast(s)
        q = f32[10,10,64] broadcast(e), dimensions={0,2}
        ROOT t = (f32[1,64], f32[10,10,64]) tuple(e, q) }""",
    )
    row = only(p, "fusion.layout")
    assert (row.operand_bytes, row.result_bytes) == (64 * 2 + 4, 64 * 4 + 6400 * 4)


def test_a_fusion_that_keeps_a_part_of_sums_reads_that_part() -> None:
    """What XLA makes of the parts of a product that it split: each kernel adds up its columns."""
    p = program(
        """x = f32[4,8,16] parameter(0)
        ROOT f = f32[8,4] fusion(x), kind=kLoop, calls=fused""",
        before=ADD
        + """fused { p0 = f32[4,8,16] parameter(0)
        z = f32[] constant(0)
        r = f32[8,16] reduce(p0, z), dimensions={0}, to_apply=add
        ROOT s = f32[8,4] slice(r), slice={[0:8], [12:16]} }""",
    )
    row = only(p, "fusion.reduction")
    assert (row.operand_bytes, row.result_bytes) == (4 * 8 * 4 * 4, 8 * 4 * 4)


def test_a_fusion_inside_of_a_fusion_needs_what_its_slices_need() -> None:
    """As TPU programs read a step's part of what a loop goes over, in the fusion of a product."""
    p = program(
        """x = bf16[100,4,64] parameter(0)
        i = s32[] parameter(1)
        w = bf16[64,32] parameter(2)
        ROOT f = bf16[4,32] fusion(x, i, w), kind=kOutput, calls=fused""",
        before="""inner { q0 = s32[] parameter(0)
        q1 = bf16[100,4,64] parameter(1)
        z = s32[] constant(0)
        s = bf16[1,4,64] dynamic-slice(q1, q0, z, z), dynamic_slice_sizes={1,4,64}
        ROOT b = bf16[4,64] bitcast(s) }
        fused { p0 = bf16[100,4,64] parameter(0)
        p1 = s32[] parameter(1)
        p2 = bf16[64,32] parameter(2)
        r = bf16[4,64] fusion(p1, p0), kind=kLoop, calls=inner
        ROOT d = bf16[4,32] dot(r, p2), lhs_contracting_dims={1}, rhs_contracting_dims={0} }""",
    )
    row = only(p, "hlo.fusion")
    assert row.operand_bytes == 2 * 4 * 64 + 4 + 2 * 64 * 32


def test_a_fusion_that_updates_what_it_calculates_writes_all_of_it() -> None:
    p = program(
        """x = bf16[100,64] parameter(0)
        u = f32[1,64] parameter(1)
        i = s32[] parameter(2)
        ROOT f = f32[100,64] fusion(x, u, i), kind=kLoop, calls=fused""",
        before="""fused { p0 = bf16[100,64] parameter(0)
        p1 = f32[1,64] parameter(1)
        p2 = s32[] parameter(2)
        z = s32[] constant(0)
        c = f32[100,64] convert(p0)
        ROOT d = f32[100,64] dynamic-update-slice(c, p1, p2, z) }""",
    )
    row = only(p, "hlo.fusion")
    assert (row.operand_bytes, row.result_bytes, row.flags) == (12800 + 260, 25600, Flag(0))


@pytest.mark.parametrize(("kept", "expected"), [(16, "reduce-scatter"), (64, "all-reduce")])
def test_a_collective_in_a_fusion_is_not_lost(kept: int, expected: str) -> None:
    p = program(
        f"""x = f32[64] parameter(0)
        ROOT f = f32[{kept}] fusion(x), kind=kCustom, calls=fused""",
        before=ADD
        + f"""fused {{ p = f32[64] parameter(0)
        r = f32[64] all-reduce(p), channel_id=1, replica_groups=[2,4]<=[4,2]T(1,0), use_global_device_ids=true, to_apply=add
        i = u32[] partition-id()
        s = s32[] convert(i)
        ROOT d = f32[{kept}] dynamic-slice(r, s), dynamic_slice_sizes={{{kept}}} }}""",
    )
    row = only(p, f"hlo.{expected}")
    assert row.kind == Kind.COLLECTIVE
    assert (row.comm_bytes, row.group) == (256, Group(axes=(AxisRef("data"),)))
    assert not rows(p, "hlo.fusion")


@pytest.mark.parametrize(
    ("line", "flops"),
    [
        # thin padding is computed with
        (
            (
                "f32[1,8,8,3] convolution(image, kernel), window={size=3x3 pad=1_1x1_1}, "
                "dim_labels=b01f_01io->b01f"
            ),
            2 * 64 * 3 * 18,
        ),
        # a batched product, as TPU programs write it: each output meets one tap of two
        (
            (
                "f32[256,2,64] convolution(rows, heads), window={size=2 pad=1_1 rhs_reversal=1}, "
                "dim_labels=bf0_i0o->b0f"
            ),
            2 * 256 * 2 * 64 * 512,
        ),
        # holes of a dilated input are skipped
        (
            (
                "f32[1,15,15,3] convolution(image, kernel), "
                "window={size=3x3 pad=1_1x1_1 lhs_dilate=2x2}, dim_labels=b01f_01io->b01f"
            ),
            2 * 3 * 2 * 22 * 22,
        ),
    ],
)
def test_convolutions_count_the_taps_that_meet_an_element(line: str, flops: int) -> None:
    p = program(
        f"""image = f32[1,8,8,2] parameter(0)
        kernel = f32[3,3,2,3] parameter(1)
        rows = f32[256,512,1] parameter(2)
        heads = f32[512,2,64] parameter(3)
        ROOT r = {line}"""
    )
    row = only(p, "hlo.convolution")
    assert row.flops == flops
    b, m, n, k = row.dims
    assert 2 * b * m * n * (k - 1) < flops <= 2 * b * m * n * k  # k is rounded up


def test_an_unpriced_kernel_outweighs_bookkeeping() -> None:
    p = program(
        """x = f32[8,8] parameter(0)
        i = s32[] parameter(1)
        ROOT c = f32[8,8] conditional(i, x, x), branch_computations={cheap, kernel}""",
        before="""cheap { a = f32[8,8] parameter(0)
        ROOT b = f32[8,8] abs(a) }
        kernel { a = f32[8,8] parameter(0)
        ROOT b = f32[8,8] custom-call(a), custom_call_target="attention" }""",
    )
    assert [(r.name, r.trip_count) for r in p.regions] == [("cheap", 0), ("kernel", 1)]


def loop(
    condition: str, step: str, first: int, config: str = "", also: str = ""
) -> tuple[str, str]:
    before = f"""{ADD}
    body {{ p = (s32[], f32[8], s32[]) parameter(0)
      i = s32[] get-tuple-element(p), index=0
      x = f32[8] get-tuple-element(p), index=1
      n = s32[] get-tuple-element(p), index=2
      k = s32[] constant(2)
      {step}
      y = f32[8] negate(x)
      ROOT t = (s32[], f32[8], s32[]) tuple(j, y, n) }}
    cond {{ p = (s32[], f32[8], s32[]) parameter(0)
      i = s32[] get-tuple-element(p), index=0
      n = s32[] get-tuple-element(p), index=2
      k = s32[] constant(10)
      {also}
      ROOT c = pred[] {condition} }}"""
    body = f"""a = f32[8] parameter(0)
      q = s32[] parameter(1)
      z = s32[] constant({first})
      ten = s32[] constant(10)
      t = (s32[], f32[8], s32[]) tuple(z, a, ten)
      w = (s32[], f32[8], s32[]) while(t), condition=cond, body=body{config}
      ROOT r = f32[8] get-tuple-element(w), index=1"""
    return before, body


UP, DOWN = "j = s32[] add(i, k)", "j = s32[] subtract(i, k)"


@pytest.mark.parametrize(
    ("condition", "step", "first", "trips"),
    [
        ("compare(i, k), direction=LT", UP, 0, 5),
        ("compare(i, k), direction=LT", UP, 1, 5),
        ("compare(i, k), direction=LE", UP, 0, 6),
        ("compare(i, k), direction=NE", UP, 0, 5),
        ("compare(k, i), direction=GT", UP, 0, 5),
        ("compare(i, k), direction=GT", DOWN, 20, 5),
        ("compare(i, k), direction=GE", DOWN, 20, 6),
        ("compare(i, k), direction=LT", UP, 10, 0),
        ("compare(i, n), direction=LT", UP, 0, 5),
        ("compare(k, i), direction=GE", UP, 0, 6),
        ("compare(k, i), direction=LT", DOWN, 20, 5),
        ("compare(k, i), direction=LE", DOWN, 20, 6),
        ("compare(k, i), direction=NE", DOWN, 20, 5),
        ("compare(i, k), direction=NE", DOWN, 20, 5),
        ("compare(i, k), direction=NE", UP, 10, 0),
        ("compare(i, k), direction=LE", UP, 10, 1),
        ("compare(i, k), direction=LE", UP, 11, 0),
        ("compare(i, k), direction=GE", DOWN, 9, 0),
        # 4 at a time
        ("compare(i, k), direction=LT", "h = s32[] add(k, i)\nj = s32[] add(k, h)", 0, 3),
        ("compare(i, k), direction=LT", "h = s32[] add(i, k)\nj = s32[] add(h, k)", 0, 3),
        ("compare(i, k), direction=LT", "h = s32[] add(k, k)\nj = s32[] add(h, i)", 0, 3),
        (
            "compare(i, k), direction=GT",
            "h = s32[] subtract(i, k)\nj = s32[] subtract(h, k)",
            20,
            3,
        ),
    ],
)
def test_trip_counts_of_counters(condition: str, step: str, first: int, trips: int) -> None:
    before, body = loop(condition, step, first)
    p = program(body, before=before)
    (region,) = p.regions
    assert (region.kind, region.trip_count) == (RegionKind.LOOP, trips)
    negate = only(p, "hlo.negate")
    assert negate.region == 0
    assert (negate.deps[0], negate.number) in region.carries
    assert only(p, "hlo.ROOT").deps == (negate.number,)


@pytest.mark.parametrize(
    ("also", "condition", "trips"),
    [
        ("s = s32[] add(i, i0)", "compare(s, k), direction=LT", 4),  # i + 3 < 10
        ("s = s32[] subtract(i, i0)", "compare(s, k), direction=LT", 7),
        ("s = s32[] subtract(k, i0)", "compare(i, s), direction=LT", 4),
        ("s = s32[] add(n, i0)", "compare(i, s), direction=LT", 7),
        ("s = s32[] copy(i)", "compare(s, k), direction=LT", 5),
    ],
)
def test_trip_counts_of_conditions_that_add(also: str, condition: str, trips: int) -> None:
    before, body = loop(condition, UP, 0, also=f"i0 = s32[] constant(3)\n{also}")
    assert program(body, before=before).regions[0].trip_count == trips


@pytest.mark.parametrize(
    ("condition", "step", "first"),
    [
        ("compare(i, k), direction=LT", DOWN, 0),  # it would run on for ever
        ("compare(i, k), direction=GT", UP, 20),
        ("compare(i, k), direction=NE", UP, 1),  # it steps over the bound
        ("compare(i, k), direction=NE", DOWN, 0),
        ("compare(i, k), direction=NE", "j = s32[] copy(i)", 0),
        ("compare(i, k), direction=EQ", UP, 10),
        ("compare(i, k), direction=LT", "j = s32[] subtract(k, i)", 0),
        ("compare(i, k), direction=LT", "j = s32[] add(i, i)", 1),
        ("compare(i, k), direction=LT", "j = s32[] copy(k)", 1),
        ("compare(i, i), direction=LT", UP, 0),
        ("compare(k, k), direction=LT", UP, 0),
    ],
)
def test_trip_counts_that_cannot_be_told(condition: str, step: str, first: int) -> None:
    before, body = loop(condition, step, first)
    with pytest.raises(FlintError, match="FL403"):
        program(body, before=before)


def test_a_negative_trip_count_is_refused() -> None:
    config = ', backend_config={"known_trip_count":{"n":"-1"}}'
    before, body = loop("compare(i, k), direction=LT", UP, 0, config)
    with pytest.raises(FlintError, match="runs -1 times"):
        program(body, before=before)
    config = config.replace("-1", "0")
    before, body = loop("compare(i, k), direction=LT", UP, 0, config)
    assert program(body, before=before).regions[0].trip_count == 0


def test_loops_are_numbered_where_nothing_else_names_them() -> None:
    before, body = loop("compare(i, k), direction=LT", "j = s32[] multiply(i, k)", 1)
    again = "v = (s32[], f32[8], s32[]) while(w), condition=cond, body=body\n      ROOT r"
    body = body.replace(
        "ROOT r = f32[8] get-tuple-element(w)", f"{again} = f32[8] get-tuple-element(v)"
    )
    made = program(body, before=before, trip_counts={"loop0": 3, "loop1": 5})
    assert [region.trip_count for region in made.regions] == [3, 5]


def test_each_branch_has_its_own_operand() -> None:
    """Both branches run the same loop, up to the number that they are given."""
    before, _ = loop("compare(i, n), direction=LT", UP, 0)
    branch = """{name} {{ p = (s32[], f32[8], s32[]) parameter(0)
      w = (s32[], f32[8], s32[]) while(p), condition=cond, body=body
      ROOT r = f32[8] get-tuple-element(w), index=1 }}
    """
    made = program(
        """a = f32[8] parameter(0)
        q = s32[] parameter(1)
        z = s32[] constant(0)
        few = s32[] constant(6)
        many = s32[] constant(20)
        t = (s32[], f32[8], s32[]) tuple(z, a, few)
        u = (s32[], f32[8], s32[]) tuple(z, a, many)
        ROOT c = f32[8] conditional(q, t, u), branch_computations={first, last}""",
        before=before + branch.format(name="first") + branch.format(name="last"),
    )
    loops = [r.trip_count for r in made.regions if r.kind is RegionKind.LOOP]
    assert loops == [3, 10]


def test_a_collective_in_a_fusion_of_a_fusion_is_not_lost() -> None:
    made = program(
        """x = f32[64] parameter(0)
        ROOT f = f32[64] fusion(x), kind=kCustom, calls=outer""",
        before=ADD
        + """inner { p = f32[64] parameter(0)
        ROOT r = f32[64] all-reduce(p), channel_id=1, replica_groups=[2,4]<=[4,2]T(1,0), use_global_device_ids=true, to_apply=add }
        outer { p = f32[64] parameter(0)
        n = f32[64] negate(p)
        ROOT g = f32[64] fusion(n), kind=kCustom, calls=inner }""",
    )
    assert only(made, "hlo.all-reduce").comm_bytes == 256
    assert not rows(made, "hlo.fusion")


def test_trip_count_that_the_compiler_wrote() -> None:
    config = ', backend_config={"known_trip_count":{"n":"80"}}'
    before, body = loop("compare(i, k), direction=LT", "j = s32[] multiply(i, k)", 1, config)
    assert program(body, before=before).regions[0].trip_count == 80


def test_trip_count_that_only_the_user_knows() -> None:
    before, body = loop("compare(i, k), direction=LT", "j = s32[] multiply(i, k)", 1)
    with pytest.raises(FlintError, match="trip count of loop loop0") as error:
        program(body, before=before)
    assert error.value.code == "FL403"
    assert "--trip-count w=N" in (error.value.help or "")
    assert program(body, before=before, trip_counts={"w": 7}).regions[0].trip_count == 7


def test_the_branch_with_most_flops_is_taken() -> None:
    p = program(
        """x = f32[8,8] parameter(0)
        i = s32[] parameter(1)
        c = f32[8,8] conditional(i, x, x), branch_computations={cheap, dear}
        ROOT n = f32[8,8] negate(c)""",
        before="""cheap { a = f32[8,8] parameter(0)
        ROOT b = f32[8,8] abs(a) }
        dear { a = f32[8,8] parameter(0)
        ROOT b = f32[8,8] dot(a, a), lhs_contracting_dims={1}, rhs_contracting_dims={0} }""",
    )
    assert [(r.name, r.trip_count, r.choice) for r in p.regions] == [
        ("cheap", 0, 0),
        ("dear", 1, 0),
    ]
    joined = only(p, "hlo.conditional")
    assert set(joined.deps) == {1, only(p, "hlo.abs").number, only(p, "hlo.dot").number}
    assert only(p, "hlo.negate").deps == (joined.number,)


@pytest.mark.parametrize(
    ("once", "work", "taken"),
    [
        ("exponential(a)", "exponential(x)", "often"),  # 20 operations against 5 x 8
        ("copy(a)", "copy(x)", "often"),  # nothing but bytes
        ("exponential(a)", "copy(x)", "once"),  # operations go first
    ],
)
def test_a_branch_weighs_what_it_does_in_all_its_turns(once: str, work: str, taken: str) -> None:
    before, body = loop("compare(i, k), direction=LT", UP, 0)
    often = body.replace(
        "a = f32[8] parameter(0)\n      q = s32[] parameter(1)", "a = f32[8] parameter(0)"
    )
    p = program(
        """x = f32[8] parameter(0)
        w = f32[20] parameter(1)
        i = s32[] parameter(2)
        ROOT c = f32[8] conditional(i, w, x), branch_computations={once, often}""",
        before=before.replace("negate(x)", work)
        + f"""once {{ a = f32[20] parameter(0)
        b = f32[20] {once}
        ROOT s = f32[8] slice(b), slice={{[0:8]}} }}
        often {{ {often} }}""",
    )
    assert {r.name: r.trip_count for r in p.regions if r.kind is RegionKind.BRANCH} == {
        "once": int(taken == "once"), "often": int(taken == "often")
    }  # fmt: skip


def test_calls_are_inlined() -> None:
    p = program(
        """x = f32[8] parameter(0)
        a = f32[8] call(x), to_apply=twice
        ROOT b = f32[8] call(a), to_apply=twice""",
        before="twice { p = f32[8] parameter(0)\n ROOT q = f32[8] add(p, p) }",
    )
    first, second = rows(p, "hlo.add")
    assert second.deps == (first.number,)


@pytest.mark.parametrize(
    ("line", "flops", "unpriced"),
    [
        (
            (
                'f32[8,4] custom-call(x, w), custom_call_target="__cublas$gemm", backend_config='
                '{"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],'
                '"rhs_contracting_dimensions":["0"],"lhs_batch_dimensions":[],'
                '"rhs_batch_dimensions":[]}}}'
            ),
            2 * 8 * 4 * 16,
            False,
        ),
        (
            (
                'f32[8,4] custom-call(x, w), custom_call_target="tpu_custom_call", backend_config='
                '{"custom_call_config":{"cost_estimate":{"flops":"123"}}}'
            ),
            123,
            False,
        ),
        ('f32[8,4] custom-call(x, w), custom_call_target="mystery"', 0, True),
        ("f32[8,4] some-new-op(x, w)", 0, True),
    ],
)
def test_custom_calls(line: str, flops: int, unpriced: bool) -> None:
    if "some-new-op" in line:  # XLA's text parser knows its own opcodes only
        data = _renamed("f32[8,4] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}")
        p = hlo_to_program(data, MESH)
    else:
        p = program(f"x = f32[8,16] parameter(0)\nw = f32[16,4] parameter(1)\nROOT r = {line}")
    row = p.row(2)
    assert row.kind == Kind.COMPUTE
    assert (row.flops, bool(row.flags & Flag.UNPRICED)) == (flops, unpriced)
    assert (row.operand_bytes, row.result_bytes) == (768, 128)


def _renamed(line: str) -> bytes:
    text = (
        "HloModule m\nENTRY e {\nx = f32[8,16] parameter(0)\nw = f32[16,4] parameter(1)\n"
        f"ROOT r = {line}\n}}"
    )
    proto = decode_module(parse_text(text.encode())).proto
    proto.computations[0].instructions[2].opcode = "some-new-op"
    return bytes(proto.SerializeToString())


@pytest.mark.parametrize(
    ("line", "flops"),
    [
        ("f32[8,16] exponential(x)", 128),
        ("bf16[8,16] convert(x)", 0),
        ("f32[16,8] transpose(x), dimensions={1,0}", 0),
        ("f32[8] reduce(x, zero), dimensions={1}, to_apply=add", 128),
        ("f32[8,16] sort(x), dimensions={1}, to_apply=less", 128 * 4),
        (
            "f32[1,6,6,3] convolution(image, kernel), window={size=3x3}, dim_labels=b01f_01io->b01f",
            2 * 36 * 3 * 18,
        ),
    ],
)
def test_flops(line: str, flops: int) -> None:
    p = program(
        f"""x = f32[8,16] parameter(0)
        image = f32[1,8,8,2] parameter(1)
        kernel = f32[3,3,2,3] parameter(2)
        zero = f32[] constant(0)
        ROOT r = {line}""",
        before=ADD
        + "less { a = f32[] parameter(0)\n b = f32[] parameter(1)\n"
        + " ROOT c = pred[] compare(a, b), direction=LT }",
    )
    row = p.row(len(p) - 2)
    assert row.flops == flops
    assert not row.flags & Flag.UNPRICED


def test_stack_frames_are_locations() -> None:
    text = "HloModule m\nENTRY e {\nx = f32[8] parameter(0)\nROOT n = f32[8] negate(x)\n}"
    proto = load_hlo(text.encode()).proto
    index = proto.stack_frame_index
    index.file_names.append("/somewhere/step.py")
    index.file_locations.add(file_name_id=1, line=42)
    index.stack_frames.add(file_location_id=1)
    proto.computations[0].instructions[1].metadata.stack_frame_id = 1
    p = hlo_to_program(proto.SerializeToString(), Mesh.parse("x=1"))
    assert only(p, "hlo.negate").location == "step.py:42"


def test_protobufs_in_their_wrappers() -> None:
    text = b"HloModule m\nENTRY e {\nx = f32[8] parameter(0)\nROOT n = f32[8] negate(x)\n}"
    module = load_hlo(text).proto.SerializeToString()
    in_proto = message_class("HloProto")()
    in_proto.hlo_module.ParseFromString(module)
    snapshot = message_class("HloSnapshot")()
    snapshot.hlo.CopyFrom(in_proto)
    for data in (module, in_proto.SerializeToString(), snapshot.SerializeToString()):
        assert decode_module(data).proto.name == "m"
        assert only(hlo_to_program(data, MESH), "hlo.negate").flops == 8


def test_text_and_protobuf_agree() -> None:
    before, body = loop("compare(i, k), direction=LT", UP, 0)
    text = f"HloModule m, num_partitions=8\n{before}\nENTRY e {{\n{body}\n}}\n".encode()
    proto = load_hlo(text).proto.SerializeToString()
    one, two = hlo_to_program(text, MESH), hlo_to_program(proto, MESH)
    assert [one.row(i) for i in range(len(one))] == [two.row(i) for i in range(len(two))]


def test_a_mesh_of_another_size_is_an_error() -> None:
    text = b"HloModule m, num_partitions=4\nENTRY e { ROOT x = f32[8] parameter(0) }"
    with pytest.raises(FlintError, match="compiled for 4 devices"):
        hlo_to_program(text, MESH)
    made = read_hlo(text, None, name="dump.txt")
    assert isinstance(made, Program) and made.mesh.sizes == (4,)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"   \n",
        b"HloModule",
        b"HloModule m\nENTRY e { ROOT x = f32[2] nonsense(0) }",
        b"HloModule m\nENTRY e { ROOT x = f32[2] add(y, z) }",
        b"\x00\x01\x02\xff" * 100,
        b"\x0a\xff\xff\xff\xff\x0f",
        b"some prose",
    ],
)
def test_garbage_is_refused_with_a_sentence(data: bytes) -> None:
    with pytest.raises(FlintError, match=r"garbage.hlo is not a complete HLO module") as error:
        hlo_to_program(data, MESH, source="garbage.hlo")
    assert error.value.code == "FL303"


def test_any_damage_is_an_error_or_a_valid_program() -> None:
    before, body = loop("compare(i, k), direction=LT", UP, 0)
    text = f"HloModule m\n{before}\nENTRY e {{\n{body}\n}}\n".encode()
    proto = bytes(load_hlo(text).proto.SerializeToString())
    for at in range(0, len(proto), 3):
        for damaged in (proto[:at], proto[:at] + bytes([proto[at] ^ 0x15]) + proto[at + 1 :]):
            try:
                hlo_to_program(damaged, MESH).verify()
            except FlintError as error:
                assert error.code in ("FL102", "FL303", "FL305", "FL403")


def test_a_fused_look_up_has_its_rows_and_its_class() -> None:
    program = hlo_to_program(
        b"""HloModule m, is_scheduled=true
looked { t = f32[100,16] parameter(0)
  i = s32[8,1] parameter(1)
  ROOT g = f32[8,16] gather(t, i), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0},
    index_vector_dim=1, slice_sizes={1,16} }
inner { t = f32[100,16] parameter(0)
  i = s32[8,1] parameter(1)
  ROOT f = f32[8,16] fusion(t, i), kind=kCustom, calls=looked }
ENTRY e { t = f32[100,16] parameter(0)
  i = s32[8,1] parameter(1)
  a = f32[8,16] fusion(t, i), kind=kCustom, calls=looked
  b = f32[8,16] fusion(t, i), kind=kCustom, calls=inner
  ROOT c = (f32[8,16], f32[8,16]) tuple(a, b) }""",
        Mesh.parse("data=1"),
    )
    rows = np.flatnonzero(program.kind == Kind.COMPUTE)
    assert program.op[rows].tolist() == [OpClass.GATHER, OpClass.GATHER]
    assert program.dims[rows].tolist() == [[1, 8, 1, 16]] * 2


def test_a_copy_into_vmem_is_the_read_of_what_needs_it() -> None:
    def kernels(space: str) -> list[str]:
        program = hlo_to_program(
            f"""HloModule m, is_scheduled=true
ENTRY e {{ x = f32[64,128]{{1,0}} parameter(0)
  s = (f32[64,128]{{1,0{space}}}, f32[64,128]{{1,0}}, u32[]) copy-start(x)
  d = f32[64,128]{{1,0{space}}} copy-done(s)
  ROOT c = f32[64,128]{{1,0}} tanh(d) }}""".encode(),
            Mesh.parse("data=1"),
        )
        return [
            program.opcodes[program.opcode[r]] for r in np.flatnonzero(program.kind == Kind.COMPUTE)
        ]

    assert kernels(":S(1)") == ["hlo.tanh"]
    assert kernels("") == ["hlo.copy", "hlo.tanh"]
