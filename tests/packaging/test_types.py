"""What type checkers see of an editable installation: the package's types, and no mistakes in docs.

Libraries are not where they look, so that their types are Any. Ours are not.
"""

from __future__ import annotations

import ast
import builtins
import re
import subprocess
import sys
import venv
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SETTINGS = """
[mypy]
ignore_missing_imports = true
[mypy-flint.*]
follow_imports = silent
"""
REVEALED = """
import flint

trace = flint.trace(print, "64x8")
reveal_type(trace)
reveal_type(trace.program)
reveal_type(trace.estimate("h100-dgx"))
flint.Step()
"""

pytestmark = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("mypy", "pip", "setuptools"))
    or not (ROOT / ".editable" / "flint" / "passes").is_dir(),
    reason="needs mypy, pip, setuptools and a checkout with links",
)


def snippets() -> dict[str, str]:
    """The blocks of Python in the pages that use Flint, by page and number."""
    found = {}
    for page in PAGES:
        blocks = re.findall(
            r"^```python[^\n]*\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL
        )
        for number, block in enumerate(b for b in blocks if re.search(r"\bflint\b", b)):
            found[f"{page.stem}_{number}".replace("-", "_")] = _completed(block)
    return found


def _completed(block: str) -> str:
    """A block as a program: what it takes from elsewhere is Any."""
    tree = ast.parse(block)
    known = {"flint", *dir(builtins)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            known |= {(a.asname or a.name).partition(".")[0] for a in node.names}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            known.add(node.name)
        elif isinstance(node, ast.arg):
            known.add(node.arg)
    names = [n for n in ast.walk(tree) if isinstance(n, ast.Name)]
    known |= {n.id for n in names if isinstance(n.ctx, ast.Store)}
    missing = sorted({n.id for n in names} - known)
    return "\n".join(
        ["from typing import Any", "import flint", *(f"{n}: Any" for n in missing), block]
    )


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Lines of mypy, by file, in a directory of its own beside an editable installation."""
    work = tmp_path_factory.mktemp("types")
    venv.create(work / "env", with_pip=False)
    python = work / "env" / "bin" / "python"
    (site,) = (work / "env").glob("lib/python*/site-packages")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    install += ["--no-build-isolation", "--target", str(site), "-e", str(ROOT)]
    subprocess.run(install, cwd=work, check=True, capture_output=True)
    files = {**snippets(), "revealed": REVEALED}
    for name, text in files.items():
        (work / f"{name}.py").write_text(text)
    (work / "mypy.ini").write_text(SETTINGS)
    command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(python)]
    command += ["--allow-untyped-defs", "--allow-untyped-calls", "--allow-untyped-decorators"]
    command += ["--allow-incomplete-defs", *(f"{name}.py" for name in files)]
    done = subprocess.run(command, cwd=work, check=False, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr
    lines = done.stdout.splitlines()
    return {name: [ln for ln in lines if ln.startswith(f"{name}.py:")] for name in files}


@pytest.mark.long
def test_types_come_from_the_checkout_and_mistakes_are_seen(said: dict[str, list[str]]) -> None:
    revealed = [line for line in said["revealed"] if "Revealed type" in line]
    types = [re.findall(r'"(.*)"', line)[0] for line in revealed]
    assert types == [
        "flint.tracing.Trace",
        "flint.ir.program.Program",
        "flint.backends.cost.estimate.Estimate",
    ]
    assert [line for line in said["revealed"] if "[call-arg]" in line]


@pytest.mark.long
@pytest.mark.parametrize("name", snippets())
def test_snippets_are_well_typed(said: dict[str, list[str]], name: str) -> None:
    assert said[name] == []
