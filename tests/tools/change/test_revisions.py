"""Files of a revision in a folder of their own, whatever the repository holds."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from flint.errors import FlintError
from flint.tools.change.project.revisions import checkout
from tests.project_folders import commit, files, git


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    (root / "src" / "lib").mkdir(parents=True)
    git(root.parent, "init", "-q", "-b", "main", str(root))
    (root / ".gitattributes").write_text("*.toml export-ignore\n")
    (root / "model.py").write_text("one")
    (root / "flint.toml").write_text("one")
    (root / "link").symlink_to("/nowhere/else")
    (root / "src" / "lib" / "näme ü.py").write_text("one")
    commit(root, "one")
    (root / "model.py").write_text("two")
    (root / "later").mkdir()
    (root / "later" / "new.py").write_text("two")
    commit(root, "two")
    (root / "model.py").write_text("not committed")
    return root


def test_a_revision_is_whole_and_the_repository_as_it_was(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, status = files(repository), git(repository, "status", "--porcelain")
    index = (repository / ".git" / "index").read_bytes()
    monkeypatch.setattr(sys, "path", [*sys.path, str(repository / "src" / "lib")])
    with checkout("HEAD~1", repository) as there:
        assert (there.folder / "model.py").read_text() == "one"
        assert (there.folder / "flint.toml").is_file(), "although archives leave it out"
        assert os.readlink(there.folder / "link") == "/nowhere/else"
        assert (there.folder / "src" / "lib" / "näme ü.py").is_file()
        assert not (there.folder / "later").exists()
        known = [str(there.folder / p) for p in ("src", "src/lib")]
        assert there.paths == (str(there.folder), *known)
    assert not there.folder.exists()
    assert files(repository) == before and git(repository, "status", "--porcelain") == status
    assert (repository / ".git" / "index").read_bytes() == index


def test_from_a_folder_that_the_revision_lacks(repository: Path) -> None:
    with checkout("HEAD~1", repository / "later") as there:
        assert there.folder.name == "later" and list(there.folder.iterdir()) == []


@pytest.mark.parametrize("revision", ["nowhere", "HEAD~9", "--help", ""])
def test_no_such_revision(repository: Path, revision: str) -> None:
    with pytest.raises(FlintError) as error, checkout(revision, repository):
        pass
    assert error.value.code == "FL724" and "HEAD~1" in str(error.value.help)


def test_no_repository(tmp_path: Path) -> None:
    with pytest.raises(FlintError) as error, checkout("HEAD", tmp_path):
        pass
    assert error.value.code == "FL724"
