"""Fingerprints: neither names nor tables change them, and structure and sizes do."""

from __future__ import annotations

import numpy as np
from hypothesis import given

from flint.ir.op_class import OpClass
from flint.ir.program import Program
from flint.tools.share.leaks.fingerprints import View, fingerprint_of, together
from tests.leak_workloads import looped_program, neutral_workload, renamed, small_program
from tests.random_programs import QUICK, programs


def _same(one: Program, other: Program, *views: View) -> None:
    found, wanted = fingerprint_of(one), fingerprint_of(other)
    alike = {v for v in View if (found.histograms[v] == wanted.histograms[v]).all()}
    assert alike == set(views)
    assert (found.hash == wanted.hash) == (View.OPS in views)


def test_renaming_changes_no_fingerprint():
    """Axes, opcodes, strings, regions and classes have other names."""
    before, after = neutral_workload(), renamed(neutral_workload(), ("acme", "falcon"))
    found, wanted = (
        together([*map(fingerprint_of, after.programs)]),
        together([*map(fingerprint_of, before.programs)]),
    )
    assert found.hash == wanted.hash
    for view, histogram in wanted.histograms.items():
        np.testing.assert_array_equal(found.histograms[view], histogram)


@QUICK
@given(programs())
def test_order_of_tables_changes_no_fingerprint(program: Program):
    """Shapes, types and opcodes are numbered from the end."""
    turned = program.with_rows(
        shape=(len(program.shapes) - 1 - program.shape).astype(np.int32),
        shapes=program.shapes[::-1],
        dtype=(len(program.dtypes) - 1 - program.dtype.astype(np.int64)).astype(np.uint8),
        dtypes=program.dtypes[::-1],
    )
    _same(program, turned, *View)


def test_other_sizes_keep_structure():
    """Wider tensors: sizes differ, topology and op classes do not."""
    _same(small_program(width=8), small_program(width=16), *View)


def test_other_classes_keep_topology():
    """One product is an addition: nobody who sees edges alone can tell."""
    program = small_program()
    op = program.op.copy()
    op[1] = OpClass.ADD
    _same(program, program.with_rows(op=op), View.TOPOLOGY)


def test_another_edge_is_another_topology():
    """A product that also reads the parameter."""
    program = small_program()
    stops = program.dep_start.copy()
    stops[4:] += 1
    deps = np.insert(program.deps, program.dep_start[3], 0)
    other = program.with_rows(dep_start=stops, deps=deps.astype(np.int32))
    other.verify()
    _same(program, other)


def test_one_more_layer_is_another_program():
    """Every view sees it."""
    _same(small_program(layers=3), small_program(layers=4))


def test_fingerprints_of_workloads_are_of_distinct_programs():
    """Neither the order of programs nor copies of them count."""
    one, other = fingerprint_of(small_program()), fingerprint_of(looped_program())
    wanted = together([one, other])
    assert together([other, one, other]).hash == wanted.hash
    for view in View:
        counts = [f.histograms[view].sum() for f in (one, other)]
        assert wanted.histograms[view].sum() == sum(counts)
    assert together([one, one]).hash == one.hash


def test_fingerprints_are_the_same_on_every_machine():
    """Stored fingerprints must be found again: these numbers never change."""
    found = fingerprint_of(small_program())
    assert found.hash == 0xA6D6798CB2857398
    buckets = np.flatnonzero(found.histograms[View.OPS]).tolist()
    assert buckets == [13, 133, 169, 186, 208, 296, 431, 449]
