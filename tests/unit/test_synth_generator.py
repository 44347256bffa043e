"""The generator: valid whatever the network says, the same again, near what is asked for, and refusals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

import flint
from flint.cli import app
from flint.errors import FlintError
from flint.io.malformed import Malformed
from flint.ir.mesh import Mesh
from flint.ir.workload import Workload
from flint.tools.share.conditions import Conditions, conditions_of, flops_of
from flint.tools.share.depth import depth_of
from flint.tools.share.rules import broken_rules
from flint.tools.share.synth.asked import CONDITION_GROUPS, CONDITIONS, condition_vector
from flint.tools.share.synth.codec.reader import read_program
from flint.tools.share.synth.codec.totals import ledger_of
from flint.tools.share.synth.codec.writer import write_program
from flint.tools.share.synth.encoding import encode
from flint.tools.share.synth.exemplar import exemplar
from flint.tools.share.synth.fitting import fitted
from flint.tools.share.synth.generator import Generator
from flint.tools.share.synth.learn import example_of, lessons_of, structure_of
from flint.tools.share.synth.memory import Memory
from flint.tools.share.synthesize import Synthetic, synth
from tests.machine_output import valid
from tests.synth_programs import counting_generator, examples, workloads

MESH = Mesh(("data", "model"), (8, 4))


def _code(**options) -> str:
    with pytest.raises(FlintError) as error:
        list(synth(**options))
    return error.value.code


def test_whatever_a_random_network_says_is_valid(tmp_path):
    # the grammar makes programs valid, not training: random weights with counts of eight programs
    generator = counting_generator()
    for seed in range(6):
        asked = examples()[seed % len(examples())].asked
        workload = generator.sample(asked, seed, drafts=1)
        workload.verify()
        assert not broken_rules(workload)
        assert workload.mesh == asked.mesh


def test_traces_of_samples_pass_the_check(tmp_path):
    from flint.backends.chakra import check

    workload = counting_generator().sample(Conditions(mesh=Mesh(("a", "b"), (2, 4)), rows=900), 3)
    flint.Trace(workload, {}).save(tmp_path / "t")
    found = CliRunner().invoke(app, ["check", str(tmp_path / "t")])
    assert found.exit_code == 0, found.output
    del check


def test_the_same_again_and_others_for_other_seeds():
    generator, asked = counting_generator(), examples()[0].asked
    once = generator.sample(asked, 5, drafts=1).to_bytes()
    assert generator.sample(asked, 5, drafts=1).to_bytes() == once
    assert generator.sample(asked, 6, drafts=1).to_bytes() != once


def test_a_generator_survives_its_file():
    generator = counting_generator()
    again = Generator.load(generator.to_bytes())
    assert again.to_bytes() == generator.to_bytes()
    asked = Conditions(mesh=MESH, rows=900)
    assert again.sample(asked, 1).to_bytes() == again.sample(asked, 1).to_bytes()
    names = {name for p in again.profiles for name in p.mesh.names}
    assert names == {"axis0", "axis1"}
    assert len(again.memory) == len(examples())


def test_what_is_remembered_is_written_again():
    # without a memory the random network writes; with one most of the edges of some program come back
    generator, example = counting_generator(), examples()[0]
    real = {
        tuple(e.steps.templates[i : i + 8]) for e in examples() for i in range(len(e.steps) - 8)
    }

    def share(one: Generator) -> float:
        program = one.sample(example.asked, 1, drafts=1).programs[0]
        steps = read_program(program).templates
        return sum(tuple(steps[i : i + 8]) in real for i in range(len(steps))) / len(steps)

    assert share(generator) > 0.3 > 3 * share(replace(generator, memory=None))


def test_an_exemplar_has_the_mesh_layers_and_totals_that_are_asked_for():
    generator, example = counting_generator(), examples()[0]
    mesh = Mesh(example.asked.mesh.names, (16, 8))
    asked = replace(example.asked, mesh=mesh, depth=6, flops=8 * example.asked.flops, axis_bytes={})
    weights = np.eye(len(generator.memory))[0]
    steps = exemplar(generator.memory, weights, asked, np.random.default_rng(0))
    program = write_program(steps)
    assert program.mesh == mesh and depth_of(program) == 6
    assert 0.5 < flops_of(program) / asked.flops < 2
    assert not broken_rules(Workload.single(program))


def test_a_memory_recalls_programs_to_the_last_bit():
    memory = counting_generator().memory
    again = Memory.from_arrays(memory.arrays())
    for number, example in enumerate(examples()):
        names = example.steps.scene.mesh.names
        found = again.recalled(number, names)
        if example.steps.unknown_share:
            assert found is None
            continue
        assert found.types == example.steps.types
        assert found.operands == example.steps.operands
    wrong = memory.arrays() | {"memory_operands": memory.arrays()["memory_operands"] + 60_000}
    with pytest.raises(Malformed, match="reads none of its program"):
        Memory.from_arrays(wrong)


def test_sizes_bring_totals_near_what_is_asked_for():
    # the structure stays: only sizes move, and FLOPs that are 64 times as many are met within 2
    steps = examples()[0].steps
    have = ledger_of(steps).flops.sum()
    found = fitted(steps, Conditions(mesh=steps.scene.mesh, flops=64 * have))
    assert structure_of(found) == structure_of(steps)
    assert 0.5 < ledger_of(found).flops.sum() / (64 * have) < 2
    assert found.symbols.taken != steps.symbols.taken


def test_conditions_are_numbers_with_flags():
    full, none = condition_vector(examples()[0].asked), condition_vector(Conditions())
    assert full.shape == (CONDITIONS,) and not none.any()
    assert sorted(n for group in CONDITION_GROUPS for n in group) == list(range(CONDITIONS))
    assert (full[[0, 2, 4, 6, 8, 14]] == 1).all() and full.max() <= 1.5


def test_encoding_has_the_choices_of_the_program():
    lessons = lessons_of(examples(), least_programs=1)
    for example, sequence in zip(lessons.examples, lessons.sequences, strict=True):
        sequence.verify()
        wanted = sum(min(len(o), 8) for o in example.steps.operands)
        assert wanted * 0.99 <= len(sequence.step) <= wanted
    again = encode(lessons.examples[0].steps, lessons.vocabulary, lessons.examples[0].asked)
    np.testing.assert_array_equal(again.candidates, lessons.sequences[0].candidates)


def test_totals_of_captures_are_what_samples_are_asked_for():
    made = list(synth(2, like=workloads()[:2], model=counting_generator(), seed=9))
    assert [m.asked for m in made] == [conditions_of(w) for w in workloads()[:2]]
    assert [m.seed for m in made] == [9, 10]
    assert made[0].found.flops == flops_of(made[0].workload.programs[0])


@pytest.mark.parametrize(
    ("code", "options"),
    [
        ("FL957", {"count": 0}),
        ("FL957", {"seed": -1}),
        ("FL957", {"temperature": 0.0}),
        ("FL301", {"like": ["nowhere.flint"]}),
        ("FL959", {"model": __file__}),
    ],
)
def test_misuse_is_refused_with_the_reason(code, options):
    assert _code(**options) == code


def test_a_folder_without_captures_is_refused(tmp_path):
    assert _code(like=[tmp_path]) == "FL955"


def test_too_few_captures_are_refused():
    few = [example_of(w) for w in workloads()[:3]] * 3
    with pytest.raises(FlintError, match="9 captures have 3 programs that differ"):
        lessons_of([e for e in few if e is not None])


def test_the_command_writes_files_that_are_read_again(tmp_path):
    model = tmp_path / "model.npz"
    model.write_bytes(counting_generator().to_bytes())
    options = ["--model", str(model), "--mesh", "a=4,b=2", "--rows", "900", "--json"]
    out = tmp_path / "made"
    found = CliRunner().invoke(app, ["synth", "-n", "2", "-o", str(out), *options])
    assert found.exit_code == 0, found.output
    document = valid(found.stdout, "flint.synth/1")
    assert [s["seed"] for s in document["samples"]] == [0, 1]
    for sample in document["samples"]:
        workload = Workload.load(sample["path"])
        assert dict(workload.mesh.shape) == {"a": 4, "b": 2}
        assert sample["found"]["flops"] == flops_of(workload.programs[0])
    again = CliRunner().invoke(app, ["synth", "-n", "1", "-o", str(out), *options])
    assert again.exit_code == 2


def test_learning_writes_a_model_that_makes_workloads(tmp_path):
    # three steps of training: the file, not how good it is
    pytest.importorskip("torch")
    captures = tmp_path / "captures"
    captures.mkdir()
    for number, workload in enumerate(workloads()):
        workload.save(captures / f"{number}.flint")
    file = tmp_path / "model.npz"
    options = ["learn", str(captures), "-o", str(file), "--steps", "3", "--json"]
    found = CliRunner().invoke(app, options)
    assert found.exit_code == 0, found.output
    document = valid(found.stdout, "flint.learn/1")
    assert document["captures"] == len(examples()) and document["left_out"] == 0
    workload = Generator.load(file).sample(Conditions(mesh=MESH, rows=900), 1)
    assert not broken_rules(workload)


def test_what_is_far_from_what_was_asked_for_is_told():
    workload = workloads()[0]
    rows = len(workload.programs[0])
    near = Synthetic(workload, Conditions(rows=rows + 100), 0)
    far = Synthetic(workload, Conditions(rows=5, depth=99), 0)
    assert near.missed == ()
    assert far.missed == (f"{rows:,} rows, asked for 5", "3 layers, asked for 99")
