"""`flint opt`: passes applied to files, programs printed and read again."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from flint.cli import app
from flint.ir.rank_class import RankClass
from flint.ir.text.parser import parse_program
from flint.ir.text.printer import print_program
from flint.ir.workload import Workload
from flint.passes.pass_list import known_passes
from flint.passes.profiles import PROFILES
from tests.program_text import Rows
from tests.properties.test_passes import equal


def _flint(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)), prog_name="flint")


def program():
    b = Rows()
    p = b.parameter()
    b.result(b.op("add", b.all_reduce(p), b.all_reduce(b.op("negate", p))))
    b.op("negate", p)
    return b.build()


@pytest.fixture
def saved(tmp_path):
    Workload.single(program()).save(tmp_path / "workload.flint")
    return tmp_path


def test_without_passes_the_program_is_printed_and_reads_back(saved):
    done = _flint("opt", saved)
    assert done.exit_code == 0
    assert done.stdout == "// program 0 (all)\n" + print_program(program())
    assert equal(parse_program(done.stdout), program())


def test_print_after_shows_each_pass_and_times_go_to_stderr(saved):
    done = _flint(
        "opt", saved, "--passes", "drop-dead-code,fuse{profile=inductor}", "--print-after"
    )
    parts = done.stdout.split("// program 0 (all), ")[1:]
    assert [p.splitlines()[0] for p in parts] == [
        "after drop-dead-code",
        "after fuse{profile=inductor}",
    ]
    assert len(parse_program("//" + parts[0])) == 6
    assert "drop-dead-code: 7 -> 6 rows, 0." in done.stderr


def test_print_before_shows_what_a_pass_is_given(saved):
    done = _flint("opt", saved, "-p", "drop-dead-code", "--print-before", "-q")
    first, second = done.stdout.split("// program 0 (all)")[1:]
    assert equal(parse_program("//" + first), program())
    assert len(parse_program(second)) == 6
    assert done.stderr == ""


def test_profiles_are_what_their_lists_are(saved):
    for target in PROFILES.values():
        listed = ",".join(filter(None, (target.rewriting, target.fusing)))
        done = _flint("opt", saved, "-p", listed, "-q")
        fused = ",".join(filter(None, (target.rewriting, f"fuse{{profile={target.name}}}")))
        assert done.exit_code == 0
        assert done.stdout == _flint("opt", saved, "-p", fused, "-q").stdout


def test_a_text_file_is_an_input_and_an_output(saved):
    assert _flint("opt", saved, "-p", "reassociate", "-o", saved / "p.txt").exit_code == 0
    text = (saved / "p.txt").read_text()
    assert text.count("all_reduce") == 2  # opcode and kind of the one that is left
    assert _flint("opt", saved / "p.txt").stdout.partition("\n")[2] == text
    assert _flint("opt", saved / "p.txt", "-o", saved / "again.flint").exit_code == 0
    loaded = Workload.load(saved / "again.flint")
    assert equal(loaded.programs[0], parse_program(text))


def test_a_file_says_which_passes_made_it(saved):
    _flint("opt", saved, "-p", "fuse-chains{again=true},reassociate", "-o", saved / "new.flint")
    assert Workload.load(saved / "new.flint").metadata["passes"] == "fuse-chains,reassociate"


def two_classes(folder):
    p = program()
    halves = {"a": range(p.mesh.size // 2), "b": range(p.mesh.size // 2, p.mesh.size)}
    classes = tuple(
        RankClass(name, i, ranks=tuple(ranks)) for i, (name, ranks) in enumerate(halves.items())
    )
    Workload(p.mesh, (p, p), classes).save(folder / "two.flint")
    return folder / "two.flint"


def test_a_class_of_ranks_is_chosen(tmp_path):
    path = two_classes(tmp_path)
    assert _flint("opt", path).stdout.count("flint.program/1") == 2
    out = tmp_path / "out.flint"
    assert _flint("opt", path, "-p", "drop-dead-code", "--rank-class", 1, "-o", out).exit_code == 0
    assert [len(p) for p in Workload.load(out).programs] == [7, 6]
    assert _flint("opt", path, "--rank-class", 1, "-o", tmp_path / "b.txt").exit_code == 0


def test_json_counts_rows(saved):
    done = _flint("opt", saved, "-p", "drop-dead-code", "--json", "--print-after")
    document = json.loads(done.stdout)
    assert document["schema"] == "flint.opt/1"
    assert document["passes"] == [
        {"pass": "drop-dead-code", "program": "program 0 (all)", "rows_before": 7, "rows_after": 6}
    ]


def test_errors_have_codes(saved, tmp_path):
    (tmp_path / "bad.txt").write_text("// comment\nflint.program/1 {x=2}\n%0 = add()\n")
    two = two_classes(tmp_path)
    (tmp_path / "other.txt").write_text("hello")
    cases = [
        (("opt", saved / "bad.txt"), "FL307"),
        (("opt", saved / "other.txt"), "FL304"),
        (("opt", saved / "none.flint"), "FL301"),
        (("opt", two, "-p", "nope"), "FL408"),
        (("opt", two, "-p", "fuse{profile=nope}"), "FL405"),
        (("opt", two, "-p", "fuse{a=1}"), "FL409"),
        (("opt", two, "-o", tmp_path / "x.txt"), "FL218"),
        (("opt", two, "-o", two), "FL509"),
        (("opt", two, "--rank-class", 2), "FL503"),
    ]
    for arguments, code in cases:
        done = _flint(*arguments)
        assert (done.exit_code, code in done.stderr) == (2, True), (arguments, done.stderr)


def test_a_pass_that_breaks_an_invariant_is_a_bug(saved, monkeypatch):
    broken = known_passes()["reassociate"]
    wrong = lambda self, p: replace(p, flops=p.flops - 1)
    monkeypatch.setattr(broken, "apply", wrong)
    done = _flint("opt", saved, "-p", "reassociate")
    assert done.exit_code == 70
    assert "after pass reassociate: row 0" in done.stderr


def test_help_lists_passes_with_their_options():
    shown = _flint("opt", "--help").stdout
    for name in known_passes():
        assert f"  {name}" in shown
    assert "fuse{profile=xla-gpu}" in shown
    assert "Remove rows that no result of the step needs" in shown
