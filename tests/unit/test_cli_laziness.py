"""What imports cost: `import flint` and `flint --help` load nothing that is slow."""

import os
import subprocess
import sys

import pytest

from tests.cpu import children_seconds

HEAVY = ("jax", "jaxlib", "torch", "numpy", "networkx", "pydantic", "google.protobuf")


def _loaded(statement):
    """Which of HEAVY a fresh process has loaded after `statement`."""
    program = f"import sys\n{statement}\nprint(*[m for m in {HEAVY!r} if m in sys.modules])"
    return _run("-c", program).stdout.split()


def _run(*arguments):
    path = os.pathsep.join(p for p in sys.path if p)
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": path},
    )


@pytest.mark.parametrize(
    "statement",
    ["import flint", "import flint.cli", "from flint import entry, Step, FlintError"],
)
def test_imports_are_light(statement):
    assert _loaded(statement) == []


def test_the_check_above_can_fail():
    assert _loaded("import flint; flint.Mesh") == ["numpy"]


def test_names_are_public_lazily_and_the_version_is_not_one():
    import flint

    assert flint.__all__ == sorted(flint.__all__)
    assert dir(flint) == flint.__all__
    assert not hasattr(flint, "__version__")


def test_every_public_name_is_what_it_says_in_any_order():
    for first in ("trace", "Trace"):
        names = "*(getattr(flint, n).__name__ for n in flint.__all__)"
        shown = _run("-c", f"import flint; flint.{first}; print(sep='\\n', {names})").stdout
        assert shown.split() == _run("-c", "import flint; print(*flint.__all__)").stdout.split()


def test_help_costs_little_more_than_its_libraries():
    def cost(*arguments):
        return min(children_seconds(lambda: _run(*arguments)) for _ in range(3))

    assert "capture" in _run("-m", "flint", "--help").stdout
    libraries = cost("-c", "import typer, rich.console, rich.table, rich.panel, rich.markdown")
    assert cost("-m", "flint", "--help") < 2 * libraries
