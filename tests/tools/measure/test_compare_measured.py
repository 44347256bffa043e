"""`flint compare`: matching, parts, causes, and what it says of the rest."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from flint.cluster.named import load_cluster
from flint.errors import FlintError
from flint.ir.builder import ProgramBuilder
from flint.ir.mesh import AxisRef, Group, Mesh
from flint.ir.op_class import OpClass
from flint.ir.program import Collective, Kind, Phase
from flint.ir.rank_class import RankClass
from flint.ir.workload import Workload
from flint.requests.estimate import EstimateRequest
from flint.tools.measure.comparison.comparison import compare_measured
from flint.tools.measure.comparison.pairing import PairedForm, pair
from flint.tools.measure.comparison.result import MeasuredComparison
from flint.tools.measure.comparison.units import ExecutedCall
from flint.tracing import Trace
from tests.core.cli.test_cli_commands import _flint
from tests.machine_output import valid
from tests.measured_programs import Recorded, one_rank, two_ranks, workload

ROOT = Path(__file__).resolve().parents[3]
BERT = (
    ROOT / "benchmarks/data/kineto/h100_bert-small.json.gz",
    ROOT / "benchmarks/compare_models/bert-small.flint",
)


def unit(
    kind: str, op: OpClass, shape: tuple[int, ...], flops: int = 0, **other: object
) -> ExecutedCall:
    base = ExecutedCall(
        kind, "", op.name.lower(), int(op), "bfloat16", shape, flops, 2, "", "", 1, 10.0
    )
    return replace(base, **other)  # type: ignore[arg-type]


MM = unit("gemm", OpClass.MATMUL, (8, 8), 1024)
WIDE = unit("gemm", OpClass.MATMUL, (8, 32), 4096)
ADD = unit("elementwise", OpClass.ADD, (8, 8), 64)
MUL = unit("elementwise", OpClass.MULTIPLY, (8, 8), 64)
NORM = unit("norm", OpClass.NORM, (8, 8), 500)
MEAN = unit("reduction", OpClass.REDUCE, (8, 1), 64)
COPY = unit("copy", OpClass.COPY, (8, 8))
REDUCE = unit("all_reduce", OpClass.ADD, (64,), over="data", bytes=128)


def test_layers_are_matched_in_order() -> None:
    layer = [MM, ADD, WIDE, MM, ADD]
    found = pair(layer * 6, layer * 6)
    assert found.pairs == tuple((i, i) for i in range(30))
    assert not (found.forms or found.only_measured or found.only_captured)


def test_what_one_side_has_between_is_left_alone() -> None:
    layer = [MM, ADD, WIDE, MM, ADD]
    copied = [MM, ADD, COPY, WIDE, MM, ADD]
    found = pair(layer * 4, copied * 4)
    assert len(found.pairs) == 20
    assert found.only_captured == (2, 8, 14, 20)
    assert not found.only_measured


def test_a_norm_is_matched_with_what_it_is_made_of() -> None:
    made_of = [MEAN, ADD, MUL, MUL]
    found = pair([MM, NORM, WIDE], [MM, WIDE, *made_of])
    assert not found.forms  # in another place: nothing says that it is the same
    found = pair([MM, NORM, WIDE], [MM, *made_of, WIDE])
    assert found.forms == (PairedForm((1,), (1, 2, 3, 4)),)
    assert found.pairs == ((0, 0), (2, 5))


def test_other_work_is_no_other_form() -> None:
    large = unit("elementwise", OpClass.ADD, (800, 800), 64)
    assert not pair([MM, NORM, WIDE], [MM, large, MUL, WIDE]).forms
    assert not pair([ADD, NORM, ADD], [ADD, MM, MUL, ADD]).forms
    assert not pair([MM, NORM, WIDE], [MM, REDUCE, MUL, WIDE]).forms


def test_forms_of_a_view_are_one_shape() -> None:
    flat = unit("gemm", OpClass.MATMUL, (64, 8), 1024)
    nested = unit("gemm", OpClass.MATMUL, (1, 4, 16, 8), 1024)
    other = unit("gemm", OpClass.MATMUL, (8, 64), 1024)
    assert pair([flat, other], [other, nested]).pairs == ((0, 1), (1, 0))


def test_what_has_another_size_is_in_its_place_but_not_the_same() -> None:
    larger = replace(REDUCE, shape=(128,), bytes=256)
    gather = unit("all_gather", OpClass.MOVE, (64,), over="data", bytes=128)
    found = pair([MM, REDUCE, MM, ADD], [MM, larger, MM, replace(ADD, shape=(8, 9))])
    assert (found.pairs, found.resized) == (((0, 0), (2, 2)), ((1, 1), (3, 3)))
    deeper = replace(MM, flops=2 * MM.flops)
    assert pair([MM, ADD], [deeper, ADD]).resized == ((0, 0),)
    assert not pair([REDUCE], [replace(REDUCE, shape=(), bytes=129)]).resized
    assert pair([MM, REDUCE, MM], [MM, gather, MM]).only_measured == (1,)


def test_each_call_is_in_one_place() -> None:
    draw = random.Random(3)
    some = [MM, WIDE, ADD, MUL, NORM, MEAN, COPY, REDUCE]
    for _ in range(60):
        mine = draw.choices(some, k=draw.randrange(40))
        theirs = draw.choices(some, k=draw.randrange(40))
        found = pair(mine, theirs)
        pairs = (*found.pairs, *found.resized)
        left = [*(i for i, _ in pairs), *(n for f in found.forms for n in f.measured)]
        right = [*(j for _, j in pairs), *(n for f in found.forms for n in f.captured)]
        assert sorted([*left, *found.only_measured]) == list(range(len(mine)))
        assert sorted([*right, *found.only_captured]) == list(range(len(theirs)))
        assert all(mine[i].kind == theirs[j].kind for i, j in pairs)


def test_a_name_is_enough_in_order_but_not_out_of_it() -> None:
    """Lists of tensors have no shapes in a profile."""
    lists = unit("other", OpClass.OTHER, (), opcode="aten._foreach_add_")
    known = unit("optimizer", OpClass.ADD, (64, 3), opcode="aten._foreach_add_")
    assert pair([MM, lists, WIDE], [MM, known, WIDE]).pairs == ((0, 0), (1, 1), (2, 2))
    assert pair([lists, MM, WIDE], [MM, WIDE, known]).only_measured == (0,)


def captured(products: int, size: int = 1024) -> Workload:
    """Products on two devices, with an all-reduce behind the second."""
    mesh = Mesh(("data",), (2,))
    builder = ProgramBuilder(mesh)
    last = -1
    for number in range(products):
        last = builder.add(
            "aten.mm", op=OpClass.MATMUL, dtype="bfloat16", shape=(size, size), deps=(last,),
            dims=(1, size, size, size), product="bfloat16", flops=2 * size**3, phase=Phase.FORWARD,
            result_bytes=2 * size * size, operand_bytes=4 * size * size,
        )  # fmt: skip
        if number == 1:
            last = builder.add(
                "nccl.all_reduce", Kind.COLLECTIVE, op=OpClass.ADD, dtype="bfloat16", deps=(last,),
                collective=Collective.ALL_REDUCE, group=Group((AxisRef("data"),)),
                comm_bytes=2 * size * size, result_bytes=2 * size * size, shape=(size, size),
                phase=Phase.FORWARD,
            )  # fmt: skip
    return Workload(mesh, (builder.build(),), (RankClass("all", 0),), {"name": "products"})


def compared(
    measured: Workload, other: Workload, rank: int | None = None, **options: object
) -> MeasuredComparison:
    request = EstimateRequest(load_cluster("h100-dgx")).but(**options)
    return compare_measured(measured, other, request, rank=rank)


def test_causes_and_parts_add_up() -> None:
    for products in (1, 3, 4, 6):
        found = compared(one_rank(), captured(products))
        measured, estimated = found.step_ns
        assert sum(c.delta_ns for c in found.causes) == pytest.approx(measured - estimated)
        assert found.parts[0].span_ns == pytest.approx(measured)
        assert found.parts[1].span_ns == pytest.approx(estimated)
        deltas = [abs(c.delta_ns) for c in found.causes]
        assert deltas == sorted(deltas, reverse=True)


def test_what_is_missing_or_of_another_size_is_not_matched() -> None:
    """Products of 256, 2048 and 1024 beside three of 1024: one is the same."""
    found = compared(one_rank(), captured(3))
    assert found.pairing.resized == ((0, 0), (1, 1), (3, 2))
    assert found.matched_time == pytest.approx(10_000 / 155_500)
    assert found.matched_calls == pytest.approx(1 / 5)
    assert [(m.title, c.title) for m, c in found.resized][1] == (
        "aten.mm bfloat16[2048,2048]", "aten.mm bfloat16[1024,1024]",
    )  # fmt: skip
    assert "in the same place with another size" in found.to_text()
    assert found.to_json()["other_sizes"][1]["captured"]["totals"]["calls"] == 1
    assert any(c.name == "gemm of other sizes" for c in found.causes)
    assert compared(one_rank(), captured(8)).captured_time < found.captured_time


def test_collectives_count_in_overlap_and_kinds() -> None:
    found = compared(two_ranks(), captured(4), rank=1)
    assert found.rank == 1
    assert all(busy > 0 for busy in found.communication_ns)
    assert all(0 <= e <= 1 for e in found.exposed)
    row = next(r for r in found.kinds if r.kind == "all_reduce")
    assert row.measured.calls and row.captured.calls


def test_what_cannot_be_compared() -> None:
    for sides in ((captured(2), captured(2)), (one_rank(), one_rank())):
        with pytest.raises(FlintError) as raised:
            compared(*sides)
        assert raised.value.code == "FL840"
    with pytest.raises(FlintError) as raised:
        compared(one_rank(), captured(2), rank=7)
    assert raised.value.code == "FL503"


def test_in_python() -> None:
    found = Trace(one_rank()).compare(Trace(captured(4)), profile="eager")
    assert found.cluster == "h100-dgx"
    assert str(found) == found.to_text()


def test_the_command_reads_profiles_as_they_are(tmp_path: Path) -> None:
    ended = _flint("compare", *map(str, BERT))
    assert ended.exit_code == 0
    assert "matched   99.3% of the measured time" in ended.stdout
    assert "1 x host.store (host_copy)" in ended.stdout
    assert "largest causes of +3.5" in ended.stdout
    assert "the host launches too late" in ended.stdout
    document = valid(_flint("compare", *map(str, BERT), "--json").stdout, "flint.compare/1")
    assert document["matched_calls"] == pytest.approx(60 / 61, abs=1e-6)
    saved = tmp_path / "bert.flint"
    assert _flint("import", str(BERT[0]), "-o", str(saved)).exit_code == 0
    again = _flint("compare", str(saved), str(BERT[1]), "--json").stdout
    assert json.loads(again) == document


def test_the_command_says_what_it_cannot_do() -> None:
    ended = _flint("compare", str(BERT[1]), str(BERT[1]), "-c", "h100-dgx")
    assert (ended.exit_code, "error[FL840]" in ended.stderr) == (2, True)
    ended = _flint("compare", *map(str, BERT), "-c", "nowhere")
    assert (ended.exit_code, "error[FL702]" in ended.stderr) == (2, True)


@pytest.mark.parametrize(("pause_ns", "launch_ns"), [(4_000, 5_000), (60_000, 1_000)])
def test_short_pauses_are_of_the_launch_and_long_ones_unknown(
    pause_ns: int, launch_ns: int
) -> None:
    r = Recorded()
    r.launch(1_000)
    first = r.mm(2_000)
    pause = r.builder.add("host.gap", op=OpClass.HOST, deps=(first,), measured_ns=pause_ns)
    r.last["compute"] = pause
    r.mm(2_000)
    step = 1_000 + 4_000 + pause_ns
    found = compared(workload(r.build(), spans=(step,)), captured(2)).parts[0]
    assert (found.compute_ns, found.launch_ns) == (4_000, launch_ns)
    assert found.unknown_ns == step - 4_000 - launch_ns
