"""The level structure: totals stay to the last bit, rules hold, and graphs are no longer those captured."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import flint
from flint.backends.chakra.checking.checker import check
from flint.errors import FlintError
from flint.ir.mesh import Mesh
from flint.ir.op_class import OpClass
from flint.ir.program import COLUMNS, Kind, RegionKind
from flint.ir.workload import Workload
from flint.passes.work.totals import totals
from flint.tools.share.leaks.fingerprints import View, fingerprint_of
from flint.tools.share.names.redact import redacted
from flint.tools.share.rules import broken_rules
from flint.tools.share.structure.bounds import ledger
from flint.tools.share.structure.built import built
from flint.tools.share.structure.cells import Cells
from flint.tools.share.structure.exchange import LEAST_CHANGED, Exchanged, exchanged
from flint.tools.share.structure.facts import Facts
from flint.tools.share.structure.moves import Boldness, add_views, move
from flint.tools.share.structure.order import place_rows
from flint.tools.share.structure.wiring import Wiring
from tests.program_rows import ProgramBuilder
from tests.unit.test_sharing_rules import captured

KEEP, DRAWS = 0.1, 12
RECORDED = Path(__file__).resolve().parents[2] / "benchmarks" / "compare_models"


@cache
def original() -> Workload:
    """A captured step of layers in a loop over two axes, without names."""
    return redacted(captured())


@cache
def shared() -> Exchanged:
    """The same with another structure. A step as small as this one is launches, which fusions change."""
    return exchanged(original(), KEEP, 0, draws=DRAWS)


@cache
def boldly(seed: int) -> Workload:
    """All cells moved at once, whatever that costs."""
    facts = Facts.of(original().programs[0])
    wiring, random = Wiring(facts), np.random.default_rng(seed)
    place_rows(wiring)
    cells = Cells.of(facts)
    every = frozenset(cells.all(wiring))
    add_views(wiring, cells, every, 0.2, random)
    move(wiring, cells, every, Boldness(), random)
    return Workload.single(built(wiring), {})


def test_a_wiring_that_nothing_moved_is_the_program() -> None:
    program = original().programs[0]
    wiring = Wiring(Facts.of(program))
    place_rows(wiring)
    same = built(wiring)
    for name in COLUMNS:
        np.testing.assert_array_equal(getattr(same, name), getattr(program, name))
    assert same.regions == program.regions


def test_totals_stay_to_the_last_bit() -> None:
    before, after = original().programs[0], shared().workload.programs[0]
    assert ledger(after) == ledger(before)
    assert totals(after) == totals(before)


@pytest.mark.parametrize("seed", range(4))
def test_moves_keep_totals_and_rules_however_bold(seed: int) -> None:
    # what is measured has no part in this: every move alone is legal
    found = boldly(seed)
    found.verify()
    assert broken_rules(found) == ()
    assert ledger(found.programs[0]) == ledger(original().programs[0])


def test_steps_cost_what_they_cost_within_the_bound() -> None:
    changes = {c.name: c.share for c in shared().changes}
    assert len(changes) >= 2
    assert max(map(abs, changes.values())) <= KEEP


def test_graphs_are_others() -> None:
    before, after = (fingerprint_of(w.programs[0]) for w in (original(), shared().workload))
    for view in (View.TOPOLOGY, View.OPS, View.ALL, View.ROWS):
        assert before.hashes[view] != after.hashes[view]
    assert shared().rewired.share >= LEAST_CHANGED


def test_operations_and_their_order_are_others() -> None:
    before, after = original().programs[0], shared().workload.programs[0]
    works = [p.op[p.kind == Kind.COMPUTE].tolist() for p in (before, after)]
    assert Counter(works[0]) != Counter(works[1])


def test_loops_carry_values_of_the_same_types() -> None:
    before, after = original().programs[0], shared().workload.programs[0]
    for one, other in zip(before.regions, after.regions, strict=True):
        assert (one.trip_count, one.parent) == (other.trip_count, other.parent)
        types = [
            Counter((p.dtypes[p.dtype[a]], p.shapes[p.shape[b]]) for a, b in region.carries)
            for p, region in ((before, one), (after, other))
        ]
        assert types[0] == types[1]


def test_a_seed_gives_the_same_again_and_another_does_not() -> None:
    again = exchanged(original(), KEEP, 0, draws=DRAWS)
    assert again.workload.to_bytes() == shared().workload.to_bytes()
    assert boldly(0).to_bytes() != boldly(1).to_bytes()


def test_no_scope_line_or_cause_is_left() -> None:
    program = shared().workload.programs[0]
    for name in ("scope", "location", "cause"):
        assert {program.strings[n] for n in getattr(program, name).tolist()} == {""}


def test_traces_pass_the_check(tmp_path: Path) -> None:
    flint.Trace(shared().workload, {}).save(tmp_path / "traces")
    assert check(tmp_path / "traces").findings == ()


# refusals -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["resnet-18", "vit"])
def test_recorded_steps_are_refused(name: str) -> None:
    workload = redacted(Workload.load(RECORDED / f"{name}.flint"))
    with pytest.raises(FlintError, match="launched its rows") as caught:
        exchanged(workload, 0.02, 0)
    assert caught.value.code == "FL910"
    assert "shapes" in str(caught.value.help)


def test_branches_are_refused() -> None:
    builder = ProgramBuilder(Mesh(("x",), (8,)))
    for trips in (1, 0):
        builder.begin_region(RegionKind.BRANCH, trips, choice=0)
        builder.add("stablehlo.iota", op=OpClass.IOTA, dtype="float32", shape=(4,), result_bytes=16)
        builder.end_region()
    with pytest.raises(FlintError, match="branches") as caught:
        exchanged(Workload.single(builder.build(), {}), 0.02, 0)
    assert caught.value.code == "FL910"


def test_a_chain_whose_values_all_differ_is_refused() -> None:
    # every operand is the only one of its type: nothing can take its place
    builder = ProgramBuilder(Mesh(("x",), (8,)))
    last = builder.add(
        "parameter", Kind.PARAMETER, dtype="float32", shape=(2, 64), result_bytes=512
    )
    for n in range(3, 7):
        last = builder.add(
            "stablehlo.pad",
            op=OpClass.PAD,
            deps=[last],
            dtype="float32",
            shape=(n, 64),
            result_bytes=256 * n,
            operand_bytes=256 * (n - 1),
        )
    builder.add("func.return", Kind.VALUE, op=OpClass.RESULT, deps=[last])
    with pytest.raises(FlintError, match="only 0%") as caught:
        exchanged(Workload.single(builder.build(), {}), 0.02, 0, draws=3)
    assert caught.value.code == "FL911"
