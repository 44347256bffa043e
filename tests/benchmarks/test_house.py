"""The house keeps its budgets; and what `benchmarks/house.py` counts, on a checkout small enough to count by hand."""

import gc
import tomllib

import pytest

from benchmarks import house
from benchmarks.sources import PRODUCT, bare_any, circles, importers, read_sources, reused_classes

FILES = {
    "flint/__init__.py": "",
    "flint/one.py": "class Part:\n    pass\n\n\ndef first(x: int) -> int:\n    return x\n",
    "flint/tools/__init__.py": "",
    "flint/tools/draw/art.py": "from typing import Any, TYPE_CHECKING\n\nif TYPE_CHECKING:\n"
    "    from flint.passes import two\n\n\ndef f(a: Any, b: 'Any', *c: list[Any]) -> None:\n"
    "    d: Any = 1\n    e = 2\n",
    "passes/__init__.py": "",
    "passes/two.py": "from flint.one import first\nfrom flint.tools.draw import art\n\n\nclass Part:\n"
    "    pass\n\n\nclass _Own:\n    pass\n",
    "passes/deep/__init__.py": "",
    "passes/deep/one.py": "def late():\n    from ..two import Part\n    from flint import one\n\n\n"
    "class _Own:\n    pass\n",
    "tests/test_one.py": "\n" * 101,
}
BUDGETS = """# why
[lines]  # of Python
core = 200  # bar 100
draw = 90

[structure]
circles = 0
"""


def test_the_house_keeps_its_budgets():
    """A number over its budget: the message says which, by how much, and what to do."""
    gc.disable()  # it would walk a million nodes again and again
    try:
        found = house.count(read_sources(house.ROOT, (*PRODUCT, "tests", "benchmarks")))
    finally:
        gc.enable()
    assert_in_budget(found)


@pytest.mark.long
def test_commands_load_no_more_than_their_budgets():
    assert_in_budget({"loaded": house.loaded()})


def assert_in_budget(measured):
    budgets = tomllib.loads(house.BUDGETS.read_text(encoding="utf-8"))
    found = house.over_budget(budgets, measured)
    assert not found, "\n".join([*found, house.HELP])


@pytest.fixture
def checkout(tmp_path):
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "flint" / "passes").symlink_to("../passes")
    return read_sources(tmp_path, (*PRODUCT, "tests"))


def test_links_are_not_followed(checkout):
    assert [str(s.path) for s in checkout] == sorted(FILES)


def test_counts(checkout):
    counted = house.count(checkout)
    assert counted["lines"] == {"core": 100, "product": 100, "draw": 100, "tests": 200}
    assert counted["files"] == {"core": 7, "product": 8, "draw": 1, "tests": 1}
    assert counted["structure"] == {
        "longest_function": 3,
        "functions_over_60": 0,
        "files_over_500": 0,
        "reused_public_names": 1,
        "circles": 0,
        "bare_any": 3,
    }
    assert sum(map(bare_any, checkout)) == 3


def test_imports_in_functions_and_relative_ones_count(checkout):
    users = importers(checkout)
    assert users["flint.one"] == {"flint.passes.two", "flint.passes.deep.one"}
    assert users["flint.passes.two"] == {"flint.passes.deep.one", "flint.tools.draw.art"}


def test_circles_are_of_imports_that_run(checkout, tmp_path):
    assert circles(checkout) == []
    (tmp_path / "flint" / "one.py").write_text("def late():\n    import flint.passes.two\n")
    assert circles(read_sources(tmp_path, PRODUCT)) == [["flint.one", "flint.passes.two"]]


def test_names_that_are_used_again(checkout):
    places = ["flint.passes.deep.one", "flint.passes.two"]
    assert reused_classes(checkout) == {"Part": ["flint.one", "flint.passes.two"], "_Own": places}


def test_what_is_behind_the_counts(tmp_path):
    (tmp_path / "flint").mkdir()
    long = "def long():\n" + "    pass\n" * 60
    (tmp_path / "flint" / "long.py").write_text(long + "\n" * 440)
    found = house.behind(read_sources(tmp_path, PRODUCT))
    assert found.long_functions == ["61 flint/long.py:1 long"]
    assert found.long_files == ["501 flint/long.py"]


def test_what_is_over_a_budget_is_named():
    measured = {"lines": {"core": 300, "draw": 80}, "structure": {"circles": 0, "bare_any": 1}}
    assert house.over_budget(tomllib.loads(BUDGETS), measured) == [
        "[lines] core is 300, 100 over its budget of 200.",
        "[structure] bare_any is 1 and has no budget.",
    ]


def test_budgets_are_lowered_and_never_raised():
    measured = {"lines": {"core": 300, "draw": 80}, "structure": {"circles": 1}}
    assert house.lowered(BUDGETS, measured) == BUDGETS.replace("draw = 90", "draw = 80")


def test_the_table_shows_the_bar(capsys):
    house.print_table(BUDGETS, {"lines": {"core": 150}})
    out = capsys.readouterr().out.splitlines()
    assert out[2:] == [
        "| lines: core | 150 | 200 | 100 |",
        "| lines: draw | gone | 90 |  |",
        "| structure: circles | gone | 0 |  |",
    ]


def test_a_command_that_fails_says_so():
    with pytest.raises(RuntimeError, match="FL"):
        house.loaded_by("estimate", "nowhere")
