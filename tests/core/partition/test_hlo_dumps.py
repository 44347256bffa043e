"""Dumps of XLA's whole GPU (H100) and TPU (v5p) compilers are read as what their program does.

The program is three scanned layers of tanh(x @ up) @ down with its gradient, in bfloat16, on a mesh
data=2, model=4: x (16, 512, 1024) split over data, up (1024, 4096) and down (4096, 1024) split over
both axes and kept so. jax 0.10.2, compiled without devices.
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("jaxlib", reason="XLA's parser of HLO text is in jaxlib")

from flint.frontends.files.hlo import read_hlo
from flint.ir.mesh import Mesh
from flint.ir.program import Collective, Flag, Kind, Phase, Program, RegionKind

MESH = Mesh.parse("data=2,model=4")
LAYERS, MATRICES = 3, 2
#: Bytes on one device, and flops of one product.
WEIGHT = 1024 * 4096 // 8 * 2
GATHERED = 2 * WEIGHT
ACTIVATION = 8 * 512 * 1024 * 2
PRODUCT = 2 * 8 * 512 * 1024 * (4096 // 4)


@pytest.fixture(scope="module", params=["gpu", "tpu"])
def dump(request: pytest.FixtureRequest) -> Program:
    folder = Path(__file__).parents[2] / "golden" / "hlo"
    made = read_hlo((folder / f"scanned_block_{request.param}.txt").read_bytes(), MESH)
    assert isinstance(made, Program)
    made.verify()
    return made


def test_bytes_of_collectives_follow_from_the_program(dump: Program) -> None:
    sizes: dict[tuple[Collective, str], int] = {}
    for i in range(len(dump)):
        row = dump.row(i)
        if row.kind == Kind.COLLECTIVE and row.shape:
            key = (row.collective, str(row.group))
            sizes[key] = sizes.get(key, 0) + row.comm_bytes * int(dump.trips[i])
    assert sizes == {
        # weights of each layer, forward and backward
        (Collective.ALL_GATHER, "data"): 2 * LAYERS * MATRICES * WEIGHT,
        # activations after the second matrix, gradients before the first
        (Collective.ALL_REDUCE, "model"): 2 * LAYERS * ACTIVATION,
        # gradients of weights
        (Collective.REDUCE_SCATTER, "data"): LAYERS * MATRICES * GATHERED,
    }


def test_flops_are_those_of_the_products(dump: Program) -> None:
    products = 3 * LAYERS * MATRICES  # forward, and two gradients of each
    total = int((dump.flops * dump.trips).sum())
    assert total == pytest.approx(products * PRODUCT, rel=0.002)  # tanh and sums are the rest
    assert total >= products * PRODUCT


def test_structure(dump: Program) -> None:
    assert [(r.kind, r.trip_count) for r in dump.regions] == [(RegionKind.LOOP, LAYERS)] * 2
    assert not (dump.flags & Flag.UNPRICED).any()
    is_async = (dump.flags & Flag.ASYNC) != 0
    assert (dump.kind[is_async] == Kind.COLLECTIVE).all()  # copies into VMEM are no kernels
    assert is_async.any() == ("hlo.all-reduce-done" in dump.opcodes)
    parameters = [dump.row(i) for i in range(len(dump)) if dump.kind[i] == Kind.PARAMETER]
    assert [p.name for p in parameters] == ["w['down']", "w['up']", "x"]
    assert [bool(p.flags & Flag.DONATED) for p in parameters] == [True, True, False]
    assert {Phase.FORWARD, Phase.BACKWARD} <= {Phase(int(p)) for p in dump.phase}
    assert "mlp" in {dump.row(i).scope for i in range(len(dump))}
    places = {dump.row(i).location.split(":")[0] for i in range(len(dump))}
    assert places <= {"", "step.py"}


def test_what_runs_asynchronously_is_waited_for(dump: Program) -> None:
    for i in range(len(dump)):
        if dump.flags[i] & Flag.ASYNC:
            readers = [r for r in range(i + 1, len(dump)) if i in dump.dependencies(r)]
            assert any(dump.row(r).opcode.endswith("-done") for r in readers)
