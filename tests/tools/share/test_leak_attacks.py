"""Attacks: known models are recognised without names, strangers are not called members."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

from benchmarks.sharing.known_models import family_accuracy, known_bytes, known_of, member_threshold
from flint.ir.workload import Workload
from flint.tools.share.leaks.fingerprints import View, size_distances, structure_distances
from flint.tools.share.leaks.known import Known, KnownEntry, Share, public_models, read_known
from flint.tools.share.leaks.report import leaks_of
from tests.leak_workloads import MESH, looped_program, renamed, small_program
from tests.random_programs import programs

ROOT = Path(__file__).parents[3]
CHAINS = [(layers, width) for layers in (2, 3, 4) for width in (8, 16)]


def _chain(layers: int, width: int) -> tuple[KnownEntry, Workload]:
    entry = KnownEntry(
        "chain", f"chain-{layers}-{width}", "2x4", f"width={width}", f"chain{layers % 2}"
    )
    return entry, Workload.single(small_program(layers=layers, width=width))


def _world() -> Known:
    loop = KnownEntry("loop", "loop-4", "2x4", "", "loop"), Workload.single(looped_program())
    return known_of([*(_chain(*c) for c in CHAINS), loop])


@pytest.mark.parametrize(("layers", "width"), CHAINS)
def test_a_known_workload_is_found_under_other_names(layers: int, width: int):
    """It is called a member, and the nearest are of its family."""
    entry, workload = _chain(layers, width)
    leaks = leaks_of(renamed(workload, ("acme", "falcon")), known=_world())
    assert leaks.membership.workload.candidates[0] == entry
    assert leaks.membership.model.models[0] == entry.model
    assert [g.nearest.family for g in leaks.families] == ["chain", "chain"]


def test_an_unknown_size_is_of_the_family_but_no_member():
    """Nine layers are not known: the nearest neighbour finds them."""
    _, workload = _chain(9, 32)
    leaks = leaks_of(workload, known=_world())
    assert not leaks.membership.workload.is_member
    assert not leaks.membership.model.is_member
    assert {g.nearest.family for g in leaks.families} == {"chain"}
    assert all(g.distance < g.second_distance for g in leaks.families)


@settings(max_examples=25, deadline=None)
@given(programs(mesh=None, max_rows=25))
def test_a_random_program_is_no_member(program):
    """Of the models that come with Flint."""
    leaks = leaks_of(Workload.single(program))
    assert not leaks.membership.workload.is_member
    assert not leaks.membership.model.is_member


def test_a_public_model_is_known():
    """Llama-3-8B is among the models that come with Flint, on 64x8 too."""
    known = public_models()
    assert ("llama", "Llama-3-8B", "64x8") in {(e.family, e.model, e.mesh) for e in known.entries}
    assert len(known.families) >= 8
    assert known is public_models()


def test_the_public_models_are_small_and_measured():
    """Less than a megabyte; the attack on them is better than naming the largest family."""
    assert (ROOT / "flint/tools/share/leaks/known.npz").stat().st_size < 1 << 20
    for view in View:
        measured = public_models().measured.families[view]
        assert measured.one_left_out.right > measured.largest_family


def test_stored_measurements_are_those_of_the_stored_models():
    """The file says what measuring again gives."""
    known = public_models()
    families = [e.family for e in known.entries]
    models = [e.model for e in known.entries]
    codes = [e.code for e in known.entries]
    for view in View:
        found = family_accuracy(known.shares[view], families, models, codes)
        assert known.measured.families[view] == found
    assert known.measured.models == member_threshold(known.shares[View.OPS], known.totals, models)


def test_accuracy_by_hand():
    """Four workloads on a line; in the first case each is nearest to one of the other family."""
    shares = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.95, 0.05]])
    found = family_accuracy(shares, "aabb", ["a1", "a2", "b1", "b2"], "xxyy")
    assert (found.one_left_out, found.model_left_out) == (Share(0.0, 4), Share(0.0, 4))
    assert found.code_left_out == Share(None, 0)  # each family is of one code
    found = family_accuracy(shares, "aaba", ["a1", "a2", "b1", "a1"], "xyyx")
    assert found.one_left_out == Share(1.0, 3)  # the only b has no other
    assert found.model_left_out == Share(1.0, 3)
    assert found.code_left_out == Share(pytest.approx(1.0), 3)
    assert found.largest_family == 3 / 4


def test_ties_count_by_their_share():
    """The nearest are one of either family."""
    shares = np.array([[1.0, 0.0], [0.5, 0.5], [0.5, 0.5]])
    found = family_accuracy(shares, "aab", "123", "xxx")
    assert found.one_left_out == Share(pytest.approx(0.25), 2)  # a half, and the twin is of b


def test_distances_by_hand():
    """Half of the absolute differences; the largest difference of logarithms, at most one."""
    known = np.array([[1.0, 0.0], [0.25, 0.75]])
    np.testing.assert_allclose(structure_distances(known, np.array([0.5, 0.5])), [0.5, 0.25])
    totals = np.array([[3.0, 4.5], [9.0, 4.0]])
    np.testing.assert_allclose(size_distances(totals, np.array([3.0, 4.0])), [0.5, 1.0])


def test_the_threshold_keeps_to_the_rate_of_false_positives():
    """Of 40 workloads at growing distances two may pass for others, no more."""
    gaps = np.linspace(0.001, 0.01, 40).cumsum()
    shares = np.stack([gaps, 1 - gaps], axis=1)
    threshold = member_threshold(shares, np.zeros((40, 1)), range(40))
    assert threshold.false_positive_rate == pytest.approx(2 / 40)
    assert threshold.distance == pytest.approx(gaps[1] - gaps[0], rel=0.5)


def test_the_rate_of_twins_is_told():
    """Where half of the workloads have twins no threshold keeps to the rate: it is 0 then."""
    shares = np.array([[1.0, 0.0], [1.0, 0.0], [0.5, 0.5], [0.0, 1.0]])
    threshold = member_threshold(shares, np.zeros((4, 1)), range(4))
    assert (threshold.distance, threshold.false_positive_rate) == (0.0, 0.5)


def test_twins_of_the_same_model_are_no_false_positives():
    """Two meshes of one model: for models the next one is of another."""
    shares = np.array([[1.0, 0.0], [1.0, 0.0], [0.5, 0.5], [0.0, 1.0]])
    threshold = member_threshold(shares, np.zeros((4, 1)), ["a", "a", "b", "c"])
    assert (threshold.distance, threshold.false_positive_rate) == (0.0, 0.0)


def test_known_models_are_read_as_they_were_written():
    """Equal models give equal bytes, and all of it comes back."""
    known = _world()
    data = known_bytes(known)
    assert data == known_bytes(_world())
    found = read_known(data)
    assert (found.entries, found.measured) == (known.entries, known.measured)
    assert known_bytes(found) == data
    leaks = leaks_of(_chain(3, 8)[1], known=found)
    assert leaks.to_json() == leaks_of(_chain(3, 8)[1], known=known).to_json()


def test_one_family_is_too_few():
    """Nothing could be measured."""
    with pytest.raises(SystemExit, match="fewer than 2 families"):
        known_of([_chain(2, 8), _chain(3, 8)])


def test_the_report_names_what_was_found():
    """In the text: survivors, the model, its mesh, the baseline; in JSON the same numbers."""
    entry, workload = _chain(3, 8)
    planted = replace(workload, metadata={"name": "acme"})
    leaks = leaks_of(planted, known=_world())
    text = leaks.text()
    for wanted in ("'acme'", str(entry), "largest family: 86%", "closed world"):
        assert wanted in text
    found = leaks.to_json()
    assert found["survivors"][0]["text"] == "acme"
    assert found["known"] == {"workloads": 7, "models": 7, "families": 2}
    assert found["membership"]["workload"]["is_member"]


def test_meshes_are_sizes():
    """The same program for another mesh: who sees sizes tells them apart."""
    mesh = replace(MESH, sizes=(4, 4))
    leaks = leaks_of(Workload.single(small_program(mesh)), known=_world())
    assert not leaks.membership.workload.is_member
    assert not leaks.membership.model.is_member
