"""Replacing attributes of PyTorch for as long as a program is recorded, and putting them back."""

from __future__ import annotations

import importlib
import inspect
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

from flint.frontends.torch_world.record.session import Session
from flint.frontends.torch_world.runtime.versions import failed_self_tests

#: What most patches replace: a function or method of PyTorch's, whatever it takes and returns.
Function = Callable[..., Any]
Make = Callable[[Session, Any], object]
_ABSENT = object()


@dataclass(frozen=True)
class Patch:
    """One attribute and what takes its place.

    `target` is `module:Owner.attribute`. `make(session, original)` returns the replacement.
    `parameters` are the names that the original's first parameters must have; `adds` says that the
    attribute need not exist. The docstring of `make` says why.
    """

    target: str
    make: Make
    parameters: tuple[str, ...] | None = None
    adds: bool = False

    def owner(self) -> tuple[Any, str]:
        module, _, path = self.target.partition(":")
        owner: Any = importlib.import_module(module)
        *parents, name = path.split(".")
        for parent in parents:
            owner = getattr(owner, parent)
        return owner, name

    def holds(self) -> bool:
        """The self-test: whether the attribute is what the patch was written for."""
        try:
            owner, name = self.owner()
        except (ImportError, AttributeError):
            return False
        found = inspect.getattr_static(owner, name, _ABSENT)
        if found is _ABSENT:
            return self.adds
        if self.parameters is None:
            return True
        try:
            given = tuple(inspect.signature(getattr(owner, name)).parameters)
        except (TypeError, ValueError):
            return False
        return given[: len(self.parameters)] == self.parameters


class Patches:
    """A list of patches, filled by a decorator."""

    def __init__(self) -> None:
        self.all: list[Patch] = []

    def replaces(
        self, *targets: str, parameters: tuple[str, ...] | None = None, adds: bool = False
    ) -> Callable[[Make], Make]:
        """Mark a function that makes the replacement of each target."""

        def register(make: Make) -> Make:
            self.all.extend(Patch(target, make, parameters, adds) for target in targets)
            return make

        return register


def check(patches: list[Patch]) -> None:
    """Run the self-tests. Raises FL234 with the names that failed."""
    failed = [patch.target.replace(":", ".") for patch in patches if not patch.holds()]
    if failed:
        raise failed_self_tests(failed)


@contextmanager
def installed(patches: list[Patch], session: Session) -> Iterator[None]:
    """Replace, run, and put back in the opposite order, whatever happens."""
    undo: list[tuple[Any, str, Any]] = []
    try:
        for patch in patches:
            owner, name = patch.owner()
            own = vars(owner).get(name, _ABSENT)
            undo.append((owner, name, own))
            setattr(owner, name, patch.make(session, getattr(owner, name, None)))
        yield
    finally:
        for owner, name, own in reversed(undo):
            if own is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, own)


# when the program imports a module -----------------------------------------------------------


@contextmanager
def after_import(module: str, action: Callable[[], None]) -> Iterator[None]:
    """Call `action` when `module` has been imported: at once, or later inside the `with`."""
    if module in sys.modules:
        action()
        yield
        return
    finder = _Finder(module, action)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _Finder(MetaPathFinder):
    def __init__(self, module: str, action: Callable[[], None]) -> None:
        self._module = module
        self._action = action

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._module:
            return None
        spec = PathFinder.find_spec(fullname, path)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._action)
        return spec


class _Loader(Loader):
    def __init__(self, loader: Loader, action: Callable[[], None]) -> None:
        self._loader = loader
        self._action = action

    def create_module(self, spec: ModuleSpec) -> types.ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        self._loader.exec_module(module)
        self._action()
