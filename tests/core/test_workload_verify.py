"""Rank classes that do not fit their mesh are found, those at its edge are not refused."""

from __future__ import annotations

import pytest

from flint.cli.inputs import program_of_rank
from flint.errors import FlintError
from flint.ir.mesh import Mesh
from flint.ir.program import Kind
from flint.ir.workload import RankClass, Workload
from tests.program_rows import ProgramBuilder

MESH = Mesh.parse("data=2,model=2")


def workload(*classes: RankClass) -> Workload:
    b = ProgramBuilder(MESH)
    b.add("parameter", Kind.PARAMETER, name="x", dtype="f32", shape=(2,), result_bytes=8)
    return Workload(MESH, (b.build(),), classes, {"name": "by hand"})


@pytest.mark.parametrize(
    ("classes", "said"),
    [
        ([RankClass("a", 0, ranks=(0, 1, 2, 3))], ""),
        ([RankClass("a", 0, where={"data": (0, 1)})], ""),
        ([RankClass("a", 0, ranks=(0, 1)), RankClass("b", 0, where={"data": (1,)})], ""),
        ([RankClass("a", 0, ranks=(0, 1, 2, 4))], "class a has a rank beyond the mesh"),
        ([RankClass("a", 0, where={"data": (0, 2)})], "class a has a coordinate beyond axis data"),
        ([RankClass("a", 1)], "class a has no program"),
        ([RankClass("a", 0, ranks=(0, 1, 2))], "rank 3 is in 0 classes"),
        ([RankClass("a", 0), RankClass("b", 0, ranks=(2,))], "rank 2 is in 2 classes"),
    ],
)
def test_classes_are_those_of_the_mesh(classes: list[RankClass], said: str) -> None:
    made = workload(*classes)
    if not said:
        made.verify()
        return
    with pytest.raises(AssertionError, match=said):
        made.verify()


@pytest.mark.parametrize("rank", [-1, 4])
def test_a_rank_beyond_the_mesh_is_refused(rank: int) -> None:
    made = workload(RankClass("a", 0))
    assert program_of_rank(made, 0) is program_of_rank(made, 3) is made.programs[0]
    with pytest.raises(FlintError) as caught:
        program_of_rank(made, rank)
    assert caught.value.code == "FL503"
    assert caught.value.help == "ranks are 0 to 3"
