"""`benchmarks/mutants.py`: which tokens it spoils, what it remembers, and what its forks say."""

import json
import runpy
import subprocess
import sys
from pathlib import Path, PurePosixPath
from types import SimpleNamespace

import pytest

from benchmarks.mutants import EQUIVALENT
from benchmarks.mutation.copies import compile_with_hashes
from benchmarks.mutation.ledger import Entry, Equivalent, Ledger, read_equivalents, stale
from benchmarks.mutation.reach import Reach, marked
from benchmarks.mutation.rooms import ROOMS, Plan, matches
from benchmarks.mutation.tokens import mutants
from benchmarks.sources import Source

ROOT = Path(__file__).resolve().parents[2]


def changes(text):
    return [(m.old, m.new) for m in mutants("a.py", text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("c = a + b", [("+", "-")]),
        ("c = (a) // (b)", [("//", "*")]),
        ("c += b * d", [("+=", "-="), ("*", "//")]),
        ("c = a < b <= d", [("<", "<="), ("<=", "<")]),
        ("c = a == b != d", [("==", "!="), ("!=", "==")]),
        ("c = a and b or d", [("and", "or"), ("or", "and")]),
        ("c = not a", [("not ", "")]),
        ("c = not(a)", [("not", "")]),
        ("c = -a", [("-", "")]),
        ("c = min(a, b)", [("min", "max")]),
        ("c = a[0] + b[-1]", [("0", "-1"), ("+", "-"), ("-1", "0")]),
        ("c = 0", [("0", "1")]),
        ("c = a.reshape(2, -1)", [("2", "1"), ("2", "3")]),
        ("c = 1_000", [("1_000", "1001"), ("1_000", "999")]),
        ("c = True", [("True", "False")]),
        ("c = 'ü' if a > b else d", [(">", ">=")]),
        ("c = a is not b or a not in d", [("or", "and")]),
    ],
)
def test_what_is_spoilt(text, expected):
    assert changes(text) == sorted(expected, key=lambda e: text.index(e[0]))
    for mutant in mutants("a.py", text):
        compile(mutant.applied(text), "a.py", "exec")


@pytest.mark.parametrize(
    "text",
    [
        '"""One 1 + 1."""',
        "a: Literal[1]",
        "def f(a: Shape[2]) -> Shape[3]: ...",
        "raise ValueError(f'{a + 1}', 1)",
        "e = FlintError('FL101', a + 1)",
        "assert a + 1 == 2",
        "if TYPE_CHECKING:\n    a = 1",
        "@dataclass(frozen=True)\nclass A: ...",
        "zip(a, b, strict=True)",
        "T = TypeVar('T', covariant=True)",
        "model_config = ConfigDict(frozen=True)",
        "a.reshape(-1, b)",
        "a = 'x' + b",
        "a = f'{b + 1}'",
    ],
)
def test_what_is_left_alone(text):
    assert changes(text) == []


def test_keys_stay_when_other_lines_and_folders_change():
    text = "def f(a):\n    return a[0] + a[0]\n"
    keys = [m.key for m in mutants("x/a.py", text)]
    assert len(set(keys)) == 3
    assert [m.key for m in mutants("y/a.py", f"b = c\n\n{text}")] == keys


def test_one_line_changes():
    text = "def f(a):\n    ü = 'ü'; return a[0]  # a[0]\n"
    (mutant,) = mutants("a.py", text)
    assert mutant.applied(text) == "def f(a):\n    ü = 'ü'; return a[-1]  # a[0]\n"


def test_every_pattern_of_the_rooms_means_files():
    plan = Plan.of(ROOT)
    paths = [source.path for source in (*plan.product, *plan.tests)]
    patterns = [p for room in ROOMS.values() for p in (*room.files, *room.tests)]
    assert [p for p in patterns if not any(matches(path, (p,)) for path in paths)] == []


def test_likely_killers_come_first():
    def source(path, text):
        return Source(PurePosixPath(path), text)

    far, near = "tests/unit/test_far.py", "tests/unit/test_near.py"
    whole, named = "tests/oracle/test_whole.py", "tests/unit/test_cost_it.py"
    plan = Plan(
        (
            source("backends/cost/a.py", "def price(): ..."),
            source("backends/cost/b.py", "from flint.backends.cost.a import price"),
        ),
        (
            source("tests/helper.py", "import flint.backends.cost.b"),
            source(far, "from tests.helper import f"),
            source(near, "from flint.backends.cost import a"),
            source(whole, "from flint.backends.cost import a"),
            source(named, "import flint"),
            source("tests/unit/test_other.py", "import flint"),
        ),
    )
    assert plan.ordered("cost", "backends/cost/a.py", {}, {}) == [near, whole, far, named]
    assert plan.ordered("cost", "backends/cost/a.py", {whole: 1}, {})[0] == whole
    assert plan.ordered("cost", "backends/cost/a.py", {}, {near: 1000.0})[0] == whole
    alike = source("tests/unit/test_cost_rounding.py", "import flint")
    rounded = source("backends/cost/rounded.py", "from flint.backends.cost.a import price")
    plan = Plan((*plan.product, rounded), (*plan.tests, alike))
    assert plan.ordered("cost", "backends/cost/rounded.py", {}, {})[0] == str(alike.path)


def test_what_a_ledger_remembers(tmp_path):
    def entry(key, verdict):
        return Entry(key, "mesh", "a.py", 1, "1", "2", verdict, "t.py::t", 1.0, "same", "old", 1.0)

    path = tmp_path / "below" / "ledger"
    first = Ledger(path)
    first.add(entry("k", "killed"))
    first.add(entry("s", "survived"))
    again = Ledger(path)
    assert again.known("k", "same", "new") == entry("k", "killed")
    assert again.known("k", "other", "old") is None
    assert again.known("s", "same", "old") == entry("s", "survived")
    assert again.known("s", "same", "new") is None
    assert again.killers("a.py") == {"t.py": 2}


def test_equivalent_mutants_are_known_by_their_lines():
    (mutant,) = mutants("x/a.py", "def f():\n    return 0\n")
    listed = Equivalent("a.py", "return 0", "return 1", "why")
    assert listed.means(mutant)
    assert stale([listed], [mutant]) == []
    assert stale([Equivalent("a.py", "return 0", "return 2", "why")], [mutant])
    assert all(each.reason for each in read_equivalents(EQUIVALENT))


MARKED = '''"""A module."""
from __future__ import annotations
def one(): return two(1)
def two(
    a, b=2
):
    """A docstring."""
    @staticmethod
    def inner():
        pass
    return inner
class A:
    def f(self):
        """Only a docstring."""
    @property
    def g(self):
        if self: yield 1
'''


def test_functions_say_that_they_are_entered(monkeypatch, tmp_path):
    entered, path = [], tmp_path / "a.py"
    monkeypatch.setitem(sys.modules, "flint.reached", SimpleNamespace(enter=entered.append))
    path.write_text(marked(Source(PurePosixPath("passes/a.py"), MARKED)))
    module = runpy.run_path(path)
    module["one"]().__call__()
    list(module["A"]().g)
    names = [".one", ".two", ".two.inner", ".A.g"]
    assert entered == [f"passes/a.py:{name}" for name in names]
    assert module["two"].__doc__ == "A docstring."


def test_mutants_know_their_functions():
    text = "@d(1)\nclass A:\n    b = 2\n    @d(3)\n    def f(c=4):\n        return lambda: 5\n"
    found = {m.old: m.function for m in mutants("a.py", text)}
    assert found == {"1": "", "2": "", "3": "", "4": ".A.f", "5": ".A.f"}


def test_tests_that_enter_a_function_are_kept_for_the_same_product(tmp_path):
    inside, outside = mutants("x/a.py", "def f():\n    return 0\nb = 0\n")
    path = tmp_path / "reach"
    Reach(path, "product").add("t.py", "same", ["x/a.py:.g"])
    again = Reach(path, "product")
    assert again.missing({"t.py": "same", "u.py": "new"}) == ["u.py"]
    assert again.missing({"t.py": "other"}) == ["t.py"]
    assert not again.reaches("t.py", inside)
    assert again.reaches("t.py", outside)
    assert again.reaches("u.py", inside)
    assert Reach(path, "another").missing({"t.py": "same"}) == ["t.py"]


RUN = """
import json, sys
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from benchmarks.mutation.worker import Task, Worker
Path("scratch").mkdir()
worker = Worker(Path("scratch"))
for text in json.load(sys.stdin):
    outcome = worker.run(Task("flint/a.py", text, ["tests/test_a.py"], ["tests/test_a.py::test_bad"], 5.0))
    print(json.dumps([outcome.verdict, outcome.test, sorted(outcome.passed)]))
task = Task("flint/a.py", "one = lambda: open(__file__, 'w').write('left')", ["tests/test_a.py"], [], 5.0, True)
outcome = worker.run(task)
print(json.dumps([outcome.verdict, outcome.left, sorted(outcome.passed)]))
"""
TEST = """
import flint.a

def test_bad():
    assert False

def test_good():
    assert flint.a.one() == 1
"""


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_fork_for_each_mutant(tmp_path):
    files = {
        "flint/__init__.py": "",
        "flint/a.py": "kept = 1",
        "tests/test_a.py": TEST,
        "pytest.ini": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    compile_with_hashes(tmp_path / "flint")
    bodies = ["return 1", "return 2", "raise ImportError", "while True: pass", "os._exit(0)"]
    texts = [f"import os\ndef one():\n    {body}\n" for body in bodies]
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        input=json.dumps([*texts, "not Python"]),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PYTHONPATH": f"{tmp_path}:{ROOT}", "PATH": "/usr/bin:/bin"},
        check=True,
    )
    test, file = "tests/test_a.py::test_good", "tests/test_a.py"
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        ["survived", "", [test]],
        ["killed", test, []],
        ["killed", test, []],
        ["timeout", test, []],
        ["killed", test, []],
        ["killed", file, []],
        ["survived", "left", []],
    ]
    assert (tmp_path / "flint/a.py").read_text() == "kept = 1"
