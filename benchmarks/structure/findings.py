"""Counts behind the findings: reused names, bare `Any`, private names, opcode strings."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.structure.sources import Source, absolute

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
_LIBRARIES = ("torch", "jax", "jaxlib")
_DOTTED = re.compile(r"(torch|jax|jaxlib)[.][\w.:]+")
#: Names of the standard library that are private by form only.
_STANDARD = {"_asdict", "_exit", "_fields", "_getframe", "_replace", "_value2member_map_"}
_OPCODE = re.compile(r"(stablehlo|hlo|aten|sdy|chlo|fusion)[.]")


def functions(source: Source) -> Iterator[FunctionNode]:
    """Every `def`, methods and inner functions included."""
    return (node for node in ast.walk(source.tree) if isinstance(node, FunctionNode))


def function_lines(source: Source) -> list[int]:
    """Lines of each function, from its `def` to its end: docstring yes, decorators no."""
    return [(node.end_lineno or node.lineno) - node.lineno + 1 for node in functions(source)]


def reused_classes(sources: Sequence[Source]) -> dict[str, list[str]]:
    """Class names that more than one module defines -> those modules."""
    found: dict[str, set[str]] = defaultdict(set)
    for source in sources:
        for node in ast.walk(source.tree):
            if isinstance(node, ast.ClassDef):
                found[node.name].add(source.module)
    return {name: sorted(modules) for name, modules in found.items() if len(modules) > 1}


def reused_files(sources: Sequence[Source]) -> dict[str, list[str]]:
    """File names that more than one folder has -> those folders."""
    found: dict[str, list[str]] = defaultdict(list)
    for source in sources:
        if not source.path.name.startswith("__"):
            found[source.path.name].append(str(source.path.parent))
    return {name: folders for name, folders in found.items() if len(folders) > 1}


def bare_any(source: Source) -> tuple[int, int]:
    """How many are bare `Any`, and how many there are: parameters, results and variables."""
    found = [ast.unparse(node).strip("'\"") for node in annotation_nodes(source.tree)]
    return sum(text in ("Any", "typing.Any") for text in found), len(found)


def annotation_nodes(tree: ast.Module) -> Iterator[ast.expr]:
    """The expressions that are annotations."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation is not None:
            yield node.annotation
        elif isinstance(node, FunctionNode) and node.returns is not None:
            yield node.returns


@dataclass(frozen=True)
class Private:
    """How often a module touches private names of torch, jax and jaxlib."""

    reached: int  #: imported, or an attribute of what is imported
    named: int  #: in a dotted string, as the targets of patches are
    likely: int  #: attributes of other values that no module of Flint defines

    def __bool__(self) -> bool:
        return bool(self.reached or self.named or self.likely)


def private_names(source: Source, own: set[str]) -> Private:
    """What a module touches; `own` are the private names that Flint's modules define.

    Without types a value of torch is only known by what it is not: `likely` counts `value._name`
    where `_name` is neither in `own` nor of the standard library, and `value` is not just `self`.
    """
    imported = set(_bound_names(source))
    reached = sum(map(_private, _library_imports(source)))
    likely = 0
    for root, *attributes in _chains(source.tree):
        private = set(filter(_private, attributes))
        if root in imported:
            reached += bool(private)
        elif root not in ("self", "cls") or len(attributes) > 1:
            likely += bool(private) and not private & (own | _STANDARD)
    named = sum(bool(_DOTTED.fullmatch(text)) and _private(text) for text in _strings(source.tree))
    return Private(reached, named, likely)


def own_private_names(sources: Sequence[Source]) -> set[str]:
    """Private names that some module defines: functions, classes, fields and variables."""
    found: set[str] = set()
    for source in sources:
        for node in ast.walk(source.tree):
            if isinstance(node, FunctionNode | ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                found.add(node.attr)
    return {name for name in found if _private(name)}


def _private(dotted: str) -> bool:
    """Whether a part of the name is private; `__dunder__` names are not."""
    parts = re.split("[.:]", dotted)
    return any(part.startswith("_") and not part.endswith("__") for part in parts)


def _library_imports(source: Source) -> Iterator[str]:
    """Names of torch and jax that are imported: `torch._C`, `jax._src.core.Literal`."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{absolute(node, source)}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (name for name in names if _of_library(name))


def _of_library(dotted: str) -> bool:
    return dotted.split(".")[0] in _LIBRARIES


def _bound_names(source: Source) -> Iterator[str]:
    """The names that those imports bind."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if _of_library(alias.name):
                    yield alias.asname or alias.name.split(".")[0]
        elif isinstance(node, ast.ImportFrom) and _of_library(absolute(node, source)):
            yield from (alias.asname or alias.name for alias in node.names)


def _chains(tree: ast.Module) -> Iterator[list[str]]:
    """Attribute accesses as lists, each chain once: `a.b._c` is [a, b, _c]; calls are ()."""
    inner = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and id(node) not in inner:
            parts: list[str] = []
            value: ast.expr = node
            while isinstance(value, ast.Attribute):
                parts.append(value.attr)
                value = value.value
            root = value.id if isinstance(value, ast.Name) else "()"
            yield [root, *reversed(parts)]


@dataclass(frozen=True)
class Opcodes:
    """How often a module takes opcodes for strings."""

    literals: int  #: strings that begin with a dialect: "stablehlo.dot", f"aten.{name}"
    tables: int  #: uses of `.opcodes`, the table of all opcodes of a program

    def __bool__(self) -> bool:
        return bool(self.literals or self.tables)


def opcode_strings(source: Source) -> Opcodes:
    """What a module does; docstrings do not count."""
    literals = sum(bool(_OPCODE.match(text)) for text in _strings(source.tree))
    tables = sum(
        isinstance(node, ast.Attribute) and node.attr == "opcodes" for node in ast.walk(source.tree)
    )
    return Opcodes(literals, tables)


def _strings(tree: ast.Module) -> Iterator[str]:
    """String constants that are not statements of their own, as docstrings are."""
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in alone:
            if isinstance(node.value, bytes):
                yield node.value.decode("latin-1")
            elif isinstance(node.value, str):
                yield node.value


def per_folder(sources: Sequence[Source]) -> Counter[str]:
    """Folder -> Python files directly in it, `__init__.py` included."""
    return Counter(str(source.path.parent) for source in sources)
