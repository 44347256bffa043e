"""A revision of a git repository in a folder of its own, to capture a model as it was."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from flint.errors import FlintError
from flint.io.scratch import scratch_folder


@dataclass(frozen=True)
class Checkout:
    """The files of a revision. `folder` is where the working directory would be in it.

    `paths` are the folders of the revision from which its modules are imported: those where this
    process finds the repository's own, however they are installed.
    """

    revision: str
    folder: Path
    paths: tuple[str, ...]


@contextlib.contextmanager
def checkout(revision: str, directory: Path) -> Iterator[Checkout]:
    """The files of a revision, until the context ends. The repository and its index are only read.

    They are checked out and not archived: .gitattributes may leave files out of archives.

    Raises FlintError FL724 if `directory` is in no repository, or that has no such revision.
    """
    top = top_of(directory)
    found = _git(directory, "rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}")
    with scratch_folder() as scratch:
        folder, index = scratch / "files", {"GIT_INDEX_FILE": str(scratch / "index")}
        _git(top, "read-tree", found.strip(), variables=index)
        _git(top, "checkout-index", "--all", f"--prefix={folder}{os.sep}", variables=index)
        inside = directory.resolve().relative_to(top.resolve())
        (folder / inside).mkdir(parents=True, exist_ok=True)  # it may be younger than the revision
        yield Checkout(revision, folder / inside, tuple(_paths(top.resolve(), folder)))


def top_of(directory: Path) -> Path:
    """The folder of the repository that a directory is in. Raises FlintError FL724 if it is in none."""
    return Path(_git(directory, "rev-parse", "--show-toplevel").strip())


def _paths(top: Path, folder: Path) -> Iterator[str]:
    """Folders of the repository that are on `sys.path`, or are usual there, in the revision."""
    own = [Path(p).resolve() for p in sys.path if p]
    inside = [p.relative_to(top) for p in own if p.is_relative_to(top)]
    for path in dict.fromkeys((Path(), Path("src"), *inside)):
        if (folder / path).is_dir():
            yield str(folder / path)


def _git(directory: Path, *arguments: str, variables: Mapping[str, str] | None = None) -> str:
    environment = {**os.environ, **(variables or {})}
    command = ["git", "-C", str(directory), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    except FileNotFoundError as error:
        raise FlintError("FL724", "git is not installed", help="revisions need it") from error
    except subprocess.CalledProcessError as error:
        said = error.stderr.strip().splitlines()
        raise FlintError(
            "FL724",
            f"git: {said[-1] if said else 'failed'}",
            place=str(directory),
            help="give a revision of this repository, such as HEAD~1, main or a commit",
        ) from error
    return done.stdout
