"""Launches of Triton kernels: an operator with the kernel's name, its tensors and its grid.

What a kernel calculates, nothing can see: `flint.cost_of("its_name")` says it. Without that the
kernel is unpriced, and the user is told of it with its place. Its bytes are those of the tensors
that it loads from and stores to, each once.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from flint.frontends.torch_world.packages.kernels import kernel
from flint.frontends.torch_world.packages.package import tell
from flint.passes.work.declared import KernelCall, declaration_of
from flint.passes.work.work import Work

# Which arguments of a Triton kernel its source writes to, and which it reads.

_STORES = ("store", "atomic_add", "atomic_max", "atomic_min", "atomic_xchg", "atomic_cas")
_LOADS = ("load", *_STORES[1:])


class Accesses(NamedTuple):
    """Names of parameters; None where the source does not tell."""

    read: frozenset[str] | None
    written: frozenset[str] | None


def accesses_of(function: Callable[..., Any]) -> Accesses:
    """What a kernel's loads and stores reach, through what pointers are calculated from."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError, IndentationError):
        return Accesses(None, None)
    definition = next((n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)), None)
    if definition is None:
        return Accesses(None, None)
    parameters = {a.arg for a in (*definition.args.args, *definition.args.kwonlyargs)}
    sources = _assigned(definition)
    read = _reached(definition, _LOADS, sources) & parameters
    written = _reached(definition, _STORES, sources) & parameters
    return Accesses(frozenset(read) or None, frozenset(written) or None)


def _assigned(definition: ast.FunctionDef) -> dict[str, set[str]]:
    """For each local name, the names that its values are calculated from."""
    found: dict[str, set[str]] = {}
    for node in ast.walk(definition):
        if isinstance(node, ast.Assign):
            targets: Iterable[ast.expr] = node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        else:
            continue
        if node.value is None or isinstance(node.value, ast.Call) and _called(node.value) == "load":
            continue  # what was loaded is not a pointer
        for target in targets:
            for name in _names(target):
                found.setdefault(name, set()).update(_names(node.value))
    return found


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def _names(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def _reached(
    definition: ast.FunctionDef, calls: Iterable[str], sources: dict[str, set[str]]
) -> set[str]:
    """Names that lead to the pointer of a load or store."""
    pending: list[str] = []
    for node in ast.walk(definition):
        if isinstance(node, ast.Call) and _called(node) in calls and node.args:
            pending += _names(node.args[0])
    found: set[str] = set()
    while pending:
        name = pending.pop()
        if name not in found:
            found.add(name)
            pending += sources.get(name, ())
    return found


__all__ = ["Autotuner", "Config", "Heuristics", "JITFunction", "autotune", "heuristics", "jit"]
#: Arguments of a launch that are not the kernel's.
_OPTIONS = frozenset(
    ("num_warps", "num_stages", "num_ctas", "maxnreg", "grid", "warmup", "stream", "device")
)
_PLAIN = (bool, int, float, str)
#: Operators of kernels that were launched, by name and overload.
_MADE: dict[str, Any] = {}


def _cost(name: str) -> Callable[[KernelCall], Work]:
    def cost(call: KernelCall) -> Work:
        declared = declaration_of(name)
        if declared is None:
            return Work(unpriced=True)
        given = json.loads(str(call.attributes["attributes"]))
        split = len(call.operands) - int(call.attributes["written"])
        return declared.work(name, KernelCall(call.operands[:split], call.operands[split:], given))

    return cost


def _operator(name: str, overwrites: bool) -> Any:
    """The operator of a kernel, made where it is launched first."""
    plain = re.sub(r"[^0-9A-Za-z_]", "_", name)
    base = f"{plain}.out" if overwrites else plain
    if base in _MADE:
        return _MADE[base]
    signature = "(Tensor[] reads, Tensor(a!)[] writes, int written, str attributes) -> ()"

    @kernel(f"triton::{base}", signature, _cost(name))
    def fake(reads: Any, writes: Any, written: int, attributes: str) -> None:
        """Nothing is known of what it writes."""

    _MADE[base] = fake
    return fake


class JITFunction:
    """A kernel: `kernel[grid](*arguments)` launches it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.fn = function
        self.__name__ = function.__name__
        self.__doc__, self.__module__ = function.__doc__, function.__module__
        self.signature = inspect.signature(function)
        self.arg_names = list(self.signature.parameters)
        self._accesses = accesses_of(function)

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return lambda *args, **kwargs: self.run(*args, grid=grid, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("Cannot call @triton.jit'd outside of the scope of a kernel")

    def bound(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments by name, with defaults."""
        known = {k: v for k, v in kwargs.items() if k in self.signature.parameters}
        found = self.signature.bind_partial(*args, **known)
        found.apply_defaults()
        return dict(found.arguments)

    def run(self, *args: Any, grid: Any = (1,), warmup: bool = False, **kwargs: Any) -> None:
        if warmup:
            return
        given = self.bound(args, kwargs)
        sizes = grid(given) if callable(grid) else grid
        sizes = [int(n) for n in (sizes if isinstance(sizes, tuple | list) else (sizes,))]
        tensors = {n: t for n, t in given.items() if isinstance(t, torch.Tensor)}
        read, written, overwrites = self._split(tensors)
        attributes = {n: v for n, v in given.items() if type(v) in _PLAIN}
        attributes |= {k: v for k, v in kwargs.items() if k in _OPTIONS and type(v) in _PLAIN}
        text = json.dumps({**attributes, "grid": sizes})
        if declaration_of(self.__name__) is None:
            self._tell()
        _operator(self.__name__, overwrites)(read, written, len(written), text)

    def _split(self, tensors: Mapping[str, Any]) -> tuple[list[Any], list[Any], bool]:
        """Tensors that are only read, those that are written (all, where nothing tells), and
        whether none of these is read."""
        reads, writes = self._accesses
        if writes is None or not writes & tensors.keys():
            return [], list(tensors.values()), False
        written = [t for n, t in tensors.items() if n in writes]
        others = {n: t for n, t in tensors.items() if n not in writes}
        read = [t for n, t in others.items() if reads is None or n in reads]
        overwrites = reads is not None and not reads & writes & tensors.keys()
        return list({id(t): t for t in read}.values()), written, overwrites

    def _tell(self) -> None:
        code = self.fn.__code__
        place = f"{code.co_filename.rpartition('/')[2]}:{code.co_firstlineno}"
        tell(
            f"Triton kernel {self.__name__} ({place}) has no cost, so its work is not counted; "
            f'declare it with @flint.cost_of("{self.__name__}")'
        )


def jit(fn: Any = None, **options: Any) -> Any:
    """`@triton.jit`, with options or without."""
    return JITFunction(fn) if fn is not None else JITFunction


class Config:
    """A choice of an autotuner."""

    def __init__(
        self,
        kwargs: Mapping[str, Any],
        num_warps: int = 4,
        num_stages: int = 3,
        num_ctas: int = 1,
        maxnreg: int | None = None,
        pre_hook: Any = None,
        ir_override: str | None = None,
    ) -> None:
        self.kwargs, self.num_warps, self.num_stages = dict(kwargs), num_warps, num_stages
        self.num_ctas, self.maxnreg = num_ctas, maxnreg
        self.pre_hook, self.ir_override = pre_hook, ir_override

    def all_kwargs(self) -> dict[str, Any]:
        """All that it says."""
        sizes = {"num_warps": self.num_warps, "num_stages": self.num_stages}
        chosen = {"num_ctas": self.num_ctas, "maxnreg": self.maxnreg}
        return {**self.kwargs, **sizes, **{k: v for k, v in chosen.items() if v not in (None, 1)}}


class _Wrapper:
    """A kernel whose launches get more arguments."""

    def __init__(self, fn: Any) -> None:
        self.fn, self.__name__ = fn, fn.__name__
        self.arg_names = fn.arg_names

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return lambda *args, **kwargs: self.run(*args, grid=grid, **kwargs)

    def bound(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments by name, with defaults."""
        found: dict[str, Any] = self.fn.bound(args, kwargs)
        return found

    def run(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError


class Autotuner(_Wrapper):
    """Takes the first of its choices: which is fastest, only the device knows.

    Libraries derive their own from it, and give all that Triton 3.5's takes.
    """

    def __init__(
        self,
        fn: Any,
        arg_names: Sequence[str],
        configs: Sequence[Config],
        key: Sequence[str],
        reset_to_zero: Sequence[str] | None,
        restore_value: Sequence[str] | None,
        pre_hook: Any = None,
        post_hook: Any = None,
        prune_configs_by: Mapping[str, Any] | None = None,
        warmup: int | None = None,
        rep: int | None = None,
        use_cuda_graph: bool = False,
        do_bench: Any = None,
        cache_results: bool = False,
    ) -> None:
        super().__init__(fn)
        self.arg_names, self.configs = list(arg_names), list(configs) or [Config({})]
        self.keys, self.cache_results = list(key or ()), cache_results
        self.reset_to_zero, self.restore_value = reset_to_zero or [], restore_value or []
        self.cache: dict[tuple[Any, ...], Config] = {}
        self.nargs: dict[str, Any] | None = None
        self.best_config = self.configs[0]
        self.base_fn = fn
        while hasattr(self.base_fn, "fn") and not isinstance(self.base_fn, JITFunction):
            self.base_fn = self.base_fn.fn

    def run(self, *args: Any, **kwargs: Any) -> None:
        """Record a launch with the first choice."""
        self.fn.run(*args, **{**kwargs, **self.best_config.all_kwargs()})

    def prune_configs(self, kwargs: Mapping[str, Any]) -> list[Config]:
        """The choices that would be tried."""
        return self.configs


class Heuristics(_Wrapper):
    """Calculates arguments from others."""

    def __init__(self, fn: Any, values: Mapping[str, Callable[[Any], Any]]) -> None:
        super().__init__(fn)
        self.values = values

    def run(self, *args: Any, **kwargs: Any) -> None:
        """Record a launch with these arguments."""
        given = {**self.bound(args, kwargs), **kwargs}
        found = {name: value(given) for name, value in self.values.items()}
        self.fn.run(*args, **{**kwargs, **found})


def autotune(
    configs: Sequence[Config],
    key: Sequence[str] = (),
    prune_configs_by: Mapping[str, Any] | None = None,
    reset_to_zero: Sequence[str] | None = None,
    restore_value: Sequence[str] | None = None,
    **options: Any,
) -> Callable[[Any], Autotuner]:
    """`@triton.autotune`."""

    def decorate(fn: Any) -> Autotuner:
        return Autotuner(
            fn, fn.arg_names, configs, key, reset_to_zero, restore_value,
            prune_configs_by=prune_configs_by, **options,
        )  # fmt: skip

    return decorate


def heuristics(values: Mapping[str, Callable[[Any], Any]]) -> Callable[[Any], Heuristics]:
    """`@triton.heuristics`."""
    return lambda fn: Heuristics(fn, values)
