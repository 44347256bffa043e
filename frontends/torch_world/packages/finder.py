"""Lets a recorded program import packages that are not installed here.

A package is found only where nothing else finds it, and only by the program: PyTorch's own optional
imports (Triton) stay as they are without. Names of a module are those of Flint's modules behind it.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import torch

from flint.frontends.torch_world.packages.flex import flex_replaced
from flint.frontends.torch_world.packages.package import Package, listen, package_of, packages
from flint.plugins import STAND_INS, left_out

#: Names of packages that are not stood in for, with commas between, or `all`.
WITHOUT = "FLINT_WITHOUT"
_TORCH = os.path.dirname(os.path.realpath(torch.__file__)) + os.sep
_IMPORTERS = ("importlib", os.path.realpath(__file__))


@contextmanager
def packages_found(told: Callable[[str], None]) -> Iterator[None]:
    """Inside, a program finds stand-ins; at the end `told` gets a sentence on those it imported."""
    finder = _Finder()
    done = listen(told)
    sys.meta_path.append(finder)
    importlib.invalidate_caches()
    try:
        with ExitStack() as stack:
            stack.enter_context(flex_replaced())
            for name, package in packages().items():
                with left_out(STAND_INS, name, "be recorded around a program"):
                    if (recording := package.recording()) is not None:
                        stack.enter_context(recording)
            yield
    finally:
        sys.meta_path.remove(finder)
        done()
        if finder.imported:
            told(_sentence(finder.imported))
        for name in finder.made:
            sys.modules.pop(name, None)


class _Finder(MetaPathFinder):
    """The last finder: what is installed was found before."""

    def __init__(self) -> None:
        self._packages = packages()  # before it is asked for distributions, of which these are some
        self.imported: list[Package] = []
        self._left_out = set(os.environ.get(WITHOUT, "").replace(" ", "").split(","))
        self.made: list[str] = []

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        name = fullname.partition(".")[0]
        if self._leaves_out(name) or _asked_by_torch():
            return None
        package = package_of(name)
        if package is None:
            return None
        if package.behind(fullname) is None:
            return None
        return ModuleSpec(fullname, _Loader(self, package), is_package=True)

    def find_distributions(self, context: Any = None) -> Iterable[importlib.metadata.Distribution]:
        """What `importlib.metadata` says of the packages: of one by its name, or of all."""
        name = getattr(context, "name", None)
        wanted = name.lower().replace("-", "_") if name else None
        for package in self._packages.values():
            known = (package.name, package.distribution.replace("-", "_"))
            if (wanted is None or wanted in known) and not self._leaves_out(package.name):
                yield _Distribution(package)

    def _leaves_out(self, name: str) -> bool:
        return bool({"all", name} & self._left_out)

    def tell(self, package: Package, name: str) -> None:
        """A module was imported; of its package the user hears at the end."""
        self.made.append(name)
        if name == package.name:
            self.imported.append(package)


def _sentence(packages: Sequence[Package]) -> str:
    names = sorted(f"{p.name} {p.version}" for p in packages)
    return (
        f"not installed here, so Flint's stand-ins were recorded: {', '.join(names)} "
        f"({WITHOUT}=NAME,... makes some of them unavailable)"
    )


class _Loader(Loader):
    def __init__(self, finder: _Finder, package: Package) -> None:
        self._finder, self._package = finder, package

    def create_module(self, spec: ModuleSpec) -> types.ModuleType | None:
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        """Fill a module with what stands behind it."""
        name = module.__name__
        module.__path__ = []
        module.__file__ = f"{name.replace('.', '/')}.py"
        if name == self._package.name:
            vars(module)["__version__"] = self._package.version
        vars(module).update(self._package.names(name))
        self._finder.tell(self._package, name)
        for inner in self._package.imports.get(name, ()):
            importlib.import_module(f"{name}.{inner}")


class _Distribution(importlib.metadata.Distribution):
    def __init__(self, package: Package) -> None:
        self._package = package

    def read_text(self, filename: str) -> str | None:
        """The name, the version and the module."""
        package = self._package
        if filename == "METADATA":
            return f"Name: {package.distribution}\nVersion: {package.version}\n"
        return f"{package.name}\n" if filename == "top_level.txt" else None

    def locate_file(self, path: Any) -> Path:
        """There are none."""
        return Path(path)


def _asked_by_torch() -> bool:
    """Whether PyTorch itself imports: it goes without these packages on the CPU."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        ours = os.path.realpath(file) == _IMPORTERS[1] if file.endswith("finder.py") else False
        if not ours and _IMPORTERS[0] not in file:
            return os.path.realpath(file).startswith(_TORCH)
        frame = frame.f_back
    return False
