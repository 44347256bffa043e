"""Programs as steps: what is read is written again to the last bit, and sizes follow from few."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from flint.ir.op_class import OpClass
from flint.ir.program import COLUMNS, Kind
from flint.ir.workload import Workload
from flint.tools.share.axis_labels import comm_bytes_by_label
from flint.tools.share.conditions import flops_of
from flint.tools.share.rules import broken_rules
from flint.tools.share.synth.codec.draft import Draft
from flint.tools.share.synth.codec.pruning import pruned
from flint.tools.share.synth.codec.reader import is_readable, read_program
from flint.tools.share.synth.codec.template import StepKind, Template, Vocabulary
from flint.tools.share.synth.codec.totals import ledger_of
from flint.tools.share.synth.codec.writer import retyped, write_program
from tests.synth_programs import PROGRAMS, workloads

#: Columns that steps do not say: names, and where a row is from.
_NAMES = {"name", "scope", "location", "cause", "opcode", "dtype", "shape", "group", "route"}
_NAMES |= {"stream", "product", "flags", "dep_start", "deps"}

NUMBERS = range(len(PROGRAMS))


def _steps(number: int):
    return read_program(workloads()[number].programs[0])


@pytest.mark.parametrize("number", NUMBERS)
def test_what_is_read_is_written_again(number):
    # every number of every row, types, groups and dependencies included: rules of shapes and formulas explain captures
    program, steps = workloads()[number].programs[0], _steps(number)
    if steps.unknown_share:
        pytest.skip("a row that no rule explains cannot be written")
    found = write_program(steps)
    rows = len(program) - int((program.op == OpClass.RESULT).sum())
    for column in set(COLUMNS) - _NAMES:
        wanted = getattr(program, column)[:rows]
        np.testing.assert_array_equal(getattr(found, column)[:rows], wanted, err_msg=column)
    for row in range(rows):
        one, other = program.row(row), found.row(row)
        assert (one.opcode, one.dtype, one.shape) == (other.opcode, other.dtype, other.shape)
        assert (one.group, one.route, one.product) == (other.group, other.route, other.product)
        assert one.deps == other.deps
    assert [(r.trip_count, r.carries) for r in program.regions] == [
        (r.trip_count, r.carries) for r in found.regions
    ]


def test_nearly_every_row_is_explained():
    unknown = [_steps(n).unknown_share for n in NUMBERS]
    assert max(unknown) < 0.01
    assert sum(u == 0 for u in unknown) >= 5


@pytest.mark.parametrize("number", NUMBERS)
def test_programs_keep_the_rules_at_other_sizes(number):
    # a size that doubles moves whatever follows from it, and nothing contradicts
    steps = _steps(number)
    if steps.unknown_share:
        pytest.skip("a row that no rule explains cannot be written")
    moved = 0
    for at, size in enumerate(steps.symbols.taken):
        sizes = [*steps.symbols.taken]
        sizes[at] = 2 * size
        found = retyped(steps, steps.scene, sizes)
        if found is None:
            continue
        workload = Workload.single(write_program(found))
        workload.verify()
        assert not broken_rules(workload)
        moved += workload.programs[0].result_bytes.sum() > write_program(steps).result_bytes.sum()
    assert moved >= 2


@pytest.mark.parametrize("number", NUMBERS)
def test_ledgers_are_the_totals_of_programs(number):
    program, steps = workloads()[number].programs[0], _steps(number)
    if steps.unknown_share:
        pytest.skip("a row that no rule explains has no amounts")
    ledger = ledger_of(steps)
    assert ledger.flops.sum() == pytest.approx(flops_of(program), rel=1e-12)
    sent = comm_bytes_by_label(program)
    for at, label in enumerate(ledger.labels):
        if label:
            assert ledger.sent[ledger.label == at].sum() == pytest.approx(sent[label], rel=1e-12)


def test_the_grammar_allows_what_captures_do():
    # a model that learns from captures sees its choices among the candidates, next steps among those allowed
    for number in NUMBERS:
        steps = _steps(number)
        vocabulary = Vocabulary(steps.templates)
        draft = Draft(steps.scene, vocabulary)
        refused = choices = 0
        for step, template in enumerate(steps.templates):
            if template.step is not StepKind.UNKNOWN:
                assert draft.allowed()[vocabulary.number(template)], (number, step, template)
            operands = steps.operands[step]
            for slot, operand in enumerate(operands):
                choices += 1
                refused += operand not in draft.candidates(template, operands[:slot])
            draft.append(template, operands, steps.types[step])
        assert refused <= choices / 150, number


def test_candidates_are_never_read_twice_and_never_later_phases():
    steps = _steps(0)
    vocabulary = Vocabulary(steps.templates)
    draft = Draft(steps.scene, vocabulary)
    for step, template in enumerate(steps.templates):
        operands = steps.operands[step]
        for slot in range(1, template.arity):
            assert not np.isin(operands[:slot], draft.candidates(template, operands[:slot])).any()
        draft.append(template, operands, steps.types[step])
    rows = [t for t in steps.templates if t.kind is Kind.COMPUTE and t.rule == "same"]
    optimizer = next(t for t in reversed(rows) if t.phase.name == "OPTIMIZER")
    late = {n for n, t in enumerate(steps.templates) if t.phase.name == "OPTIMIZER"}
    late = {n for n in late if steps.templates[n].kind >= Kind.COMPUTE}
    forward = replace(optimizer, phase=type(optimizer.phase).FORWARD)
    assert set(draft.candidates(optimizer, []).tolist()) & late
    assert not set(draft.candidates(forward, []).tolist()) & late


def test_templates_survive_a_file():
    vocabulary = Vocabulary(_steps(4).templates)
    again = Vocabulary.of(vocabulary.to_json())
    assert again.templates == vocabulary.templates
    assert vocabulary.number(Template(StepKind.ROW, opcode="nobody's")) == 0


def test_pruning_drops_what_nobody_reads_in_a_loop():
    # a row behind whose value nothing stands goes, and so does what only it read; nothing else moves
    steps = _steps(0)
    opened = next(n for n, t in enumerate(steps.templates) if t.step is StepKind.OPEN)
    closed = next(n for n, t in enumerate(steps.templates) if t.step is StepKind.YIELD)
    assert opened < closed
    clean = pruned(steps)
    assert len(write_program(clean)) <= len(write_program(steps))
    workload = Workload.single(write_program(clean))
    workload.verify()
    assert not broken_rules(workload)
    assert flops_of(workload.programs[0]) == flops_of(write_program(steps))


def test_what_steps_cannot_say_is_told():
    program = workloads()[0].programs[0]
    both = Workload(program.mesh, (program, program), workloads()[0].classes)
    assert is_readable(workloads()[0])
    assert not is_readable(both)
