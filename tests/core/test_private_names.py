"""Private names of PyTorch and JAX are touched in one module of Flint each."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import flint

ROOT = Path(flint.__file__).resolve().parents[1]
LINKS = [ROOT / "flint" / folder for folder in ("frontends", "passes", "backends")]
#: The modules that may.
ONES = ("frontends/torch_private.py", "passes/jax_private.py")
FILES = [
    path
    for folder in ("frontends", "passes", "backends", "flint")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if not any(map(path.is_relative_to, LINKS)) and str(path.relative_to(ROOT)) not in ONES
]
LIBRARIES = ("torch", "jax", "jaxlib")
#: Private names of Python that have nothing to do with PyTorch or JAX.
PYTHON = {"_asdict", "_exit", "_getframe", "_replace", "_run_exitfuncs"}
#: Modules that are no interface, although their names are not private.
INSIDE = {"jaxlib.xla_client"}
#: What is said of JAX's inside in a string: a module's name.
IN_STRING = re.compile(r"(jax|jaxlib)[.][\w.:]+")


def is_private(name: str) -> bool:
    """Whether a part of a dotted name is private."""
    parts = re.split("[.:]", name)
    return any(p.startswith("_") and not p.startswith("__") for p in parts) or name in INSIDE


def is_of(name: str) -> bool:
    return name.split(".")[0] in LIBRARIES


def own_names(tree: ast.AST) -> Iterator[str]:
    """What a module defines: its functions, classes and attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield from [node.attr] * (ast.unparse(node.value) == "self")


def is_operator(node: ast.Attribute) -> bool:
    """`aten._to_copy` and `torch.ops...`: the vocabulary of graphs."""
    text = ast.unparse(node.value)
    return text in ("aten", "_aten") or text.startswith("torch.ops.")


def touched(tree: ast.AST, own: set[str]) -> list[str]:
    """Private names that are no operators, and not in `own`."""
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and is_of(node.module or ""):
            names = [node.module or "", *(f"{node.module}.{a.name}" for a in node.names)]
            found += [ast.unparse(node)] * any(map(is_private, names))
        elif isinstance(node, ast.Import):
            found += [a.name for a in node.names if is_of(a.name) and is_private(a.name)]
        elif isinstance(node, ast.Attribute) and is_private(node.attr):
            known = node.attr in own | PYTHON or is_operator(node)
            found += [] if known else [ast.unparse(node)]
        elif isinstance(node, ast.keyword) and is_private(node.arg or ""):
            found += [] if node.arg in own else [f"{node.arg}="]
        elif isinstance(node, ast.Constant) and IN_STRING.fullmatch(str(node.value)):
            found += [repr(node.value)] * is_private(node.value)
    return found


def room_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0]


def test_no_other_module_touches_private_names() -> None:
    texts = {path: path.read_text() for path in FILES}
    trees = {p: ast.parse(t) for p, t in texts.items() if any(name in t for name in LIBRARIES)}
    assert len(trees) > 120
    own = {room_of(path): {"_flint_moved"} for path in trees}  # what a room's modules define
    for path, tree in trees.items():
        own[room_of(path)].update(own_names(tree))
    found = {str(p.relative_to(ROOT)): touched(t, own[room_of(p)]) for p, t in trees.items()}
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "text",
    [
        "from torch._C import x",
        "from jax._src import core",
        "from jaxlib import xla_client",
        "from jaxlib import _jax",
        "import jaxlib._hlo",
        "from jaxlib.mlir._mlir_libs import _jax_mlir_ext",
        "struct._sharding",
        "traced.lower(_private_parameters=1)",
        "find('jax._src.core')",
    ],
)
def test_the_check_above_sees(text: str) -> None:
    assert len(touched(ast.parse(text), set())) == 1


@pytest.mark.parametrize(
    "text",
    [
        "from jaxlib.mlir import ir",
        "import torch",
        "torch.ops.aten._to_copy",
        "row._replace(a=1)",
        "part._own",
        "'the names of jax._src are private'",
    ],
)
def test_the_check_above_lets_through(text: str) -> None:
    assert touched(ast.parse(text), {"_own"}) == []
