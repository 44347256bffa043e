"""Parts that are put together by hand: what the programs of a pipeline's positions do."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flint.backends.chakra.reading.reader import records
from flint.backends.chakra.schema import NodeType, messages
from flint.backends.chakra.writing.encode import varint
from flint.ir.mesh import AxisRef, Group, Mesh
from flint.ir.op_class import OpClass
from flint.ir.program import Collective, Flag, Kind, Phase, Program
from flint.ir.workload import Workload
from flint.passes.pipeline.compose.compose import workload_of
from flint.passes.pipeline.compose.plan import Neighbours, PipelinePlan
from flint.passes.pipeline.schedule.schedules import orders, placement
from flint.passes.pipeline.split.parts import Key, Partial, Saved, StageParts, StageProgram
from flint.passes.pipeline.split.reduce_part import in_gradient_dtype
from flint.passes.work.totals import totals
from flint.steps.captured import Body, Captured, CapturedPipeline, Port, Role, StageBodies
from tests.long import long_but
from tests.program_rows import ProgramBuilder

_WEIGHT = Port(Role.PARAMETER, "w")
_TOKENS = Port(Role.BATCH, "tokens")
_INPUT, _OUTPUT, _LOSS = Port(Role.INPUT), Port(Role.OUTPUT), Port(Role.LOSS)
_COTANGENT, _INPUT_GRADIENT = Port(Role.COTANGENT), Port(Role.INPUT_GRADIENT)
_GRADIENT = Port(Role.GRADIENT, "w")
_STATE, _NORM = Port(Role.STATE, "m"), Port(Role.SQUARED_NORM)
_ACTIVATION_BYTES, _WEIGHT_BYTES = 4096, 65536
#: Schedules that split backward passes.
_SPLIT = ("zb-h1", "zb-v", "dualpipev")


class _Maker:
    """Builds one part, row by row."""

    def __init__(self, mesh: Mesh, **sizes: tuple[Key, int]) -> None:
        self.builder = ProgramBuilder(mesh)
        self.inputs: dict[Key, int] = {}
        self.outputs: dict[Key, int] = {}
        self.named: dict[str, int] = {}
        for name, (key, size) in sizes.items():
            row = self.builder.add(
                "parameter",
                Kind.PARAMETER,
                dtype="bfloat16",
                shape=(size // 2,),
                result_bytes=size,
                name=name,
            )
            self.inputs[key] = self.named[name] = row

    def product(self, *deps: str, name: str, size: int, phase: Phase = Phase.FORWARD) -> None:
        self.named[name] = self.builder.add(
            "stablehlo.dot_general",
            deps=[self.named[d] for d in deps],
            dtype="bfloat16",
            shape=(size // 2,),
            result_bytes=size,
            operand_bytes=3 * size,
            flops=1000,
            dims=(1, 10, 5, 10),
            phase=phase,
        )

    def reduced(self, dep: str, name: str, size: int) -> None:
        self.named[name] = self.builder.add(
            "sdy.all_reduce",
            Kind.COLLECTIVE,
            deps=[self.named[dep]],
            dtype="bfloat16",
            shape=(size // 2,),
            result_bytes=size,
            operand_bytes=size,
            comm_bytes=size,
            collective=Collective.ALL_REDUCE,
            group=Group((AxisRef("data"),)),
            phase=Phase.BACKWARD,
        )

    def part(self, **outputs: Key) -> StageProgram:
        found = {key: self.named[name] for name, key in outputs.items()}
        program = self.builder.build()
        program.verify()
        return StageProgram(program, self.inputs, found)


def _stage(mesh: Mesh, *, first: bool, last: bool, splits: bool) -> StageParts:
    a, w = _ACTIVATION_BYTES, _WEIGHT_BYTES
    x = ("x", _TOKENS if first else _INPUT)
    forward = _Maker(mesh, w=(_WEIGHT, w), x=(x[1], a))
    forward.product("x", "w", name="h", size=a)
    forward.product("h", "w", name="y", size=a)
    back = _Maker(mesh, w=(_WEIGHT, w), g=(_COTANGENT, a), h=(Saved(3), a))
    back.product("g", "w", name="gx", size=a, phase=Phase.BACKWARD)
    gives: dict[str, Key] = {} if first else {"gx": _INPUT_GRADIENT}
    weights = None
    if splits:
        later = _Maker(mesh, h=(Saved(3), a), gx=(Saved(7), a))
        later.product("h", "gx", name="gw", size=w, phase=Phase.BACKWARD)
        weights = later.part(gw=Partial("w"))
        gives["gx_saved"] = Saved(7)
        back.named["gx_saved"] = back.named["gx"]
    else:
        back.product("h", "gx", name="gw", size=w, phase=Phase.BACKWARD)
        gives["gw"] = Partial("w")
    reduce = _Maker(mesh, p=(Partial("w"), w))
    reduce.reduced("p", "gw", w)
    return StageParts(
        forward.part(h=Saved(3), y=_LOSS if last else _OUTPUT),
        back.part(**gives),
        weights,
        reduce.part(gw=_GRADIENT),
    )


def _reads_late(mesh: Mesh, parts: StageParts) -> StageParts:
    """The stage with a forward pass that does not read its input, which the backward pass does."""
    forward = _Maker(mesh, w=(_WEIGHT, _WEIGHT_BYTES))
    forward.product("w", name="y", size=_ACTIVATION_BYTES)
    back = _Maker(mesh, x=(_INPUT, _ACTIVATION_BYTES), g=(_COTANGENT, _ACTIVATION_BYTES))
    back.product("g", "x", name="gx", size=_ACTIVATION_BYTES, phase=Phase.BACKWARD)
    back.product("g", "x", name="gw", size=_WEIGHT_BYTES, phase=Phase.BACKWARD)
    backward = back.part(gx=_INPUT_GRADIENT, gw=Partial("w"))
    return replace(parts, forward=forward.part(y=_LOSS), backward=backward)


def _reduce(parts: StageParts) -> StageProgram:
    assert parts.reduce is not None
    return parts.reduce


def _update(mesh: Mesh, *, clips: bool) -> StageProgram:
    sizes: dict[str, tuple[Key, int]] = {
        "w": (_WEIGHT, _WEIGHT_BYTES),
        "g": (_GRADIENT, _WEIGHT_BYTES),
        "m": (_STATE, _WEIGHT_BYTES),
    }
    if clips:
        sizes["n"] = (_NORM, 4)
    maker = _Maker(mesh, **sizes)
    maker.product(*sizes, name="new", size=_WEIGHT_BYTES, phase=Phase.OPTIMIZER)
    return maker.part(new=_WEIGHT)


def _norm(mesh: Mesh) -> StageProgram:
    maker = _Maker(mesh, g=(_GRADIENT, _WEIGHT_BYTES))
    maker.product("g", name="n", size=4, phase=Phase.OPTIMIZER)
    return maker.part(n=_NORM)


def _workload(
    schedule: str,
    ranks: int,
    microbatches: int,
    chunks: int = 1,
    *,
    clips: bool = True,
    tied: bool = False,
    dtype: str = "",
    reads_late: bool = False,
    undeferred: tuple[str, ...] = (),
) -> Workload:
    mesh = Mesh(("pipe", "data", "model"), (ranks, 2, 2))
    count = ranks * chunks
    body = Body(Captured(b"", mesh, "", ""), "pipe", (_INPUT,), (_OUTPUT,))
    captured = CapturedPipeline(
        mesh,
        "net",
        "net.py",
        "pipe",
        (StageBodies(body),) * count,
        tuple(range(count)),
        tuple(f"part {s}" for s in range(count)),
        microbatches,
        schedule,
        chunks,
        tied=(((0, "w"), (count - 1, "w")),) if tied else (),
        gradient_dtype=dtype,
    )
    stages = [
        _stage(mesh, first=s == 0, last=s == count - 1, splits=schedule in _SPLIT)
        for s in range(count)
    ]
    if reads_late:
        stages[-1] = _reads_late(mesh, stages[-1])
    stages = [
        replace(s, reduce=in_gradient_dtype(_reduce(s), dtype), undeferred=undeferred)
        for s in stages
    ]
    plan = PipelinePlan(
        captured,
        tuple(stages),
        (_norm(mesh) if clips else None,) * count,
        (_update(mesh, clips=clips),) * count,
        orders(schedule, ranks, microbatches, chunks),
        Neighbours("pipe", placement(schedule, ranks, chunks), 1),
    )
    workload = workload_of(plan)
    workload.verify()
    return workload


def _messages(program: Program) -> dict[str, tuple[int, int]]:
    found = totals(program).communication
    return {
        kind: (
            sum(c.count for c in found if c.kind == kind),
            sum(c.comm_bytes for c in found if c.kind == kind),
        )
        for kind in ("send", "recv")
    }


_CASES = [
    ("gpipe", 4, 6, 1),
    ("1f1b", 4, 6, 1),
    ("1f1b", 4, 2, 1),
    ("interleaved-1f1b", 4, 8, 2),
    ("zb-h1", 4, 6, 1),
    ("zb-v", 4, 8, 2),
    ("zb-v", 3, 2, 2),
    ("dualpipev", 4, 9, 2),
    ("dualpipev", 1, 3, 2),
    ("1f1b", 2, 1, 1),
    ("1f1b", 1, 3, 1),
]


@pytest.mark.parametrize(("schedule", "ranks", "microbatches", "chunks"), _CASES)
def test_each_boundary_is_crossed_once_a_microbatch_and_way(
    schedule: str, ranks: int, microbatches: int, chunks: int
) -> None:
    workload = _workload(schedule, ranks, microbatches, chunks)
    for rank_class in workload.classes:
        (position,) = rank_class.where["pipe"]
        rank_of = placement(schedule, ranks, chunks).rank_of
        apart = [(a, b) for a, b in pairwise(rank_of) if a != b]
        ends = sum((position == a) + (position == b) for a, b in apart)
        expected = (ends * microbatches, ends * microbatches * _ACTIVATION_BYTES)
        program = workload.programs[rank_class.program]
        assert _messages(program) == {"send": expected, "recv": expected}


@pytest.mark.parametrize(("schedule", "ranks", "microbatches", "chunks"), _CASES)
def test_traces_are_free_of_findings(
    schedule: str, ranks: int, microbatches: int, chunks: int, tmp_path: Path
) -> None:
    from flint.backends.chakra import check, write

    workload = _workload(schedule, ranks, microbatches, chunks, tied=ranks > 1)
    write(workload, tmp_path / "t")
    report = check(tmp_path / "t")
    assert not report.findings, report.findings


@pytest.mark.parametrize(("schedule", "ranks", "microbatches", "chunks"), _CASES)
def test_gradients_are_reduced_once_and_work_is_done_for_each_microbatch(
    schedule: str, ranks: int, microbatches: int, chunks: int
) -> None:
    workload = _workload(schedule, ranks, microbatches, chunks)
    for program in workload.programs:
        communication = {(c.kind, c.axes): c for c in totals(program).communication}
        assert communication["all_reduce", "data"].count == chunks
        products = (program.flops == 1000) & (program.phase != Phase.OPTIMIZER)
        assert int((program.trips * products).sum()) == 4 * microbatches * chunks
        added = (program.flags & Flag.IN_PLACE) != 0
        adds = microbatches * chunks if microbatches > 1 else 0
        assert int((program.trips * added).sum()) == adds


def test_the_norm_and_the_loss_go_over_the_pipe_once() -> None:
    for program in _workload("1f1b", 4, 6).programs:
        over = [c for c in totals(program).communication if c.axes == "pipe"]
        assert [(c.kind, c.count, c.comm_bytes) for c in over] == [("all_reduce", 2, 8)]


def test_a_tied_gradient_is_summed_between_the_two_stages_only() -> None:
    workload = _workload("1f1b", 4, 6, tied=True)
    tied = [
        [c for c in totals(p).communication if c.axes == "pipe[0,3]"] for p in workload.programs
    ]
    assert [[(c.count, c.comm_bytes) for c in found] for found in tied] == [
        [(1, _WEIGHT_BYTES)],
        [],
        [],
        [(1, _WEIGHT_BYTES)],
    ]


def test_where_stages_turn_round_ends_meet_and_nothing_is_sent_at_the_fold() -> None:
    """The first rank has the first and the last stage, the last rank the two in the middle."""
    workload = _workload("zb-v", 3, 6, 2, tied=True)
    names = [rank_class.name for rank_class in workload.classes]
    assert names == ["pipe 0: part 0; part 5", "pipe 1: part 1; part 4", "pipe 2: part 2; part 3"]
    for position, program in enumerate(workload.programs):
        rows = [program.row(r) for r in range(len(program))]
        assert not [row for row in rows if row.cause.endswith("one parameter with another stage's")]
        tied = [row for row in rows if row.scope == "pipeline/tied"]
        assert len(tied) == (position == 0)
        routes = {str(row.route) for row in rows if row.kind == Kind.SEND}
        assert (
            routes
            == (
                {"pipe+1 (no wrap)"},
                {"pipe+1 (no wrap)", "pipe-1 (no wrap)"},
                {"pipe-1 (no wrap)"},
            )[position]
        )


def test_what_only_the_backward_pass_reads_is_received_by_the_forward_pass() -> None:
    workload = _workload("1f1b", 2, 4, reads_late=True)
    assert [_messages(p)["recv"][0] for p in workload.programs] == [4, 4]
    assert [_messages(p)["send"][0] for p in workload.programs] == [4, 4]
    program = workload.programs[1]
    (received, *_), (saved, *_) = (
        [r for r in range(len(program)) if program.opcodes[program.opcode[r]] == opcode]
        for opcode in ("pipeline.recv", "pipeline.saved")
    )
    assert received < saved


def test_equal_positions_share_a_program() -> None:
    workload = _workload("gpipe", 4, 6)
    assert [c.program for c in workload.classes] == [0, 1, 1, 2]
    assert len(workload.programs) == 3


def test_what_is_held_and_given_says_no_sizes_of_work() -> None:
    """Sizes stand with rows that work, and with what waits in the stash."""
    for program in _workload("zb-h1", 3, 6).programs:
        for row in map(program.row, range(len(program))):
            if row.kind is Kind.PARAMETER or (
                row.kind is Kind.VALUE and row.op is not OpClass.SAVED
            ):
                assert row.dims == (0, 0, 0, 0)


def test_rows_do_not_grow_with_microbatches() -> None:
    few, many = _workload("1f1b", 4, 8), _workload("1f1b", 4, 512)
    assert [len(p) for p in few.programs] == [len(p) for p in many.programs]


def test_activations_in_flight_are_held() -> None:
    workload = _workload("1f1b", 4, 6)
    held = [
        sum(
            int(p.result_bytes[r])
            for r in range(len(p))
            if p.opcodes[p.opcode[r]] == "pipeline.stash"
        )
        for p in workload.programs
    ]
    saved = _ACTIVATION_BYTES
    assert held == [3 * saved, 2 * saved, saved, 0]
    positions = workload.metadata["pipeline"]["positions"]
    assert [p[0]["in_flight"] for p in positions] == [4, 3, 2, 1]
    assert {p[0]["saved_bytes_per_microbatch"] for p in positions} == {saved}


@pytest.mark.parametrize(
    ("schedule", "chunks", "expected"),
    [
        # Of both chunks together: the warm-up, 2 (p - 1 - k) + p units.
        ("interleaved-1f1b", 2, [10, 8, 6, 4]),
        # Rank k leaves k weight gradients for later: each keeps an activation and a gradient.
        ("zb-h1", 1, [3, 4, 5, 6]),
        # The last ranks leave more gradients of inputs before the first weight gradient at the end.
        ("zb-v", 2, [7, 7, 9, 12]),
        ("dualpipev", 2, [8, 8, 8, 8]),
    ],
)
def test_a_stash_is_what_all_microbatches_keep_at_one_time(
    schedule: str, chunks: int, expected: list[int]
) -> None:
    workload = _workload(schedule, 4, 8, chunks)
    held = [
        [row.result_bytes for row in map(p.row, range(len(p))) if row.opcode == "pipeline.stash"]
        for p in workload.programs
    ]
    assert held == [[n * _ACTIVATION_BYTES] for n in expected]


def test_gradients_in_another_type_are_accumulated_and_reduced_in_it() -> None:
    for program in _workload("1f1b", 2, 4, dtype="float32").programs:
        reduced = next(c for c in totals(program).communication if c.axes == "data")
        assert reduced.comm_bytes == 2 * _WEIGHT_BYTES
        held = [program.row(r) for r in range(len(program))]
        sums = [r for r in held if r.opcode == "pipeline.accumulator"]
        assert {(r.dtype, r.result_bytes) for r in sums} == {("float32", 2 * _WEIGHT_BYTES)}


def test_gradients_that_are_reduced_for_each_microbatch_are_named() -> None:
    assert "warnings" not in _workload("1f1b", 2, 4).metadata
    (warning,) = _workload("1f1b", 2, 4, undeferred=("w",)).metadata["warnings"]
    assert warning == (
        "1 gradient is reduced over devices for each microbatch, "
        "because the sums cannot wait for the last one: w"
    )


def test_every_unit_waits_for_the_one_before_it() -> None:
    from flint.backends.chakra.writing.expand import expand

    program = _workload("1f1b", 4, 6).programs[0]
    nodes = expand(program)
    products = np.flatnonzero(program.flops[nodes.row] == 1000)
    reach: list[set[int]] = []
    for node in range(len(nodes)):
        found: set[int] = set()
        for dep in nodes.dependencies(node).tolist():
            found |= reach[dep] | {dep}
        reach.append(found)
    # Of two products of different passes, the later one waits for the earlier one.
    order = products.tolist()
    counts = Counter(len(reach[b] & set(order)) for b in order)
    assert all(count == 1 for count in counts.values())


@pytest.mark.long
@pytest.mark.parametrize(
    ("schedule", "microbatches", "chunks"),
    long_but(
        [("1f1b", 6, 1), ("zb-v", 8, 2)],
        [
            *(("1f1b", 6, 1), ("gpipe", 6, 1), ("interleaved-1f1b", 8, 2)),
            *(("zb-h1", 6, 1), ("zb-v", 8, 2)),
        ],
    ),
)
def test_every_swap_of_two_sends_is_found(
    schedule: str, microbatches: int, chunks: int, tmp_path: Path
) -> None:
    from flint.backends.chakra import check, write

    write(_workload(schedule, 4, microbatches, chunks), tmp_path / "t")
    for rank in (0, 4, 12):
        file = tmp_path / "t" / f"trace.{rank}.et"
        original = file.read_bytes()
        count = len(_send_tags(original))
        for other in range(1, count):
            file.write_bytes(_with_swapped_tags(original, 0, other))
            assert not check(tmp_path / "t").ok, (rank, 0, other)
        file.write_bytes(_with_swapped_tags(original, count - 2, count - 1))
        assert not check(tmp_path / "t").ok, (rank, count - 2)
        file.write_bytes(original)
    assert check(tmp_path / "t").ok


def _send_tags(data: bytes) -> list[int]:
    return [_tag(node) for node in _nodes(data)[1] if node.type == NodeType.COMM_SEND]


def _tag(node: Any) -> int:
    return next(int(a.int32_val) for a in node.attr if a.name == "comm_tag")


def _nodes(data: bytes) -> tuple[bytes, list[Any]]:
    spans = list(records(data, "trace"))
    return data[slice(*spans[0])], [messages().Node.FromString(data[a:b]) for a, b in spans[1:]]


def _with_swapped_tags(data: bytes, first: int, second: int) -> bytes:
    head, nodes = _nodes(data)
    sends = [n for n in nodes if n.type == NodeType.COMM_SEND]
    a, b = (next(v for v in sends[i].attr if v.name == "comm_tag") for i in (first, second))
    a.int32_val, b.int32_val = b.int32_val, a.int32_val
    parts = [head, *(n.SerializeToString(deterministic=True) for n in nodes)]
    return b"".join(varint(len(p)) + p for p in parts)
