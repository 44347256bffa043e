"""README, CI script, dependencies and docs agree with each other and with the code."""

from __future__ import annotations

import ast
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
#: Distribution -> what it is imported as, where the names differ.
IMPORT_NAMES = {
    "typing-extensions": "typing_extensions",
    "protobuf": "google",
    "pydantic-core": "pydantic_core",
}
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("examples/*.md")])


def readme_commands() -> list[str]:
    """Lines of README.md that set an environment up."""
    return [line.strip() for line in README.splitlines() if "-m venv" in line]


def imported_names(folder: Path) -> set[str]:
    """Top-level names that the Python files of a folder import."""
    found: set[str] = set()
    for file in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module.split(".")[0])
            elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
                target = node.args[0]
                if isinstance(target, ast.Constant):
                    found.add(str(target.value).split(".")[0])
    return found


def requirement_name(requirement: str) -> str:
    return re.split(r"[<>=!~\[; ]", requirement)[0]


def test_readme_has_one_command_for_the_main_job_and_one_for_the_tests() -> None:
    main, tests = readme_commands()
    assert "flint capture examples/llama_jax.py --mesh 64x8" in main
    assert "-m pytest" in tests
    assert all("-c constraints.txt" in command for command in (main, tests))


def test_ci_runs_the_test_command_of_the_readme_as_it_is_written() -> None:
    _, tests = readme_commands()
    assert tests in (ROOT / ".ci" / "run").read_text().splitlines()


def test_the_main_command_of_the_readme_prints_what_stands_below_it(tmp_path: Path) -> None:
    pytest.importorskip("jaxlib", reason="captures a JAX program")
    arguments = readme_commands()[0].partition("flint ")[2].removesuffix("trace").split()
    command = [sys.executable, "-m", "flint", *arguments, str(tmp_path / "trace")]
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    (block,) = re.findall(r"^```text\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    assert [line for line in block.splitlines() if line not in done.stdout.splitlines()] == []


def test_every_dependency_is_imported_and_every_import_is_declared() -> None:
    used = set().union(
        *(imported_names(ROOT / f) for f in ("flint", "passes", "frontends", "backends"))
    )
    required = {requirement_name(r) for r in PROJECT["dependencies"]}
    assert {IMPORT_NAMES.get(r, r) for r in required} <= used
    # The last ones are found where they are installed.
    optional = {"accelerate", "jax", "jaxlib", "torch", "scalesim", "zstandard"}
    # What exploration needs beyond its search and workers is asked for where it is used.
    optional |= {"infragraph", "yaml"}  # the extra names both
    optional |= {"mcp", "anyio"}  # the second comes with the first
    optional |= {"dask", "distributed", "optuna", "pyarrow", "pandas", "polars"}
    declared = {IMPORT_NAMES.get(r, r) for r in required} | optional | {"flint"}
    standard = set(sys.stdlib_module_names)
    assert used - standard - declared == set()


def test_constraints_pin_everything_that_is_declared() -> None:
    pins = re.findall(r"^([A-Za-z0-9_.-]+)==", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    pinned = {name.lower().replace("_", "-") for name in pins}
    extras = PROJECT["optional-dependencies"]
    wanted = [
        *PROJECT["dependencies"],
        *extras["jax"],
        *extras["test"],
        *extras["dev"],
        *extras["docs"],
    ]
    names = {requirement_name(r).lower().replace("_", "-") for r in wanted} - {"flint-ir"}
    assert names <= pinned


def test_every_lower_bound_is_one_that_ci_installs() -> None:
    """By .ci/lowest.py, or because it is what constraints.txt pins."""
    pytest.importorskip("packaging")
    lowest = runpy.run_path(str(ROOT / ".ci" / "lowest.py"))["lowest"]
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    script = (ROOT / ".ci" / "run").read_text()
    (extras,) = re.findall(r"python \.ci/lowest\.py (.*?) >", script)
    tested = lowest(pyproject, extras.split())
    pins = dict(re.findall(r"^(\S+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    rest = lowest(pyproject, PROJECT["optional-dependencies"])
    assert {n: str(v) for n, v in rest.items() if n not in tested} == {
        n: pins[n] for n in rest if n not in tested
    }
    assert tested["jax"] == rest["jax"] and str(tested["protobuf"]) == "3.20"


def test_a_requirement_without_a_lower_bound_is_refused() -> None:
    pytest.importorskip("packaging")
    lowest = runpy.run_path(str(ROOT / ".ci" / "lowest.py"))["lowest"]
    project = {"name": "x", "dependencies": ["numpy<3"], "optional-dependencies": {}}
    with pytest.raises(SystemExit, match="numpy"):
        lowest({"build-system": {"requires": []}, "project": project}, [])


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_index_of_docs_lists_every_page() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    navigation = (ROOT / "mkdocs.yml").read_text()
    docs = ROOT / "docs"
    pages = {p.relative_to(docs).as_posix() for p in [*docs.glob("*.md"), *docs.glob("howto/*")]}
    assert {p for p in pages if f"({p})" not in index} == {"README.md"}
    assert {p for p in pages if f": {p}\n" not in navigation} == {"README.md"}
    assert len(pages) <= 31  # merge pages before you add one; serving is a subject of its own
    firsts = {p: (docs / p).read_text().split("\n\n")[1] for p in pages}
    assert {p for p, first in firsts.items() if not first.startswith("For ")} == set()  # for whom


def test_each_decision_begins_with_its_number() -> None:
    for page in (ROOT / "docs" / "decisions").glob("0*.md"):
        assert re.match(rf"# {page.name[:4]} [\w`]", page.read_text()), page.name


def test_the_page_on_programs_names_every_column_flag_and_invariant() -> None:
    from flint.ir.program import COLUMNS, TABLES, Flag, Kind
    from flint.ir.verify import INVARIANTS

    page = (ROOT / "docs" / "program.md").read_text()
    names = [*COLUMNS, *TABLES, *(k.name for k in Kind), *(f.name for f in Flag)]
    names += [invariant.__name__ for invariant in INVARIANTS]
    assert [name for name in names if f"`{name}`" not in page] == []


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 90
