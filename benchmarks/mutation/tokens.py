"""All one-token mutants of a file: what could be mistyped and would still be Python."""

from __future__ import annotations

import ast
import bisect
import hashlib
import io
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

_ARITHMETIC = {"+": "-", "-": "+", "*": "//", "//": "*", "/": "*", "%": "//"}
_COMPARISONS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
_JUNCTIONS = {"and": "or", "or": "and"}
_OPERATORS = {**_ARITHMETIC, **_COMPARISONS, **_JUNCTIONS}
_ENDS = {"0": "-1", "-1": "0"}
_EXTREMES = {"min": "max", "max": "min"}
#: Decorators and calls whose options change speed, printing or checks, and no result.
_HARMLESS = ("dataclass", "lru_cache", "cache", "warn")
#: Keywords of the same kind: `zip(..., strict=True)` raises for what must not happen.
_HARMLESS_KEYWORDS = ("strict", "stacklevel", "frozen", "covariant", "contravariant")
#: To these methods of numpy -2 says what -1 says, and 0 or 1 fit no array that they are given.
_RESHAPES = ("reshape",)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Mutant:
    """One token of a file replaced. Columns count characters from 0, lines from 1."""

    path: str
    line: int
    column: int
    old: str
    new: str
    before: str  #: the line as it is, without its indentation
    key: str  #: stays when other lines of the file change, or its folder
    function: str  #: the innermost function it is in, as `.Class.method`; "" outside of functions

    @property
    def after(self) -> str:
        """The line as it becomes, without its indentation."""
        return self.before[: self.column] + self.new + self.before[self.column + len(self.old) :]

    def applied(self, text: str) -> str:
        """The file's text with the token replaced."""
        lines = text.split("\n")
        lines[self.line - 1] = lines[self.line - 1].replace(self.before, self.after)
        return "\n".join(lines)


def mutants(path: str, text: str) -> list[Mutant]:
    """Every mutant of a file, in the order of its text."""
    lines = text.split("\n")
    seen: Counter[str] = Counter()
    found = []
    for line, column, old, new, name, function in sorted(_Finder(text).find(ast.parse(text))):
        stripped = lines[line - 1].strip()
        indent = len(lines[line - 1]) - len(lines[line - 1].lstrip())
        place = f"{PurePosixPath(path).name} {name} {column - indent} {old} {new} {stripped}"
        seen[place] += 1
        key = hashlib.sha256(f"{place} {seen[place]}".encode()).hexdigest()[:16]
        found.append(Mutant(path, line, column - indent, old, new, stripped, key, function))
    return found


#: Line, column, token before, token after, the innermost function or class and function it is in.
_Change = tuple[int, int, str, str, str, str]


class _Finder:
    """Walks a tree with the tokens beside it, since a tree does not say where operators stand."""

    def __init__(self, text: str) -> None:
        self._lines = text.split("\n")
        self._tokens = [
            token
            for token in tokenize.generate_tokens(io.StringIO(text).readline)
            if token.type in (tokenize.OP, tokenize.NAME, tokenize.NUMBER)
        ]
        self._starts = [token.start for token in self._tokens]

    def find(self, node: ast.AST, name: str = "", function: str = "") -> Iterator[_Change]:
        outer = function
        if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            name = f"{name}.{node.name}"
        if isinstance(node, _FUNCTIONS):
            function = name
        yield from ((*change, name, function) for change in self._of_node(node))
        decorators = getattr(node, "decorator_list", ())  # they run where the function is defined
        for child in _children(node):
            yield from self.find(child, name, outer if child in decorators else function)

    def _of_node(self, node: ast.AST) -> Iterator[tuple[int, int, str, str]]:
        if isinstance(node, ast.BinOp):
            if not _is_text(node.left) and not _is_text(node.right):
                yield from self._between(node.left, node.right)
        elif isinstance(node, ast.AugAssign):
            if not _is_text(node.value):
                yield from self._augmented(node)
        elif isinstance(node, ast.Compare):
            for left, right in zip([node.left, *node.comparators], node.comparators, strict=False):
                yield from self._between(left, right)
        elif isinstance(node, ast.BoolOp):
            for left, right in zip(node.values, node.values[1:], strict=False):
                yield from self._between(left, right)
        elif isinstance(node, ast.UnaryOp):
            yield from self._unary(node)
        elif isinstance(node, ast.Constant):
            yield from self._constant(node)
        elif isinstance(node, ast.Subscript):
            yield from self._subscript(node)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            name = node.func.id
            if name in _EXTREMES:
                yield (*self._start(node.func), name, _EXTREMES[name])

    def _between(self, left: ast.expr, right: ast.expr) -> Iterator[tuple[int, int, str, str]]:
        """The operator between two operands: there may be brackets around it too."""
        for token in self._tokens_between(left, right):
            if token.string in _OPERATORS:
                yield (*token.start, token.string, _OPERATORS[token.string])

    def _augmented(self, node: ast.AugAssign) -> Iterator[tuple[int, int, str, str]]:
        for token in self._tokens_between(node.target, node.value):
            operator = token.string.removesuffix("=")
            if operator in _ARITHMETIC:
                yield (*token.start, token.string, f"{_ARITHMETIC[operator]}=")

    def _tokens_between(self, left: ast.expr, right: ast.expr) -> list[tokenize.TokenInfo]:
        start = bisect.bisect_left(self._starts, self._end(left))
        return self._tokens[start : bisect.bisect_left(self._starts, self._start(right))]

    def _unary(self, node: ast.UnaryOp) -> Iterator[tuple[int, int, str, str]]:
        if isinstance(node.op, ast.Not):
            line, column = self._start(node)
            word = self._lines[line - 1][column : column + 4]
            yield line, column, word if word == "not " else "not", ""
        elif isinstance(node.op, ast.USub):
            yield (*self._start(node), "-", "")

    def _constant(self, node: ast.Constant) -> Iterator[tuple[int, int, str, str]]:
        """Truth turned; an integer one more, and one less if it stays 0 or more."""
        line, column = self._start(node)
        if isinstance(node.value, bool):
            yield line, column, str(node.value), str(not node.value)
        elif isinstance(node.value, int):
            end = self._end(node)[1]
            old = self._lines[line - 1][column:end]
            yield line, column, old, str(node.value + 1)
            if node.value:
                yield line, column, old, str(node.value - 1)

    def _subscript(self, node: ast.Subscript) -> Iterator[tuple[int, int, str, str]]:
        """The first instead of the last, and the last instead of the first."""
        text = ast.unparse(node.slice)
        if text in _ENDS:
            yield (*self._start(node.slice), text, _ENDS[text])

    def _start(self, node: ast.expr) -> tuple[int, int]:
        return node.lineno, self._characters(node.lineno, node.col_offset)

    def _end(self, node: ast.expr) -> tuple[int, int]:
        line = node.end_lineno or node.lineno
        return line, self._characters(line, node.end_col_offset or 0)

    def _characters(self, line: int, offset: int) -> int:
        """Trees count bytes of UTF-8, tokens count characters."""
        return len(self._lines[line - 1].encode()[:offset].decode())


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """What is below a node and may be mutated: no annotations, no messages, no assertions."""
    if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr) or _is_error(node):
        return
    skipped = [getattr(node, name, None) for name in ("annotation", "returns")]
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        skipped += node.body
    if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
        skipped += [d for d in node.decorator_list if _name(d) in _HARMLESS]
    if isinstance(node, ast.Subscript) and ast.unparse(node.slice) in _ENDS:
        skipped.append(node.slice)
    if isinstance(node, ast.Call):
        skipped += [k for k in node.keywords if k.arg in _HARMLESS_KEYWORDS]
        if _name(node) in _RESHAPES:
            skipped += [a for a in node.args if ast.unparse(a) == "-1"]
    yield from (child for child in ast.iter_child_nodes(node) if child not in skipped)


def _is_error(node: ast.AST) -> bool:
    """A call that makes an error or a warning: `FlintError(...)`, `_error(...)`, `warn(...)`."""
    return isinstance(node, ast.Call) and _name(node).lower().endswith(("error", "warn"))


def _name(node: ast.expr) -> str:
    """The last part of the name that is called or stands there."""
    if isinstance(node, ast.Call):
        node = node.func
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _is_text(node: ast.expr) -> bool:
    """A string, or strings joined: `%` and `+` make text of them."""
    if isinstance(node, ast.BinOp):
        return _is_text(node.left) or _is_text(node.right)
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    )
