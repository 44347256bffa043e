"""Conditions of workloads: as users write them, as workloads have them, and what is refused."""

import pytest

from flint.errors import FlintError
from flint.ir.mesh import AxisRef, Group, Mesh, Route
from flint.ir.op_class import OpClass
from flint.ir.program import Collective, Kind, Phase, RegionKind
from flint.ir.workload import Workload
from flint.tools.share.requests import SynthRequest
from flint.tools.share.synth.conditions import conditions_from_text, conditions_of
from tests.program_rows import ProgramBuilder

MESH = "data=4,model=2"


def _refused(code, **options):
    with pytest.raises(FlintError) as raised:
        conditions_from_text(SynthRequest(**options))
    assert raised.value.code == code
    return raised.value.message


def test_values_are_read_with_their_units():
    # each option of the command line ends in the typed field that it names
    found = conditions_from_text(
        SynthRequest(
            mesh=MESH,
            flops="1.5PFLOP",
            bytes="data=2GiB,data+model=300MB",
            layers=32,
            memory="40GiB",
            rows=2000,
        )
    )
    assert found.mesh == Mesh.parse(MESH)
    assert found.flops == 1.5e15
    assert found.axis_bytes == {"data": 2 * 2**30, "data,model": 300e6}
    assert (found.depth, found.rows, found.memory_bytes) == (32, 2000, 40 * 2**30)


@pytest.mark.parametrize(
    ("code", "options"),
    [
        ("FL950", {"flops": "many"}),
        ("FL950", {"flops": "2x"}),
        ("FL950", {"memory": "40 apples"}),
        ("FL950", {"bytes": "2GiB", "mesh": MESH}),
        ("FL950", {"bytes": "data=1,data=2", "mesh": MESH}),
        ("FL951", {"bytes": "dta=2GiB", "mesh": MESH}),
        ("FL953", {"bytes": "data=2GiB"}),
        ("FL953", {"bytes": "model=2GiB", "mesh": "data=4,model=1"}),
        ("FL953", {"layers": 0}),
        ("FL953", {"rows": 10**9}),
        ("FL101", {"mesh": "4x"}),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(code, options):
    # each wrong value has the code of its section in docs/errors.md
    assert _refused(code, **options)


def test_messages_name_what_is_near():
    # a typing error is answered with the word that was meant
    assert "did you mean 'data'?" in _refused("FL951", bytes="dta=2GiB", mesh=MESH)


def _looped():
    b = ProgramBuilder(Mesh.parse(MESH))
    w = b.add("parameter", Kind.PARAMETER, dtype="f32", shape=(6, 8, 8), result_bytes=1536)
    x = b.add("parameter", Kind.PARAMETER, dtype="f32", shape=(4, 8), result_bytes=128)
    b.begin_region(RegionKind.LOOP, 6)
    c = b.add("v", Kind.VALUE, deps=[x], dtype="f32", shape=(4, 8), result_bytes=128)
    part = b.add(
        "s", op=OpClass.DYNAMIC_SLICE, deps=[w], dtype="f32", shape=(8, 8), result_bytes=256
    )
    y = b.add(
        "dot", op=OpClass.MATMUL, deps=[c, part], flops=512, dtype="f32", shape=(4, 8),
        result_bytes=128, phase=Phase.FORWARD,
    )  # fmt: skip
    data = Group((AxisRef("data"),))
    r = b.add(
        "ar", Kind.COLLECTIVE, op=OpClass.ADD, deps=[y], collective=Collective.ALL_REDUCE,
        group=data, comm_bytes=128, dtype="f32", shape=(4, 8), result_bytes=128,
    )  # fmt: skip
    b.end_region([(c, r)])
    route = Route((AxisRef("model"),), 1)
    for kind in (Kind.SEND, Kind.RECV):
        b.add("m", kind, deps=[r], route=route, channel=1, comm_bytes=128, dtype="f32")
    b.add("o", op=OpClass.ADD, deps=[r], flops=1024, phase=Phase.OPTIMIZER)
    return Workload.single(b.build())


def test_conditions_of_a_workload_count_loops_and_messages_once():
    # totals are per device and step: trip counts multiply, a message counts where it is sent
    found = conditions_of(_looped())
    assert found.flops == 6 * 512 + 1024
    assert found.axis_bytes == {"data": 6 * 128.0, "model": 128.0}
    assert found.depth == 6
    assert found.rows == 9
    assert found.memory_bytes is not None
    assert found.memory_bytes >= 1536 + 128
    assert found.to_json()["layers"] == 6
