"""Where an operator comes from: the module of the program, the forward operator that a backward one belongs to, and the line of the user's code."""

from __future__ import annotations

import os
import sys
import sysconfig
import types
import weakref
from typing import TYPE_CHECKING, Any

import torch

import flint
from flint.io.user_places import library_file

if TYPE_CHECKING:
    from torch import nn

_WRAPPERS = ("_checkpoint_wrapped_module", "_orig_mod", "_fsdp_wrapped_module")
_LIBRARY = os.path.realpath(sysconfig.get_paths()["stdlib"]) + os.sep
_SITE = tuple(
    os.path.realpath(sysconfig.get_paths()[key]) + os.sep for key in ("purelib", "platlib")
)
#: Decorators, whose frames lie between a function and its caller.
_DECORATORS = ("typing_extensions.py", "decorator.py", "wrapt/wrappers.py")
_TORCH = os.path.dirname(os.path.realpath(torch.__file__)) + os.sep
#: Flint's own folders; in a checkout, three of them lie beside the package.
_OWN = (
    os.path.dirname(os.path.realpath(flint.__file__)) + os.sep,
    *(
        os.path.realpath(os.path.join(root, part)) + os.sep
        for root in flint.__path__
        for part in ("cli", "frontends", "passes", "backends")
    ),
)


def clean_path(path: str, drop_module: bool = False) -> str:
    """A module's path without the parts that wrappers add."""
    parts = [part for part in path.split(".") if part not in _WRAPPERS]
    if drop_module and parts and parts[0] == "module":
        parts = parts[1:]
    return ".".join(parts)


class ModulePaths:
    """The stack of running modules and their paths from the outermost module of each model."""

    def __init__(self) -> None:
        self.stack: list[str] = []
        self.roots: list[nn.Module] = []
        self._parents: weakref.WeakKeyDictionary[nn.Module, weakref.ref[nn.Module]] = (
            weakref.WeakKeyDictionary()
        )
        self._paths: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()

    @property
    def current(self) -> str:
        """Path of the innermost module that runs, "" outside all."""
        return self.stack[-1] if self.stack else ""

    def adopted(self, parent: nn.Module, name: str, child: nn.Module | None) -> None:
        """A module became part of another one; its first parent names it."""
        if child is not None and child not in self._parents:
            self._parents[child] = weakref.ref(parent)

    def enter(self, module: nn.Module) -> None:
        path = self._paths.get(module)
        if path is None:
            path = self._learn(module)
        self.stack.append(path)

    def leave(self) -> None:
        self.stack.pop()

    def _learn(self, module: nn.Module) -> str:
        root = self._root_of(module)
        wraps = type(root).__name__ in ("DistributedDataParallel", "DataParallel")
        holds = next(root.parameters(), None) is not None
        if holds and all(known is not root for known in self.roots):
            self.roots.append(root)
        for path, part in root.named_modules():
            if part not in self._paths or part is module:
                self._paths[part] = clean_path(path, wraps)
        if not holds:
            self._paths[root] = type(root).__name__
        if module not in self._paths:
            self._paths[module] = type(module).__name__
        return self._paths[module]

    def _root_of(self, module: nn.Module) -> nn.Module:
        while (reference := self._parents.get(module)) is not None:
            parent = reference()
            if parent is None or all(child is not module for child in parent.children()):
                return module
            module = parent
        return module

    def are_on_device(self, *modules: object) -> bool:
        """Whether modules are of one model, that has parameters, and all on the device."""
        roots = {self._root_of(m) for m in modules if isinstance(m, torch.nn.Module)}
        devices = {p.device.type for root in roots for p in root.parameters()}
        return len(roots) == 1 and bool(devices) and not devices & {"cpu", "meta"}

    def named_parameters(self) -> dict[int, tuple[str, nn.Parameter]]:
        """`id(parameter)` to its path and itself, over all models; a tied one has its first."""
        found: dict[int, tuple[str, nn.Parameter]] = {}
        for root in self._outermost():
            wraps = type(root).__name__ in ("DistributedDataParallel", "DataParallel")
            for name, parameter in root.named_parameters():
                found.setdefault(id(parameter), (clean_path(name, wraps), parameter))
        return found

    def named_buffers(self) -> dict[str, torch.Tensor]:
        """Buffers by path, over all models."""
        found: dict[str, torch.Tensor] = {}
        for root in self._outermost():
            wraps = type(root).__name__ in ("DistributedDataParallel", "DataParallel")
            for name, buffer in root.named_buffers():
                found.setdefault(clean_path(name, wraps), buffer)
        return found

    def buckets(self) -> list[torch.Tensor]:
        """The memory of DDP for sums of gradients, which it keeps."""
        reducers: list[Any] = [m.reducer for m in self._outermost() if hasattr(m, "reducer")]
        return [b.buffer for r in reducers if not r.as_views for b in r.buckets]

    def _outermost(self) -> list[nn.Module]:
        """Models that are not part of another one, the largest first."""
        inner = {id(part) for root in self.roots for part in root.modules() if part is not root}
        outer = [root for root in self.roots if id(root) not in inner]
        return sorted(outer, key=lambda root: -sum(1 for _ in root.modules()))


class Places:
    """`file.py:line` of the innermost frame that is neither PyTorch's, Python's nor Flint's.

    Model libraries count as the user's code: their lines say more than the call of the model. Their
    files are named from the package on, as `transformers/trainer.py`.
    """

    def __init__(self) -> None:
        self._files: dict[types.CodeType, str] = {}

    def current(self) -> str:
        """The place of what runs now, "" if no frame is the user's."""
        frame: types.FrameType | None = sys._getframe(1)
        files = self._files
        while frame is not None:
            code = frame.f_code
            file = files.get(code)
            if file is None:
                file = files[code] = _user_file(code.co_filename)
            if file:
                return f"{file}:{frame.f_lineno}"
            frame = frame.f_back
        return ""


def _user_file(filename: str) -> str:
    if filename.startswith("<"):
        return ""
    path = os.path.realpath(filename)
    if path.startswith((_TORCH, *_OWN)):
        return ""
    if path.startswith(_LIBRARY) and not path.startswith(_SITE):
        return ""
    inside = library_file(path)
    return "" if inside in _DECORATORS else inside or os.path.basename(path)
