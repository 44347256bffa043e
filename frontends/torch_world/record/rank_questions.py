"""Which lines of a program may make the work of a rank depend on its number, by their text.

A rank that chooses a device, seeds, or decides who prints does not. What is made of it is followed
through variables, attributes and functions of the program by their names; whatever is not known to
be harmless is a question. Wrong answers in that direction cost time, and nothing else.
"""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from flint.frontends.torch_world.record.job import Job
from flint.frontends.torch_world.record.rank_words import (
    CALCULATES,
    DEVICE_ARGUMENTS,
    DRAWS,
    DRAWS_TENSORS,
    QUIET,
    RANK_NAME,
    READS_DRAWN,
    SAYS,
    SEEDS,
    TAKES_RANK,
    VARIABLES,
)
from flint.frontends.torch_world.record.recording import RankQuestion
from flint.io.user_places import is_users

_Function = ast.FunctionDef | ast.AsyncFunctionDef
#: Operators after which some ranks are like each other.
_CHOOSING = (ast.Mod, ast.FloorDiv, ast.BitAnd, ast.RShift)
_QUIET_STATEMENTS = (ast.Pass, ast.Import, ast.ImportFrom)
_EXPRESSIONS = (
    *(ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.JoinedStr, ast.FormattedValue),
    *(ast.Subscript, ast.Attribute, ast.Starred, ast.Tuple, ast.List, ast.IfExp),
)


def questions_of_program(job: Job) -> tuple[RankQuestion, ...]:
    """Questions in what the job runs and in all modules of the user that were imported, by place."""
    files = user_modules() | ({os.path.realpath(job.script)} if job.script else set())
    sources = {f: Path(f).read_text(errors="replace") for f in sorted(files) if os.path.isfile(f)}
    found = rank_questions(sources)
    if job.call is not None and not _has_source(job.call):
        return (RankQuestion(job.name), *found)
    return found


def user_modules() -> set[str]:
    """The files of all modules that were imported and are no library's."""
    loaded = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    files = {f for f in loaded if isinstance(f, str) and f.endswith(".py")}
    return {os.path.realpath(f) for f in files if is_users(os.path.dirname(f) + "/module.py")}


def _has_source(call: Callable[[], object]) -> bool:
    """Whether a function stands in a file: those of notebooks do not."""
    code = getattr(getattr(call, "function", call), "__code__", None)
    return code is not None and os.path.isfile(code.co_filename)


def rank_questions(sources: dict[str, str]) -> tuple[RankQuestion, ...]:
    """Questions in files, by name; what cannot be parsed did not run."""
    texts = []
    for name, source in sources.items():
        try:
            texts.append(_Text(os.path.basename(name), ast.parse(source)))
        except (SyntaxError, ValueError, RecursionError):
            continue
    shared = _Shared()
    for text in texts:
        text.define(shared)
    changes = -1
    while changes != shared.changes:
        changes = shared.changes
        found = {question for text in texts for question in text.questions(shared)}
    numbers = tuple(sorted(shared.numbers))
    return tuple(
        replace(q, numbers=numbers) for q in sorted(found, key=lambda q: (q.place, q.axis))
    )


@dataclass
class _Shared:
    """What is known of all files: names that hold or give a rank, and along which axis.

    A variable's name has its file before it. `is_seeded`: numbers are drawn by the rank. `functions` are those that the program defines once,
    by name, with the file they are in. `numbers` are those that ranks are held against.
    """

    axes: dict[str, str] = field(default_factory=dict)
    functions: dict[str, tuple[str, _Function] | None] = field(default_factory=dict)
    is_seeded: bool = False
    numbers: set[int] = field(default_factory=set)
    changes: int = 0

    def seed(self) -> None:
        """A generator is seeded with a rank: what is drawn on the host depends on it."""
        self.changes += not self.is_seeded
        self.is_seeded = True

    def add(self, name: str, axis: str) -> None:
        """`name` holds a rank along `axis`, "" for whatever axis."""
        known = self.axes.get(name)
        if known is None or known != axis != "" != known:
            self.axes[name] = axis if known is None else ""
            self.changes += 1
        elif known and not axis:
            self.axes[name] = ""
            self.changes += 1


class _Harmful(Exception):
    """What is made of a rank is not known to be harmless."""


@dataclass
class _Text:
    name: str
    tree: ast.Module

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        """The node around each node."""
        return {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    @cached_property
    def assigned(self) -> frozenset[str]:
        """Names of variables that the file assigns: what they hold is seen there."""
        names = (n for n in ast.walk(self.tree) if isinstance(n, ast.Name))
        return frozenset(n.id for n in names if isinstance(n.ctx, ast.Store))

    @cached_property
    def literals(self) -> dict[str, ast.expr]:
        """What the variables hold that the file assigns numbers, or lists of them."""
        kinds = (ast.Constant, ast.List, ast.Tuple, ast.Set, ast.Dict)
        assigned = (n for n in ast.walk(self.tree) if isinstance(n, ast.Assign))
        return {
            target.id: node.value
            for node in assigned
            for target in node.targets
            if isinstance(target, ast.Name) and isinstance(node.value, kinds)
        }

    def numbers_beside(self, node: ast.AST, rank: ast.AST) -> Iterator[int]:
        """Numbers, in figures or by name, that an expression holds a rank against.

        Of a list that a rank chooses from, the places at which what stands there changes.
        """
        if isinstance(node, ast.Subscript) and node.slice is rank:
            table = self.literals.get(ast.unparse(node.value), node.value)
            if isinstance(table, (ast.List, ast.Tuple)):
                said = [ast.unparse(entry) for entry in table.elts]
                yield from (i for i in range(1, len(said)) if said[i] != said[i - 1])
            elif isinstance(table, ast.Dict):
                yield from (n for key in table.keys if key for n in _numbers(key))
        elif isinstance(node, (ast.Compare, ast.Match)) or (
            isinstance(node, ast.BinOp) and isinstance(node.op, _CHOOSING)
        ):
            inside = node.cases if isinstance(node, ast.Match) else [node]
            for each in (n for one in inside for n in ast.walk(getattr(one, "pattern", one))):
                yield from _numbers(each)
                if isinstance(each, ast.Name) and each.id in self.literals:
                    yield from (n for e in ast.walk(self.literals[each.id]) for n in _numbers(e))

    def define(self, shared: _Shared) -> None:
        """Note the functions of the file, and classes under their constructors."""
        for node in ast.walk(self.tree):
            if isinstance(node, _Function) and node.name != "__init__":
                shared.functions[node.name] = (
                    None if node.name in shared.functions else (self.name, node)
                )
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                for named in node.names:
                    if named.asname and RANK_NAME.match(named.name):
                        shared.add(f"{named.asname}()", "")
            elif isinstance(node, ast.ClassDef):
                makes = [f for f in node.body if isinstance(f, _Function) and f.name == "__init__"]
                if makes and node.name not in shared.functions:
                    shared.functions[node.name] = (self.name, makes[0])

    def questions(self, shared: _Shared) -> Iterator[RankQuestion]:
        """Each place where a rank is asked for, unless what is made of it is harmless."""
        for node in ast.walk(self.tree):
            axis = self._axis_of_rank(node, shared)
            if axis is not None:
                try:
                    _Walk(self, shared, axis).follow(node)
                except _Harmful:
                    yield RankQuestion(f"{self.name}:{getattr(node, 'lineno', 0)}", axis)

    def _axis_of_rank(self, node: ast.AST, shared: _Shared) -> str | None:
        """The axis along which a node asks for a rank, "" if it is not told, None if it asks nothing."""
        if isinstance(node, ast.Constant):
            return "" if isinstance(node.value, str) and self._is_asked(node, node.value) else None
        if isinstance(node, ast.Call):
            name = _called(node)
            if shared.is_seeded and name not in shared.functions and _draws_number(node):
                return ""
            return _axis(node) if RANK_NAME.match(name) else shared.axes.get(f"{name}()")
        parent = self.parents.get(node)
        if isinstance(parent, ast.Call) and parent.func is node:
            return None
        if _is_environment(node) and _reads_all(parent):
            return ""
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            of_device = node.attr == "index" and ast.unparse(node.value).endswith("device")
            gives = of_device or RANK_NAME.match(node.attr)
            return shared.axes.get(f".{node.attr}", "" if gives else None)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            unseen = RANK_NAME.match(node.id) and node.id not in self.assigned
            return shared.axes.get(f"{self.name}:{node.id}", "" if unseen else None)
        return None

    def _is_asked(self, node: ast.Constant, value: str) -> bool:
        """Whether a text names a variable that says the rank, or an attribute that is asked for it.

        Programs write variables that they copied in small letters as well.
        """
        call = self.parents.get(node)
        called = _called(call) if isinstance(call, ast.Call) else ""
        is_key = called == "get" or (isinstance(call, ast.Subscript) and call.slice is node)
        if called == "getattr" and RANK_NAME.match(value):
            return True
        return value in VARIABLES or (is_key and value.upper() in VARIABLES)


@dataclass
class _Walk:
    """Follows one value that depends on a rank."""

    text: _Text
    shared: _Shared
    axis: str
    _is_choice: bool = False  #: of two values that need not be a rank

    def follow(self, node: ast.AST) -> None:
        """Go outwards from what holds a rank to what is done with it. Raises _Harmful."""
        parents = self.text.parents
        while True:
            parent = parents.get(node)
            if parent is not None:
                self.shared.numbers.update(self.text.numbers_beside(parent, node))
            name: str | None = None
            if isinstance(parent, ast.keyword):
                name = parent.arg
                node, parent = parent, parents[parent]
            if isinstance(parent, ast.Call) and node is not parent.func:
                if name == "seed" or _called(parent) in SEEDS:
                    self.shared.seed()
                if name in DEVICE_ARGUMENTS or self._hand_over(node, name, parent):
                    return
            elif isinstance(parent, ast.Compare) and isinstance(node, ast.Constant):
                return  # whether torchrun started the program is the same on all ranks
            elif isinstance(parent, ast.Subscript) and not isinstance(parent.ctx, ast.Load):
                return
            elif isinstance(parent, ast.Call):
                if _called(parent) in SAYS:
                    return
                if _called(parent) not in CALCULATES:
                    raise _Harmful
            elif not isinstance(parent, _EXPRESSIONS):
                self._end(parent)
                return
            elif isinstance(parent, (ast.BoolOp, ast.IfExp)):
                self._expect_quiet(ast.iter_child_nodes(parent), node)
                if isinstance(parent, ast.IfExp) and node is parent.test:
                    self._is_choice = True
            node = parent

    def _expect_quiet(self, nodes: Iterable[ast.AST], but: ast.AST) -> None:
        """What is calculated on some ranks only has to be quiet. Raises _Harmful."""
        if not all(n is but or _is_quiet_inside(n, self.shared) for n in nodes):
            raise _Harmful

    def _hand_over(self, node: ast.AST, name: str | None, call: ast.Call) -> bool:
        """Whether a call ends what is made of a rank; else its result holds one. Raises _Harmful."""
        called = _called(call)
        if called not in self.shared.functions:
            if called not in TAKES_RANK | SAYS | CALCULATES or (self._is_choice and called == "to"):
                raise _Harmful
            if called == "append" and isinstance(call.func, ast.Attribute):
                self._assign(call.func.value)
            return called not in CALCULATES
        defined = self.shared.functions[called]
        if defined is None:
            raise _Harmful
        file, function = defined
        names = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
        if names[:1] in (["self"], ["cls"]):
            names = names[1:]
        if name is None and node in call.args and call.args.index(node) < len(names):
            name = names[call.args.index(node)]
        if name is None or name not in {*names, *(a.arg for a in function.args.kwonlyargs)}:
            raise _Harmful
        self.shared.add(f"{file}:{name}", self.axis)
        return True

    def _end(self, statement: ast.AST | None) -> None:
        """What a statement does with a rank. Raises _Harmful."""
        if isinstance(statement, (ast.Assign, ast.AnnAssign, ast.NamedExpr)):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            for target in targets:
                self._assign(target)
        elif isinstance(statement, ast.Return):
            self.shared.add(f"{self._function_around(statement)}()", self.axis)
        elif isinstance(statement, (ast.If, ast.While)):
            skipped, inside = self._skipped(statement)
            if not all(
                _is_quiet(s, self.shared, inside)
                for s in (*statement.body, *statement.orelse, *skipped)
                if not isinstance(s, ast.Continue)
            ):
                raise _Harmful
            self._assign_chosen((*statement.body, *statement.orelse, *skipped))
        elif not isinstance(statement, (ast.Expr, ast.Assert)):
            raise _Harmful

    def _skipped(self, choice: ast.If | ast.While) -> tuple[Sequence[ast.stmt], tuple[str, ...]]:
        """What runs on other ranks only, as these return or go on to the next turn before it.

        With the function that it is in, if they return nothing from one. Raises _Harmful where a jump
        leaves more than the block that the choice stands in.
        """
        jumps = [
            s for s in (*choice.body, *choice.orelse) if isinstance(s, (ast.Return, ast.Continue))
        ]
        if not jumps:
            return (), ()
        around = self.text.parents[choice]
        block = getattr(around, "body", [])
        returns = [s for s in jumps if isinstance(s, ast.Return)]
        wanted = _Function if returns else (ast.For, ast.While)
        valued = [s for s in returns if not isinstance(s.value, (ast.Constant, type(None)))]
        if (
            not isinstance(around, wanted)
            or choice not in block
            or valued
            or len(returns) not in (0, len(jumps))
        ):
            raise _Harmful
        rest = block[block.index(choice) + 1 :]
        if isinstance(around, _Function) and any(
            isinstance(n, ast.Return) and n.value is not None for s in rest for n in ast.walk(s)
        ):
            self.shared.add(f"{around.name}()", self.axis)
        return rest, (around.name,) if isinstance(around, _Function) else ()

    def _assign_chosen(self, chosen: Sequence[ast.stmt]) -> None:
        """What only some ranks assign, or put into a list, depends on the rank. Raises _Harmful."""
        for node in (n for s in chosen for n in ast.walk(s)):
            if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.NamedExpr)):
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    self._assign(target)
            elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".append"):
                assert isinstance(node.func, ast.Attribute)
                self._assign(node.func.value)

    def _assign(self, target: ast.AST) -> None:
        if isinstance(target, ast.Name):
            self.shared.add(f"{self.text.name}:{target.id}", self.axis)
        elif isinstance(target, ast.Attribute):
            self.shared.add(f".{target.attr}", self.axis)
        elif isinstance(target, (ast.Tuple, ast.List)):
            for each in target.elts:
                self._assign(each)
        else:
            raise _Harmful

    def _function_around(self, node: ast.AST) -> str:
        around: ast.AST | None = node
        while around is not None and not isinstance(around, _Function):
            around = self.text.parents.get(around)
        if around is None:
            raise _Harmful
        return around.name


def _is_quiet(statement: ast.AST, shared: _Shared, inside: tuple[str, ...] = ()) -> bool:
    """Whether a statement does nothing but print, write files and calculate on the host.

    `inside` are the functions of the program that are looked at.
    """
    if isinstance(statement, _QUIET_STATEMENTS):
        return True
    if isinstance(statement, (ast.Expr, ast.Assign, ast.AugAssign, ast.Assert)):
        return _is_quiet_inside(statement, shared, inside)
    if isinstance(statement, ast.Return) and inside:
        return _is_quiet_inside(statement, shared, inside)
    if isinstance(statement, (ast.If, ast.For, ast.With)):
        blocks = (*statement.body, *getattr(statement, "orelse", ()))
        heads: list[ast.AST] = (
            [item.context_expr for item in statement.items]
            if isinstance(statement, ast.With)
            else [statement.test if isinstance(statement, ast.If) else statement.iter]
        )
        return all(_is_quiet(b, shared, inside) for b in blocks) and all(
            _is_quiet_inside(h, shared, inside) for h in heads
        )
    return False


def _is_quiet_inside(node: ast.AST, shared: _Shared, inside: tuple[str, ...] = ()) -> bool:
    calls = (n for n in ast.walk(node) if isinstance(n, ast.Call))
    return all(_is_quiet_call(call, shared, inside) for call in calls)


def _is_quiet_call(call: ast.Call, shared: _Shared, inside: tuple[str, ...] = ()) -> bool:
    """Whether a function is known to be quiet, or the program defines it and it is."""
    name = _called(call)
    if name not in shared.functions:
        return name in QUIET
    defined = shared.functions[name]
    if defined is None or name in inside:
        return False
    return all(_is_quiet(s, shared, (*inside, name)) for s in defined[1].body)


def _is_environment(node: ast.AST) -> bool:
    """`os.environ`, or `environ` as it was imported."""
    named = ("os.environ", "environ")
    return isinstance(node, (ast.Attribute, ast.Name)) and ast.unparse(node) in named


def _reads_all(parent: ast.AST | None) -> bool:
    """Whether what is done with the environment is to copy it, or to go through it."""
    if isinstance(parent, ast.Attribute):
        return parent.attr in ("items", "values", "copy")
    if isinstance(parent, ast.Call):
        return _called(parent) == "dict"
    return isinstance(parent, (ast.comprehension, ast.Dict, ast.keyword))


def _numbers(node: ast.AST) -> Iterator[int]:
    """The number that a constant is, of environment variables in a text."""
    if isinstance(node, ast.Constant) and re.fullmatch("[1-9][0-9]*", str(node.value)):
        yield int(str(node.value))


def _called(call: ast.Call) -> str:
    """The last part of the name of a function that is called."""
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _draws_number(call: ast.Call) -> bool:
    """Whether a call draws a number on the host, or reads one that PyTorch drew."""
    name = _called(call)
    if name in READS_DRAWN:
        inside = (n for n in ast.walk(call) if isinstance(n, ast.Call) and n is not call)
        return any(_called(n) in DRAWS | DRAWS_TENSORS for n in inside)
    return name in DRAWS and not ast.unparse(call.func).startswith(("torch.", "jax."))


def _axis(node: ast.AST) -> str:
    """The dimension in `mesh["data"].get_local_rank()` and `get_local_rank("data")`."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return ""
    named = [*node.args, *(k.value for k in node.keywords)]
    if isinstance(node.func.value, ast.Subscript):
        named.append(node.func.value.slice)
    words = [n.value for n in named if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    return words[0] if len(words) == 1 else ""
