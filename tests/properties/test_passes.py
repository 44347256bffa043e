"""Passes keep what they must, on random programs."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flint.ir.program import COLUMNS, TABLES, Collective, Flag, Kind, Program
from flint.passes.base import Pass, run_passes
from flint.passes.fusion.kernels import FuseKernels
from flint.passes.profiles import PROFILES
from flint.passes.rewrites.dead_code import DropDeadCode
from flint.passes.rewrites.reassociate import ReassociateAllReduce
from flint.passes.rewrites.reduce_scatter import FormReduceScatter
from flint.passes.work.totals import totals
from tests.random_programs import QUICK, programs

ALL = (DropDeadCode(), ReassociateAllReduce(), FormReduceScatter(), FuseKernels())
#: What `xla-gpu` does around its kernels: it adds rows, and makes one collective of several (tests/core/passes/test_fusion_xla_gpu.py).
AROUND = {"turn-operands", "expand-ragged", "merge-products", "split-products", "split-reductions"}
AROUND |= {"join-collectives", "copy-carried"}
KERNELS = tuple(
    p
    for p in dict.fromkeys(p for target in PROFILES.values() for p in target.kernels)
    if p.name not in AROUND
)


def equal(a: Program, b: Program) -> bool:
    """Whether two programs are the same in every column and table."""
    columns = all(np.array_equal(getattr(a, c), getattr(b, c)) for c in COLUMNS)
    return columns and all(getattr(a, t) == getattr(b, t) for t in TABLES) and a.mesh == b.mesh


def communication(program: Program) -> Counter[tuple[object, ...]]:
    """Multiset of communication rows, loops included, by all that describes it."""
    found: Counter[tuple[object, ...]] = Counter()
    for i in np.flatnonzero(program.kind >= Kind.COLLECTIVE):
        r = program.row(i)
        found[r.kind, r.collective, r.group, r.route, r.channel, r.comm_bytes] += int(
            program.trips[i]
        )
    return found


def compute_flops(program: Program) -> int:
    return sum(
        int(f) * int(t)
        for f, t, k in zip(program.flops, program.trips, program.kind, strict=True)
        if k == Kind.COMPUTE
    )


def reachable_from(program: Program, row: int) -> set[int]:
    """Rows that `row` is computed from, by a plain search (an oracle for the passes)."""
    produced = {c: p for r in program.regions for c, p in r.carries}
    writers: dict[int, list[int]] = {}
    for writer in range(len(program)):
        if program.row(writer).flags & Flag.IN_PLACE and program.alias[writer] >= 0:
            writers.setdefault(int(program.alias[writer]), []).append(writer)
    seen: set[int] = set()
    stack = [row]
    while stack:
        at = stack.pop()
        if at not in seen:
            seen.add(at)
            stack += [int(d) for d in program.dependencies(at)]
            stack += [produced[at]] if at in produced else []
            stack += writers.get(at, [])
    return seen


@pytest.mark.parametrize("p", ALL, ids=lambda p: p.name)
@QUICK
@given(data=st.data())
def test_passes_keep_programs_valid_and_are_idempotent(p: Pass, data: st.DataObject) -> None:
    program = data.draw(programs())
    once = run_passes(program, [p])
    assert equal(p.apply(once), once)
    assert equal(p.apply(program), once)


@QUICK
@given(programs())
def test_dead_code_keeps_exactly_what_results_and_messages_need(program: Program) -> None:
    after = DropDeadCode().apply(program)
    roots = [
        i
        for i in range(len(program))
        if program.row(i).opcode == "flint.result" or program.kind[i] in (Kind.SEND, Kind.RECV)
    ]
    if not any(program.row(i).opcode == "flint.result" for i in roots):
        assert equal(after, program)
        return
    alive = set().union(*(reachable_from(program, r) for r in roots))
    alive |= set(np.flatnonzero(program.kind == Kind.PARAMETER).tolist())
    old = sorted(alive)
    assert len(after) == len(old)
    for new, row in enumerate(old):
        before, now = program.row(row), after.row(new)
        assert tuple(old[d] for d in now.deps) == before.deps
        numbers = {"number": 0, "region": 0, "alias": 0, "deps": ()}  # regions may have gone too
        assert now._replace(**numbers) == before._replace(**numbers)
        assert _kind_of_region(after, now.region) == _kind_of_region(program, before.region)
        assert after.trips[new] == program.trips[row]


def _kind_of_region(program: Program, region: int) -> tuple[object, ...]:
    """What a row's region is, without its number and its rows."""
    if region < 0:
        return ()
    found = program.regions[region]
    return found.kind, found.trip_count, found.choice, found.name


@pytest.mark.long
@settings(max_examples=100)
@given(programs())
def test_kernels_keep_flops_communication_its_order_and_parameters(program: Program) -> None:
    """A kernel of several results may make a message wait longer, never less."""
    old, order = totals(program), _communication_order(program)
    for rules in KERNELS:
        after = rules.apply(program)
        after.verify()
        new = totals(after)
        assert new.flops == old.flops, rules
        assert new.matmul_flops == old.matmul_flops or rules.name == "sum-products", rules
        assert new.matmul_flops <= old.matmul_flops, rules
        assert new.parameter_bytes == old.parameter_bytes, rules
        assert new.communication == old.communication, rules
        assert communication(after) == communication(program), rules
        assert new.op_count <= old.op_count or rules.name == "copy-overwritten", rules
        found = _communication_order(after)
        assert found == order or rules != FuseKernels()
        assert len(found) == len(order), rules
        assert all(has >= needed for has, needed in zip(found, order, strict=True)), rules


def _communication_order(program: Program) -> list[set[int]]:
    """For each communication in order, which earlier ones it needs, around loops too."""
    rows = np.flatnonzero(program.kind >= Kind.COLLECTIVE).tolist()
    number = {row: i for i, row in enumerate(rows)}
    return [{number[r] for r in reachable_from(program, row) if r in number} for row in rows]


@QUICK
@given(programs())
def test_reassociation_removes_only_all_reduces(program: Program) -> None:
    after = ReassociateAllReduce().apply(program)
    assert compute_flops(after) == compute_flops(program)
    old, new = communication(program), communication(after)
    assert not new - old
    assert all(key[1] == Collective.ALL_REDUCE for key in old - new)
    kept_rows = len(program) - len(after)
    assert (program.kind == Kind.COLLECTIVE).sum() - kept_rows == (
        after.kind == Kind.COLLECTIVE
    ).sum()


@QUICK
@given(programs())
def test_reduce_scatter_bytes_are_those_of_the_all_reduce(program: Program) -> None:
    after = FormReduceScatter().apply(program)
    assert compute_flops(after) == compute_flops(program)
    rows = program.collective
    made = int((after.collective == Collective.REDUCE_SCATTER).sum()) - int(
        (rows == Collective.REDUCE_SCATTER).sum()
    )
    slices = [sum(r == "sdy.all_slice" for r in _opcodes(p)) for p in (program, after)]
    assert slices[0] - slices[1] == made
    others = [Collective.ALL_GATHER, Collective.ALL_TO_ALL, Collective.BROADCAST]
    for kind in (*others, Collective.PERMUTE, Collective.NONE):
        assert _of_kind(after, kind) == _of_kind(program, kind)
    assert max(after.comm_bytes, default=0) <= max(program.comm_bytes, default=0)


def _of_kind(program: Program, kind: Collective) -> Counter[tuple[object, ...]]:
    return Counter({k: n for k, n in communication(program).items() if k[1] == kind})


def _opcodes(program: Program) -> list[str]:
    return [program.opcodes[i] for i in program.opcode]


@pytest.mark.parametrize("name", PROFILES)
@QUICK
@given(data=st.data())
def test_profiles_run_and_end(name: str, data: st.DataObject) -> None:
    program = data.draw(programs())
    after = run_passes(program, PROFILES[name].passes)
    assert totals(after).parameter_bytes == totals(program).parameter_bytes
