"""Golden files, text that a test compares whole; and how hypothesis chooses its examples.

The profile `fixed` gives the same examples to everyone, at every run. `explore` draws new ones:
`python -m pytest -m hypothesis --hypothesis-profile explore --hypothesis-seed=1`, and other seeds.
"""

import gc
import os
import re
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests import warm

# Whoever wants no bytecode would have each worker rewrite 400 files of tests, at every run, and each
# cold child compile Flint anew.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Tests are run by as many processes as there are cores: threads of each only wait for one another.
os.environ.setdefault("OMP_NUM_THREADS", "1")

_NAMES_LONG = re.compile(r"mark\.long\b|\blong_but\b")
_GOLDEN = Path(__file__).parent / "golden"

# No limits of time: a loaded machine must not fail a test. No database: a test must not depend on
# what failed in this checkout before.
_COMMON = settings(deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("fixed", _COMMON, derandomize=True, max_examples=30)
settings.register_profile("explore", _COMMON, print_blob=True)
settings.load_profile("fixed")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="rewrite the files under tests/golden; say why in the commit that holds them",
    )


def pytest_sessionstart(session: pytest.Session) -> None:
    if sys.platform == "linux":
        warm.replace_processes()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Libraries and tests stay to the end: no garbage collection of the run walks through them again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.set_threshold(10_000, 20, 20)
        gc.freeze()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m long`, files that have no such test are not imported: nine of ten."""
    asked = config.option.markexpr == "long" and collection_path.suffix == ".py"
    return True if asked and not _NAMES_LONG.search(collection_path.read_text("utf-8")) else None


def pytest_itemcollected(item: pytest.Item) -> None:
    """A run of all tests finds what `-m long` would pass over."""
    if item.get_closest_marker("long") and not _NAMES_LONG.search(item.path.read_text("utf-8")):
        raise pytest.UsageError(f"{item.nodeid} is long; its file has to say pytest.mark.long")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    marked = any(item.get_closest_marker(name) for name in ("cold",))
    warm.forks().on = not marked  # before module fixtures, which start children as well


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> None:
    """A process that records for several tests is kept only as long as the environment is the same."""
    os.environ.pop("PYTEST_CURRENT_TEST", None)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """What libraries leave in the environment would keep later children from being forks."""
    for name in warm.OF_LIBRARIES:
        os.environ.pop(name, None)


def pytest_sessionfinish(session: pytest.Session) -> None:
    warm.forks().end()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `-n`, a file's tests run in one process: what it captures is captured once."""
    from xdist.scheduler import LoadFileScheduling

    return LoadFileScheduling(config, log)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare text with `tests/golden/NAME`, or write it there with --update-golden."""

    def compare(name: str, text: str) -> None:
        path = _GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.exists(), f"{name} is missing; run with --update-golden"
        assert text.split("\n") == path.read_text(encoding="utf-8").split("\n")

    return compare
