"""The evaluation of generated workloads: distances of known cases, baselines, novelty, leakage."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from flint.errors import FlintError
from flint.ir.builder import ProgramBuilder
from flint.ir.mesh import AxisRef, Group, Mesh
from flint.ir.op_class import OpClass
from flint.ir.program import Collective, Kind, Phase, Program, RegionKind
from flint.ir.workload import Workload
from flint.tools.share.conditions import Conditions, conditions_of
from flint.tools.share.rules import broken_rules

pytest.importorskip("sklearn", reason="surrogates are scikit-learn's")

from benchmarks.sharing.evaluation.bars import GENERATOR, bars, lost
from benchmarks.sharing.evaluation.baselines import BASELINES
from benchmarks.sharing.evaluation.corpus import Capture
from benchmarks.sharing.evaluation.evaluate import Options, evaluate_fold
from benchmarks.sharing.evaluation.folds import family_weights, folds
from benchmarks.sharing.evaluation.generator import Generator
from benchmarks.sharing.evaluation.measuring.attributes import (
    ATTRIBUTES,
    Attribute,
    Form,
    attributes_of,
    layers_of,
)
from benchmarks.sharing.evaluation.measuring.cache import Cache, digest_of
from benchmarks.sharing.evaluation.measuring.measured import Measured, measure
from benchmarks.sharing.evaluation.methods import make
from benchmarks.sharing.evaluation.page import page
from benchmarks.sharing.evaluation.real import Real
from benchmarks.sharing.evaluation.scoring.comparison import bandwidths, compared
from benchmarks.sharing.evaluation.scoring.distances import (
    Sample,
    bandwidth,
    discrepancy,
    paired_transport,
    transport,
)
from benchmarks.sharing.evaluation.scoring.floors import halves
from benchmarks.sharing.evaluation.scoring.leakage import (
    membership_auc,
    neighbourhoods,
    shared_bits,
)
from benchmarks.sharing.evaluation.scoring.novelty import novelty
from benchmarks.sharing.evaluation.scoring.surrogate import Labelled, predictions, score

NO_CACHE = Cache(None)
NUMBER = Attribute("x", Form.NUMBER, "")
ORDERED = Attribute("x", Form.ORDERED, "", 0.25)
NAMED = Attribute("x", Form.NAMED, "")
MESH = Mesh.parse("data=4,model=2")
FAMILIES = {"square": OpClass.MULTIPLY, "root": OpClass.POWER, "most": OpClass.MAXIMUM}


def _workload(middle: OpClass, layers: int, width: int, pairs: int = 6) -> Workload:
    """A step of `layers` layers: a product, pairs of `middle` and an addition, an all-reduce."""
    b = ProgramBuilder(MESH)
    size = 4 * width * width
    typed = {"dtype": "float32", "shape": (width, width), "result_bytes": size}
    twice = {**typed, "operand_bytes": 2 * size, "phase": Phase.FORWARD}
    start = b.add("parameter", Kind.PARAMETER, op=OpClass.VALUE, **typed)
    weight = b.add("parameter", Kind.PARAMETER, op=OpClass.VALUE, **typed)
    b.begin_region(RegionKind.LOOP, layers)
    carried = b.add("carry", Kind.VALUE, op=OpClass.VALUE, deps=[start], **typed)
    flops = 2 * width**3
    dims = (1, width, width, width)
    at = b.add(
        *("dot", Kind.COMPUTE),
        **(twice | {"op": OpClass.MATMUL, "deps": [carried, weight], "flops": flops, "dims": dims}),
        product="float32",
    )
    for _ in range(pairs):
        other = b.add("middle", op=middle, deps=[at, weight], flops=width * width, **twice)
        at = b.add("add", op=OpClass.ADD, deps=[at, other], flops=width * width, **twice)
    at = b.add(
        *("all_reduce", Kind.COLLECTIVE),
        op=OpClass.ADD,
        deps=[at],
        collective=Collective.ALL_REDUCE,
        group=Group((AxisRef("model"),)),
        comm_bytes=size,
        **{**twice, "operand_bytes": size},
    )
    b.end_region([(carried, at)])
    b.add("result", Kind.VALUE, op=OpClass.RESULT, deps=[at])
    return Workload.single(b.build())


def _captures(sizes: tuple[int, ...] = (8, 16)) -> list[Capture]:
    found = []
    for (family, middle), width in product(FAMILIES.items(), sizes):
        workload = _workload(middle, width // 2, width, pairs=4 + width // 4)
        found.append(Capture(f"{family}-{width}", family, workload, conditions_of(workload)))
    return found


def _measured(captures: list[Capture]) -> list[Measured]:
    return [measure(c.workload, NO_CACHE) for c in captures]


def _sample(values: list[list[float]], weights: list[float]) -> Sample:
    return Sample({"x": np.array(values)}, np.array(weights))


def test_the_workloads_of_these_tests_are_valid() -> None:
    for capture in _captures():
        capture.workload.verify()
        assert not broken_rules(capture.workload)


def test_a_family_is_never_on_both_sides() -> None:
    names = ["a"] * 7 + ["b"] * 3 + ["c"] * 2 + ["d"] * 2 + ["e"]
    found = folds(names, 3)
    assert sorted(i for f in found for i in f.held_out) == list(range(len(names)))
    for fold in found:
        assert not {names[i] for i in fold.held_out} & {names[i] for i in fold.training}
        assert sorted(fold.held_out + fold.training) == list(range(len(names)))
    assert sorted(len(f.held_out) for f in found) == [4, 4, 7]
    with pytest.raises(ValueError, match="6 folds of 5 families"):
        folds(names, 6)


def test_each_family_counts_alike() -> None:
    weights = family_weights(["a", "a", "a", "b"])
    assert weights.tolist() == pytest.approx([1 / 6, 1 / 6, 1 / 6, 1 / 2])


def test_transport_of_numbers_by_hand() -> None:
    """Half of the mass goes from 1 to 3, the other half stays at 2."""
    one, other = _sample([[1.0], [2.0]], [0.5, 0.5]), _sample([[3.0], [2.0]], [0.5, 0.5])
    assert transport(NUMBER, one, other) == pytest.approx(1.0)
    assert paired_transport(NUMBER, one, other) == pytest.approx(1.0)
    heavier = _sample([[1.0], [2.0]], [0.25, 0.75])
    assert transport(NUMBER, heavier, other) == pytest.approx(0.75)


def test_transport_of_histograms_by_hand() -> None:
    """Mass moves two bins of a quarter; names have no distance but other or same."""
    one, other = _sample([[1.0, 0.0, 0.0]], [1.0]), _sample([[0.0, 0.5, 0.5]], [1.0])
    assert transport(ORDERED, one, other) == pytest.approx(0.25 * 1.5)
    assert transport(NAMED, one, other) == pytest.approx(1.0)
    assert paired_transport(ORDERED, one, other) == pytest.approx(0.25 * 1.5)
    assert paired_transport(NAMED, one, other) == pytest.approx(1.0)


def test_errors_that_cancel_in_the_set_do_not_cancel_in_pairs() -> None:
    values = [[1.0, 0.0], [0.0, 1.0]]
    one, other = _sample(values, [0.5, 0.5]), _sample(values[::-1], [0.5, 0.5])
    assert transport(NAMED, one, other) == pytest.approx(0.0)
    assert paired_transport(NAMED, one, other) == pytest.approx(1.0)


def test_discrepancy_by_hand() -> None:
    """Of one point each it is the root of 2 - 2 exp(-d^2 / 2 s^2)."""
    one, other = _sample([[0.0]], [1.0]), _sample([[3.0]], [1.0])
    expected = np.sqrt(2 - 2 * np.exp(-9 / 8))
    assert discrepancy(NUMBER, one, other, 2.0) == pytest.approx(expected)
    assert discrepancy(NUMBER, one, one, 2.0) == pytest.approx(0.0)


def test_the_bandwidth_is_the_median_of_different_workloads() -> None:
    sample = _sample([[0.0], [0.0], [1.0], [5.0]], [0.25] * 4)
    assert bandwidth(NUMBER, sample) == pytest.approx(4.0)  # 1, 1, 4, 5, 5
    assert bandwidth(NUMBER, _sample([[2.0], [2.0]], [0.5, 0.5])) == 1.0


def _diamond() -> Program:
    b = ProgramBuilder(MESH)
    top = b.add("p", Kind.PARAMETER, dtype="float32", shape=(4,), result_bytes=16)
    typed = {"dtype": "float32", "shape": (4,), "result_bytes": 16}
    left = b.add("l", op=OpClass.NEGATE, deps=[top], flops=4, operand_bytes=16, **typed)
    long = b.add("m", op=OpClass.NEGATE, deps=[left], flops=4, operand_bytes=16, **typed)
    b.add("n", op=OpClass.ADD, deps=[top, long], flops=4, operand_bytes=32, **typed)
    return b.build()


def test_attributes_of_a_diamond_by_hand() -> None:
    program = _diamond()
    assert layers_of(program).tolist() == [1, 2, 3, 4]
    found = attributes_of(program)
    assert found["layers"].tolist() == [2.0]
    assert found["rows"].tolist() == [2.0]
    degrees = {round(4 * np.log2(1 + d)): share for d, share in ((0, 0.25), (1, 0.5), (2, 0.25))}
    assert {i: v for i, v in enumerate(found["in-degree"].tolist()) if v} == degrees
    lengths = found["edge length"]
    assert lengths[4] == pytest.approx(0.75)  # three edges go up one layer
    assert lengths[8] == pytest.approx(0.25)  # one goes up three
    assert found["collectives"][0] == 1.0
    assert found["FLOPs"][round(4 * np.log2(5))] == 1.0
    for attribute in ATTRIBUTES:
        if attribute.form is not Form.NUMBER:
            assert found[attribute.name].sum() == pytest.approx(1.0)


def _set(captures: list[Capture]) -> Sample:
    weights = family_weights([c.family for c in captures])
    return Sample.of([attributes_of(c.workload.programs[0]) for c in captures], weights)


def test_a_copy_of_the_held_out_set_is_at_the_floor_and_noise_is_far_off() -> None:
    held = _captures((8, 12, 16, 24))
    families = [c.family for c in held]
    sample, widths = _set(held), bandwidths(_set(held))
    copy = compared(sample, _set(held), widths, range(len(held)))
    rng = np.random.default_rng(0)
    noise = compared(
        sample, Sample.of([_noise(rng) for _ in held], np.ones(len(held))), widths, None
    )
    pairs = [(sample.part(a), sample.part(b)) for a, b in halves(families, 0)]
    floors = [compared(a, b, widths, None) for a, b in pairs]
    for a in (a.name for a in ATTRIBUTES):
        floor = float(np.mean([f.transport[a] for f in floors]))
        assert copy.transport[a] == pytest.approx(0.0, abs=1e-9)
        assert copy.discrepancy[1][a] == pytest.approx(0.0, abs=1e-6)
        assert copy.paired is not None and copy.paired[a] == pytest.approx(0.0, abs=1e-9)
        assert noise.transport[a] > 2 * floor, a


def _noise(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Attributes drawn without a program."""
    shapes = {k: v.shape for k, v in attributes_of(_diamond()).items()}
    drawn = {k: rng.random(s) for k, s in shapes.items()}
    return {k: v / v.sum() if v.size > 1 else 20 + v for k, v in drawn.items()}


def test_halves_hold_each_capture_once() -> None:
    names = ["a"] * 5 + ["b"] * 2 + ["c"]
    for one, other in halves(names, 3):
        assert sorted(one + other) == list(range(len(names)))
        assert {"a", "b"} <= {names[i] for i in one} & {names[i] for i in other}


@pytest.mark.parametrize("name", BASELINES)
def test_baselines_make_programs_that_verify_the_same_for_the_same_seed(name: str) -> None:
    captures = _captures()
    generator = BASELINES[name](captures, 0)
    for seed, capture in enumerate(captures):
        made = generator.sample(capture.conditions, seed)
        made.verify()
        assert digest_of(made) == digest_of(generator.sample(capture.conditions, seed))


@pytest.mark.parametrize("name", ["motifs", "trigram"])
def test_baselines_that_build_programs_keep_the_mesh_and_the_rows_asked_for(name: str) -> None:
    captures = _captures()
    mesh = Mesh.parse("data=2,tensor=16")
    asked = Conditions(mesh=mesh, depth=3, rows=60)
    made = BASELINES[name](captures, 0).sample(asked, 1)
    assert made.mesh == mesh
    assert 60 <= len(made.programs[0]) < 120
    assert 3 in {r.trip_count for r in made.programs[0].regions}


def test_the_nearest_copy_of_a_training_workload_is_itself() -> None:
    captures = _captures()
    generator = BASELINES["copy nearest"](captures, 0)
    for capture in captures:
        found = generator.sample(capture.conditions, 0)
        assert conditions_of(found) == capture.conditions


def test_copies_are_nothing_new_and_mutations_are() -> None:
    captures = _captures()
    training = _measured(captures)
    asked = [c.conditions for c in captures] * 3
    copies = make(BASELINES["copy"](captures, 0), asked, 0, NO_CACHE)
    found = novelty(copies.measured, training)
    assert (found.programs, found.topologies, found.bodies, found.rows) == (0.0, 0.0, 0.0, 0.0)
    assert found.unique < 1.0
    mutated = make(BASELINES["mutate"](captures, 0), asked, 0, NO_CACHE)
    assert novelty(mutated.measured, training).programs > 0.5
    own = novelty(training, training[:0] + _measured(_captures((8,))))
    assert own.programs == pytest.approx(0.5)


def test_what_a_method_refuses_or_what_does_not_verify_is_counted() -> None:
    capture = _captures()[0]
    program = capture.workload.programs[0]
    broken = Workload.single(program.with_rows(flops=program.flops - 10**9))

    class Fails:
        def sample(self, conditions: Conditions, seed: int) -> Workload:
            if seed == 0:
                raise FlintError("FL956", "nothing came to an end")
            return broken if seed == 1 else capture.workload

    generator: Generator = Fails()
    made = make(generator, [capture.conditions] * 3, 0, NO_CACHE)
    assert made.refused == {"FL956": 1, "does not verify": 1}
    assert made.of == (2,)


def test_shared_bits_of_a_copy_are_most_and_of_another_program_few() -> None:
    captures = _captures((8, 64))
    measured = _measured(captures)
    known = neighbourhoods(measured)
    copy = shared_bits(measured[0], measured, known)
    assert copy.share > 0.7
    other = BASELINES["trigram"](captures, 0).sample(Conditions(MESH, rows=300), 5)
    assert shared_bits(measure(other, NO_CACHE), measured, known).share < copy.share / 2


def test_membership_is_certain_of_copies_and_chance_of_strangers() -> None:
    members, others = _measured(_captures((8,))), _measured(_captures((32, 64)))
    assert membership_auc(members, members, others) == pytest.approx(1.0)
    assert membership_auc(others, members, others) == pytest.approx(0.0)
    both = members + others
    assert membership_auc(both, members, others) == pytest.approx(0.5)


def test_surrogates_find_a_rule_that_there_is() -> None:
    rng = np.random.default_rng(0)
    totals = rng.random((120, 12))
    log_s = totals[:, :6] @ np.arange(6.0)
    train, test = Labelled(totals[:80], log_s[:80]), totals[80:]
    found = {name: score(p, log_s[80:]) for name, p in predictions(train, test).items()}
    assert found["ridge"].pearson > 0.99
    assert found["boosted trees"].pearson > 0.8 and found["random trees"].pearson > 0.8
    assert found["mean"].pearson == 0.0
    assert found["ridge"].error < found["mean"].error / 10


def test_the_cache_knows_workloads_by_what_they_hold(tmp_path: Path) -> None:
    one, other = _workload(OpClass.ADD, 2, 8), _workload(OpClass.ADD, 3, 8)
    assert digest_of(one) == digest_of(_workload(OpClass.ADD, 2, 8)) != digest_of(other)
    cache = Cache(tmp_path)
    first = measure(one, cache)
    (kept,) = tmp_path.glob("*-measured/*.npz")
    assert kept.stem == first.digest
    again = measure(one, cache)
    assert again.structure == first.structure and again.hashes == first.hashes
    assert (again.totals == first.totals).all() and again.broken == first.broken


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    rows = []
    for capture in _captures((8, 12)):
        capture.workload.save(folder / f"{capture.file}.flint")
        rows.append({"file": f"{capture.file}.flint", "family": capture.family})
    (folder / "index.json").write_text(json.dumps(rows), encoding="utf-8")
    return folder


def test_a_generator_of_held_out_workloads_wins_and_the_page_says_so(corpus: Path) -> None:
    """One that knows the answer is better than all baselines; one that copies is not."""
    real = Real.of(corpus, 1000, NO_CACHE)
    assert len(real.captures) == 6 and real.left_out == {}

    class Knows:
        def sample(self, conditions: Conditions, seed: int) -> Workload:
            alike = [c for c in real.captures if c.conditions.to_json() == conditions.to_json()]
            return alike[seed % len(alike)].workload

    methods = {
        GENERATOR: lambda captures, seed: Knows(),
        **{name: BASELINES[name] for name in ("copy", "trigram")},
    }
    options = Options(samples=10, train_samples=6, seed=0)
    results = [
        evaluate_fold(real, fold, methods, options, NO_CACHE) for fold in folds(real.families, 3)
    ]
    number, worse = lost(results)
    assert number == 2 * len(ATTRIBUTES)
    assert {x.own for x in worse} <= {x.best for x in worse}  # ties alone
    text = page(real, results, options, 1.0)
    found = list(bars(results))
    assert not found[0].met and "6 of 6" in found[0].found  # fewer than 500 samples
    assert found[1].found in text and found[2].found in text
    for words in ("| copy | 6 | 6 | 100.0% |", "## Leakage", "real, held out", "fold by fold"):
        assert words in text
