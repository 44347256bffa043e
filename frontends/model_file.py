"""MODEL.py[:name] on the command line: import the file, find its entry, call it with the mesh."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

from flint.errors import FlintError, nearest
from flint.frontends.torch_weights import without_weights
from flint.frontends.user_code import axis_error
from flint.io.bounded import FileKind, read_bounded
from flint.io.user_places import user_place
from flint.ir.axis_types import AxisType
from flint.ir.mesh import Mesh
from flint.steps.entry import AnyStep, entry_mark
from flint.steps.options import options_of
from flint.steps.step import Step
from flint.text import plural

_HOW_TO_MARK = (
    'mark the function that returns a flint.Step with @flint.entry(axes=("data", "model")), '
    "name a function and its arguments: MODEL.py:train_step --args MODEL.py:abstract_args, or record "
    "a script with --world"
)


@dataclass(frozen=True)
class Target:
    """`FILE[:name]` taken apart."""

    path: Path
    name: str | None = None

    @classmethod
    def parse(cls, text: str) -> Target:
        """Split at the last colon that is followed by an identifier; `C:\\model.py` stays whole."""
        path, colon, name = text.rpartition(":")
        if colon and re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*", name) and not os.path.exists(text):
            return cls(Path(path), name)
        return cls(Path(text))

    def __str__(self) -> str:
        return f"{self.path.name}:{self.name}" if self.name else self.path.name


@dataclass(frozen=True)
class LoadedStep:
    """A step that a model file described for a mesh. `source` is the file's name, without path."""

    step: AnyStep
    mesh: Mesh
    name: str
    source: str


@contextlib.contextmanager
def importable(directory: Path) -> Iterator[None]:
    """Let modules beside a model file be imported, as `python model.py` would.

    At the end `sys.path` is as before, and modules that came from `directory` are forgotten, so
    that models in two directories may each have their own `config.py`. Flint itself and what is
    installed in an environment inside `directory` stay: a second copy would have other classes.
    """
    where = str(directory.resolve())
    known = set(sys.modules)
    sys.path.insert(0, where)
    try:
        yield
    finally:
        sys.path.remove(where)
        for name in set(sys.modules) - known:
            file = getattr(sys.modules[name], "__file__", None)
            if file and _is_own(name, Path(file), where):
                del sys.modules[name]


def _is_own(name: str, file: Path, where: str) -> bool:
    """Whether a module is of the models in `where`, and of no package that is installed there."""
    installed = name.partition(".")[0] == "flint" or file.is_relative_to(sys.prefix)
    return file.is_relative_to(where) and not installed and not name.startswith(_PREFIX)


def load_step(
    target: Target,
    mesh: str,
    *,
    args: Target | None = None,
    settings: Mapping[str, str] | None = None,
    offered: Mapping[str, str] | None = None,
) -> LoadedStep:
    """Import the model file and build its step for `mesh` (as `Mesh.parse` reads it).

    `args` names the arguments of a function that is not an entry; `settings` are the values of
    `--set`, converted to the types of the options that they name. `offered` are further values,
    which an entry that has options of these names gets (the batch of a pipeline follows from its
    number of microbatches). Run this, and whatever traces the step, inside
    `importable(target.path.parent)`.

    Raises FlintError FL203 (the file's own code raised), FL206 (no JAX), FL211 (which entry),
    FL212 (not an entry), FL214 (axes), FL215 (arguments), FL216 (settings), FL101 (mesh), FL301
    (cannot read), FL226 (a PyTorch tensor with gigabytes of memory behind it).
    """
    file = ModelFile.read(target)
    return file.step(mesh, args=args, settings=settings, offered=offered)


@dataclass(frozen=True)
class OptionTaker:
    """The function that gets the values of `--set`: an entry, or that of `--args`; None for objects.

    Its first `skip` parameters are no options. `axes` are those that an entry declares.
    """

    place: str
    function: Callable[..., Any] | None
    skip: int = 0
    axes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ModelFile:
    """A model file that was imported, for the steps of many meshes."""

    target: Target
    module: ModuleType

    @classmethod
    def read(cls, target: Target) -> ModelFile:
        """Import it. Raises FlintError FL301 (cannot read), FL203 (its code raised) and FL226."""
        with without_weights(target.path):
            _start_jax()
            return cls(target, import_file(target.path))

    def entry(self) -> tuple[str, Any]:
        """Name and value of the entry that is meant. Raises FlintError FL211 and FL212."""
        return _select_entry(self.module, self.target)

    def option_taker(self, args: Target | None = None) -> OptionTaker:
        """Who takes the options of `--set`, without a mesh.

        Raises FlintError FL211, FL212 and FL215 as `load_step` does.
        """
        if args is None:
            name, function = self.entry()
            place = f"{self.target.path.name}:{name}"
            if isinstance(function, AnyStep):
                return OptionTaker(place, None)
            _require_mesh_parameter(function, name, self.target.path.name)
            mark = entry_mark(function)
            return OptionTaker(place, function, 1, mark.axes if mark else ())
        _plain_function(self.module, self.target, args)
        value = _arguments_of(args, self.module, self.target)
        if callable(value) and not isinstance(value, Step):
            return OptionTaker(str(args), value, int(_takes_mesh(value)))
        return OptionTaker(str(args), None)

    def step(
        self,
        mesh: str,
        *,
        args: Target | None = None,
        settings: Mapping[str, str] | None = None,
        offered: Mapping[str, str] | None = None,
    ) -> LoadedStep:
        """Its step for a mesh; arguments and errors are those of `load_step`."""
        with without_weights(self.target.path):
            return _step_of(self, mesh, args, settings or {}, offered or {})


def _step_of(
    file: ModelFile,
    mesh: str,
    args: Target | None,
    settings: Mapping[str, str],
    offered: Mapping[str, str],
) -> LoadedStep:
    target, module, source = file.target, file.module, file.target.path.name
    step: AnyStep
    if args is not None:
        function_name, function = _plain_function(module, target, args)
        parsed = Mesh.parse(mesh)
        step = _step_with_args(function, args, module, target, parsed, settings)
    else:
        function_name, function = file.entry()
        if isinstance(function, AnyStep):
            return LoadedStep(function, Mesh.parse(mesh), function.name or function_name, source)
        _require_mesh_parameter(function, function_name, source)
        parsed = _mesh_for(function, mesh, f"{source}:{function_name}")
        settings = {**_known(function, offered), **settings}
        options = options_of(function, settings, place=f"{source}:{function_name}")
        step = _call(function, target.path, _abstract(parsed), **options)
        if not isinstance(step, AnyStep):
            raise FlintError(
                "FL212",
                f"entry '{function_name}' returned {type(step).__name__}, not a flint.Step",
                place=_place_of(function, source),
                help="return a flint.Step, TorchStep, WorldStep, Pipeline or Disaggregated",
            )
    return LoadedStep(step, parsed, step.name or function_name, source)


def _start_jax() -> None:
    """Let a model file call JAX as it is imported where the platforms that the user named are not.

    Only then: importing JAX takes a second, and files for PyTorch need none.
    """
    if not os.environ.get("JAX_PLATFORMS"):
        return
    from flint.frontends.jax_step.settings import start_backend

    with contextlib.suppress(ImportError):
        start_backend()


def import_file(path: Path) -> ModuleType:
    """Execute a Python file as a module with a name of its own and return it.

    Raises FlintError FL301 if it cannot be read and FL203 if it raises.
    """
    code = read_bounded(path, FileKind.MODEL, "FL301")
    name = next(n for n in (f"{_PREFIX}{path.stem}_{i}" for i in count()) if n not in sys.modules)
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    assert spec is not None, f"no loader for {path}"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up while they are made

    def execute() -> None:
        # Not spec.loader.exec_module: it would leave a __pycache__ beside the user's file.
        program = compile(code, str(path.resolve()), "exec", dont_inherit=True)
        exec(program, module.__dict__)  # noqa: S102

    try:
        _call(execute, path)
    except BaseException:
        del sys.modules[name]
        raise
    return module


_PREFIX = "_flint_model_"


def _select_entry(module: ModuleType, target: Target) -> tuple[str, Any]:
    if target.name is not None:
        found = _attribute(module, target)
        if entry_mark(found) is None and not isinstance(found, AnyStep):
            raise FlintError(
                "FL212",
                f"'{target.name}' in {target.path.name} is not an entry",
                place=_place_of(found, target.path.name),
                help=_HOW_TO_MARK.replace("MODEL.py", target.path.name),
            )
        return target.name, found
    entries = _entries(module)
    default = {n: v for n, v in entries.items() if _is_default(v)}
    if len(entries) == 1 or len(default) == 1:
        return next(iter((default or entries).items()))
    if not entries:
        raise FlintError(
            "FL211",
            f"{target.path.name} has no entry",
            help=_HOW_TO_MARK.replace("MODEL.py", target.path.name),
        )
    raise FlintError(
        "FL211",
        f"{target.path.name} has {len(entries)} entries: {', '.join(entries)}",
        help=f"name one: {target.path.name}:{next(iter(entries))}",
    )


def _known(function: Callable[..., Any], offered: Mapping[str, str]) -> dict[str, str]:
    names = inspect.signature(function).parameters
    return {n: text for n, text in offered.items() if n in names}


def _is_default(function: Any) -> bool:
    mark = entry_mark(function)
    return mark is not None and mark.default


def _entries(module: ModuleType) -> dict[str, Any]:
    """Marked functions, in the order of the file; imported ones count if it marks none itself."""
    marked = {n: v for n, v in vars(module).items() if entry_mark(v) is not None}
    own = {n: v for n, v in marked.items() if getattr(v, "__module__", "") == module.__name__}
    return own or marked


def _functions(module: ModuleType) -> dict[str, Any]:
    return {
        n: v
        for n, v in vars(module).items()
        if not n.startswith("_")
        and callable(v)
        and not inspect.isclass(v)
        and getattr(v, "__module__", "") == module.__name__
    }


def _attribute(module: ModuleType, target: Target) -> Any:
    assert target.name is not None, "a target without a name has no attribute"
    value: Any = module
    for part in target.name.split("."):
        if not hasattr(value, part):
            known = [n for n in vars(module) if not n.startswith("_")]
            known = list(_entries(module)) or list(_functions(module)) or known
            raise FlintError(
                "FL211",
                f"{target.path.name} has no '{target.name}'{nearest(target.name, known)}",
                help=f"it has {', '.join(known)}" if known else "it defines nothing",
            )
        value = getattr(value, part)
    return value


def _plain_function(module: ModuleType, target: Target, args: Target) -> tuple[str, Any]:
    if target.name is not None:
        found = _attribute(module, target)
        if not callable(found):
            raise FlintError("FL212", f"'{target.name}' in {target.path.name} is not a function")
        return target.name, found
    same_file = args.path.resolve() == target.path.resolve()
    found = {n: f for n, f in _functions(module).items() if not (same_file and n == args.name)}
    if len(found) == 1:
        return next(iter(found.items()))
    names = ", ".join(found) or "none"
    raise FlintError(
        "FL211",
        f"{target.path.name} does not say which function to trace (functions: {names})",
        help=f"name it: {target.path.name}:{next(iter(found), 'train_step')} --args {args}",
    )


def _step_with_args(
    function: Callable[..., Any],
    args: Target,
    module: ModuleType,
    target: Target,
    mesh: Mesh,
    settings: Mapping[str, str],
) -> Step:
    value = _arguments_of(args, module, target)
    if callable(value) and not isinstance(value, Step):
        positional = [_abstract(mesh)] if _takes_mesh(value) else []
        options = options_of(value, settings, place=str(args), skip=len(positional))
        value = _call(value, args.path, *positional, **options)
    elif settings:
        raise FlintError(
            "FL216", f"--set needs a function that takes its values, but {args} is an object"
        )
    return _as_step(function, value, str(args))


def _arguments_of(args: Target, module: ModuleType, target: Target) -> Any:
    """What `--args` names, in the model file or in another."""
    if args.name is None:
        raise FlintError(
            "FL215",
            f"--args {args} does not say which object holds the arguments",
            help=f"write --args {args.path.name}:name",
        )
    if args.path.resolve() != target.path.resolve():
        module = import_file(args.path)
    return _attribute(module, args)


def _takes_mesh(function: Callable[..., Any]) -> bool:
    parameters = inspect.signature(function).parameters.values()
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    first = next(iter(parameters), None)
    return first is not None and first.kind in positional and first.default is first.empty


def _as_step(function: Callable[..., Any], value: object, args_name: str) -> Step:
    """Read `(args)`, `(args, kwargs)` or a Step as the arguments of `function`."""
    if isinstance(value, Step):
        return replace(value, fn=function)
    if not isinstance(value, tuple | list):
        raise FlintError(
            "FL215",
            f"{args_name} is {type(value).__name__}, not the arguments of a function",
            help="give a tuple of arguments, (arguments, keywords), or a flint.Step",
        )
    fits_all = _binds(function, tuple(value), {})
    if len(value) == 2 and isinstance(value[0], tuple | list) and _is_keywords(value[1]):
        positional, keywords = tuple(value[0]), dict(value[1])
        if _binds(function, positional, keywords) or not fits_all:
            return Step(function, positional, keywords)
    if not fits_all:
        raise FlintError(
            "FL215",
            f"{args_name} holds {plural(len(value), 'argument')}, but the function is "
            f"{getattr(function, '__name__', 'function')}{inspect.signature(function)}",
        )
    return Step(function, tuple(value))


def _is_keywords(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(k, str) for k in value)


def _binds(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError:
        return False
    except ValueError:  # a builtin without a signature: only the call can tell
        return True
    return True


def _require_mesh_parameter(function: Callable[..., Any], name: str, source: str) -> None:
    try:
        inspect.signature(function).bind_partial(None)
    except TypeError:
        raise FlintError(
            "FL212",
            f"entry '{name}' takes no positional argument, but it is called with the mesh",
            place=_place_of(function, source),
            help=f"write def {name}(mesh, ...)",
        ) from None


def _mesh_for(function: object, text: str, entry_name: str) -> Mesh:
    """The mesh of an entry: unnamed sizes take the names of its axes, named axes must be there."""
    mark = entry_mark(function)
    axes = mark.axes if mark else ()
    mesh = Mesh.parse(text, names=axes or None)
    for axis in axes:
        if axis not in mesh.names:
            raise FlintError(
                "FL214",
                f"{entry_name} needs a mesh axis '{axis}', but the mesh is {mesh}",
                help="give --mesh " + ",".join(f"{a}={mesh.shape.get(a, 1)}" for a in axes),
            )
    types = dict(zip(axes, mark.axis_types if mark else (), strict=False))
    return replace(mesh, axis_types=tuple(types.get(n, AxisType.AUTO) for n in mesh.names))


def _abstract(mesh: Mesh) -> Any:
    from flint.frontends.jax_step.meshes import abstract_mesh

    return abstract_mesh(mesh)


def _call(function: Callable[..., Any], path: Path, *args: Any, **kwargs: Any) -> Any:
    """Call the user's code. What it raises becomes FlintError FL203 with the user's line."""
    try:
        return function(*args, **kwargs)
    except FlintError as error:
        error.place = error.place or user_place(error)
        raise
    except SyntaxError as error:
        name = Path(error.filename).name if error.filename else path.name
        place = f"{name}:{error.lineno}" if error.lineno else name
        raise FlintError("FL203", f"{type(error).__name__}: {error.msg}", place=place) from error
    except (Exception, SystemExit) as error:
        if found := axis_error(error, user_place(error) or path.name):
            raise found from error
        said = traceback.format_exception_only(error)[0].strip().split("\n")[0]
        raise FlintError(
            "FL203",
            f"{path.name} raised {said}",
            place=user_place(error) or path.name,
            help="-v prints the traceback",
        ) from error


def _place_of(value: object, source: str) -> str | None:
    code = getattr(inspect.unwrap(value) if callable(value) else value, "__code__", None)
    return f"{source}:{code.co_firstlineno}" if code is not None else None
