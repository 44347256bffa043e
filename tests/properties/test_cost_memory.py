"""Memory of random programs: bounds that hold whatever shares memory."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import assume, given

from flint.backends.cost.memory.liveness import buffers, donated, value_bytes
from flint.backends.cost.memory.memory import MemoryKind, memory_use
from flint.backends.cost.memory.values import values
from flint.ir.columns import carried
from flint.ir.program import Flag, Kind, Program
from tests.random_programs import QUICK, programs
from tests.saved_activations import saved_activation_bytes


def arguments(program: Program) -> int:
    return int(program.result_bytes[program.kind == Kind.PARAMETER].sum())


@QUICK
@given(programs())
def test_the_peak_is_between_what_must_and_what_can_be_there(program: Program) -> None:
    peak = memory_use(program).peak_bytes
    own = value_bytes(program)
    twice = own[
        carried(program)
    ].sum()  # who asks for a loop's value before its last turn gets both
    assert arguments(program) <= peak <= int(own.sum() + twice)
    assert peak >= own[program.kind == Kind.COMPUTE].max(initial=0)


@QUICK
@given(programs())
def test_the_parts_and_the_curve_add_up(program: Program) -> None:
    use = memory_use(program)
    assert sum(use.breakdown.values()) == use.peak_bytes
    assert set(use.breakdown) <= set(MemoryKind)
    assert max((size for _, size in use.curve), default=0) == use.peak_bytes
    assert saved_activation_bytes(program) <= use.peak_bytes


@QUICK
@given(programs())
def test_what_is_read_is_there(program: Program) -> None:
    """In the row that reads a value, its buffer and that of the result are in use."""
    layout, seen = buffers(program), values(program)
    runs = program.trips > 0
    for reader, target in zip(program.dep_owner.tolist(), program.deps.tolist(), strict=True):
        value = seen.read(target, int(program.region[reader]))
        if not runs[reader] or not runs[target] or value >= len(program):
            continue
        if seen.of_row[reader] != reader:
            continue  # a view that nobody reads needs nothing
        for row in (value, reader):
            b = int(layout.of_row[row])
            assert layout.born[b] <= 2 * reader <= layout.dies[b], (row, reader)


@QUICK
@given(programs())
def test_values_in_one_buffer_are_not_needed_at_once(program: Program) -> None:
    """Values of a straight program that share a buffer are made when the one before is read last."""
    if program.regions:
        return
    layout, seen = buffers(program), values(program)
    last = np.arange(len(program))
    for reader, target in zip(program.dep_owner.tolist(), program.deps.tolist(), strict=True):
        if seen.of_row[reader] == reader:
            value = seen.of_row[target]
            last[value] = max(last[value], reader)
    for b in range(len(layout.born)):
        held = [r for r in np.flatnonzero(layout.of_row == b).tolist() if seen.of_row[r] == r]
        for before, after in pairwise(held):
            assert last[before] <= after


@QUICK
@given(programs())
def test_donating_arguments_never_needs_more(program: Program) -> None:
    updates = ((program.flags & Flag.IN_PLACE) != 0) & (program.alias >= 0)
    grown = program.result_bytes[updates] > program.result_bytes[program.alias[updates]]
    assume(not grown.any())  # a donated argument that grows in place stays as large
    flags = program.flags.copy()
    flags[program.kind == Kind.PARAMETER] |= np.uint16(Flag.DONATED)
    given_away = program.with_rows(flags=flags)
    assert donated(given_away).sum() == (program.kind == Kind.PARAMETER).sum()
    assert memory_use(given_away).peak_bytes <= memory_use(program).peak_bytes
