"""Whether a captured model is a script that is recorded, and what its command line adds."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from flint.errors import FlintError
from flint.frontends.launch_command import is_launch, launch_of
from flint.frontends.script_kind import imports_flint, script_file
from flint.frontends.user_program import NOTEBOOK, source_of
from flint.requests.capture import CaptureRequest
from flint.requests.option import OnlyFor

#: Calls at the top of a file that only set something up, by their last names.
_SETTINGS = frozenset(
    [
        *("update", "insert", "append", "setdefault", "register", "enable", "disable", "config"),
        *("filterwarnings", "simplefilter", "basicConfig", "setLevel", "load_dotenv"),
        *("manual_seed", "seed", "set_float32_matmul_precision"),
    ]
)


def script_chosen(o: CaptureRequest) -> tuple[CaptureRequest, str]:
    """`flint.capturing.decided` for what no mark of an entry is seen in."""
    if is_launch(o.model):
        launch = launch_of(o.model, o.script_arguments)
        mesh = o.mesh or (str(launch.processes) if launch.processes else None)
        taken, said = _recorded(o, launch.program, "the command starts it")
        return taken.but(mesh=mesh), "" if o.world else said
    path = Path(o.model)
    file = script_file(path)
    if o.world or file is None:
        return o, ""
    if file != path:
        return _recorded(o, o.model, "it is a module")
    if path.suffix == NOTEBOOK:
        return _recorded(o, path.name, "it is a notebook")
    try:
        tree = ast.parse(source_of(path))
    except (SyntaxError, ValueError, RecursionError):
        return o, ""  # whoever imports it says what is wrong with it
    if imports_flint(path):  # modules of its own may mark an entry
        return o, ""
    line, options = next(_running(tree.body), 0), o.options()
    if line or any(options[n].only_for is OnlyFor.SCRIPTS for n in o.given() if n != "chip"):
        why = f"line {line} runs where Python starts it" if line else "of its options"
        return _recorded(o, path.name, why)
    raise _unclear(path, tree, o.mesh or "8")


def _recorded(o: CaptureRequest, name: str, why: str) -> tuple[CaptureRequest, str]:
    return o.but(world=True), f"{name} was recorded as a script, as with --world: {why}"


def _running(body: list[ast.stmt]) -> Iterator[int]:
    """Lines of statements that run something: loops, `if __name__ ...`, and calls that set nothing."""
    for node in body:
        if isinstance(node, ast.If):
            guards = any(
                isinstance(n, ast.Name) and n.id == "__name__" for n in ast.walk(node.test)
            )
            if guards or next(_running([*node.body, *node.orelse]), 0):
                yield node.lineno
        elif isinstance(node, ast.Try):
            yield from _running(node.body)
        elif isinstance(node, ast.For | ast.While | ast.With):
            yield node.lineno
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            called = ast.unparse(node.value.func).rpartition(".")[2]
            yield from () if called in _SETTINGS else (node.lineno,)


def _unclear(path: Path, tree: ast.Module, mesh: str) -> FlintError:
    """FL211: the one question, with both commands."""
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    function = next(iter([*(f for f in functions if "step" in f), *functions]), "train_step")
    return FlintError(
        "FL211",
        f"{path.name} has no entry and runs nothing by itself: is it a step or a script?",
        help=f"a step: flint capture {path}:{function} --args {path}:ARGUMENTS --mesh {mesh}; "
        f"a script: flint capture {path} --mesh {mesh} --world",
    )
