"""Workloads that never were: what is asked for is met or refused, and nothing is a copy."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flint.backends.chakra.checking.checker import check
from flint.cli.command_line import app
from flint.errors import FlintError
from flint.ir.mesh import Mesh
from flint.ir.program import Kind
from flint.ir.workload import Workload
from flint.tools.share.growing.grow import require_whole
from flint.tools.share.requests import SynthRequest
from flint.tools.share.sizes import Sizes
from flint.tools.share.synth import synthesize
from flint.tools.share.synth.conditions import Conditions, conditions_from_text, conditions_of
from flint.tools.share.synth.remembered import Remembered, distance, structure_of
from flint.tools.share.synth.synthesize import (
    LEAST_DISTANCE,
    TOLERANCE,
    learn,
    missed,
    sample,
    synth,
)
from flint.tracing import Trace
from tests.machine_output import valid
from tests.program_rows import ProgramBuilder


@cache
def programs() -> Remembered:
    """The programs that come with Flint."""
    return Remembered.load()


ASKED = {
    "layers and FLOPs": {"layers": 8, "flops": "1e13"},
    "bytes over axes": {
        "mesh": "64x8",
        "flops": "75TFLOP",
        "bytes": "data=2GiB,model=16GiB",
        "layers": 32,
    },
    "memory": {"mesh": "data=4096,model=8", "memory": "60GiB", "flops": "1e14"},
    "rows": {"rows": 1100},
    "another mesh": {"mesh": "a=2,b=1,c=6", "layers": 5},
}


@pytest.mark.parametrize("name", ASKED)
def test_what_is_asked_for_is_met_and_valid(name: str) -> None:
    asked = conditions_from_text(SynthRequest(**ASKED[name]))  # type: ignore[arg-type]
    made = sample(programs(), asked, seed=3)
    require_whole(Sizes.of(programs().workloads[0]), made.workload)
    has = conditions_of(made.workload)
    assert has == made.found
    assert asked.mesh is None or has.mesh == asked.mesh
    assert asked.depth is None or has.depth == asked.depth
    for value, wanted in (
        (has.flops, asked.flops),
        (has.memory_bytes, asked.memory_bytes),
        (has.rows, asked.rows),
        *((has.axis_bytes[k], v) for k, v in asked.axis_bytes.items()),
    ):
        assert wanted is None or value == pytest.approx(wanted, rel=TOLERANCE)


@pytest.mark.long
def test_no_sample_is_near_another_or_a_remembered_program() -> None:
    made = list(synth(6, model=programs(), seed=11))
    structures = [structure_of(s.workload.programs[0]) for s in made]
    for number, one in enumerate(structures):
        others = structures[:number] + structures[number + 1 :]
        assert distance(one, [*others, *programs().structures]) >= LEAST_DISTANCE


def test_bodies_are_others_and_what_costs_is_the_same() -> None:
    """Of the remembered program stay products, collectives and loops; operations and operands do not."""
    (source,) = only("decode").workloads
    made = sample(only("decode"), Conditions(), seed=0).workload
    one, other = source.programs[0], made.programs[0]
    assert Counter(one.collective.tolist()) == Counter(other.collective.tolist())
    assert [r.trip_count for r in one.regions] == [r.trip_count for r in other.regions]
    assert (one.deps != other.deps).mean() > 0.1
    assert Counter(one.op.tolist()) != Counter(other.op.tolist())
    assert one.shapes != other.shapes


def only(name: str) -> Remembered:
    """One program: the one with fewest rows has no name, but its number of rows."""
    rows = {"decode": 244}[name]
    found = [w for w in programs().workloads if len(w.programs[0]) == rows]
    return Remembered(tuple(found[:1]))


def test_the_same_again_and_each_sample_by_its_seed() -> None:
    one, other = (list(synth(3, model=programs(), seed=4)) for _ in range(2))
    assert [s.workload.to_bytes() for s in one] == [s.workload.to_bytes() for s in other]
    assert len({s.workload.to_bytes() for s in one}) == 3
    again = sample(programs(), Conditions(), one[2].seed)
    assert again.workload.to_bytes() == one[2].workload.to_bytes()


def test_totals_of_captures_are_what_samples_have() -> None:
    like = programs().workloads[5]
    (made,) = synth(model=only("decode"), like=[like], asked=Conditions(depth=7))
    wanted = conditions_of(like)
    assert made.found.mesh == wanted.mesh and made.found.depth == 7
    assert not missed(made.found, Conditions(flops=wanted.flops, memory_bytes=wanted.memory_bytes))


@pytest.mark.parametrize(
    ("code", "said", "asked"),
    [
        ("FL956", "instead of 9,000", {"rows": 9000}),
        ("FL956", "3 axes of several devices|2 axes|1 axes", {"mesh": "1x1"}),
    ],
)
def test_what_no_program_can_have_is_refused_with_the_nearest(code, said, asked) -> None:
    with pytest.raises(FlintError, match=said) as caught:
        list(synth(model=programs(), asked=conditions_from_text(SynthRequest(**asked))))
    assert caught.value.code == code


@pytest.mark.parametrize("options", [{"count": 0}, {"count": 100_001}, {"seed": -1}])
def test_numbers_that_cannot_be_are_refused(options) -> None:
    with pytest.raises(FlintError) as caught:
        list(synth(model=programs(), **options))
    assert caught.value.code == "FL957"


def test_samples_that_are_too_alike_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    made = sample(only("decode"), Conditions(), seed=0)
    monkeypatch.setattr(synthesize, "sample", lambda *_: made)
    with pytest.raises(FlintError, match="after 1 samples, 50 more were each nearer") as caught:
        list(synth(2, model=only("decode")))
    assert caught.value.code == "FL956"


def test_a_program_whose_body_cannot_be_another_is_refused() -> None:
    b = ProgramBuilder(Mesh.parse("data=2"))
    x = b.add("parameter", Kind.PARAMETER, dtype="f32", shape=(8, 4), result_bytes=128)
    b.add(
        *("stablehlo.transpose", Kind.COMPUTE),
        deps=[x],
        dtype="f32",
        shape=(4, 8),
        result_bytes=128,
        operand_bytes=128,
    )
    workload = Workload.single(b.build())
    with pytest.raises(FlintError, match="nearer than 0.2 to a remembered program") as caught:
        sample(Remembered((workload,)), Conditions(), seed=0)
    assert caught.value.code == "FL956"


def test_captures_that_cannot_be_remembered_are_refused(tmp_path: Path) -> None:
    vit = Path(__file__).parents[3] / "benchmarks" / "compare_models" / "vit.flint"
    with pytest.raises(FlintError) as caught:
        learn([vit])  # recorded PyTorch
    assert caught.value.code == "FL954"
    for read in (lambda: learn([tmp_path]), lambda: Remembered.load(vit)):
        with pytest.raises(FlintError) as caught:
            read()
        assert caught.value.code == "FL955"


def test_the_commands_remember_and_make_and_write(tmp_path: Path) -> None:
    captures = tmp_path / "captures"
    captures.mkdir()
    for number, workload in enumerate([*programs().workloads[4:6], programs().workloads[4]]):
        workload.save(captures / f"{number}.flint")

    def flint(*arguments: object) -> str:
        result = CliRunner().invoke(app, list(map(str, arguments)), prog_name="flint")
        assert result.exit_code == 0, result.output
        return result.stdout

    told = valid(flint("learn", captures, "-o", tmp_path / "mine", "--json"), "flint.learn/2")
    assert (told["captures"], told["remembered"]) == (3, 2)
    options = ("--model", tmp_path / "mine", "-n", 2, "--layers", 4, "-o", tmp_path / "made")
    told = valid(flint("synth", *options, "--json"), "flint.synth/1")
    for one in told["samples"]:
        assert conditions_of(Workload.load(one["path"])).to_json() == one["found"]
        assert one["found"]["layers"] == 4


def test_traces_of_samples_pass_the_check(tmp_path: Path) -> None:
    asked = conditions_from_text(SynthRequest(mesh="4x2", layers=2))
    for number, made in enumerate(synth(2, model=programs(), asked=asked, seed=1)):
        Trace(made.workload, {}).save(tmp_path / str(number))
        assert check(tmp_path / str(number)).findings == ()
