"""HuggingFace models and a ResNet as captured beside real profiles of them: what is the same, what belongs where."""

from __future__ import annotations

from functools import cache

import pytest

from benchmarks.compare_models.__main__ import PAIRS, compared
from flint.tools.measure.comparison.result import MeasuredComparison

CASES = [(model, profile) for model, profiles in PAIRS.items() for profile in profiles]
both = pytest.mark.parametrize(("model", "profile"), CASES)


@cache
def of(model: str, profile: str) -> MeasuredComparison:
    return compared(model, profile)[0]


@both
def test_operators_are_matched_by_time(model: str, profile: str) -> None:
    """The bar is 95 %."""
    found = of(model, profile)
    assert found.matched_time >= 0.99
    assert found.matched_calls >= 0.98
    assert not found.pairing.forms
    assert not found.pairing.resized


def test_another_model_is_not_the_same() -> None:
    """BERT beside ViT: both are made of the same operators, of other sizes."""
    found, _ = compared("vit", "h100_bert-small")
    assert found.matched_time < 0.05


@both
def test_counts_and_work_are_the_same(model: str, profile: str) -> None:
    found = of(model, profile)
    for row in found.kinds:
        if row.kind in ("gemm", "attention", "convolution", "norm", "gather", "reduction"):
            assert row.measured.calls == row.captured.calls
            assert row.measured.flops == row.captured.flops
            assert row.measured.bytes == pytest.approx(row.captured.bytes, rel=1e-3)


@both
def test_pairs_are_of_one_shape(model: str, profile: str) -> None:
    found = of(model, profile)
    mine, theirs = found.units
    pairs = [(mine[i], theirs[j]) for i, j in found.pairing.pairs]
    assert all(m.elements == c.elements for m, c in pairs if m.kind != "other")
    assert all(m.opcode == c.opcode for m, c in pairs if m.kind == "other")


@both
def test_every_nanosecond_belongs_to_something(model: str, profile: str) -> None:
    found = of(model, profile)
    measured, estimated = found.step_ns
    assert found.parts[0].span_ns == pytest.approx(measured, rel=1e-6)
    assert found.parts[1].span_ns == pytest.approx(estimated, rel=1e-6)
    assert found.parts[0].unknown_ns < 0.05 * measured
    assert abs(found.replay_error) < 0.03


@both
def test_causes_add_up_to_the_difference(model: str, profile: str) -> None:
    found = of(model, profile)
    delta = found.step_ns[0] - found.step_ns[1]
    assert sum(c.delta_ns for c in found.causes) == pytest.approx(delta, rel=1e-6)


def test_what_a_newer_version_does_besides_is_named() -> None:
    """transformers 4.53 copies queries, keys and values before attention; the one measured did not."""
    found = of("vit", "h100_vit")
    assert {a.title.split()[0] for a in found.only_captured} == {"aten.clone"}
    assert sum(a.totals.calls for a in found.only_captured) == 48
    assert not found.only_measured
