"""What results of a study depend on beside their points: when one of before may be used again.

Two levels: what all points share (model, versions, environment: a *generation* of the study), and
what a point names (machine, stack, files of placements and routings: its *fingerprint*).
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import cache
from typing import Any

from flint.io.inputs import ReadInputKind, digest, digest_of, environment_of
from flint.tools.explore.machine.cluster_changes import PARTS
from flint.tools.explore.point import SWEPT, Point
from flint.tools.explore.subject import Subject

#: Fields of a subject that say how its points are evaluated, not what is explored.
_HOW = ("tokens", "keep_infeasible", "limit_seconds")
_DISTRIBUTIONS = ("flint-ir", "jax", "jaxlib", "torch", "numpy")

#: Options of an estimate, but the stack, whose value may be a file.
_MAY_BE_FILES = tuple(name for name in SWEPT if name not in ("stack", "policy"))


class Fingerprints:
    """Fingerprints of points, made once for each machine, stack and file that they name."""

    def __init__(self) -> None:
        self._cluster, self._stack = cache(_cluster), cache(_stack)
        self._file = cache(_file)

    def of(self, point: Point) -> str:
        """A digest of the content of what a point names. Raises FlintError for what cannot be read."""
        chosen = dict(point.estimate)
        found = (
            self._cluster(point.cluster),
            self._stack(chosen.get("stack", "")),
            *(self._file(chosen.get(name, "")) for name in _MAY_BE_FILES),
            *(self._cluster(value) for path, value in point.changes if path in PARTS),
            *(self._file(value) for name, value in point.serve if name != "decode_cluster"),
            self._cluster(dict(point.serve).get("decode_cluster", "")),
        )
        return digest("\n".join(found).encode())


def _cluster(name: str) -> str:
    from flint.cluster.named import load_cluster

    return load_cluster(name).model_dump_json() if name else ""


def _stack(name: str) -> str:
    from flint.cluster.stack import Stack

    return Stack.load(name).model_dump_json() if name else ""


def _file(text: str) -> str:
    """The digests of the files that a text names; "" for a text that names none."""
    return "".join(digest_of(ReadInputKind.FILE, path) for path in _files_in(text))


def _files_in(text: str) -> Iterator[str]:
    """A file that a text is, or those in it: `gemm=fast.toml`, `trace:log.csv,n=40`."""
    if text and os.path.isfile(text):
        yield text
    else:
        yield from (part for part in re.split("[=:,]", text) if part and os.path.isfile(part))


def files_of(point: Point) -> tuple[str, ...]:
    """Whole paths of the files that a point names: they are part of its fingerprint."""
    named = (
        point.cluster,
        *(value for _, value in point.estimate),
        *(value for _, value in (*point.changes, *point.serve)),
    )
    return tuple(os.path.abspath(path) for text in named for path in _files_in(text))


def identity_of(subject: Subject) -> dict[str, Any]:
    """What a study is of: the same for a subject that is only evaluated otherwise. JSON-able."""
    found = {name: value for name, value in asdict(subject).items() if name not in _HOW}
    return {name: list(v) if isinstance(v, tuple) else v for name, v in found.items()}


def shared_by_points(subject: Subject) -> dict[str, str]:
    """What a generation of a study depends on, beside files: by name as a text."""
    how = {"--tokens": subject.tokens, "--keep-infeasible": str(subject.keep_infeasible)}
    files = "".join(_file(text) for _, text in subject.estimate)
    how |= {"files of options": files} if files else {}
    return {**environment_of(()), **how}


def versions() -> dict[str, str]:
    """Versions of Python, Flint and the frameworks that are installed here."""
    return {"python": platform.python_version(), **dict(_installed())}


@cache
def _installed() -> Mapping[str, str]:
    found = {}
    for name in _DISTRIBUTIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
