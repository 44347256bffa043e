"""The Python files of a checkout, parsed: their functions and classes, and who imports whom."""

from __future__ import annotations

import ast
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

import networkx

#: Folders that are installed below the package `flint`, where links lead to them.
LINKED = ("frontends", "passes", "backends")
PRODUCT = ("flint", *LINKED)
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
_SKIPPED = {"__pycache__", "build", "dist"}


@dataclass(frozen=True)
class Source:
    """One file: its path in the checkout, and what it holds."""

    path: PurePosixPath
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """Parsed; SyntaxError says which file is not Python of this interpreter."""
        return ast.parse(self.text, str(self.path))

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """Every node of the tree."""
        return tuple(ast.walk(self.tree))

    @property
    def lines(self) -> int:
        return len(self.text.splitlines())

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    @property
    def module(self) -> str:
        """The dotted name it is imported as."""
        parts = list(self.path.with_suffix("").parts)
        if parts[0] in LINKED:
            parts.insert(0, "flint")
        return ".".join(parts[:-1] if self.is_package else parts)

    @property
    def package(self) -> str:
        """Where its relative imports start."""
        return self.module if self.is_package else self.module.rpartition(".")[0]


def read_sources(root: Path, folders: Sequence[str]) -> list[Source]:
    """Every Python file below the folders, each once: links are not followed.

    ValueError: the root holds none of the folders.
    """
    found = [path for folder in folders for path in _python_files(root / folder)]
    if not found:
        raise ValueError(f"{root} has no Python files in {', '.join(folders)}")
    return [
        Source(PurePosixPath(path.relative_to(root).as_posix()), path.read_text(encoding="utf-8"))
        for path in sorted(found)
    ]


def _python_files(folder: Path) -> Iterator[Path]:
    for place, below, names in os.walk(folder):
        below[:] = [n for n in below if n not in _SKIPPED and not n.startswith(".")]
        paths = (Path(place, name) for name in names if name.endswith(".py"))
        yield from (path for path in paths if not path.is_symlink())


def function_lines(sources: Sequence[Source]) -> dict[str, int]:
    """Each `def`, methods and inner ones too, as `path:line name` -> lines from `def` to its end."""
    return {
        f"{source.path}:{node.lineno} {node.name}": (node.end_lineno or node.lineno)
        - node.lineno
        + 1
        for source in sources
        for node in source.nodes
        if isinstance(node, FunctionNode)
    }


def reused_classes(sources: Sequence[Source]) -> dict[str, list[str]]:
    """Class names, private ones too, that more than one module defines -> those modules."""
    found: dict[str, set[str]] = defaultdict(set)
    for source in sources:
        for node in source.nodes:
            if isinstance(node, ast.ClassDef):
                found[node.name].add(source.module)
    return {name: sorted(modules) for name, modules in found.items() if len(modules) > 1}


def bare_any(source: Source) -> int:
    """How many parameters, results and variables are annotated with `Any` and nothing more."""
    found = [
        node.annotation if isinstance(node, ast.arg | ast.AnnAssign) else node.returns
        for node in source.nodes
        if isinstance(node, ast.arg | ast.AnnAssign | FunctionNode)
    ]
    return sum(map(_is_any, found))


def _is_any(annotation: ast.expr | None) -> bool:
    simple = isinstance(annotation, ast.Name | ast.Attribute | ast.Constant)
    return simple and ast.unparse(annotation).strip("'\"") in ("Any", "typing.Any")


def circles(sources: Sequence[Source]) -> list[list[str]]:
    """Modules that import each other, over others too; imports inside of functions count.

    Not what only a type checker sees, nor the package `flint`, which finds its names lazily.
    """
    graph = networkx.DiGraph(
        (user, module)
        for module, users in importers(sources, while_checking_types=False).items()
        for user in users
        if module != "flint"
    )
    found = (sorted(group) for group in networkx.strongly_connected_components(graph))
    return sorted(group for group in found if len(group) > 1)


def importers(
    sources: Sequence[Source], *, while_checking_types: bool = True
) -> dict[str, set[str]]:
    """Module -> the modules that import it, anywhere in their text, functions included.

    `while_checking_types` counts imports under `if TYPE_CHECKING` too. `from package import name` imports the module `package.name` where there is one, and not the
    package, whose `__init__` usually says nothing.
    """
    found: dict[str, set[str]] = {source.module: set() for source in sources}
    for source in sources:
        for name in imported_names(source, while_checking_types=while_checking_types):
            module = name if name in found else name.rpartition(".")[0]
            if module in found and module != source.module:
                found[module].add(source.module)
    return found


def imported_names(source: Source, *, while_checking_types: bool = True) -> Iterator[str]:
    """Dotted names of what it imports: modules, and names in modules."""
    for node in _statements(source.tree, while_checking_types):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = absolute(node, source)
            yield from (f"{base}.{alias.name}" for alias in node.names)


def absolute(node: ast.ImportFrom, source: Source) -> str:
    """The module that a `from` statement names, without leading dots."""
    if not node.level:
        return node.module or ""
    parts = source.package.split(".")
    kept = parts[: len(parts) - node.level + 1]
    return ".".join([*kept, node.module] if node.module else kept)


def _statements(tree: ast.AST, while_checking_types: bool) -> Iterator[ast.AST]:
    """Every statement; those in the body of `if TYPE_CHECKING` only if they are asked for."""
    left = [tree]
    while left:
        node = left.pop()
        yield node
        names = {"body", "orelse", "finalbody", "handlers", "cases"}
        if isinstance(node, ast.If) and not while_checking_types and _checks_types(node):
            names = {"orelse"}
        left += [
            n
            for name in names
            if isinstance(found := getattr(node, name, None), list)
            for n in found
        ]


def _checks_types(node: ast.If) -> bool:
    return ast.unparse(node.test).rpartition(".")[2].lstrip("_") == "TYPE_CHECKING"
