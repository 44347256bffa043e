"""What stands in for a package: `Package`, and those that are registered (`flint.stand_ins`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any

from flint.plugins import STAND_INS, load, registered, usable

# What stand-ins have to tell the user while a program is recorded.

_TELL: list[Callable[[str], None]] = []


def tell(sentence: str) -> None:
    """Warn the user once, with a sentence."""
    for listener in _TELL[-1:]:
        listener(sentence)


def listen(listener: Callable[[str], None]) -> Callable[[], None]:
    """Let `listener` have the sentences; the result ends that."""
    _TELL.append(listener)

    def done() -> None:
        _TELL.remove(listener)

    return done


@dataclass(frozen=True)
class Package:
    """A package that is stood in for.

    `modules` maps its modules to modules of the Python package `source`, whose public names
    (`__all__`) they have; a key that ends in `.*` stands for all modules below. `imports` are modules
    that others import by themselves. `namespace` is that of its operators, `stack` the stack of
    software that a program runs on which calls them, if there is only one. Programs are recorded inside
    the context manager that `around` names ("module:function" of `source`), if it names any.
    """

    name: str
    version: str
    distribution: str
    source: str
    modules: Mapping[str, Sequence[str]]
    imports: Mapping[str, Sequence[str]] = field(default_factory=dict)
    namespace: str = ""
    stack: str = ""
    around: str = ""

    def behind(self, name: str) -> Sequence[str] | None:
        """Names of what stands behind a module; None if there is no such module."""
        found = self.modules.get(name)
        if found is None:
            above = [k for k in self.modules if k.endswith(".*") and name.startswith(k[:-1])]
            found = self.modules[max(above, key=len)] if above else None
        return found

    def names(self, name: str) -> dict[str, Any]:
        """The public names of a module, with what they are."""
        found: dict[str, Any] = {}
        for behind in self.behind(name) or ():
            module = import_module(f"{self.source}.{behind}")
            found |= {public: getattr(module, public) for public in module.__all__}
        return found

    def recording(self) -> Any:
        """The context manager of `around`; None without one."""
        if not self.around:
            return None
        module, _, function = self.around.partition(":")
        return getattr(import_module(f"{self.source}.{module}"), function)()


@cache
def packages() -> Mapping[str, Package]:
    """Packages by the name that a program imports: that of their entry point.

    What other packages register wrongly is omitted, with a warning, until a program imports it.
    """
    return usable(STAND_INS, registered(STAND_INS), _registered)


def package_of(name: str) -> Package | None:
    """The package that stands in for what a program imports as `name`, if any.

    Raises FlintError FL880 and FL882 for one that is registered wrongly.
    """
    found = packages().get(name)
    return _registered(name) if found is None and name in registered(STAND_INS) else found


def _registered(name: str) -> Package:
    found: Package = load(STAND_INS, name, Package)
    return found


def packages_at_work(operators: Iterable[str]) -> tuple[Package, ...]:
    """The packages that have operators of their own among these (`te.gemm.default`)."""
    used = {name.partition(".")[0] for name in operators}
    return tuple(p for p in packages().values() if p.namespace in used)
