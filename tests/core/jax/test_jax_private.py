"""Private names of JAX that are gone are one error."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from pathlib import Path

import pytest

pytest.importorskip("jax")

from flint.errors import FlintError
from flint.passes import jax_private

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names that are looked for, none at first."""
    found: list[str] = []
    monkeypatch.setattr(jax_private, "_NAMES", found)
    monkeypatch.setattr(jax_private, "_KEYWORDS", [])
    return found


def test_every_name_is_there() -> None:
    assert len(jax_private._NAMES) > 15
    jax_private.check()


def test_releases_that_names_were_seen_in_are_those_that_are_allowed() -> None:
    oldest, newest = jax_private.SEEN
    year, minor, _ = newest.split(".")
    allowed = f'"jax>={oldest},<{year}.{int(minor) + 1}", "jaxlib>={oldest},'
    assert allowed in (ROOT / "pyproject.toml").read_text()


def test_names_that_are_gone_are_one_error(names: list[str]) -> None:
    names += ["jaxlib._jax:no_such_name", "jax._src.no_such_module:", "jax:jit"]
    jax_private._keyword("no_such_argument", of="jax.stages:Traced.lower")
    with pytest.raises(FlintError) as caught:
        jax_private.check()
    assert caught.value.code == "FL234"
    assert caught.value.message == (
        f"JAX {importlib.metadata.version('jaxlib')} changed jax._src.no_such_module, "
        "jax.stages.Traced.lower.no_such_argument, jaxlib._jax.no_such_name: "
        "programs cannot be captured with it"
    )
    assert jax_private.SEEN[1] in str(caught.value.help)


def test_a_name_that_is_asked_for_says_what_else_is_gone(names: list[str]) -> None:
    jax_private._later("jaxlib._jax:another")
    find = jax_private._later("jaxlib._jax:", "mlir", "no_such_name")
    assert names == ["jaxlib._jax:another", "jaxlib._jax:mlir", "jaxlib._jax:no_such_name"]
    with pytest.raises(FlintError, match=r"jaxlib\._jax\.another, jaxlib\._jax\.no_such_name:"):
        find()


def test_a_package_that_is_not_installed_is_another_error(
    names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    find = jax_private._later("jax_that_is_not_installed.inside:name")
    jax_private.check()
    with pytest.raises(ImportError, match="jax_that_is_not_installed"):
        find()


def test_a_switch_that_is_gone_changes_nothing() -> None:
    with jax_private.setting("no_such_switch", True):
        pass
