"""What is forgotten once a model file was loaded."""

import sys
from pathlib import Path

import pytest

from flint.frontends.model_file import importable


def test_an_environment_in_the_models_folder_is_not_the_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a second copy of a package, `isinstance` says no to what the first one made."""
    packages = tmp_path / ".venv" / "lib"
    packages.mkdir(parents=True)
    (packages / "installed_by_pip.py").write_text("")
    (tmp_path / "beside_the_model.py").write_text("")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    monkeypatch.syspath_prepend(str(packages))
    with importable(tmp_path):
        import beside_the_model  # type: ignore[import-not-found]  # noqa: F401
        import installed_by_pip  # type: ignore[import-not-found]  # noqa: F401
    assert "installed_by_pip" in sys.modules
    assert "beside_the_model" not in sys.modules
    del sys.modules["installed_by_pip"]
