"""Which module of the program runs: paths, and which forward operator a backward one belongs to."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import nn


_WRAPPERS = ("_checkpoint_wrapped_module", "_orig_mod", "_fsdp_wrapped_module")


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
        """Path of the innermost module that runs, "" outside of all."""
        return self.stack[-1] if self.stack else ""

    def adopted(self, parent: nn.Module, name: str, child: nn.Module | None) -> None:
        """A module became part of another one; its first parent names it."""
        if child is not None and child not in self._parents:
            self._parents[child] = weakref.ref(parent)

    def enter(self, module: nn.Module) -> None:
        """A module starts to run."""
        path = self._paths.get(module)
        if path is None:
            path = self._learn(module)
        self.stack.append(path)

    def leave(self) -> None:
        """The innermost module is over, or was left by an exception."""
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

    def _outermost(self) -> list[nn.Module]:
        """Models that are not part of another one, the largest first."""
        inner = {id(part) for root in self.roots for part in root.modules() if part is not root}
        outer = [root for root in self.roots if id(root) not in inner]
        return sorted(outer, key=lambda root: -sum(1 for _ in root.modules()))
