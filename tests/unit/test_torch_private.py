"""Private names of PyTorch stand in one module, and those that are gone are one error."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from flint.errors import FlintError
from flint.frontends import torch_private

ROOT = Path(torch_private.__file__).resolve().parents[1]
FILES = [
    path
    for folder in ("frontends", "passes", "backends", "flint")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if path.name != "torch_private.py" and not path.is_relative_to(ROOT / "flint" / "frontends")
]
#: Private names of Python that have nothing to do with PyTorch.
PYTHON = {"_exit", "_getframe"}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def own_names(tree: ast.AST) -> Iterator[str]:
    """What a module defines: its functions, classes and attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self":
            yield from [node.attr] * isinstance(node.ctx, ast.Store)


def is_operator(node: ast.Attribute) -> bool:
    """`aten._to_copy` and `torch.ops...`: the vocabulary of graphs."""
    text = ast.unparse(node.value)
    return text in ("aten", "_aten") or text.startswith("torch.ops.")


def touched(path: Path) -> list[str]:
    """Private names that are no operators, and that no module of Flint's frontends defines."""
    tree = ast.parse(path.read_text())
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch"):
            parts = [*(node.module or "").split("."), *(a.name for a in node.names)]
            found += [ast.unparse(node)] * any(map(is_private, parts))
        elif isinstance(node, ast.Import):
            names = [a.name for a in node.names if a.name.startswith("torch.")]
            found += [n for n in names if any(map(is_private, n.split(".")))]
        elif isinstance(node, ast.Attribute) and is_private(node.attr):
            known = node.attr in OWN | PYTHON or is_operator(node)
            found += [] if known else [ast.unparse(node)]
    return found


USERS = [path for path in FILES if "torch" in path.read_text() and "frontends" in path.parts]
OWN = {name for path in USERS for name in own_names(ast.parse(path.read_text()))} | {"_flint_moved"}


def test_no_other_module_touches_private_names() -> None:
    assert len(USERS) > 60
    assert {str(p.relative_to(ROOT)): found for p in USERS if (found := touched(p))} == {}


def test_every_name_is_there() -> None:
    torch_private.check(recording=True)
    for name in ("trace_forward_and_backward", "descriptors", "pipeline_modes", "backward_shapes"):
        assert getattr(torch_private, name)() is not None


@pytest.mark.parametrize("recording", [False, True])
def test_names_that_are_gone_are_one_error(
    recording: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_private, "_MISSING", [])
    assert torch_private._find("torch._C:_no_such_name") is None
    torch_private._attribute("_no_such_field", "torch:Tensor")
    torch_private._field("_nothing", "torch.nn:Module")
    with pytest.raises(FlintError) as caught:
        torch_private.check(recording)
    assert caught.value.code == "FL234"
    for name in (
        "torch._C._no_such_name",
        "torch.Tensor._no_such_field",
        "torch.nn.Module._nothing",
    ):
        assert name in caught.value.message
    assert ("recorded" in caught.value.message) is recording


def test_a_name_that_is_asked_for_later_is_the_same_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_private, "_MISSING", [])
    with pytest.raises(FlintError, match="torch.no_such_module.name"):
        torch_private._later("torch.no_such_module:name")()
