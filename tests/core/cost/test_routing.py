"""`--routing`: loads that can be asked for, and what they do to grouped products and exchanges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flint.backends.cost.chips.kernel_table import kernels_of
from flint.backends.cost.estimate import Estimate, estimate
from flint.backends.cost.routing import Routing, find_routing, spread_of
from flint.cluster.models import Cluster
from flint.errors import FlintError
from flint.ir.mesh import AxisRef, Group, Mesh
from flint.ir.op_class import OpClass
from flint.ir.product_types import grouped
from flint.ir.program import Collective, Kind, Program
from flint.ir.rank_class import RankClass
from flint.ir.workload import Workload
from flint.requests.estimate import EstimateRequest
from tests.program_rows import ProgramBuilder

#: Rows of a rank's experts, sizes of their matrices, experts of a rank, ranks.
ROWS, SIZE, LOCAL, RANKS = 4096, 1024, 8, 8
MESH = Mesh(("expert",), (RANKS,))
GROUPED = grouped("bfloat16", LOCAL)


def experts(name: str = GROUPED) -> Program:
    """Attention's own exchange and product, then: dispatch, two products of experts, combine."""
    b = ProgramBuilder(MESH)
    rows = {"dtype": "bfloat16", "shape": (ROWS, SIZE), "result_bytes": 2 * ROWS * SIZE}

    def exchange(read: int) -> int:
        said: dict[str, Any] = {"collective": Collective.ALL_TO_ALL, "comm_bytes": 2 * ROWS * SIZE}
        group = Group((AxisRef("expert"),))
        return b.add("aten.a2a", Kind.COLLECTIVE, deps=[read], group=group, **said, **rows)

    def product(read: int, multiplied: str) -> int:
        said = {
            "op": OpClass.MATMUL,
            "flops": 2 * ROWS * SIZE * SIZE,
            "dims": (1, ROWS, SIZE, SIZE),
        }
        moved = 2 * (ROWS * SIZE + LOCAL * SIZE * SIZE)
        return b.add(
            "aten.mm", deps=[read], product=multiplied, operand_bytes=moved, **said, **rows
        )

    def chain(read: int) -> int:
        return b.add("aten.silu", op=OpClass.ARITHMETIC, deps=[read], operand_bytes=8, **rows)

    tokens = b.add("flint.parameter", Kind.PARAMETER, **rows)
    projected = product(exchange(tokens), "bfloat16")
    inside = product(chain(exchange(chain(projected))), name)
    b.add("flint.result", Kind.VALUE, deps=[exchange(product(chain(inside), name))])
    return b.build()


def workload(name: str = GROUPED) -> Workload:
    return Workload(MESH, (experts(name),), (RankClass("all", 0),), {"name": "experts"})


def priced(routing: str | Path | None, name: str = GROUPED, cluster: str = "h100-dgx") -> Estimate:
    return estimate(workload(name), EstimateRequest(Cluster.load(cluster), routing=routing))


def busy_ns(e: Estimate, kind: str) -> float:
    return sum(s.busy_ns for s in e.classes[0].shares if s.kind == kind)


def file_of(tmp_path: Path, text: str, suffix: str = ".csv") -> Path:
    path = tmp_path / f"loads{suffix}"
    path.write_text(text, "utf-8")
    return path


def test_balanced_is_what_nobody_asks_for() -> None:
    plain, said = priced(None), priced("balanced")
    assert (plain.step_time_ns, plain.routing) == (said.step_time_ns, "balanced")
    assert "routing" not in plain.to_text()
    assert plain.to_json()["routing"] == "balanced"


@pytest.mark.parametrize("cluster", ["h100-dgx", "v5p"])
def test_skew_makes_products_of_experts_and_their_exchanges_longer(cluster: str) -> None:
    plain, mild, strong = (
        priced(r, cluster=cluster) for r in (None, "power-law:0.1", "power-law:1.2")
    )
    for kind in ("gemm", "all_to_all"):
        assert busy_ns(plain, kind) < busy_ns(mild, kind) < busy_ns(strong, kind)
    assert strong.routing == "power-law:1.2"
    assert "power-law:1.2, the most loaded rank" in strong.to_text()


def test_equal_loads_of_a_file_change_nothing(tmp_path: Path) -> None:
    even = priced(file_of(tmp_path, ",".join(["7"] * LOCAL * RANKS)))
    assert even.step_time_ns == pytest.approx(priced(None).step_time_ns, rel=1e-6)


def test_only_the_exchanges_of_experts_carry_more() -> None:
    """Attention's exchange lies behind a product: it stays. The rank with most rows is meant."""
    program = experts()
    loads = np.ones((1, LOCAL * RANKS))
    loads[0, LOCAL : 2 * LOCAL] = 3.0
    spread = spread_of(program, Routing("ours", loads=loads))
    exchanges = np.flatnonzero(program.collective == Collective.ALL_TO_ALL).tolist()
    times = 3 / (1 + 2 / RANKS)
    assert spread.payload == pytest.approx(dict.fromkeys(exchanges[1:], times))
    kernels, rows = kernels_of(program)
    routed = spread.of_kernels(kernels, rows)
    more = routed.flops / kernels.flops.clip(1)
    assert sorted(more[kernels.flops > 0].round(3).tolist()) == [1, times, times]


def test_layers_of_a_file_count_alike(tmp_path: Path) -> None:
    """A layer that is even and one where a rank has twice as much: between the two alone."""
    even = ",".join(["1"] * LOCAL * RANKS)
    uneven = ",".join(["2"] * LOCAL + ["1"] * LOCAL * (RANKS - 1))
    one, both, other = (
        busy_ns(priced(file_of(tmp_path, text)), "all_to_all")
        for text in (even, f"{even}\n{uneven}\n", uneven)
    )
    assert one < both < other
    listed = f"[[{even}], [{uneven}]]"
    assert busy_ns(priced(file_of(tmp_path, listed, ".json")), "all_to_all") == both


def test_a_program_without_rows_of_experts_says_so() -> None:
    found = priced("power-law:1.2", "bfloat16")
    assert found.step_time_ns == priced(None, "bfloat16").step_time_ns
    assert any("changes nothing" in note for note in found.notes)


@pytest.mark.parametrize(
    "text", ["skewed", "power-law:", "power-law:x", "power-law:0", "power-law:nan"]
)
def test_what_is_no_routing_is_refused(text: str) -> None:
    with pytest.raises(FlintError) as caught:
        find_routing(text)
    assert caught.value.code == "FL726"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1,2,-3\n", "below 0"),
        ("1,nan\n", "finite"),
        ("0,0\n", "no tokens"),
        ("1,2\n1\n", "different numbers"),
        ("", "empty"),
        ("1,many\n", "not a number"),
        ("1,inf\n", "finite"),
    ],
)
def test_loads_that_cannot_be_are_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(FlintError, match=said) as caught:
        find_routing(file_of(tmp_path, text))
    assert caught.value.code == "FL726"


@pytest.mark.parametrize(
    "text", ["{}", "[[1], 2]", '["1"]', "[true]", "[", "[1e400]", "[[[1]]]", "[]"]
)
def test_json_that_is_no_loads_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(FlintError) as caught:
        find_routing(file_of(tmp_path, text, ".json"))
    assert caught.value.code == "FL726"


def test_a_missing_file_and_a_wrong_count_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FlintError) as caught:
        find_routing(tmp_path / "none.csv")
    assert caught.value.code == "FL726"
    with pytest.raises(FlintError, match="60 experts, but the program has 64 experts") as caught:
        priced(file_of(tmp_path, ",".join(["1"] * 60)))
    assert caught.value.code == "FL726"
