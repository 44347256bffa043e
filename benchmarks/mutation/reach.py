"""Which tests enter which functions, so that a mutant meets only tests that can notice it.

Measured in a copy of the checkout where every function first says that it is entered, to a file
beside flint's modules: processes that tests start say it too. Kept for each test file as long as
neither the test nor the product changes.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.mutation.tokens import Mutant
from benchmarks.sources import FunctionNode, Source

#: Where the functions of a marked copy say that they are entered.
REACHED = "flint/reached.txt"
_MODULE = '''"""What functions call first."""

import os

_FILE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "reached.txt")
_seen = set()


def enter(place):
    if place not in _seen:
        _seen.add(place)
        try:
            descriptor = os.open(_FILE, os.O_WRONLY | os.O_APPEND)
            os.write(descriptor, (place + "\\n").encode())
            os.close(descriptor)
        except OSError:  # a test that leaves no room for files
            _seen.discard(place)
'''


class Reach:
    """What is known: test file -> the functions that it enters, as `path:.Class.method`."""

    def __init__(self, path: Path, product: str) -> None:
        """Read what was measured for the same product, which is a digest of all its files."""
        self._path, self._product = path, product
        self._places: dict[str, tuple[str, frozenset[str]]] = {}
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        if not lines or json.loads(lines[0]) != product:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(product) + "\n", encoding="utf-8")
        for line in lines[1:] if lines and json.loads(lines[0]) == product else ():
            test, digest, places = json.loads(line)
            self._places[test] = digest, frozenset(places)

    def missing(self, digests: Mapping[str, str]) -> list[str]:
        """The test files of these that were not measured, or have changed since."""
        return [t for t, digest in digests.items() if self._places.get(t, ("",))[0] != digest]

    def add(self, test: str, digest: str, places: Sequence[str]) -> None:
        """Write down what a test file enters."""
        self._places[test] = digest, frozenset(places)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps([test, digest, sorted(set(places))]) + "\n")

    def reaches(self, test: str, mutant: Mutant) -> bool:
        """Whether a test can notice a mutant: outside of functions, every test may."""
        if not mutant.function or test not in self._places:
            return True
        return f"{mutant.path}:{mutant.function}" in self._places[test][1]


def mark_copy(copy: Path, product: Sequence[Source]) -> None:
    """Let every function of a copy say that it is entered."""
    for source in product:
        (copy / source.path).write_text(marked(source), encoding="utf-8")
    (copy / "flint" / "reached.py").write_text(_MODULE, encoding="utf-8")
    (copy / REACHED).touch()


def marked(source: Source) -> str:
    """The text of a file in which every function first calls `enter`."""
    lines = source.text.split("\n")
    begins = [(first, name) for name, node in _functions(source.tree) if (first := _first(node))]
    for first, name in sorted(begins, key=lambda each: -each[0].lineno):
        call = f"__import__('flint.reached', fromlist=['*']).enter({f'{source.path}:{name}'!r})"
        line = lines[first.lineno - 1]
        start = len(line.encode()[: first.col_offset].decode())
        if line[:start].strip():  # on the line of its `def`
            lines[first.lineno - 1] = f"{line[:start]}{call}; {line[start:]}"
        else:
            decorators = getattr(first, "decorator_list", None) or [first]
            lines.insert(min(d.lineno for d in decorators) - 1, line[:start] + call)
    return "\n".join(lines)


def _functions(node: ast.AST, outer: str = "") -> Iterator[tuple[str, FunctionNode]]:
    """Functions with their names, as mutants have them."""
    for child in ast.iter_child_nodes(node):
        name = outer
        if isinstance(child, FunctionNode | ast.ClassDef):
            name = f"{outer}.{child.name}"
        if isinstance(child, FunctionNode):
            yield name, child
        yield from _functions(child, name)


def _first(node: FunctionNode) -> ast.stmt | None:
    """The first statement that is no docstring."""
    rest = node.body[1:] if ast.get_docstring(node) is not None else node.body
    return rest[0] if rest else None
