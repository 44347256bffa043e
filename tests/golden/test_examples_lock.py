"""examples/flint.lock is what the examples give: `flint verify` there finds nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from flint.tools.change.project.lock import load_lock
from tests.project_folders import flint
from tests.recorded import recorded_version_only

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.long
@recorded_version_only
def test_the_lock_of_the_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this moves on purpose: `flint run --update` in `examples`, and a reason in CHANGELOG.md."""
    pytest.importorskip("torch", reason="one example is a PyTorch module")
    for path in (*EXAMPLES.glob("*.py"), EXAMPLES / "flint.toml", EXAMPLES / "flint.lock"):
        shutil.copy(path, tmp_path)
    monkeypatch.chdir(tmp_path)
    result = flint("verify")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1] == "4 captures: 4 equal"
    assert flint("run", "--update").exit_code == 0
    assert (tmp_path / "flint.lock").read_bytes() == (EXAMPLES / "flint.lock").read_bytes()


def test_the_lock_is_of_the_project_file() -> None:
    lock = load_lock(EXAMPLES / "flint.lock")
    assert lock is not None and str(Path.home()) not in (EXAMPLES / "flint.lock").read_text()
    assert set(lock.captures) == {"llama", "decode", "pipeline", "torch"}
