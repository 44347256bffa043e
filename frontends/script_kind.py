"""Whether a script trains with PyTorch or with JAX: read from its imports, without running it."""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cache
from importlib import metadata
from pathlib import Path

from flint.errors import FlintError
from flint.frontends.user_program import source_of
from flint.io.bounded import FileKind, read_bounded
from flint.io.user_places import is_users

#: So many files of the script's own folder are looked through.
_MOST_FILES = 200
_JAX = frozenset(["jax", "jaxlib", "flax", "optax", "equinox", "haiku", "orbax"])
_TORCH = frozenset(["torch", "torchtitan", "lightning", "pytorch_lightning", "deepspeed"])
#: Parts of PyTorch that JAX programs read their data with.
_TORCH_DATA = ("torch.utils", "torchvision", "torchdata", "torchtext")


class ScriptKind(Enum):
    """What a script's training step is written in."""

    JAX = "jax"
    TORCH = "torch"


def script_file(path: Path) -> Path | None:
    """The file of a script, or of a module that is named like `package.train`: here or installed.

    Nothing is imported. None where there is neither.
    """
    if os.path.isfile(path):  # no name is too long for it
        return path
    parts = str(path).split(".")
    if not all(part.isidentifier() for part in parts):
        return None
    try:
        top = importlib.util.find_spec(parts[0])
    except (ImportError, ValueError):
        top = None
    installed = top.submodule_search_locations or () if top is not None else ()
    for inside in (Path(*parts), *(Path(folder, *parts[1:]) for folder in installed)):
        for file in (inside.with_name(inside.name + ".py"), inside / "__main__.py"):
            if os.path.isfile(file):
                return file
    return None


def program_of(path: Path) -> tuple[Path, str]:
    """The file of a script or module (see `script_file`), and the module's name, "" for a script.

    Raises FlintError FL301 if it cannot be read.
    """
    module, file = "" if os.path.isfile(path) else str(path), script_file(path)
    if file is None:
        raise FlintError("FL301", f"cannot read {path}: there is no such file")
    read_bounded(file, FileKind.MODEL, "FL301")
    return file, module


def script_kind(path: Path) -> ScriptKind:
    """What a script (or module, see `script_file`) trains with, by the imports of it and beside it.

    A program that imports both is JAX's if it uses PyTorch's data loaders alone. One that imports
    neither, itself or through an installed package, is taken for PyTorch's.
    """
    path = script_file(path) or path
    names = set(_imports_of_all(path))
    tops = {name.partition(".")[0] for name in names}
    jax = bool(tops & _JAX) or any(_requires(top, "jax") for top in tops)
    torch = {n for n in names if n.partition(".")[0] in _TORCH and not n.startswith(_TORCH_DATA)}
    if not torch and not jax:
        return ScriptKind.TORCH
    if jax and (
        not torch or torch <= {"torch"} and any(n.startswith("torch.utils") for n in names)
    ):
        return ScriptKind.JAX
    return ScriptKind.JAX if jax and not _distributes(torch) else ScriptKind.TORCH


def imports_flint(path: Path) -> bool:
    """Whether a file imports Flint, itself or through modules of the user's own."""
    return any(name.partition(".")[0] == "flint" for name in _imports_of_all(path))


def _distributes(torch: set[str]) -> bool:
    """Whether PyTorch is used for more than tensors and their loading."""
    parts = ("torch.distributed", "torch.optim", "torch.nn", "torch.cuda")
    return not torch <= {"torch"} and any(n.startswith(parts) or "." not in n for n in torch)


def _imports_of_all(path: Path) -> Iterator[str]:
    """Modules that a file imports, and those that modules of the user's own import.

    These lie beside the file or in the current folder, or are installed in place.
    """
    roots = (path.parent, Path())
    todo, seen = [path], set[Path]()
    while todo and len(seen) < _MOST_FILES:
        file = todo.pop()
        if file in seen:
            continue
        seen.add(file)
        for name, level in _imports(file):
            if level:
                todo += _files([file.parents[min(level, len(file.parents)) - 1]], name)
                continue
            yield name
            todo += _files(roots, name) or _files(_folders_of(name), name)


def _imports(file: Path) -> Iterator[tuple[str, int]]:
    """Names of modules (and of what may be one) that a file imports, and how many dots precede."""
    try:
        tree = ast.parse(source_of(file))
    except (SyntaxError, ValueError, FlintError, RecursionError):
        return  # whoever runs it says what is wrong with it
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, 0) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            inside = f"{node.module}." if node.module else ""
            if node.module:
                yield node.module, node.level
            yield from ((f"{inside}{alias.name}", node.level) for alias in node.names)


def _files(folders: Iterable[Path], name: str) -> list[Path]:
    """Files that run where a module of `folders` is imported: its own, and those of its packages."""
    parts = name.split(".")
    inside = [Path(*parts[:count]) for count in range(1, len(parts) + 1)]
    found = [
        file
        for folder in folders
        for module in inside
        for file in (folder / module.with_suffix(".py"), folder / module / "__init__.py")
    ]
    return [file for file in found if os.path.isfile(file)]


@cache
def _folders_of(name: str) -> tuple[Path, ...]:
    """Where Python finds a module, if it is the user's own: installed in place, or on the path."""
    try:
        found = importlib.util.find_spec(name.partition(".")[0])
    except (ImportError, ValueError):
        return ()
    if found is None:
        return ()
    places = found.submodule_search_locations or (found.origin or "",)
    return tuple(Path(place).parent for place in places if place and is_users(place))


@cache
def _all_distributions() -> Mapping[str, Sequence[str]]:
    """For each installed package the distributions that it is from: 0.3 s in an environment of 360."""
    return metadata.packages_distributions()


def _distributions_of(package: str) -> Sequence[str]:
    """Those that an installed package is from: mostly one of its name, which is asked for first."""
    if package in sys.stdlib_module_names:
        return ()
    try:
        return (metadata.distribution(package).metadata["Name"],)
    except metadata.PackageNotFoundError:
        return _all_distributions().get(package, ())


@cache
def _requires(package: str, wanted: str) -> bool:
    """Whether the distribution of an installed package needs another one, extras omitted."""
    for distribution in _distributions_of(package):
        for line in metadata.requires(distribution) or ():
            name = line.partition(";")[0].strip().lower()
            if name.rstrip("0123456789.<>=!~, []").partition("[")[0].strip() == wanted:
                return "extra" not in line
    return False
