"""What can be grown, what is refused and why, and what is said of it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("jax")

from flint.backends.chakra import check as check_traces
from flint.capturing import capture
from flint.cli import app
from flint.errors import FlintError
from flint.ir.mesh import Mesh
from flint.ir.program import Kind
from flint.ir.rank_class import RankClass
from flint.ir.workload import Workload
from flint.passes.work.totals import totals
from flint.requests.capture import CaptureRequest
from flint.tools.share.anonymize import anonymize
from flint.tools.share.growing.alignment import LayerSegment, layers_of
from flint.tools.share.growing.grow import _SAME_CHOICES, Grown, grow
from flint.tools.share.growing.structure import sharding_of
from tests.program_rows import ProgramBuilder

EXAMPLES = Path(__file__).parents[3] / "examples"


@cache
def llama(mesh: str = "4x2", **settings: object) -> Workload:
    chosen = {"num_layers": 2, "seq": 256, **settings}
    texts = tuple(f"{k}={v}" for k, v in chosen.items())
    return capture(CaptureRequest(str(EXAMPLES / "llama_jax.py"), mesh, settings=texts)).workload


@cache
def grown() -> Grown:
    """With nothing asked."""
    return grow(llama())


def refused(code: str, workload: Workload, **asked: object) -> str:
    with pytest.raises(FlintError) as error:
        grow(workload, **asked)  # type: ignore[arg-type]
    assert error.value.code == code
    return error.value.message


def test_nothing_asked_changes_nothing() -> None:
    found = grown()
    assert found.workload.to_bytes() == llama().to_bytes()
    assert {r for v in found.variables for r in v.roles} >= {
        *("layers", "width", "ffn", "heads", "kv_heads", "head_size", "vocabulary", "sequence")
    }


def test_roles_have_their_sizes_and_axes() -> None:
    by_role = {v.roles: v for v in grown().variables}
    assert (by_role["width",].whole, by_role["width",].axes) == (4096, ("data",))
    assert (by_role["ffn",].whole, by_role["ffn",].axes) == (14_336, ("model",))
    assert by_role["heads", "kv_heads"].whole == 8
    assert by_role["layers",].value == 2
    assert not by_role["sequence",].axes


def test_roles_are_the_same_without_names() -> None:
    own, bare = grown().variables, grow(anonymize(llama()).workload).variables
    assert [(v.name, v.roles, v.whole) for v in own] == [(v.name, v.roles, v.whole) for v in bare]


def test_sizes_are_whole_ones_or_factors() -> None:
    first = grow(llama(), width=8192, layers="2x").workload
    second = grow(llama(), values={"d1": "2x"}, layers=4).workload
    assert totals(first.programs[0]) == totals(second.programs[0])
    assert first.metadata["producer"] == "flint grow"
    assert first.metadata["grown"] == [{"layers": "2x", "width": "8192"}]
    assert "source" not in first.metadata
    assert len(grow(first, sequence=512).workload.metadata["grown"]) == 2


def test_heads_are_made_of_key_value_heads_and_queries() -> None:
    found = {v.name: v.new_whole for v in grow(llama(), heads=64).variables}
    both = {v.name: v.new_whole for v in grow(llama(), heads=64, kv_heads=16).variables}
    before = {v.name: v.whole for v in grown().variables}
    assert {n: (before[n], w) for n, w in found.items() if w != before[n]} == {"d7": (4, 8)}
    assert {n: w for n, w in both.items() if w != before[n]} == {"d5": 16}
    assert "multiple of 8" in refused("FL922", llama(), heads=36)


@pytest.mark.long
def test_the_batch_of_a_device_stays_or_the_whole_one() -> None:
    small = llama(batch=16)
    assert [v.whole for v in grow(small).variables if v.roles == ("batch",)] == [16]
    more = next(v for v in grow(small, mesh="8x2").variables if v.roles == ("batch",))
    kept = grow(small, mesh="8x2", keep_global_batch=True)
    less = next(v for v in kept.variables if v.roles == ("batch",))
    assert (more.new_value, more.new_whole) == (4, 32)
    assert (less.new_value, less.new_whole) == (2, 16)
    assert kept.assumed[0] == "the global batch stays 16"
    assert kept.assumed[1:] == (_SAME_CHOICES,)
    assert "one device has one sequence" in refused("FL923", llama(), batch="2x")
    assert "cannot be kept" in refused("FL922", llama(), mesh="8x2", keep_global_batch=True)


@pytest.mark.long
def test_what_a_mesh_cannot_be() -> None:
    assert "other axes" in refused("FL925", llama(), mesh="8")
    assert "other axes" in refused("FL925", llama(), mesh="model=2,data=4")
    assert "does not divide" in refused("FL922", llama(), mesh="4x16")
    assert "cannot go from 2 to 1" in refused("FL921", llama(), mesh="4x1")
    assert "cannot go from 1 to 2" in refused("FL921", llama("4x1"), mesh="4x2")
    assert "no axis 'pipe'" in refused("FL925", llama(), split={"d8": "pipe"})


def test_what_there_is_not() -> None:
    assert "no product with weights" in refused("FL923", llama(), experts=16)
    assert "d77" in refused("FL924", llama(), values={"d77": 3})
    assert "d77" in refused("FL924", llama(), split={"d77": "data"})
    for wrong in ("two", "0", "-1", "1.5", "0x", "1/0x"):
        refused("FL920", llama(), layers=wrong)
    assert "1.25 times" in refused("FL922", llama(), layers="1.25x")


def test_a_split_that_is_said_counts() -> None:
    said = {v.name: v for v in grow(llama(), split={"d8": "model"}).variables}
    assert (said["d8"].axes, said["d8"].whole, said["d8"].how) == (("model",), 512, "as said")


def test_two_sizes_of_one_length_are_not_told_apart_silently() -> None:
    """Rows of a workload whose sequence was as long as its width are read right, or refused."""
    small = llama(seq=4096)
    found = grow(small, sequence=8192)
    weights = totals(small.programs[0]).parameter_bytes
    assert 0 < totals(found.workload.programs[0]).parameter_bytes - weights <= 2 * 4 * 8192


def test_programs_that_are_refused(tmp_path: Path) -> None:
    base = llama()
    pipeline = replace(base, metadata={**base.metadata, "pipeline": {"axis": "data"}})
    kernels = replace(base, metadata={**base.metadata, "profile": "xla-gpu"})
    halves = (RankClass("a", 0, {"data": (0, 1)}), RankClass("b", 0, {"data": (2, 3)}))
    assert "a pipeline" in refused("FL926", pipeline, layers=4)
    assert "kernels" in refused("FL926", kernels, layers=4)
    assert "2 rank classes" in refused("FL926", replace(base, classes=halves), layers=4)
    unlike = llama(layers="unrolled")
    assert "number of layers cannot" in refused("FL926", unlike, layers=4)


def test_traces_alone_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    grow(llama(), mesh="2x2").save(folder)
    assert check_traces(folder).ok
    for path in folder.glob("*.flint"):
        path.unlink()
    with pytest.raises(FlintError) as error:
        grow(folder, layers=4)
    assert error.value.code == "FL926"


def test_the_command_lists_grows_and_writes(tmp_path: Path) -> None:
    path = tmp_path / "small.flint"
    llama().save(path)
    listed = CliRunner().invoke(app, ["grow", str(path)])
    assert listed.exit_code == 0
    assert "head size / 2" in listed.stdout
    out = tmp_path / "large.flint"
    told = CliRunner().invoke(
        app, ["grow", str(path), "-o", str(out), "--layers", "4", "--mesh", "8x4", "--set", "d4=2x"]
    )
    assert told.exit_code == 0
    assert "data=4,model=2 -> data=8,model=4" in told.stdout
    assert "14,336 -> 28,672" in told.stdout
    assert "assumed each device still has 1 of the batch" in told.stdout
    wanted = grow(llama(), layers=4, mesh="8x4", values={"d4": "2x"}).workload
    assert totals(Workload.load(out).programs[0]) == totals(wanted.programs[0])
    empty = CliRunner().invoke(app, ["grow", str(path), "-o", str(tmp_path / "x.flint")])
    assert empty.exit_code == 2 and "FL920" in empty.output


@pytest.mark.parametrize(
    ("text", "axes"),
    (
        ('[{"model"}, {"data"}]', (("model",), ("data",))),
        ('[{"data", "model"}, {}]', (("data", "model"), ())),
        ("[]", ()),
        ('[{"data":(1)2}]', None),
        ("sharded over data", None),
        ('[{"model"}] -> [{}]', None),
        ("", None),
    ),
)
def test_only_flints_own_shardings_are_read(text: str, axes: object) -> None:
    assert sharding_of(text) == axes


def test_layers_are_counted_by_the_fewest_parameters() -> None:
    """Four layers of a weight and eight moments, of which a block has two, and longer work."""
    b = ProgramBuilder(Mesh.parse("1"))
    numbers = {"dtype": "f32", "shape": (8,), "result_bytes": 32}
    weights = [b.add("parameter", Kind.PARAMETER, name=f"w{i}", **numbers) for i in range(4)]
    other = {**numbers, "shape": (4,), "result_bytes": 16}
    for i in range(8):
        b.add("parameter", Kind.PARAMETER, name=f"m{i}", **other)
    x = weights[0] + 4
    for w in weights:
        for opcode in ("multiply", "tanh", "exponential"):
            x = b.add(f"stablehlo.{opcode}", deps=[x, w], flops=8, **numbers)
    program = b.build()
    stretches = (LayerSegment(0, 1, 4), LayerSegment(4, 2, 4), LayerSegment(12, 3, 4))
    assert layers_of(program, stretches) == (4, 1)
    assert layers_of(program, stretches[1:]) == (8, 2)
    assert layers_of(program, stretches[2:]) == (4, 1)
    assert layers_of(program, (LayerSegment(12, 6, 2),)) == (4, 2)
