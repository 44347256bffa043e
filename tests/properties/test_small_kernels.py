"""Merging small kernels keeps work, time, communication and its order."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flint.backends.chakra.writing.expand import expand
from flint.ir.program import Kind, Program
from flint.passes.base import run_passes
from flint.passes.rewrites.small_kernels import MergeSmallKernels
from tests.random_programs import QUICK, programs


@QUICK
@given(programs(), st.integers(0, 2**32 - 1))
def test_merging_keeps_work_time_and_communication(program: Program, seed: int) -> None:
    scale = np.random.default_rng(seed).choice([100.0, 900.0, 5e3, 19.5e3], len(program))
    duration = np.where(program.kind == Kind.COMPUTE, scale, 0.0)
    rule = MergeSmallKernels(duration)
    after, left = rule.merged(program)
    run_passes(program, [rule])
    for name in ("flops", "operand_bytes", "result_bytes"):
        assert _executed(program, name) == _executed(after, name)
    assert np.isclose((left * after.trips).sum(), (duration * program.trips).sum())
    assert _communication(program) == _communication(after)
    many = left[(after.kind == Kind.COMPUTE) & (left > 19.5e3)]
    assert (many <= rule.most_ns).all()
    assert MergeSmallKernels(left).merged(after)[0].opcode.tolist() == after.opcode.tolist()


def _executed(program: Program, name: str) -> int:
    rows = program.kind == Kind.COMPUTE
    return int((getattr(program, name)[rows] * program.trips[rows]).sum())


def _communication(program: Program) -> list[tuple[int, ...]]:
    """What communicates, in the order of nodes."""
    rows = expand(program).row
    rows = rows[program.kind[rows] >= Kind.COLLECTIVE]
    return [
        (int(program.kind[r]), int(program.collective[r]), int(program.comm_bytes[r])) for r in rows
    ]
