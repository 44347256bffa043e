"""Passes over a whole workload."""

import pytest

from flint.errors import FlintError
from flint.ir.mesh import Mesh
from flint.ir.rank_class import RankClass
from flint.ir.workload import Workload
from flint.passes.profiles import rewrite
from tests.program_rows import ProgramBuilder

MESH = Mesh.parse("data=4")


def _program(rows):
    b = ProgramBuilder(MESH)
    at = b.add("parameter", 0, dtype="f32", shape=(4,), result_bytes=16)
    for _ in range(rows):
        at = b.add(
            "stablehlo.tanh",
            deps=[at],
            dtype="f32",
            shape=(4,),
            flops=4,
            result_bytes=16,
            operand_bytes=16,
        )
    b.add("func.return", 1, deps=[at])
    return b.build()


def test_nothing_is_rewritten_by_default():
    workload = Workload.single(_program(3), {"name": "f"})
    found = rewrite(workload)
    assert found.programs == workload.programs
    assert found.metadata == {"name": "f", "granularity": "op"}


def test_every_program_is_rewritten():
    classes = (RankClass("a", 0, {"data": (0, 1)}), RankClass("b", 1, {"data": (2, 3)}))
    workload = Workload(MESH, (_program(3), _program(5)), classes)
    found = rewrite(workload, granularity="kernel", profile="xla-tpu")
    found.verify()
    assert [int(p.flops.sum()) for p in found.programs] == [12, 20]
    assert [int((p.kind == 2).sum()) for p in found.programs] == [1, 1]


@pytest.mark.parametrize(
    ("options", "code", "meant"),
    [
        ({"profile": "xla-gpus"}, "FL405", "xla-gpu"),
        ({"granularity": "kernels"}, "FL406", "kernel"),
    ],
)
def test_unknown_choices_name_the_nearest(options, code, meant):
    with pytest.raises(FlintError, match=f"did you mean '{meant}'") as caught:
        rewrite(Workload.single(_program(1)), **options)
    assert caught.value.code == code
